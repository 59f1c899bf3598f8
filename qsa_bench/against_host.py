"""The emulation held to the device: every case's outputs on the CPU against those on the GPU.

Of each case the device gave one output (its own gate says so); the CPU runs it under every order of
threads, and each of these runs is one comparison. Bytes are compared first; where they differ, the
values that the case's judge holds at a bound may lie two of these apart.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from qsa_bench import baseline, returned
from qsa_bench.builder import Builder
from qsa_bench.compare import bitwise, bounded, watch
from qsa_bench.errors import BuildError
from qsa_bench.model import Evidence, Status, Verdict
from qsa_bench.parity import PLAIN, Limits, Seen, StageBuilds, Workload, build_stage
from qsa_bench.program import Program
from qsa_bench.runner import HOST, observe
from qsa_bench.stages.base import Case, Outputs

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
        # The host's own gate judges its outputs; here they are only compared.
        seen = baseline.gate_in_parallel(host, builds, jobs, judged=False)
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
            found = distance(case, host[0].program(case), wants[ending], gots[there])
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
            digest: returned.read(workload.program(case), Path(scratch), jobs[0].key, digest)
            for digest in digests
        }


def distance(case: Case, program: Program, want: Outputs, got: Outputs) -> Evidence:
    """Return how far outputs lie from those wanted: values outside, the worst error, its bound.

    The case's judge says what is held at which bound, and must pass both. Either output may lie a
    bound away from the oracle, so the two may lie two bounds apart. Where the judge holds nothing at
    a bound each bit counts.
    """
    with watch() as left:
        here = list(case.judge(program, want))
    with watch() as right:
        there = list(case.judge(program, got))
    for side, found in (("host", here), ("device", there)):
        failed = next((finding for finding in found if finding.status is not Status.PASS), None)
        if failed is not None:
            note = f"{failed.check} fails on the {side}: {failed.evidence.note}"
            return replace(_as_bound(failed.evidence), note=note)
    if not left or [held.name for held in left] != [held.name for held in right]:
        return _worst(
            bitwise(CHECK, name, array, got[name]).evidence for name, array in want.items()
        )
    return _worst(
        bounded(CHECK, one.name, one.got, other.got, 2.0 * one.bound, one.unit).evidence
        for one, other in zip(left, right, strict=True)
    )


def _worst(found: Iterable[Evidence]) -> Evidence:
    """Return the evidence of the largest margin, with the count of all."""
    worst = _SAME
    count = 0
    for each in found:
        count += each.count
        told = _as_bound(each) if each.count else each
        if (told.margin or 0.0) > (worst.margin or 0.0):
            worst = told
    return replace(worst, count=count)


def _as_bound(wrong: Evidence) -> Evidence:
    """Return the evidence of something wrong with a margin: what no bound holds has none to spare."""
    count = max(wrong.count, 1)
    if (wrong.margin or 0.0) > 1:
        return replace(wrong, count=count)
    return replace(wrong, count=count, error=1.0, bound=0.0)
