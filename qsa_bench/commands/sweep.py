"""sweep: time gated kernels on the GPU beside peers and the device's own limits."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

from qsa_bench import (
    baseline,
    compare_runs,
    defaults,
    environment,
    foreign,
    nsys,
    resources,
    store,
    sweeps,
)
from qsa_bench.builder import Builder
from qsa_bench.compare_runs import Change
from qsa_bench.errors import EnvironmentMissingError, NotComparableError, UsageError
from qsa_bench.exit_codes import ExitCode, combine
from qsa_bench.model import Kernel, Run, Verdict
from qsa_bench.requests import Progress, SweepRequest
from qsa_bench.stages.base import Stage
from qsa_bench.store import RunWriter, StoredRun
from qsa_bench.sweep_subjects import Bench, Tally, kernel_of
from qsa_bench.sweeping import StageSweep
from qsa_bench.targets.toolchain import device_name
from qsa_bench.timer_client import HeldTimer, open_timer

# What is timed is what runs on the device: emulation has no times worth a row.
_TARGET = "cuda"
# A change against a published run that is worth a line; runs of one build repeat within 2%.
_PUBLISHED_CHANGE = 0.05


def run(request: SweepRequest, progress: Progress) -> StoredRun:
    """Carry out a sweep and return the run as it was written.

    EnvironmentMissingError (exit 7) where there is no GPU, no torch or no nvcc.
    """
    if request.nsys is not None:
        return _from_nsys(request)
    goldens = baseline.Goldens(request.golden, request.stages)
    stages = _stages(goldens.stages(request.stages), named=bool(request.stages))
    plans = [(stage, sweeps.plan(stage, _kernel(stage), request.axes)) for stage in stages]
    for _, points in plans:
        for point in points:
            sweeps.timings(request.timers, point.caches)
    own = foreign.asked(request.foreign, stages)
    require_gpu()
    device = device_name(_TARGET)
    writer, before = _open(request, device)
    tally, held = Tally(), HeldTimer(open_timer)
    passed = _passed_before(request, device, goldens, stages)
    bench = Bench(held, Builder(resources.cache_root()), writer, progress, tally, _TARGET)
    stop_at = None if request.stop_after_s is None else time.monotonic() + request.stop_after_s
    with writer:
        try:
            parts = [
                StageSweep(stage, goldens.of(stage), points, request, bench, before, own, passed)
                for stage, points in plans
            ]
            tally.asked = sum(part.asked for part in parts)
            writer.expect(tally.asked)
            for part in parts:
                part.run(stop_at)
        finally:
            held.close()
        if tally.done != tally.asked and ExitCode.TIMING_REFUSED not in tally.codes:
            tally.codes.append(ExitCode.INCOMPLETE)
        if before is not None:
            tally.timings[:0] = before.timings
        tally.notes["published"] = _against_published(writer.run, tally)
        return writer.finish(tally.asked, tally.done, combine(tally.codes), _notes(request, tally))


def _stages(stages: Sequence[Stage], *, named: bool) -> list[Stage]:
    """Return the stages that can be timed; UsageError for a named one that can't."""
    if named:
        for stage in stages:
            sweeps.spec_of(stage)
    return [stage for stage in stages if stage.sweep is not None]


def _kernel(stage: Stage) -> Kernel:
    entry = sweeps.spec_of(stage).entries[0]
    return kernel_of(stage, [sweeps.Point(stage.name, entry, {}, (), ())])


def require_gpu() -> None:
    """Raise EnvironmentMissingError that names all that is missing and where times are to be had."""
    found = environment.gpus()
    missing = [f"a GPU ({found.missing})"] if found.missing else []
    if not environment.package_version("torch"):
        missing.append("the package torch")
    if not environment.tool_version("nvcc"):
        missing.append("nvcc on the PATH")
    if missing:
        published = [folder.name for folder in store.run_folders(defaults.PUBLISHED)]
        there = f" ({', '.join(published[-3:])})" if published else ""
        raise EnvironmentMissingError(
            f"timing kernels: missing {', '.join(missing)}; emulation is never timed. Published "
            f"runs lie in {defaults.PUBLISHED}{there}; show one with `qsa-bench report RUN "
            f"--results {defaults.PUBLISHED}`"
        )


def _open(request: SweepRequest, device: str) -> tuple[RunWriter, StoredRun | None]:
    if request.resume is None:
        return RunWriter.create(request.results, "sweep", request.argv, _TARGET, device), None
    folder = store.find_run(request.resume, request.results)
    run = store.read_summary(folder).run
    if run.command != "sweep":
        raise UsageError(f"resuming {folder}: it is a {run.command} run, no sweep")
    if run.device != device:
        raise NotComparableError(f"resuming {folder}: it was timed on {run.device}, not {device}")
    return RunWriter.resume(folder, request.argv)


def _passed_before(
    request: SweepRequest, device: str, goldens: baseline.Goldens, stages: Sequence[Stage]
) -> list[Verdict]:
    """Return the verdicts of `--gate RUN` on stages that it passed whole; others are gated here.

    A gate that was blind on a stage has passed nothing of it.
    """
    if request.gate is None:
        return []
    folder = store.find_run(request.gate, request.results)
    run = store.read_run(folder)
    if run.run.command != "gate" or run.run.target != _TARGET:
        raise UsageError(
            f"standing on the gate of {folder}: it is a {run.run.command} run on "
            f"{run.run.target}; give a `gate --target {_TARGET}` run"
        )
    if run.run.device != device:
        raise NotComparableError(
            f"standing on the gate of {folder}: it ran on {run.run.device}, this is {device}"
        )
    passed: list[Verdict] = []
    blind = run.run.notes.get("blind_cases")
    for stage in stages:
        if isinstance(blind, dict) and blind.get(stage.name):
            continue
        told = [verdict for verdict in run.verdicts if verdict.stage == stage.name]
        cases = {case.id for case in stage.cases(goldens.of(stage)) if _TARGET in case.targets}
        if cases <= {verdict.case for verdict in told}:
            passed += told
    return passed


def _against_published(run: Run, tally: Tally) -> dict[str, object]:
    """Compare with the newest published sweep of this device that timed any of it, itself aside."""
    for folder in reversed(store.run_folders(defaults.PUBLISHED)):
        published = store.read_run(folder)
        of_this_device = published.run.command == "sweep" and published.run.device == run.device
        if not of_this_device or published.run.id == run.id:
            continue
        now = StoredRun(run=run, timings=tuple(tally.timings))
        try:
            found = compare_runs.compare(published, now, _PUBLISHED_CHANGE, 0.0)
        except NotComparableError:
            continue
        counts = Counter(str(compared.change) for compared in found.rows)
        return {
            "run": published.run.id,
            "counts": dict(counts),
            "rows": [
                {
                    "key": compared.new.key,
                    "old_ns": compared.old_ns,
                    "new_ns": compared.new_ns,
                    "low": compared.ratio.low,
                    "high": compared.ratio.high,
                    "change": str(compared.change),
                }
                for compared in found.rows
                if compared.ratio is not None and compared.change in (Change.SLOWER, Change.FASTER)
            ],
        }
    return {"why": f"{defaults.PUBLISHED} holds no other sweep of this on {run.device}"}


def _notes(request: SweepRequest, tally: Tally) -> dict[str, object]:
    rule = request.rule
    return {
        **tally.notes,
        "rule": {
            "half_width": rule.half_width,
            "confidence": rule.confidence,
            "least": rule.least,
            "most": rule.most,
            "limit_s": rule.limit_s,
        },
        "seed": request.seed,
        "resumed": request.resume is not None,
    }


def _from_nsys(request: SweepRequest) -> StoredRun:
    """Keep the kernels of an Nsight Systems export as a run of its own."""
    assert request.nsys is not None
    device, timings = nsys.read(request.nsys)
    writer = RunWriter.create(
        request.results, "nsys", request.argv, _TARGET, device or "unknown", len(timings)
    )
    with writer:
        writer.add_timings(timings)
        notes = {"export": request.nsys.name}
        return writer.finish(len(timings), len(timings), ExitCode.OK, notes)
