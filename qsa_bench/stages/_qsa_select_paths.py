"""Cases of select that reach one launch path each: rows spread over clusters, CTAs alone, long rows.

The CPU build spreads one or two rows of more than 1,600 blocks over four CTAs, and keeps every
other row in one; the edges below are those of its parts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from qsa_bench import families
from qsa_bench.model import Role
from qsa_bench.oracles.select import RATIO
from qsa_bench.program import Buffer, Call, Program
from qsa_bench.stages._qsa_select_cases import (
    BUDGET,
    STAGE_NAME,
    Launch,
    oracle_judge,
    program,
    ragged_rows,
    single_row,
)
from qsa_bench.stages.base import FEW_SCHEDULES, ONE_SCHEDULE, Case

_CTAS = 4
# A capacity that is no multiple of a part, and blocks a part: whole vectors of four scores.
_CAPACITY = 1706
_PART = -(-_CAPACITY // RATIO // _CTAS) * RATIO


def paths_of_select() -> Iterator[Case]:
    """Yield the families of the launch paths."""
    yield from _long()
    yield _far_offset()
    yield from _clusters()
    yield from _part_edges()
    yield from _cluster_rows()
    yield from _rows_read_again()


def _long() -> Iterator[Case]:
    clauses = ("any-distribution", "long-rows")
    for blocks in (8191, 32769, 65535, 65536, 65537):
        yield single_row("long", "relu4", blocks, clauses, schedules=ONE_SCHEDULE, reserve=True)
    for name in ("quantised", "equal", "zero-plateau", "random-bits"):
        yield single_row("long", name, 65537, clauses, schedules=ONE_SCHEDULE, reserve=True)
    yield single_row("long", "relu4", 262144, clauses, schedules=ONE_SCHEDULE, tail=0, reserve=True)
    for name in ("relu4", "quantised"):
        for capability in (80, 86):
            yield single_row(
                "portable",
                name,
                20000,
                clauses,
                schedules=ONE_SCHEDULE,
                compute_capability=capability,
                reserve=True,
            )


def _far_offset() -> Case:
    """Rows whose scores lie beyond 2**31 elements: by stride, so that little memory is touched."""
    stride = (1 << 30) + 8
    positions = (79, 83, 87)
    random = families.seeded(STAGE_NAME, "far")
    prefixes = [families.relu4(random, (position + 1) // RATIO) for position in positions]

    def build() -> Program:
        near = program(Launch(prefixes, positions, 88, 22, 64))
        segments = tuple((row * stride, prefix) for row, prefix in enumerate(prefixes))
        far = Buffer("scores", "f32", (2 * stride + 22,), Role.INPUT, segments=segments)
        calls = tuple(
            Call(call.kernel, call.entry, {**call.values, "score_cols": stride})
            for call in near.calls
        )
        return Program((far, *near.buffers[1:]), calls)

    return Case(
        STAGE_NAME,
        "far-offset",
        "two-to-the-31",
        ("offsets-64-bit",),
        build,
        oracle_judge(lambda: Launch(prefixes, positions, 88, 22, 64)),
        schedules=ONE_SCHEDULE,
    )


def _clusters() -> Iterator[Case]:
    """Every way a cluster finds its cut: ranked at once, narrowed, ties shared by index."""
    clauses = ("any-distribution", "score-order", "ties-ascending")
    for name in (
        "relu4",
        "low-byte",
        "equal",
        "quantised",
        "plateau-at-cut",
        "signed-zeros",
        "zero-plateau",
        "random-bits",
        "negative",
        "ramp-up",
        "ramp-down",
        "extremes",
        "three-values",
    ):
        orders = FEW_SCHEDULES if name in ("relu4", "quantised", "low-byte") else ONE_SCHEDULE
        for budget in (64, BUDGET):
            first = name == "random-bits" if budget == 64 else orders == FEW_SCHEDULES
            yield single_row(
                "cluster",
                name,
                _CAPACITY,
                clauses,
                budget=budget,
                schedules=orders if budget == BUDGET else ONE_SCHEDULE,
                reserve=not first,
            )
    for name in ("equal", "three-values", "relu4"):
        yield single_row(
            "cluster-checked", name, _CAPACITY, ("memory", *clauses), schedules=FEW_SCHEDULES
        )


def _part_edges() -> Iterator[Case]:
    """Rows that end at, before and behind the edge of a part, with a tail in the next one."""
    edges = [_PART * parts + more for parts in range(1, _CTAS) for more in (-1, 0, 1)]
    for blocks in (*edges, _CAPACITY - 1, _CAPACITY):
        yield single_row(
            "part-edge",
            "quantised",
            blocks,
            ("tail", "capacity-and-length", "every-byte-written"),
            budget=64,
            capacity=RATIO * _CAPACITY + 3,
            # A CTA that searches nothing clears the chunk that the tail begins, and sets the tail, by
            # several threads: one order hides a missing barrier.
            schedules=FEW_SCHEDULES if blocks == _PART else ONE_SCHEDULE,
            reserve=True,
        )
    # A row that keeps all and yet lies in two parts; one that a single part holds.
    for blocks in (300, _PART + 2, BUDGET // RATIO, BUDGET // RATIO + 1):
        yield single_row(
            "part-edge",
            "relu4",
            blocks,
            ("all-kept", "capacity-and-length"),
            capacity=RATIO * _CAPACITY + 3,
            schedules=FEW_SCHEDULES,
        )


def _cluster_rows() -> Iterator[Case]:
    """Two clusters, rows that need all CTAs or one, strides that shift every vector, padding."""
    for label, positions, live in (
        ("two", (4 * _CAPACITY - 1, 5001), None),
        ("one-short", (4 * _CAPACITY - 3, 40), None),
        ("one-padding", (6001, 17), 1),
    ):
        yield ragged_rows(
            label,
            positions,
            ("ragged-rows", "score-stride", "tail"),
            tokens=4 * _CAPACITY + 1,
            score_cols=_CAPACITY + 3,
            budget=128,
            spare=7,
            live_rows=live,
            generator="quantised",
            family="cluster-rows",
            schedules=FEW_SCHEDULES,
        )
    for name, beyond in (("inf", math.inf), ("minus-inf", -math.inf)):
        yield ragged_rows(
            f"beyond-{name}",
            (4 * _CAPACITY - 3, 40),
            ("ragged-rows", "prefix-only"),
            tokens=4 * _CAPACITY + 1,
            score_cols=_CAPACITY + 3,
            budget=128,
            spare=7,
            family="cluster-rows",
            schedules=ONE_SCHEDULE,
            reserve=True,
            beyond=beyond,
        )
    # A launch whose rows all lie within the budget has a kernel of its own.
    yield ragged_rows(
        "within-budget-padding",
        (799, 17, 401),
        ("live-rows", "all-kept"),
        tokens=800,
        score_cols=200,
        budget=BUDGET,
        live_rows=2,
        family="short-rows",
        schedules=FEW_SCHEDULES,
    )


def _rows_read_again() -> Iterator[Case]:
    """Rows longer than a CTA's registers on a device without clusters."""
    clauses = ("any-distribution", "long-rows")
    for name in ("relu4", "equal", "low-byte", "zero-plateau", "plateau-at-cut"):
        yield single_row(
            "portable",
            name,
            4139,
            clauses,
            schedules=ONE_SCHEDULE,
            compute_capability=80,
            reserve=name != "low-byte",
        )
    yield single_row(
        "portable-checked",
        "equal",
        1300,
        ("memory", *clauses),
        schedules=FEW_SCHEDULES,
        compute_capability=80,
    )
    # Vectors of scores and chunks of the mask on the same boundaries, and on others.
    yield ragged_rows(
        "on-other-boundaries",
        (2399, 2203, 2398, 2397),
        ("score-stride", "every-byte-written"),
        tokens=2400,
        score_cols=601,
        budget=1024,
        family="boundaries",
        schedules=FEW_SCHEDULES,
    )
    yield ragged_rows(
        "on-one-boundary",
        (2403, 2203, 2402, 2401),
        ("score-stride", "every-byte-written"),
        tokens=2404,
        score_cols=601,
        budget=1024,
        family="boundaries",
        schedules=FEW_SCHEDULES,
    )
