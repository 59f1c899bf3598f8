"""Outputs of the DSA stages as a correct kernel leaves them, to be changed by one thing."""

from __future__ import annotations

import functools
from typing import Any

import numpy.typing as npt

from qsa_bench import goldens
from qsa_bench.goldens import Golden, dsa
from qsa_bench.model import DTYPES
from qsa_bench.poison import POISON
from qsa_bench.program import Program
from qsa_bench.stages.base import Case, Stage, poisoned_like
from tests.stages.judged import failed, judged

Array = npt.NDArray[Any]


@functools.cache
def golden() -> Golden:
    return goldens.load(goldens.committed("dsa"), "dsa")


@functools.cache
def golden_cases() -> tuple[dsa.DsaCase, ...]:
    return dsa.cases(golden())


def case_of(stage: Stage, name: str) -> Case:
    """Return the case "family/label" of a stage on the committed golden."""
    return next(case for case in _cases(stage.name, stage.cases) if case.id.endswith(f"/{name}"))


@functools.cache
def _cases(_name: str, cases: Any) -> tuple[Case, ...]:
    return tuple(cases(golden()))


def untouched(program: Program) -> dict[str, Array]:
    """Return a program's outputs as nothing wrote them, an inout as it was filled."""
    return {
        buffer.name: poisoned_like(buffer.shape, DTYPES[buffer.dtype][0], POISON)
        if buffer.data is None
        else buffer.data.reshape(buffer.shape).copy()
        for buffer in program.buffers
        if buffer.role in ("out", "inout")
    }


def faults(case: Case, outputs: dict[str, Array]) -> set[str]:
    return failed(judged(case, **outputs))
