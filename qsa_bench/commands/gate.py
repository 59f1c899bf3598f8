"""gate: build the production kernels, hold every case to its oracle, prove the gate is not blind."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from typing import Any

from qsa_bench import against_host, baseline, foreign, headroom, resources, sanitizer
from qsa_bench.builder import Builder
from qsa_bench.errors import ManifestError, NothingSelectedError
from qsa_bench.exit_codes import ExitCode, combine
from qsa_bench.failures import save_failures
from qsa_bench.goldens import Golden
from qsa_bench.model import Mutant, Verdict
from qsa_bench.parity import PLAIN, Seen, StageBuilds, Workload, modes_of
from qsa_bench.requests import GateRequest, Progress
from qsa_bench.runner import HOST
from qsa_bench.stages.base import Case, Stage
from qsa_bench.store import RunWriter, StoredRun
from qsa_bench.targets.toolchain import device_name


def run(request: GateRequest, progress: Progress) -> StoredRun:
    """Gate the requested stages and return the run as it was written."""
    goldens = baseline.Goldens(request.golden, request.stages)
    stages = goldens.stages(request.stages)
    own = foreign.asked(request.foreign, stages)
    if own is not None:
        stages = (foreign.stage_of(stages[0], own),)
    selected = [
        (stage, _cases(stage, goldens.of(stage), request.case_globs, request.target))
        for stage in stages
    ]
    selected = [(stage, cases) for stage, cases in selected if cases]
    asked = sum(len(cases) for _, cases in selected)
    if not asked:
        raise NothingSelectedError(
            f"selecting cases: none matches {', '.join(request.case_globs) or 'anything'}; "
            "see `qsa-bench list cases`"
        )
    # A user's library has no source to make a control of; foreign.blind_cases needs none.
    controls = {} if own else {stage.name: baseline.read_control(stage) for stage, _ in selected}
    device = device_name(request.target)
    # As a context it writes down how the run ended, however it ends.
    with RunWriter.create(
        request.results, "gate", request.argv, request.target, device, asked
    ) as writer:
        return _gate(request, goldens, selected, controls, own, writer, progress)


def _gate(
    request: GateRequest,
    goldens: baseline.Goldens,
    selected: Sequence[tuple[Stage, list[Case]]],
    controls: Mapping[str, Mutant],
    own: foreign.Foreign | None,
    writer: RunWriter,
    progress: Progress,
) -> StoredRun:
    asked = sum(len(cases) for _, cases in selected)
    builder = Builder(resources.cache_root())
    tools = sanitizer.Sanitizer(request.sanitizers, request.target, builder)
    codes = [ExitCode.OK]
    done = 0
    notes: dict[str, Any] = {"coverage": {}, "golden": {}, "blind_cases": {}, "replay_commands": []}
    notes["headroom"] = {}
    stages = [stage for stage, _ in selected]
    if own is None:
        progress.start("building", None)
        baseline.build_ahead(
            builder, stages, request.target, modes_of(request.target), request.jobs
        )
    if request.against_host:
        baseline.build_ahead(builder, stages, HOST, (PLAIN,), request.jobs)
    progress.start("gating", asked)
    for stage, cases in selected:
        builds = (
            baseline.build_or_raise(builder, stage, request.target)
            if own is None
            else own.builds(request.target)
        )
        writer.add_builds(builds.all)
        golden = goldens.of(stage)
        if golden is not None:
            notes["golden"] = _describe(golden)
        # Plain host code runs in no order of threads: two runs place its buffers in two ways.
        seeds = request.seeds if own is None else 0
        with Workload(stage, cases, request.target, seeds) as workload:
            seen = baseline.gate_in_parallel(
                workload, builds, request.jobs, on_case=lambda n: _advance(progress, n)
            )
            blind = (
                baseline.blind_cases(workload, controls[stage.name], builder, seen.limits)
                if own is None
                else foreign.blind_cases(workload.cases)
            )
            verdicts = [*seen.verdicts]
            if request.target != HOST:
                verdicts += _on_a_device(request, tools, builder, workload, builds, seen, progress)
            writer.add_verdicts(verdicts)
            # A case that was given up, in one mode or both, proves nothing either way; it makes
            # the run incomplete.
            given_up = {v.case for v in verdicts if v.status.says_nothing}
            finished = {v.case for v in seen.verdicts} - given_up
            blind = [case for case in blind if case in finished]
            done += len(finished)
            notes["coverage"][stage.name] = numbers(stage, seen.verdicts)
            notes["blind_cases"][stage.name] = blind
            if own is None:
                notes["headroom"] |= _headroom(stage, seen.verdicts)
            if blind:
                codes.append(ExitCode.BLIND_GATE)
            if any(not v.passed and not v.status.says_nothing for v in verdicts):
                codes.append(ExitCode.GATE_FAILED)
            failures = [v for v in seen.failures if not v.status.says_nothing]
            if failures and request.save_failures and writer.folder is not None:
                notes["replay_commands"] += save_failures(
                    workload, builds, failures, writer.folder / "failures"
                )
    progress.finish()
    if own is not None:
        notes["library"] = own.described()
    if done != asked:
        codes.append(ExitCode.INCOMPLETE)
    return writer.finish(asked, done, combine(codes), notes)


def _on_a_device(
    request: GateRequest,
    tools: sanitizer.Sanitizer,
    builder: Builder,
    workload: Workload,
    builds: StageBuilds,
    seen: Seen,
    progress: Progress,
) -> list[Verdict]:
    """Return what only a device is asked: the gate once more after the traps, tools, emulation."""
    name = workload.stage.name
    verdicts: list[Verdict] = []
    if workload.trapping:
        progress.start(f"{name}: gating again after the traps", None)
        again = baseline.gate_in_parallel(
            workload,
            builds,
            request.jobs,
            seen.limits,
            cases=workload.ordinary,
            phase="after traps",
        )
        verdicts += again.verdicts
    if request.sanitizers:
        progress.start(f"{name}: {', '.join(request.sanitizers)}", None)
        verdicts += tools.examine(workload, builds, sanitizer.cases_of(workload))
    if request.against_host:
        progress.start(f"{name}: the emulation against the device", None)
        verdicts += against_host.compare(
            workload, builds, seen, builder, resources.tree_root(), request.seeds, request.jobs
        )
    return verdicts


def _headroom(stage: Stage, verdicts: Sequence[Verdict]) -> Mapping[str, Any]:
    """Return the clean kernel's margins beside those that the stage's manifests state."""
    try:
        stated = baseline.read_mutants(stage)
    except ManifestError:
        # For mutate to complain of; the clean kernel's own margins stand without it.
        stated = []
    return headroom.headroom(verdicts, stated)


def _advance(progress: Progress, count: int) -> None:
    for _ in range(count):
        progress.advance()


def _cases(stage: Stage, golden: Golden | None, globs: Sequence[str], target: str) -> list[Case]:
    """Return the stage's cases for a target: what another one runs alone was not asked for."""
    return [
        case
        for case in stage.cases(golden)
        if target in case.targets
        if not globs or any(fnmatch.fnmatchcase(case.id, glob) for glob in globs)
    ]


def _describe(golden: Golden) -> dict[str, Any]:
    return {
        "path": golden.path.name,
        "digest": golden.digest,
        "metadata": {key: value for key, value in golden.metadata.items() if key != "config"},
    }


def numbers(stage: Stage, verdicts: Sequence[Verdict]) -> Mapping[str, int]:
    """Sum what the judges counted over the verdicts, for the numbers a stage names."""
    return {
        name: round(sum(verdict.evidence.numbers.get(name, 0) for verdict in verdicts))
        for name in stage.numbers
    }
