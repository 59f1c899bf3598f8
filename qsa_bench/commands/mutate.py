"""mutate: prove by mutants that the gate sees each fault.

The unmutated kernel is gated first, twice, and sets the limits; a gate that fails, wavers or is
blind proves nothing, so no mutant is run then.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qsa_bench import baseline, checks, mutants, outcomes, repeats, resources, sanitizer
from qsa_bench.builder import Builder
from qsa_bench.errors import ManifestError, NothingSelectedError
from qsa_bench.exit_codes import ExitCode, combine
from qsa_bench.goldens import Golden
from qsa_bench.model import Build, Kill, Mutant, MutantResult, Outcome, Verdict
from qsa_bench.parity import Limits, Seen, StageBuilds, Workload, build_stage, modes_of
from qsa_bench.requests import MutateRequest, Progress
from qsa_bench.reuse import Outcomes
from qsa_bench.runner import HOST
from qsa_bench.stages.base import Case, Stage
from qsa_bench.store import RunWriter, StoredRun
from qsa_bench.targets.toolchain import device_name


@dataclass(frozen=True)
class _Plan:
    stage: Stage
    control: Mutant
    chosen: tuple[Mutant, ...]


@dataclass(frozen=True)
class _Made:
    """One mutant done: what the thread that ran it hands over to be recorded."""

    result: MutantResult
    kills: Sequence[Kill]
    builds: Sequence[Build]
    log: str = ""


@dataclass(frozen=True)
class _Reuse:
    """Kept outcomes, and the inputs that all mutants of a stage have in common."""

    outcomes: Outcomes
    inputs: tuple[str, ...]


@dataclass
class _Tally:
    """What the run has so far, over all stages."""

    codes: list[ExitCode]
    results: list[MutantResult]
    kills: list[Kill]
    notes: dict[str, Any]


def run(request: MutateRequest, progress: Progress) -> StoredRun:
    """Run the requested mutants and return the run as it was written."""
    goldens = baseline.Goldens(request.golden, request.stages)
    plans = _plans(goldens.stages(request.stages), request)
    asked = sum(len(plan.chosen) for plan in plans)
    device = device_name(request.target)
    # As a context it writes down how the run ended, however it ends.
    with RunWriter.create(
        request.results, "mutate", request.argv, request.target, device, asked
    ) as writer:
        return _mutate(request, goldens, plans, writer, progress)


def _mutate(
    request: MutateRequest,
    goldens: baseline.Goldens,
    plans: Sequence[_Plan],
    writer: RunWriter,
    progress: Progress,
) -> StoredRun:
    asked = sum(len(plan.chosen) for plan in plans)
    builder = Builder(resources.cache_root())
    tally = _Tally([ExitCode.OK], [], [], {"worth": {}, "baseline": {}, "timing": {}})
    try:
        for plan in plans:
            _run_stage(plan, goldens, request, builder, writer, tally, progress)
    except KeyboardInterrupt:
        tally.codes.append(ExitCode.INTERRUPTED)
    progress.finish()
    if len(tally.results) != asked:
        tally.codes.append(ExitCode.INCOMPLETE)
    if any(not result.as_expected for result in tally.results):
        tally.codes.append(ExitCode.MUTATION_MISMATCH)
    if any(result.outcome is Outcome.NOT_RUN for result in tally.results):
        tally.codes.append(ExitCode.INCOMPLETE)
    _conclude(plans, request, tally)
    return writer.finish(asked, len(tally.results), combine(tally.codes), tally.notes)


def _plans(stages: Sequence[Stage], request: MutateRequest) -> list[_Plan]:
    """Read every manifest of every stage before anything runs; select; keep what is not empty."""
    everything = [(stage, baseline.read_mutants(stage)) for stage in stages]
    pool = [mutant for _, found in everything for mutant in found]
    on_target = [mutant for mutant in pool if request.target in mutant.targets]
    chosen = {mutant.id for mutant in mutants.select(on_target, request.id_globs)}
    plans = [
        _Plan(
            stage,
            baseline.writes_nothing(found, stage),
            tuple(mutant for mutant in found if mutant.id in chosen),
        )
        for stage, found in everything
        if any(mutant.id in chosen for mutant in found)
    ]
    if not plans:
        raise NothingSelectedError("selecting mutants: no stage has a mutant")
    return plans


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
    cases = stage.cases(goldens.of(stage))
    begun = time.perf_counter()
    with Workload(stage, cases, request.target, request.seeds) as workload:
        progress.start(f"{stage.name}: gating the unmutated kernel, twice", None)
        clean = baseline.gate_in_parallel(workload, builds, request.jobs)
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
            return
        blind = baseline.blind_cases(workload, plan.control, builder, clean.limits, short=True)
        if blind:
            tally.notes.setdefault("blind_cases", {})[stage.name] = blind
            tally.codes.append(ExitCode.BLIND_GATE)
            return
        baseline_seconds = time.perf_counter() - begun
        reuse = _reuse(request, goldens.of(stage), builds)
        _run_mutants(
            plan, request, builder, builds, workload, clean, writer, tally, progress, reuse
        )
    spent = time.perf_counter() - begun
    tally.notes["timing"][stage.name] = {
        "baseline_seconds": round(baseline_seconds, 2),
        "mutant_seconds": round(spent - baseline_seconds, 2),
        "reused_mutants": sum(
            result.reused for result in tally.results if result.mutant.stage == stage.name
        ),
        "mutants_a_minute": round(60 * len(plan.chosen) / max(spent - baseline_seconds, 1e-9), 1),
    }


def _reuse(request: MutateRequest, golden: Golden | None, builds: StageBuilds) -> _Reuse:
    """Return where outcomes are kept; nowhere on a device, whose runs need not repeat."""
    keeps = request.target == "host" and not request.fresh
    folder = resources.cache_root() / "outcomes" if keeps else None
    digest = golden.digest if golden is not None else ""
    common = (request.target, str(request.seeds), digest, builds.digest, builds.code_digest)
    return _Reuse(Outcomes(folder), common)


def _wavering(first: Seen, second: Seen) -> list[str]:
    """Return the cases whose outputs differ from one run of the same build to the next."""
    return [case for case, digests in second.digests.items() if first.digests.get(case) != digests]


def _run_mutants(
    plan: _Plan,
    request: MutateRequest,
    builder: Builder,
    builds: StageBuilds,
    workload: Workload,
    clean: Seen,
    writer: RunWriter,
    tally: _Tally,
    progress: Progress,
    reuse: _Reuse,
) -> None:
    progress.start(f"{plan.stage.name}: mutants", len(plan.chosen))
    order = {mutant.id: index for index, mutant in enumerate(plan.chosen)}
    tools = sanitizer.Sanitizer(request.sanitizers, request.target, builder)
    finished: list[_Made] = []

    def one(mutant: Mutant) -> _Made | None:
        if workload.stopped.is_set():
            return None
        made = _run_mutant(mutant, builder, builds, workload, clean.limits, reuse, tools)
        # What was stopped half-way says nothing of the mutant.
        return None if workload.stopped.is_set() else made

    pool = ThreadPoolExecutor(request.jobs)
    try:
        futures = [pool.submit(one, mutant) for mutant in plan.chosen]
        for future in baseline.as_they_end(futures):
            made = future.result()
            if made is not None:
                finished.append(made)
                _record(made, writer)
                progress.advance(made.result.mutant.id)
    finally:
        # On an interrupt the mutants under way end with their children; the rest never start.
        workload.stopped.set()
        pool.shutdown(wait=True, cancel_futures=True)
        finished.sort(key=lambda made: order[made.result.mutant.id])
        tally.results.extend(made.result for made in finished)
        tally.kills.extend(kill for made in finished for kill in made.kills)


def _record(made: _Made, writer: RunWriter) -> None:
    """Write down a mutant; by the main thread alone, so that nothing comes after the run's end."""
    writer.add_builds(made.builds)
    writer.add_mutants([made.result])
    writer.add_kills(made.kills)
    if made.log:
        writer.log(f"build-{made.result.mutant.id}", made.log)


def _run_mutant(
    mutant: Mutant,
    builder: Builder,
    builds: StageBuilds,
    workload: Workload,
    limits: Limits,
    reuse: _Reuse,
    tools: sanitizer.Sanitizer,
) -> _Made:
    """Build one mutant on a scratch copy, run every check on it and hold it to its manifest."""
    begun = time.perf_counter()
    target = workload.target
    with tempfile.TemporaryDirectory(prefix="qsa-bench-mutant-") as scratch:
        tree = mutants.apply(mutant, resources.tree_root(), Path(scratch))
        made, same_code = _build_mutant(mutant, target, builder, builds, workload.stage, tree)
        failure = made.failure
        if failure is not None:
            result = _not_built(mutant, target, failure.log, time.perf_counter() - begun)
            return _Made(result, (), made.all, failure.log)
        if same_code and not tree.python:
            result = _same_code(mutant, target, time.perf_counter() - begun)
            return _Made(result, (), made.all)
        inputs = [*reuse.inputs, *(build.digest for build in made.all)]
        kept = None if tree.python else reuse.outcomes.find(mutant, inputs)
        if kept is not None:
            return _Made(*kept, made.all)
        python_path = (tree.root,) if tree.python else ()
        seen = workload.gate(made, limits, python_path, _cases_for(mutant, workload))
        verdicts = [*seen.verdicts]
        race: tuple[int, int] | None = None
        if target != HOST:
            examined = repeats.cases_of(workload)
            verdicts += tools.examine(workload, made, examined, python_path)
            if mutant.race:
                found = repeats.repeat(workload, made, limits, python_path=python_path)
                race = (found.hits, found.runs)
    bits = _differing_bits(workload, verdicts)
    seconds = round(time.perf_counter() - begun, 3)
    result, kills = outcomes.result_of(mutant, target, verdicts, bits, seconds, race)
    if not (tree.python or workload.stopped.is_set() or seen.by_clock):
        reuse.outcomes.keep(mutant, inputs, result, kills)
    return _Made(result, kills, made.all)


def _cases_for(mutant: Mutant, workload: Workload) -> Sequence[Case]:
    """Return the cases a mutant is run on: all, but on a device not every trap.

    Each case that traps costs a context there, a tenth of a second of the whole device: a mutant
    whose manifest does not name the traps runs one a clause.
    """
    if workload.target == HOST or "traps" in mutant.killed_by:
        return workload.cases
    first = {case.clauses: case for case in reversed(workload.trapping)}
    return [*workload.ordinary, *first.values()]


def _build_mutant(
    mutant: Mutant,
    target: str,
    builder: Builder,
    clean: StageBuilds,
    stage: Stage,
    tree: mutants.Tree,
) -> tuple[StageBuilds, bool]:
    """Build a mutant; also say whether its object code is the production kernel's.

    What a short build leaves out may be what the patch changes: then the whole is built.
    """
    modes = modes_of(target)
    made = build_stage(builder, stage.kernels, target, tree.root, modes, mutant.id, short=True)
    if made.failure is not None or made.code_digest != clean.code_digest:
        return made, False
    if not any(kernel.short.get(target) for kernel in stage.kernels):
        return made, True
    whole = build_stage(builder, stage.kernels, target, tree.root, modes, mutant.id)
    production = baseline.build_or_raise(builder, stage, target)
    return whole, whole.code_digest == production.code_digest


def _not_built(mutant: Mutant, target: str, log: str, seconds: float) -> MutantResult:
    line = next((line for line in log.splitlines() if "error" in line), log.strip()[:200])
    return MutantResult(
        mutant, target, Outcome.UNVIABLE, False, why=f"does not build: {line}", seconds=seconds
    )


def _same_code(mutant: Mutant, target: str, seconds: float) -> MutantResult:
    """A patch that leaves the machine code as it is: proof for an equivalent, else an error."""
    if mutant.equivalent:
        why = f"identical object code; {mutant.why_survives}"
        return MutantResult(mutant, target, Outcome.EQUIVALENT, True, why=why, seconds=seconds)
    raise ManifestError(
        f"building {mutant.id}: its object code is the production kernel's, so it proves nothing; "
        "make the patch change the code, or mark the mutant equivalent and say why"
    )


def _differing_bits(workload: Workload, verdicts: Sequence[Verdict]) -> int | None:
    """Sum the differing bits of the golden's cases; None when a case gave no output to count."""
    counted = {case.id for case in workload.cases if case.counts_bits}
    seen = [
        (verdict.case, verdict.evidence.numbers["differing_bits"])
        for verdict in verdicts
        if verdict.case in counted and "differing_bits" in verdict.evidence.numbers
    ]
    if not counted or {case for case, _ in seen} != counted:
        return None
    return round(sum(bits for _, bits in seen))


def _checks_on(stage: Stage, target: str) -> list[str]:
    """Return the checks that a mutant of a stage can die by on a target."""
    return [check for check in checks.checks_on(stage, target) if check not in checks.DEVICE]


def _conclude(plans: Sequence[_Plan], request: MutateRequest, tally: _Tally) -> None:
    whole = not request.id_globs
    notes = tally.notes
    done = {result.mutant.id for result in tally.results}
    left = [m for plan in plans for m in plan.chosen if m.id not in done and not m.control]
    notes["score"] = outcomes.score_of(tally.results, len(left))
    notes["worth"] = outcomes.worth_of_checks(tally.kills)
    # A part of the mutants says nothing about what all of them leave untested.
    if whole and len(tally.results) == sum(len(plan.chosen) for plan in plans):
        notes["unneeded_checks"] = [
            f"{plan.stage.name}: {check}"
            for plan in plans
            for check in outcomes.unneeded_checks(
                _checks_on(plan.stage, request.target),
                [kill for kill in tally.kills if kill.mutant.startswith(f"{plan.stage.name}/")],
            )
        ]
        notes["unbroken_clauses"] = [
            f"{plan.stage.name}: {clause}"
            for plan in plans
            for clause in outcomes.unbroken_clauses(
                plan.stage.clauses,
                [r for r in tally.results if r.mutant.stage == plan.stage.name],
            )
        ]
