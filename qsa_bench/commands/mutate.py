"""mutate: prove by mutants that the gate sees each fault.

The unmutated kernel is gated first, twice, and sets the limits; a gate that fails, wavers or is
blind proves nothing, so no mutant is run then.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

from qsa_bench import (
    baseline,
    campaign_notes,
    equivalence,
    first_pass,
    manifest_trials,
    mutants,
    patches,
    ray_executor,
    resources,
    sanitizer,
    selection,
)
from qsa_bench.builder import Builder
from qsa_bench.campaign_requests import MutateRequest
from qsa_bench.case_order import CaseOrder
from qsa_bench.errors import NothingSelectedError
from qsa_bench.exit_codes import ExitCode, combine
from qsa_bench.first_pass import FirstPass
from qsa_bench.kept_trials import KeptTrials
from qsa_bench.manifest_builds import ManifestBuilds
from qsa_bench.model import Kill, Mutant, MutantResult, Outcome, SourceText
from qsa_bench.parity import Seen, StageBuilds, Workload
from qsa_bench.races import Races
from qsa_bench.requests import Progress
from qsa_bench.runner import HOST
from qsa_bench.selection import Chosen
from qsa_bench.shared_builds import Form
from qsa_bench.stages.base import Case, Stage
from qsa_bench.store import RunWriter, StoredRun
from qsa_bench.targets.toolchain import device_name
from qsa_bench.trials import Trial, Trials


@dataclass(frozen=True)
class _Plan:
    stage: Stage
    control: Mutant
    chosen: tuple[Mutant, ...]


@dataclass
class _Tally:
    """What the run has so far, over all stages."""

    codes: list[ExitCode]
    results: list[MutantResult]
    kills: list[Kill]
    notes: dict[str, Any]
    deadline: float = math.inf
    told: set[str] = field(default_factory=set)
    compile_seconds: dict[str, float] = field(default_factory=dict)

    def is_late(self) -> bool:
        """True once no further mutant may begin."""
        return time.monotonic() > self.deadline

    def add(self, made: Trial) -> None:
        """Count a mutant in."""
        self.results.append(made.result)
        self.kills.extend(made.kills)
        stage = made.result.mutant.stage
        spent = sum(build.seconds for build in made.builds if not build.cached)
        self.compile_seconds[stage] = self.compile_seconds.get(stage, 0.0) + spent


def run(request: MutateRequest, progress: Progress) -> StoredRun:
    """Run the requested mutants and return the run as it was written."""
    goldens = baseline.Goldens(request.golden, request.stages)
    plans, chosen = _plans(goldens.stages(request.stages), request)
    asked = sum(len(plan.chosen) for plan in plans)
    device = device_name(request.target)
    # As a context it writes down how the run ended, however it ends.
    with RunWriter.create(
        request.results, "mutate", request.argv, request.target, device, asked
    ) as writer:
        return _mutate(request, goldens, plans, chosen, writer, progress)


def _mutate(
    request: MutateRequest,
    goldens: baseline.Goldens,
    plans: Sequence[_Plan],
    chosen: Chosen,
    writer: RunWriter,
    progress: Progress,
) -> StoredRun:
    asked = sum(len(plan.chosen) for plan in plans)
    builder = Builder(resources.cache_root())
    tally = _Tally([ExitCode.OK], [], [], {"worth": {}, "baseline": {}, "timing": {}})
    tally.notes["selection"] = dict(chosen.notes)
    if request.stop_after_s is not None:
        tally.deadline = time.monotonic() + request.stop_after_s
    try:
        if request.executor == "ray":
            _run_on_cluster(request, chosen, writer, tally, progress)
        for plan in plans if request.executor == "local" else ():
            _run_stage(plan, goldens, request, builder, writer, tally, progress)
    except KeyboardInterrupt:
        tally.codes.append(ExitCode.INTERRUPTED)
    progress.finish()
    # In the order of the list, however many worked at it.
    place = {mutant.id: index for index, mutant in enumerate(chosen.mutants)}
    tally.results.sort(key=lambda result: place[result.mutant.id])
    tally.kills.sort(key=lambda kill: place[kill.mutant])
    if len(tally.results) != asked:
        tally.codes.append(ExitCode.INCOMPLETE)
    if any(not result.as_expected for result in tally.results):
        tally.codes.append(ExitCode.MUTATION_MISMATCH)
    if any(result.outcome is Outcome.NOT_RUN for result in tally.results):
        tally.codes.append(ExitCode.INCOMPLETE)
    done = {result.mutant.id for result in tally.results}
    left = sum(mutant.id not in done and not mutant.control for mutant in chosen.mutants)
    stages = [plan.stage for plan in plans]
    tally.notes.update(
        campaign_notes.conclude(
            stages,
            tally.results,
            tally.kills,
            left,
            chosen.whole and not request.first_kill,
            request.target,
        )
    )
    return writer.finish(asked, len(tally.results), combine(tally.codes), tally.notes)


def _run_on_cluster(
    request: MutateRequest,
    chosen: Chosen,
    writer: RunWriter,
    tally: _Tally,
    progress: Progress,
) -> None:
    """Put together what the cluster's chunks found."""
    progress.start("mutants on the Ray cluster", len(chosen.mutants))
    for part in ray_executor.run(request, chosen.mutants, request.address):
        # A survivor or a mutant not run is counted from the results; what proves nothing is not.
        code = ExitCode(part.run.exit_code)
        if code not in (ExitCode.OK, ExitCode.MUTATION_MISMATCH, ExitCode.INCOMPLETE):
            tally.codes.append(code)
        gated = part.run.notes.get("baseline")
        for stage, told in gated.items() if isinstance(gated, dict) else ():
            if stage not in tally.notes["baseline"]:
                tally.notes["baseline"][stage] = told
                writer.add_verdicts(part.verdicts)
                writer.add_builds(build for build in part.builds if build.mutant is None)
        writer.add_sources(source for source in part.sources if source.path not in tally.told)
        tally.told.update(source.path for source in part.sources)
        rows = {result.mutant.id: result for result in part.mutants}
        for name, result in rows.items():
            kills = [kill for kill in part.kills if kill.mutant == name]
            builds = [build for build in part.builds if build.mutant == name]
            _record(Trial(result, kills, builds), writer, tally)
            progress.advance(name)


def _plans(stages: Sequence[Stage], request: MutateRequest) -> tuple[list[_Plan], Chosen]:
    """Read every manifest of every stage before anything runs; select; keep what is not empty."""
    everything = [(stage, baseline.read_mutants(stage, request.auto)) for stage in stages]
    for stage, found in everything if request.auto else ():
        equivalence.hold(resources.tree_root(), stage.name, {mutant.id for mutant in found})
    pool = [mutant for _, found in everything for mutant in found]
    on_target = [mutant for mutant in pool if request.target in mutant.targets]
    chosen = selection.choose(on_target, *selection.asked_by(request))
    ids = {mutant.id for mutant in chosen.mutants}
    plans = [
        _Plan(
            stage,
            baseline.writes_nothing(found, stage),
            tuple(mutant for mutant in found if mutant.id in ids),
        )
        for stage, found in everything
        if any(mutant.id in ids for mutant in found)
    ]
    if not plans:
        raise NothingSelectedError("selecting mutants: no stage has a mutant")
    return plans, chosen


def _run_stage(
    plan: _Plan,
    goldens: baseline.Goldens,
    request: MutateRequest,
    builder: Builder,
    writer: RunWriter,
    tally: _Tally,
    progress: Progress,
) -> None:
    stage = plan.stage
    builds = baseline.build_or_raise(builder, stage, request.target, short=True)
    writer.add_builds(builds.all)
    writer.add_sources(_sources(plan.chosen, tally))
    begun = time.perf_counter()
    golden = goldens.of(stage)
    reuse = KeptTrials.of(request, stage.name, golden, builds, plan.control)
    known = {mutant.id: made for mutant in plan.chosen if (made := reuse.find(mutant)) is not None}
    left = [mutant for mutant in plan.chosen if mutant.id not in known]
    clean = reuse.outcomes.find_clean(reuse.inputs)
    for made in known.values():
        _record(made, writer, tally)
    if clean is not None:
        tally.notes["baseline"][stage.name] = {"failures": 0, "wavering": [], "reused": True}
        writer.add_verdicts(clean.verdicts)
    gated = begun
    if left or clean is None:
        cases = stage.cases(goldens.of(stage))
        with Workload(stage, cases, request.target, request.seeds) as workload:
            if clean is None:
                clean = _gate_clean(
                    plan, request, builder, builds, workload, writer, tally, progress
                )
            gated = time.perf_counter()
            if clean is None:
                return
            reuse.outcomes.keep_clean(reuse.inputs, clean)
            order = CaseOrder(workload, clean.limits) if request.first_kill else None
            progress.start(f"{stage.name}: mutants", len(left))
            separate = request.separate_builds or request.target != HOST
            quick = (
                None
                if separate
                else FirstPass(builder, builds, workload, reuse.arguments, clean.limits, order)
            )
            races = _races(left, stage, cases, builds, request.target)
            trials = Trials(
                request.target,
                builder,
                builds,
                workload,
                clean.limits,
                reuse.arguments,
                races,
                order,
                separate=separate,
            )
            with races or nullcontext():
                _run_mutants(
                    left,
                    quick,
                    request,
                    builder,
                    builds,
                    workload,
                    clean,
                    trials,
                    races,
                    writer,
                    tally,
                    progress,
                    reuse,
                )
    own = [result for result in tally.results if result.mutant.stage == stage.name]
    spent = time.perf_counter() - gated
    ran = len(own) - len(known)
    tally.notes["timing"][stage.name] = {
        "baseline_seconds": round(gated - begun, 2),
        "mutant_seconds": round(spent, 2),
        "reused_mutants": len(known),
        "mutants_a_minute": round(60 * ran / max(spent, 1e-9), 1) if ran else 0.0,
        "compile_seconds": round(tally.compile_seconds.pop(stage.name, 0.0), 2),
        "worker_seconds": round(sum(result.seconds for result in own if not result.reused), 2),
    }


def _sources(chosen: Sequence[Mutant], tally: _Tally) -> list[SourceText]:
    """Return what the mutants change, each file once a run, so that a report can show it."""
    locate = mutants.locator(resources.tree_root())
    paths = {patch.path for mutant in chosen for patch in patches.parse(mutant.patch)}
    new = sorted(paths - tally.told)
    tally.told.update(new)
    return [SourceText(path, locate(path).read_text()) for path in new]


def _gate_clean(
    plan: _Plan,
    request: MutateRequest,
    builder: Builder,
    builds: StageBuilds,
    workload: Workload,
    writer: RunWriter,
    tally: _Tally,
    progress: Progress,
) -> Seen | None:
    """Gate the unmutated kernel, twice, and the control; None where that proves nothing."""
    stage = plan.stage
    progress.start(f"{stage.name}: gating the unmutated kernel, twice", None)
    clean = baseline.gate_in_parallel(workload, builds, request.jobs, cases=workload.brief)
    writer.add_verdicts(clean.verdicts)
    # A second trap shows nothing new of a device, and costs as many contexts as the first.
    cases = workload.cases if request.target == HOST else workload.ordinary
    again = baseline.gate_in_parallel(workload, builds, request.jobs, cases=cases)
    wavering = _wavering(clean, again)
    tally.notes["baseline"][stage.name] = {
        "failures": len(clean.failures) + len(again.failures),
        "wavering": wavering,
    }
    if clean.failures or again.failures or wavering:
        tally.codes.append(ExitCode.BASELINE_FAILED)
        return None
    blind = baseline.blind_cases(workload, plan.control, builder, clean.limits, short=True)
    if blind:
        tally.notes.setdefault("blind_cases", {})[stage.name] = blind
        tally.codes.append(ExitCode.BLIND_GATE)
        return None
    return clean


def _races(
    left: Sequence[Mutant], stage: Stage, cases: Sequence[Case], builds: StageBuilds, target: str
) -> Races | None:
    """Return the small cases under many orders, where a mutant needs them and orders are ours."""
    if target != "host" or not any(mutant.race for mutant in left):
        return None
    return Races(stage, cases, builds)


def _wavering(first: Seen, second: Seen) -> list[str]:
    """Return the cases run again whose outputs differ from one run of the same build to the next."""
    return [case for case, again in second.digests.items() if first.digests.get(case) != again]


def _run_mutants(
    left: Sequence[Mutant],
    quick: FirstPass | None,
    request: MutateRequest,
    builder: Builder,
    builds: StageBuilds,
    workload: Workload,
    clean: Seen,
    trials: Trials,
    races: Races | None,
    writer: RunWriter,
    tally: _Tally,
    progress: Progress,
    reuse: KeptTrials,
) -> None:
    """Run groups that share a build, whoever is in none, and whose end a group leaves open."""
    tools = sanitizer.Sanitizer(request.sanitizers, request.target, builder)
    groups = first_pass.groups_of(left, resources.tree_root()) if quick is not None else []
    grouped = {form.mutant.id for group in groups for form in group}
    alone = [mutant for mutant in left if mutant.id not in grouped]
    own = () if request.separate_builds else alone
    shared = ManifestBuilds(own, builder, builds, workload, clean.limits, request.jobs)
    ended: SimpleQueue[Trial] = SimpleQueue()
    begun: SimpleQueue[Future[None]] = SimpleQueue()

    def is_over() -> bool:
        return workload.stopped.is_set() or tally.is_late()

    def end(made: Trial) -> None:
        reuse.keep(made.result.mutant, made)
        ended.put(made)

    def run_group(quick: FirstPass, group: tuple[Form, ...]) -> None:
        done: set[str] = set()
        for made in () if is_over() else quick.run(group):
            # What was stopped half-way says nothing of the mutant; what merely ended late does.
            if workload.stopped.is_set():
                return
            done.add(made.result.mutant.id)
            end(made)
            if is_over():
                return
        for form in () if is_over() else group:
            if form.mutant.id not in done:
                begun.put(pool.submit(run_one, form.mutant))

    def run_one(mutant: Mutant) -> None:
        if is_over():
            return
        if mutant.operator:
            made = trials.run(mutant)
        else:
            made = manifest_trials.run(
                mutant, builder, builds, workload, clean.limits, races, tools, shared
            )
        if not workload.stopped.is_set():
            end(made)

    def record() -> None:
        while not ended.empty():
            made = ended.get()
            _record(made, writer, tally)
            progress.advance(made.result.mutant.id)

    pool = ThreadPoolExecutor(request.jobs)
    try:
        waiting = [pool.submit(run_group, quick, group) for group in groups if quick is not None]
        waiting += [pool.submit(run_one, mutant) for mutant in shared.ordered(alone)]
        while waiting:
            for future in baseline.as_they_end(waiting, record):
                future.result()
            waiting = [begun.get() for _ in range(begun.qsize())]
    finally:
        # On an interrupt the mutants under way end with their children; the rest never start.
        workload.stopped.set()
        pool.shutdown(wait=True, cancel_futures=True)
        record()
        shared.close()


def _record(made: Trial, writer: RunWriter, tally: _Tally) -> None:
    """Write down a mutant; by the main thread alone, so that nothing comes after the run's end."""
    writer.add_builds(made.builds)
    writer.add_mutants([made.result])
    writer.add_kills(made.kills)
    if made.log:
        writer.log(f"build-{made.result.mutant.id}", made.log)
    tally.add(made)
