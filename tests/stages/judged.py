"""Findings of judges by check, and real kernels put through chosen cases."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from qsa_bench import goldens, parity, resources
from qsa_bench.builder import Builder
from qsa_bench.goldens import Golden
from qsa_bench.goldens import qsa as qsa_golden
from qsa_bench.model import Finding, Status, Verdict
from qsa_bench.poison import POISON
from qsa_bench.stages.base import Case, Outputs, Stage, poisoned_like

Array = npt.NDArray[Any]
POISON_BYTE = POISON


@functools.cache
def golden() -> Golden:
    return goldens.load(goldens.committed("qsa"), "qsa")


@functools.cache
def golden_cases() -> tuple[qsa_golden.QsaCase, ...]:
    return tuple(qsa_golden.cases(golden()))


def by_check(findings: Iterable[Finding]) -> dict[str, Finding]:
    """Return findings by their check, each of which stands once."""
    listed = list(findings)
    found = {finding.check: finding for finding in listed}
    assert len(found) == len(listed)
    return found


def failed(findings: Iterable[Finding]) -> set[str]:
    return {finding.check for finding in findings if finding.status is not Status.PASS}


def case_of(stage: Stage, name: str) -> Case:
    """Return the case "family/label" of a stage on the committed golden."""
    return next(case for case in _cases(stage.name, stage.cases) if case.id.endswith(f"/{name}"))


@functools.cache
def _cases(_name: str, cases: Any) -> tuple[Case, ...]:
    return tuple(cases(golden()))


def judged(case: Case, **outputs: Array) -> list[Finding]:
    """Return what a case's judge says of `outputs`."""
    return list(case.judge(case.build(), outputs))


def untouched(case: Case) -> Outputs:
    """Return a case's outputs as they are before anything is written."""
    return {
        buffer.name: poisoned_like(
            buffer.shape, {"f32": "float32", "bf16": "uint16", "u8": "uint8"}[buffer.dtype], POISON
        )
        for buffer in case.build().buffers
        if buffer.role == "out"
    }


def written(scores: Array, where: Array) -> Array:
    """Return f32 scores as a kernel leaves them: the poison where it writes nothing."""
    shown = poisoned_like(scores.shape, "float32", POISON)
    shown[where] = scores[where]
    return shown


def gated(stage: Stage, cases: Sequence[Case], root: Path | None = None) -> list[Verdict]:
    """Run the kernels of a tree, this one's unless told, on cases, in FIFO and LIFO order of threads.

    Return every verdict.
    """
    builder = Builder(resources.cache_root())
    tree = root or resources.tree_root()
    builds = parity.build_stage(builder, stage.kernels, "host", tree, (parity.PLAIN,))
    assert builds.failure is None
    with parity.Workload(stage, cases, "host", 0) as workload:
        return workload.gate(builds).verdicts


def as_f32(values: Array) -> Array:
    with np.errstate(invalid="ignore"):
        return values.astype(np.float32)
