"""What a failing case leaves behind: its inputs, shrunk to the smallest failing rows, to replay."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from qsa_bench import tensor_file
from qsa_bench.captured import Captured
from qsa_bench.model import Verdict
from qsa_bench.parity import PLAIN, StageBuilds, Workload
from qsa_bench.stages.base import Capture, Case, Stage

# A kernel that is wrong everywhere fails every case; a person reads the first few.
_MOST_SAVED = 4


def save_failures(
    workload: Workload, builds: StageBuilds, failures: Sequence[Verdict], folder: Path
) -> list[str]:
    """Save the first failing cases under `folder`; return the replay command of each.

    Every capture of a case (smallest first) is run alone; the first that still fails is kept. A
    failure that no capture shows again (a race, an order of threads) keeps the whole input.
    """
    stage = workload.stage
    if stage.replay is None or stage.captures is None:
        return []
    failing = {verdict.case for verdict in failures}
    commands: list[str] = []
    for case in workload.cases:
        if case.id not in failing or len(commands) >= _MOST_SAVED:
            continue
        captures = list(stage.captures(workload.program(case)))
        if not captures:
            continue
        chosen = _smallest_failing(workload, builds, captures)
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", case.id) + ".safetensors"
        folder.mkdir(parents=True, exist_ok=True)
        tensor_file.write(folder / name, chosen.tensors, chosen.dtypes, chosen.metadata)
        target = () if workload.target == "host" else ("--target", workload.target)
        words = ("qsa-bench", "replay", stage.name, str(folder / name), *target)
        commands.append(shlex.join(words))
    return commands


def _smallest_failing(
    workload: Workload, builds: StageBuilds, captures: Sequence[Capture]
) -> Capture:
    stage = workload.stage
    cases = [_as_case(stage, capture, index) for index, capture in enumerate(captures)]
    with Workload(stage, cases, workload.target, seeds=0) as alone:
        seen = alone.gate(builds, modes=(PLAIN,))
    failed = {verdict.case for verdict in seen.failures}
    for capture, case in zip(captures, cases, strict=True):
        if case.id in failed:
            return capture
    return captures[-1]


def _as_case(stage: Stage, capture: Capture, index: int) -> Case:
    assert stage.replay is not None
    case = stage.replay(Captured("capture", capture.tensors, capture.dtypes, capture.metadata))
    return replace(case, label=f"{case.label}-{index}")
