"""replay: run one kernel on tensors captured in an engine and hold the result to the oracle."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from qsa_bench import baseline, foreign, judge, mutants, program, resources, tensor_file
from qsa_bench.builder import Builder
from qsa_bench.captured import Captured
from qsa_bench.errors import BuildError, NothingSelectedError, UsageError
from qsa_bench.exit_codes import ExitCode
from qsa_bench.model import DTYPES, Finding, Mutant, Role, Status
from qsa_bench.parity import PLAIN, StageBuilds, build_stage
from qsa_bench.program import TRAP, Program
from qsa_bench.requests import Progress, ReplayRequest, ReplayResult
from qsa_bench.runner import Job, Observation, Schedule, observe, schedules
from qsa_bench.stages import load_stage
from qsa_bench.stages.base import Case, Stage

Array = npt.NDArray[Any]
# Captured inputs may be the longest there are; 1M tokens take a second on the emulator.
_LIMIT_S = 600.0


def run(request: ReplayRequest, progress: Progress) -> ReplayResult:
    """Replay one captured file; nothing is written when the file is bad or the kernel traps."""
    if request.output is not None:
        _check_output(request.output, request)
    stage = load_stage(request.kernel)
    own = foreign.asked(request.foreign, (stage,))
    if own is not None:
        stage = foreign.stage_of(stage, own)
    if stage.replay is None:
        raise UsageError(f"replaying {stage.name}: this stage takes no captured file")
    contents = tensor_file.read(request.inputs)
    captured = Captured(str(request.inputs), contents.tensors, contents.dtypes, contents.metadata)
    case = stage.replay(captured)
    built = case.build()
    progress.start(f"replaying {stage.name}", None)
    with ExitStack() as stack:
        builds, python_path = (
            _build(request, stage, stack) if own is None else (own.builds(request.target), ())
        )
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="qsa-bench-")))
        seen = _observe(request, stage, builds, built, scratch, python_path)
        progress.finish()
        outputs = _outputs(built, seen, scratch)
        return _judge(request, case, built, seen, outputs, scratch)


def _check_output(output: Path, request: ReplayRequest) -> None:
    """Refuse an output that is there, is the input or is no file; before anything is run."""
    if os.path.lexists(output) and not request.force:
        raise UsageError(f"writing {output}: it exists already; give another name or --force")
    if output.exists() and not output.is_file():
        raise UsageError(f"writing {output}: it is no regular file; give a file's name")
    if os.path.realpath(output) == os.path.realpath(request.inputs):
        raise UsageError(f"writing {output}: it is the captured file; give another name")


def _mutant(name: str, stage: Stage) -> Mutant:
    """Return the one mutant of that id, or name without the stage."""
    wanted = name if name.startswith(f"{stage.name}/") else f"{stage.name}/{name}"
    found = [mutant for mutant in baseline.read_mutants(stage) if mutant.id == wanted]
    if not found:
        raise NothingSelectedError(
            f"replaying mutant {wanted}: there is none of this id; "
            f"see `qsa-bench list mutants --stage {stage.name}`"
        )
    return found[0]


def _build(
    request: ReplayRequest, stage: Stage, stack: ExitStack
) -> tuple[StageBuilds, Sequence[Path]]:
    builder = Builder(resources.cache_root())
    root, python_path = resources.tree_root(), []
    if request.mutant is not None:
        mutant = _mutant(request.mutant, stage)
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="qsa-bench-mutant-"))
        tree = mutants.apply(mutant, root, Path(scratch))
        root, python_path = tree.root, [tree.root] if tree.python else []
    builds = build_stage(builder, stage.kernels, request.target, root, (PLAIN,), request.mutant)
    if builds.failure is not None:
        raise BuildError(f"building {stage.name}: it does not compile:\n{builds.failure.log}")
    return builds, python_path


def _observe(
    request: ReplayRequest,
    stage: Stage,
    builds: StageBuilds,
    built: Program,
    scratch: Path,
    python_path: Sequence[Path],
) -> Observation:
    path = scratch / "program.safetensors"
    program.write(path, built, stage.kernels)
    # Both orders, as for a failing case of the gate: a race may show in one of them alone.
    orders = schedules(seeds=0) if request.target == "host" else (Schedule("device"),)
    job = Job("replay", "replay", path, orders, limit_s=_LIMIT_S)
    return next(observe(request.target, builds.libraries(PLAIN), [job], scratch, python_path))


def _outputs(built: Program, seen: Observation, scratch: Path) -> dict[str, Array]:
    """Read the outputs; empty when the program did not run to its end."""
    digest = next((run.digest for run in seen.runs if run.digest), None)
    if digest is None:
        return {}
    return {
        buffer.name: np.fromfile(
            scratch / f"replay.{digest}.{buffer.name}", dtype=DTYPES[buffer.dtype][0]
        ).reshape(buffer.shape)
        for buffer in built.buffers
        if buffer.role in (Role.OUTPUT, Role.INOUT)
    }


def _judge(
    request: ReplayRequest,
    case: Case,
    built: Program,
    seen: Observation,
    outputs: Mapping[str, Array],
    scratch: Path,
) -> ReplayResult:
    findings = judge.findings_of(case, built, seen, judge.Memory(), scratch, "replay")
    trap = _trap(seen)
    if trap is not None:
        # A trap is never a pass here, also where the contract demands it: the engine that
        # captured this input would have lost its context.
        reason, where = trap
        return ReplayResult(
            request.kernel,
            request.inputs,
            request.target,
            Status.TRAPPED,
            ExitCode.GATE_FAILED,
            mutant=request.mutant,
            findings=tuple(findings),
            trap_reason=reason,
            trap_where=where,
            trap_expected=built.calls[-1].expect == TRAP,
        )
    failed = [finding for finding in findings if finding.status is not Status.PASS]
    written = None
    if request.output is not None and outputs:
        dtypes = {name: built.buffer(name).dtype for name in outputs}
        tensor_file.write(request.output, dict(outputs), dtypes, {"kernel": request.kernel})
        written = request.output
    return ReplayResult(
        request.kernel,
        request.inputs,
        request.target,
        failed[0].status if failed else Status.PASS,
        ExitCode.GATE_FAILED if failed else ExitCode.OK,
        mutant=request.mutant,
        findings=tuple(findings),
        output=written,
        lines=tuple(_line(finding) for finding in failed),
    )


def _trap(seen: Observation) -> tuple[str, str] | None:
    trapped = next((run for run in seen.runs if judge.HOST_TRAPPED in run.statuses), None)
    if trapped is None:
        return None
    evidence = judge.place_of(trapped)
    return evidence.note or "no reason given", evidence.where


def _line(finding: Finding) -> str:
    evidence = finding.evidence
    detail = f": want {evidence.want}, got {evidence.got}" if evidence.want else ""
    place = f" at {evidence.first}" if evidence.first else ""
    return f"{finding.check}: {evidence.note or finding.status}{place}{detail}"
