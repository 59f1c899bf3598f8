"""The emulation held to the device: every case's outputs on the CPU against those on the GPU.

Of each case the device gave one output (its own gate says so); the CPU runs it under every order of
threads, and each of these runs is one comparison. Bytes are compared first; where they differ in a
f32 output, its values at the stage's bound.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from qsa_bench import baseline, judge
from qsa_bench.builder import Builder
from qsa_bench.compare import coordinates
from qsa_bench.errors import BuildError
from qsa_bench.model import Evidence, Status, Verdict
from qsa_bench.parity import PLAIN, Limits, Seen, StageBuilds, Workload, build_stage
from qsa_bench.runner import HOST, observe
from qsa_bench.stages.base import Case, Outputs

Array = npt.NDArray[Any]
CHECK = "emulation"
# What the evidence counts, by the names that a report reads.
COMPARISONS, EQUAL, ENDINGS = "comparisons", "equal", "endings"
# Nothing differs. The margin of one wrong bit is infinite: its bound is none.
_SAME = Evidence(error=0.0, bound=1.0)


def compare(
    device: Workload,
    device_builds: StageBuilds,
    device_seen: Seen,
    builder: Builder,
    root: Path,
    seeds: int,
    jobs: int,
) -> list[Verdict]:
    """Run the cases of a gated device workload on the host and compare; a verdict a case.

    Evidence counts the runs outside bits and bound in `count` of `total`; its numbers say how many
    outputs were compared, how many of them are equal bit for bit, and how many runs ended without
    an output (both trap, both refuse). BuildError where the kernels do not build for the host.
    """
    stage = device.stage
    builds = build_stage(builder, stage.kernels, HOST, root, (PLAIN,))
    if builds.failure is not None:
        raise BuildError(f"building {stage.name} for the host:\n{builds.failure.log.strip()}")
    with Workload(stage, [c for c in device.cases if HOST in c.targets], HOST, seeds) as host:
        seen = baseline.gate_in_parallel(host, builds, jobs)
        sides = (host, builds), (device, device_builds)
        return [
            _verdict(case, *sides, seen.digests.get(case.id, ()), device_seen.digests[case.id])
            for case in host.cases
            if case.id in device_seen.digests
        ]


Side = tuple[Workload, StageBuilds]


def _verdict(
    case: Case, host: Side, device: Side, here: Sequence[str], there: Sequence[str]
) -> Verdict:
    """Compare a case's endings on the host, one an order of threads, with the device's first."""
    if not here or not there:
        where = "device" if here else "host"
        status, evidence = Status.NOT_RUN, Evidence(note=f"no run of it ended on the {where}")
    else:
        outputs = [ending for ending in here if _is_output(ending)]
        numbers = {
            COMPARISONS: float(len(outputs)),
            EQUAL: float(outputs.count(there[0])),
            ENDINGS: float(len(here) - len(outputs)),
        }
        evidence = _SAME
        if set(here) != {there[0]}:
            evidence = _measured(case, host, device, here, there[0])
        evidence = replace(evidence, total=len(here), unit="runs", numbers=numbers)
        status = Status.WRONG if evidence.count else Status.PASS
    workload, builds = device
    return Verdict(
        builds.digest,
        workload.stage.name,
        case.id,
        case.family,
        CHECK,
        status,
        evidence,
        max(len(here), 1),
    )


def _is_output(ending: str) -> bool:
    return not ending.startswith("status ")


def _measured(case: Case, host: Side, device: Side, here: Sequence[str], there: str) -> Evidence:
    """Run a case whose endings differ once more on both sides and say by how much they do."""
    wants, gots = _outputs(case, *host), _outputs(case, *device)
    wrong, worst = 0, _SAME
    for ending in here:
        if ending == there:
            continue
        if ending in wants and there in gots:
            found = distance(wants[ending], gots[there], device[0].stage.float_bound)
        else:
            note = f"the host ended with {ending}, the device with {there}"
            found = Evidence(1, 1, "runs", error=1.0, bound=0.0, note=note)
        wrong += bool(found.count)
        if (found.margin or 0.0) > (worst.margin or 0.0):
            worst = found
    return replace(worst, count=wrong)


def _outputs(case: Case, workload: Workload, builds: StageBuilds) -> dict[str, Outputs]:
    """Return the outputs of a case by digest."""
    jobs = workload.jobs(PLAIN, Limits(), [case], judged=False)
    with tempfile.TemporaryDirectory(prefix="qsa-bench-outputs-") as scratch:
        (seen,) = observe(
            workload.target,
            builds.libraries(PLAIN),
            jobs,
            Path(scratch),
            children=workload.children,
        )
        digests = dict.fromkeys(run.digest for run in seen.runs if run.digest)
        return {
            digest: judge.outputs_of(workload.program(case), Path(scratch), jobs[0].key, digest)
            for digest in digests
        }


def distance(want: Outputs, got: Outputs, bound: float | None) -> Evidence:
    """Return how far outputs lie from those wanted: elements outside, the worst error, its bound.

    f32 outputs may lie `bound` away, absolute plus relative, and a NaN is a NaN whatever its
    payload; without a bound, and in any other type, each bit counts.
    """
    count, worst = 0, _SAME
    for name, left in want.items():
        floats = bound is not None and left.dtype == np.float32
        found = (
            _floats(name, left, got[name], bound or 0.0) if floats else _bits(name, left, got[name])
        )
        count += found.count
        if (found.margin or 0.0) > (worst.margin or 0.0):
            worst = found
    return replace(worst, count=count)


def _raw(array: Array) -> Array:
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(np.uint8).reshape(flat.size, flat.itemsize)


def _bits(name: str, want: Array, got: Array) -> Evidence:
    differing = np.flatnonzero((_raw(want) != _raw(got)).any(axis=1))
    if not differing.size:
        return _SAME
    first = int(differing[0])
    return _at(name, want, got, first, int(differing.size), 1.0, 0.0)


def _floats(name: str, want: Array, got: Array, bound: float) -> Evidence:
    left = want.reshape(-1).astype(np.float64)
    right = got.reshape(-1).astype(np.float64)
    same = (_raw(want) == _raw(got)).all(axis=1) | (np.isnan(left) & np.isnan(right))
    with np.errstate(invalid="ignore"):
        error = np.where(same, 0.0, np.abs(right - left))
        allowed = bound + bound * np.abs(left)
        margin = np.where(same, 0.0, error / allowed)
    # An infinity or a NaN on one side alone.
    margin = np.where(np.isnan(margin), np.inf, margin)
    if not margin.size or not margin.max() > 0:
        return _SAME
    worst = int(np.argmax(margin))
    outside = int((margin > 1).sum())
    if not np.isfinite(margin[worst]):
        return _at(name, want, got, worst, outside, 1.0, 0.0)
    return _at(name, want, got, worst, outside, float(error[worst]), float(allowed[worst]))


def _at(
    name: str, want: Array, got: Array, index: int, count: int, error: float, bound: float
) -> Evidence:
    place = f"{name}{coordinates(want.shape, index)}"
    left, right = want.reshape(-1)[index], got.reshape(-1)[index]
    return Evidence(
        count,
        first=place,
        want=f"{left:.9g}",
        got=f"{right:.9g}",
        error=error,
        bound=bound,
        where=place,
    )
