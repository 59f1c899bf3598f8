"""What select must not serve: inputs that trap and arguments that its C entries refuse."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import numpy as np

from qsa_bench import families
from qsa_bench.oracles.select import RATIO
from qsa_bench.program import OK, TRAP, Call, Program, Value
from qsa_bench.stages._qsa_select_cases import STAGE_NAME, Launch, program
from qsa_bench.stages.base import FEW_SCHEDULES, ONE_SCHEDULE, Case, no_judge

# kernels/common/status.h
NULL_POINTER, BAD_EXTENT, BAD_BUDGET, BAD_STRIDE = 1, 2, 3, 4
# A label, the arguments that differ from a good call, the status they must give.
Refusal = tuple[str, Mapping[str, Value], int]


def _trap(
    label: str, clause: str, make: Callable[[], Launch], entry: str, *, reserve: bool = False
) -> Case:
    return Case(
        STAGE_NAME,
        "trap",
        f"{label}-{entry.removeprefix('qsa_')}",
        (clause,),
        lambda: program(make(), TRAP, entry),
        no_judge,
        checked=clause == "row-range-traps",
        schedules=FEW_SCHEDULES if clause == "row-range-traps" else ONE_SCHEDULE,
        writes=False,
        reserve=reserve,
    )


def traps_of_select() -> Iterator[Case]:
    """Yield the cases that must trap: non-finite scores in a prefix, positions out of range."""
    bad_values = (("nan", np.nan), ("plus-inf", np.inf), ("minus-inf", -np.inf))
    for entry in ("qsa_select", "qsa_select_ids"):
        for name, value in bad_values:
            for row_name, position, budget in (("kept", 63, 64), ("cut", 251, 64)):
                blocks = (position + 1) // RATIO
                for place in (0, blocks // 2, blocks - 1):

                    def make(
                        value: float = value,
                        position: int = position,
                        budget: int = budget,
                        place: int = place,
                    ) -> Launch:
                        random = families.seeded(STAGE_NAME, "trap", position)
                        scores = families.relu4(random, (position + 1) // RATIO)
                        scores[place] = value
                        return Launch([scores], [position], position + 1, scores.size, budget)

                    label = f"{name}-{row_name}-block{place}"
                    yield _trap(label, "non-finite-traps", make, entry)
        # The last block of the longest row that is not searched, in the kernel for such rows and in
        # the one that searches others; and of a row shorter than a vector, which is searched.
        for blocks, tokens, budget in ((512, 2048, 2048), (512, 4096, 2048), (3, 12, 4)):

            def last(blocks: int = blocks, tokens: int = tokens, budget: int = budget) -> Launch:
                scores = families.relu4(families.seeded(STAGE_NAME, "trap", "last"), blocks)
                scores[-1] = np.nan
                return Launch([scores], [RATIO * blocks - 1], tokens, tokens // RATIO, budget)

            yield _trap(f"nan-last-of-{tokens}", "non-finite-traps", last, entry, reserve=True)
        for row in (-1, 64, -(2**31), 2**31 - 1):

            def outside(row: int = row) -> Launch:
                # Finite far past what any position could see: the position alone is at fault.
                scores = families.relu4(families.seeded(STAGE_NAME, "row"), 32)
                return Launch([scores, scores], [60, row], 64, 32, 16)

            yield _trap(f"row{row}", "row-range-traps", outside, entry)

            def within(row: int = row) -> Launch:
                # A launch in which nothing is searched for has kernels of its own.
                return replace(outside(row), budget=64)

            yield _trap(f"short-row{row}", "row-range-traps", within, entry)


def refusals_of_select() -> Iterator[Case]:
    """Yield what the C entry must refuse by code, launching nothing."""
    good: dict[str, Value] = {"row_count": 2, "tokens": 64, "score_cols": 16, "budget": 16}
    changes: list[Refusal] = [
        ("null-scores", {"scores": None}, NULL_POINTER),
        ("null-rows", {"rows": None}, NULL_POINTER),
        ("negative-rows", {"row_count": -1}, BAD_EXTENT),
        ("no-rows", {"row_count": 0}, BAD_EXTENT),
        ("negative-tokens", {"tokens": -1}, BAD_EXTENT),
        ("no-tokens", {"tokens": 0}, BAD_EXTENT),
        ("zero-budget", {"budget": 0}, BAD_BUDGET),
        ("negative-budget", {"budget": -4}, BAD_BUDGET),
        ("odd-budget", {"budget": 18}, BAD_BUDGET),
        ("large-budget", {"budget": 2052}, BAD_BUDGET),
        ("short-stride", {"score_cols": 15}, BAD_STRIDE),
        ("zero-stride", {"score_cols": 0, "tokens": 3}, BAD_STRIDE),
        ("negative-stride", {"score_cols": -16}, BAD_EXTENT),
        # The last i32 is an extent: what comes after it is refused.
        ("budget-after-most-rows", {"row_count": 2**31 - 1, "budget": 0}, BAD_BUDGET),
        ("budget-after-most-tokens", {"tokens": 2**31 - 1, "budget": 0}, BAD_BUDGET),
        ("budget-after-most-cols", {"score_cols": 2**31 - 1, "budget": 0}, BAD_BUDGET),
        ("rows-beyond-i32", {"row_count": 2**31}, BAD_EXTENT),
    ]
    outputs = {"qsa_select": ("mask",), "qsa_select_ids": ("ids", "counts")}
    for entry, names in outputs.items():
        nulls: list[Refusal] = [(f"null-{name}", {name: None}, NULL_POINTER) for name in names]
        for label, change, code in [*changes, *nulls]:

            def build(
                entry: str = entry, change: Mapping[str, Value] = change, code: int = code
            ) -> Program:
                scores = families.relu4(families.seeded(STAGE_NAME, "refusal"), 16)
                base = program(Launch([scores, scores], [63, 63], 64, 16, 16), OK, entry)
                values = {**base.calls[0].values, **good, **change}
                return Program(base.buffers, (Call(STAGE_NAME, entry, values, code),))

            yield Case(
                STAGE_NAME,
                "refusal",
                f"{label}-{entry.removeprefix('qsa_')}",
                ("refusals",),
                build,
                no_judge,
                schedules=ONE_SCHEDULE,
                writes=False,
            )
