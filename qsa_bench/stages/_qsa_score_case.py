"""A case of qsa_score: two entries over one launch, and the mma one too where it is not the automatic."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from qsa_bench.model import TARGETS, Finding
from qsa_bench.program import Program
from qsa_bench.stages import _qsa_inputs as qsa
from qsa_bench.stages._qsa_score_judge import judge_entries
from qsa_bench.stages._qsa_score_launch import (
    BOTH,
    MMA,
    SCALAR,
    STAGE_NAME,
    Launch,
    oracle_of,
    program,
)
from qsa_bench.stages.base import FEW_SCHEDULES, Case, Judge, Outputs

_CHECKED_BYTES = 400_000

NUMERICS = (
    "relu-per-head",
    "heads",
    "scale",
    "f32-dot",
    "one-plus-weight",
    "norm-rounding",
    "own-position",
    "half-split-rotation",
    "three-roundings",
    "block-order",
)
# The entries of a case, how its label ends, on which targets. Two, as their selections are compared.
VARIANTS = ((BOTH, "", TARGETS), ((MMA, SCALAR), "-mma", ("cuda",)))


def launch_case(
    family: str,
    label: str,
    clauses: Sequence[str],
    make: Callable[[], Launch],
    schedules: str = FEW_SCHEDULES,
    golden: bool = False,
    variants: Sequence[tuple[Sequence[str], str, tuple[str, ...]]] = VARIANTS,
    reserve: bool = False,
    large: bool = False,
) -> Iterator[Case]:
    """Yield the case of a launch: the automatic entry, and the mma one where it is another, beside the scalar.

    A `large` launch, which writes scores and is not checked, is made when it is run: a listing has no
    use for it.
    """
    launch = functools.cache(make)
    oracle = functools.cache(lambda: oracle_of(launch()))

    def judge(_program: Program, outputs: Outputs) -> Iterable[Finding]:
        return judge_entries(oracle(), outputs, golden)

    for entries, ending, targets in variants:
        build = functools.partial(_program, launch, entries)
        built = None if large else build()
        yield Case(
            STAGE_NAME,
            family,
            f"{label}{ending}",
            tuple(clauses),
            build if built is None else lambda built=built: built,  # type: ignore[misc]
            judge if entries == BOTH else _without_counts(judge),
            checked=built is not None and built.bytes <= _CHECKED_BYTES,
            schedules=schedules,
            targets=targets,
            writes=large or any(seen >= qsa.RATIO for seen in launch().visible_len),
            reserve=reserve,
        )


def _program(launch: Callable[[], Launch], entries: Sequence[str]) -> Program:
    return program(launch(), entries=entries)


def _without_counts(judge: Judge) -> Judge:
    """Return a judge whose findings carry no counts: a golden's scores are counted once."""

    def judged(built: Program, outputs: Outputs) -> Iterable[Finding]:
        for finding in judge(built, outputs):
            yield replace(finding, evidence=replace(finding.evidence, numbers={}))

    return judged
