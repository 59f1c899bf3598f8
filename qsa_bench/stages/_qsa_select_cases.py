"""Cases of select beside the golden that should succeed: families of inputs.

Every case runs both outputs (mask, then id list) in one program.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from qsa_bench import families
from qsa_bench.compare import bitwise
from qsa_bench.model import Finding, Role
from qsa_bench.oracles.select import RATIO, Selection, select
from qsa_bench.program import OK, Buffer, Call, Program, Value
from qsa_bench.stages.base import (
    EVERY_SCHEDULE,
    FEW_SCHEDULES,
    ONE_SCHEDULE,
    Case,
    Outputs,
)

Array = npt.NDArray[Any]

STAGE_NAME = "qsa_select"
BUDGET = 2048
TOP_K = BUDGET // RATIO
# Above this many blocks in all rows a case is too large for the access checker.
_CHECKED_BLOCKS = 3000


@dataclass(frozen=True)
class Launch:
    """One launch: block scores of each row (prefix only), positions, capacities.

    `prefixes[r]` holds at least the row's complete blocks; what lies past it in the row and in
    `spare` elements behind the last row is `beyond` (NaN, or an infinity) and must not be read.
    """

    prefixes: Sequence[Array]
    rows: Sequence[int]
    tokens: int
    score_cols: int
    budget: int = BUDGET
    spare: int = 0
    live_rows: int | None = None
    compute_capability: int | None = None
    beyond: float = math.nan

    def scores(self) -> Array:
        """Return the flat score buffer, `beyond` wherever no prefix lies."""
        size = len(self.rows) * self.score_cols + self.spare
        flat = np.full(size, self.beyond, dtype=np.float32)
        for row, prefix in enumerate(self.prefixes):
            flat[row * self.score_cols : row * self.score_cols + len(prefix)] = prefix
        return flat

    def holes(self) -> tuple[tuple[int, int], ...]:
        """Return the element ranges of the score buffer that no kernel may read."""
        count = len(self.rows)
        live = count if self.live_rows is None else min(max(self.live_rows, 0), count)
        spans = []
        for row in range(count):
            read = min((self.rows[row] + 1) // RATIO, self.score_cols) if row < live else 0
            start, stop = row * self.score_cols + max(read, 0), (row + 1) * self.score_cols
            if start < stop:
                spans.append((start, stop))
        if self.spare:
            spans.append((count * self.score_cols, count * self.score_cols + self.spare))
        return tuple(spans)


def program(launch: Launch, expect: str | int = OK, entry: str | None = None) -> Program:
    """Return the program of a launch: both entries, or the one named."""
    count = len(launch.rows)
    buffers = [
        Buffer(
            "scores",
            "f32",
            (count * launch.score_cols + launch.spare,),
            Role.INPUT,
            launch.scores(),
            uninitialised=launch.holes(),
        ),
        Buffer("rows", "i32", (count,), Role.INPUT, np.array(launch.rows, dtype=np.int32)),
    ]
    common: dict[str, Value] = {
        "scores": "scores",
        "rows": "rows",
        "row_count": count,
        "tokens": launch.tokens,
        "score_cols": launch.score_cols,
        "budget": launch.budget,
    }
    if launch.live_rows is not None:
        live = np.array([launch.live_rows], dtype=np.int32)
        buffers.append(Buffer("live_rows", "i32", (1,), Role.INPUT, live))
        common["live_rows"] = "live_rows"
    calls: list[Call] = []
    if entry in (None, "qsa_select"):
        buffers.append(Buffer("mask", "u8", (count, launch.tokens), Role.OUTPUT))
        calls.append(Call(STAGE_NAME, "qsa_select", {**common, "mask": "mask"}, expect))
    if entry in (None, "qsa_select_ids"):
        width = launch.budget + RATIO - 1
        buffers.append(Buffer("ids", "i32", (count, width), Role.OUTPUT))
        buffers.append(Buffer("counts", "i32", (count,), Role.OUTPUT))
        values: dict[str, Value] = {**common, "ids": "ids", "counts": "counts"}
        calls.append(Call(STAGE_NAME, "qsa_select_ids", values, expect))
    device = {}
    if launch.compute_capability is not None:
        device["compute_capability"] = launch.compute_capability
    return Program(tuple(buffers), tuple(calls), device)


def oracle_judge(launch: Callable[[], Launch]) -> Callable[[Program, Outputs], Iterable[Finding]]:
    """Return a judge that holds mask, ids and counts to the stable oracle, bit by bit."""

    # Once a case: a campaign judges many mutants' outputs of it.
    @cache
    def oracle() -> Selection:
        given = launch()
        return select(
            given.scores(),
            np.array(given.rows),
            given.tokens,
            given.score_cols,
            given.budget,
            given.live_rows,
        )

    def judge(_program: Program, outputs: Outputs) -> Iterable[Finding]:
        want = oracle()
        if "mask" in outputs:
            yield bitwise("mask", "mask", want.mask, outputs["mask"], "bits")
        if "ids" in outputs:
            yield bitwise("ids", "ids", want.ids, outputs["ids"], "ids")
            yield bitwise("counts", "counts", want.counts, outputs["counts"], "rows")

    return judge


def _case(
    family: str,
    label: str,
    clauses: Sequence[str],
    make: Callable[[], Launch],
    *,
    blocks: int,
    schedules: str = EVERY_SCHEDULE,
    reserve: bool = False,
) -> Case:
    return Case(
        STAGE_NAME,
        family,
        label,
        tuple(clauses),
        lambda: program(make()),
        oracle_judge(make),
        # A case with one schedule has neighbours of its family that the checker sees.
        checked=blocks <= _CHECKED_BLOCKS and schedules != ONE_SCHEDULE,
        schedules=schedules,
        reserve=reserve,
    )


def single_row(
    family: str,
    generator: str,
    blocks: int,
    clauses: Sequence[str],
    *,
    budget: int = BUDGET,
    tail: int = 3,
    extra_cols: int = 0,
    spare: int = 0,
    capacity: int | None = None,
    schedules: str = EVERY_SCHEDULE,
    compute_capability: int | None = None,
    reserve: bool = False,
) -> Case:
    """Return a case of one row of `blocks` scores from a generator of `families`.

    `capacity` in tokens; by default the row fills the launch.
    """
    label = f"{generator}-{blocks}-budget{budget}"
    if capacity is not None:
        label += f"-capacity{capacity}"
    if compute_capability is not None:
        label += f"-sm{compute_capability}"

    def make() -> Launch:
        random = families.seeded(STAGE_NAME, family, label)
        position = blocks * RATIO + tail - 1
        tokens = capacity or position + 1
        return Launch(
            [families.SCORE_ROWS[generator](random, blocks)],
            [position],
            tokens,
            max(tokens // RATIO, 1) + extra_cols,
            budget,
            spare,
            compute_capability=compute_capability,
        )

    return _case(family, label, clauses, make, blocks=blocks, schedules=schedules, reserve=reserve)


def _distributions() -> Iterator[Case]:
    """Every generator, on a row just past a small budget and one just past the full budget."""
    clauses = ("score-order", "ties-ascending", "any-distribution")
    every = ("relu4", "equal", "quantised", "low-byte")
    for name in families.SCORE_ROWS:
        orders = EVERY_SCHEDULE if name in every else FEW_SCHEDULES
        extra = ("zeros-equal",) if name in ("signed-zeros", "zero-plateau", "sparse") else ()
        yield single_row("distribution", name, 61, (*clauses, *extra), budget=64, schedules=orders)
        few = FEW_SCHEDULES if name in every else ONE_SCHEDULE
        yield single_row("distribution", name, 546, (*clauses, *extra), schedules=few)
    for name in ("equal", "low-byte", "one-half-bin", "plateau-at-cut", "random-bits", "ramp-up"):
        yield single_row("distribution", name, 1030, clauses, schedules=ONE_SCHEDULE)


def _overflow() -> Iterator[Case]:
    """Sizes at which candidate buffers of known kernels overflow, all in one coarse bin."""
    clauses = ("any-distribution", "score-order")
    for name in ("one-half-bin", "crowded-bin", "low-byte", "equal"):
        for blocks in (2049, 3709, 4097, 4139):
            first = blocks == 4139 and name in ("one-half-bin", "crowded-bin")
            yield single_row(
                "overflow", name, blocks, clauses, schedules=ONE_SCHEDULE, reserve=not first
            )
    for name in ("one-half-bin", "zero-plateau", "fine-steps"):
        yield single_row("overflow", name, 16385, clauses, schedules=ONE_SCHEDULE, reserve=True)
    yield single_row("overflow", "ramp-up", 16448, clauses, schedules=ONE_SCHEDULE, reserve=True)


def _budget_edge() -> Iterator[Case]:
    """Exactly the budget, one block less and one more; every budget class."""
    for budget in (4, 8, 16, 64, 252, 1024, BUDGET):
        for more in (-1, 0, 1, 2):
            blocks = budget // RATIO + more
            if blocks >= 0:
                clauses = ("budget", "all-kept", "tail")
                orders = FEW_SCHEDULES if budget in (16, BUDGET) else ONE_SCHEDULE
                yield single_row(
                    "budget-edge",
                    "relu4",
                    blocks,
                    clauses,
                    budget=budget,
                    schedules=orders,
                    reserve=budget not in (4, 16, BUDGET),
                )

    # One kept block among more ties than one pass over the indices tells apart.
    for name in ("equal", "signed-zeros"):
        yield single_row(
            "budget-edge",
            name,
            4097,
            ("budget",),
            budget=4,
            schedules=ONE_SCHEDULE,
            reserve=True,
        )


def _positions() -> Iterator[Case]:
    """Positions 0 to 11 and both sides of the inert bound, each alone."""
    for position in (*range(12), *range(2046, 2056)):

        def make(position: int = position) -> Launch:
            random = families.seeded(STAGE_NAME, "position", position)
            blocks = (position + 1) // RATIO
            tokens = position + 1
            scores = families.relu4(random, blocks)
            return Launch([scores], [position], tokens, max(tokens // RATIO, 1))

        first = position in (3, 9, 2050, 2054)
        yield _case(
            "position",
            str(position),
            ("tail", "all-kept"),
            make,
            blocks=(position + 1) // RATIO,
            schedules=FEW_SCHEDULES if first else ONE_SCHEDULE,
            reserve=not first,
        )


def ragged_rows(
    label: str,
    positions: Sequence[int],
    clauses: Sequence[str],
    *,
    tokens: int,
    score_cols: int,
    budget: int,
    spare: int = 0,
    live_rows: int | None = None,
    generator: str = "relu4",
    family: str = "ragged",
    garbage_row: int | None = None,
    schedules: str = EVERY_SCHEDULE,
    beyond: float = math.nan,
    reserve: bool = False,
) -> Case:
    """Return a case of rows at `positions`; with `live_rows`, those past it are padding.

    A padding row's position is `garbage_row` if that is given; `beyond` is what lies past prefixes.
    """

    def make() -> Launch:
        prefixes = []
        for position in positions:
            # By position alone, so that a row alone is the same row as in a batch.
            random = families.seeded(STAGE_NAME, generator, position)
            prefixes.append(families.SCORE_ROWS[generator](random, (position + 1) // RATIO))
        rows = list(positions)
        if live_rows is not None:
            # Padding rows hold what an engine leaves there: garbage positions and NaN scores.
            for row in range(max(live_rows, 0), len(rows)):
                prefixes[row] = prefixes[row][:0]
                rows[row] = garbage_row if garbage_row is not None else rows[row]
        return Launch(prefixes, rows, tokens, score_cols, budget, spare, live_rows, beyond=beyond)

    blocks = sum((position + 1) // RATIO for position in positions)
    return _case(family, label, clauses, make, blocks=blocks, schedules=schedules, reserve=reserve)


def _batches() -> Iterator[Case]:
    positions = (99, 3, 250, 0, 64, 63, 65, 1, 2, 127, 250, 17)
    yield ragged_rows(
        "mixed-lengths", positions, ("ragged-rows", "tail"), tokens=256, score_cols=64, budget=64
    )
    for alone, position in enumerate(positions[:4]):
        yield ragged_rows(
            f"alone-{alone}",
            (position,),
            ("ragged-rows",),
            tokens=256,
            score_cols=64,
            budget=64,
        )
    yield ragged_rows(
        "odd-stride",
        (260, 263, 259, 255),
        ("score-stride", "ragged-rows"),
        tokens=264,
        score_cols=67,
        budget=64,
        spare=5,
    )
    # A NaN would trap; an infinity could also be taken for a score, or for the padding of a vector.
    for name, beyond in (("", math.nan), ("-of-inf", math.inf), ("-of-minus-inf", -math.inf)):
        yield ragged_rows(
            f"spare-capacity{name}",
            (511, 700, 703, 12),
            ("prefix-only", "score-stride"),
            tokens=704,
            score_cols=250,
            budget=128,
            spare=513,
            schedules=FEW_SCHEDULES,
            beyond=beyond,
        )
    yield ragged_rows(
        "past-budget",
        (2051, 2054, 2999, 2048),
        ("ragged-rows", "every-byte-written", "causality"),
        tokens=3000,
        score_cols=751,
        budget=BUDGET,
        generator="quantised",
        schedules=FEW_SCHEDULES,
    )
    yield ragged_rows(
        "short-rows-in-long-capacity",
        (5, 2100, 77),
        ("capacity-and-length", "every-byte-written"),
        tokens=65536,
        score_cols=16384,
        budget=BUDGET,
        schedules=ONE_SCHEDULE,
        reserve=True,
    )
    yield ragged_rows(
        "short-row-in-longest-capacity",
        (2077,),
        ("capacity-and-length", "every-byte-written"),
        tokens=1 << 20,
        score_cols=1 << 18,
        budget=BUDGET,
        schedules=ONE_SCHEDULE,
        reserve=True,
    )
    for live in (-1, 0, 1, 3, 4, 9):
        yield ragged_rows(
            f"live-{live}",
            (99, 64, 120, 7),
            ("live-rows",),
            tokens=128,
            score_cols=33,
            budget=64,
            live_rows=live,
            garbage_row=-(2**31) if live % 2 else 2**31 - 1,
            family="padding",
            schedules=FEW_SCHEDULES,
        )
    # A long run of equal rows shows work that leaks from one row to the next.
    yield ragged_rows(
        "forty-rows",
        tuple(range(60, 100)),
        ("ragged-rows",),
        tokens=100,
        score_cols=25,
        budget=32,
        generator="quantised",
        schedules=ONE_SCHEDULE,
        reserve=True,
    )


def _repeat() -> Case:
    """The same launch twice over the same outputs: nothing may be carried over."""
    random = families.seeded(STAGE_NAME, "repeat")
    scores = families.quantised(random, 150)

    def make() -> Launch:
        return Launch([scores], [602], 603, 150, 128)

    def build() -> Program:
        once = program(make())
        return Program(once.buffers, once.calls + once.calls)

    return Case(
        STAGE_NAME,
        "repeat",
        "twice",
        ("deterministic",),
        build,
        oracle_judge(make),
        checked=True,
    )


def families_of_select() -> Iterator[Case]:
    """Yield every case of select that should succeed."""
    yield from _distributions()
    yield from _overflow()
    yield from _budget_edge()
    yield from _positions()
    yield from _batches()
    yield _repeat()
