"""Cases of select at the edges of its search: bins, lists, windows of ties, capacities near the last int.

Each came from an automatic mutant that no other case told from the kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from qsa_bench import families
from qsa_bench.model import Role
from qsa_bench.oracles.select import RATIO
from qsa_bench.program import At, Buffer, Call, Program
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

Array = npt.NDArray[Any]

_LOWEST = np.finfo(np.float32).min
# The coarse bins of the search, 128 an octave: the bits of the first one's least score, those a bin.
_FIRST_BITS, _BIN_BITS = (127 - 8) << 23, 1 << 16


def edges_of_select() -> Iterator[Case]:
    """Yield the families of the edges."""
    exact = ("score-order", "any-distribution")
    ties = (*exact, "ties-ascending")
    yield _rows("list-lengths", exact, _list_lengths, budget=64, stride=172, checked=True)
    yield _rows("bin-edges", exact, _bin_edges, budget=256, stride=240)
    yield _rows("sides-of-zero", (*ties, "zeros-equal"), _sides_of_zero, budget=256, stride=265)
    yield _rows("between-bins", exact, _between_bins, budget=64, stride=220)
    yield _rows(
        "between-bins-of-a-cluster", exact, _between_bins_of_a_cluster, budget=64, stride=1704
    )
    yield _rows("first-of-a-part", exact, _first_of_a_part, budget=RATIO * 430, stride=1708)
    yield _rows("ties-of-the-last-part", ties, _ties_of_the_last_part, budget=512, stride=1708)
    # An odd stride shifts every vector of scores: what lies beside a row is lowest, too.
    yield _rows("lowest-scores", ties, _lowest_scores, budget=252, stride=1033)
    for label, positions, tokens, score_cols in (
        ("whole-tiles-unaligned", (4 * 1100, 4 * 1101 + 2, 4 * 1099), 4412, 1105),
        ("mask-aligned-scores-not", (6830, 6829), 6832, 1709),
        ("scores-aligned-mask-not", (6829, 6400), 6831, 1712),
        # The parts of four CTAs end with the last block, and three tokens follow.
        ("parts-without-room", (6850,), 6851, 1712),
        # One tile's vectors to the last one, in a part that has room for more.
        ("whole-tile-in-a-part", (4095,), 16800, 4200),
    ):
        yield ragged_rows(
            label,
            positions,
            ("score-stride", "every-byte-written"),
            tokens=tokens,
            score_cols=score_cols,
            budget=1024,
            generator="quantised",
            family="edge",
            schedules=ONE_SCHEDULE,
            reserve=True,
        )
    # The last scores of a row that begins on a vector: behind most of a tile's. And fewer vectors
    # than threads in a part with room for more.
    for generator, blocks, budget, capacity in (
        ("ramp-up", 1023, BUDGET, None),
        ("quantised", 200, 64, 6827),
    ):
        yield single_row(
            "edge",
            generator,
            blocks,
            exact,
            budget=budget,
            capacity=capacity,
            schedules=ONE_SCHEDULE,
            reserve=True,
        )
    # The checker sees a vector that lies on no vector's boundary.
    for label, positions, tokens, score_cols in (
        ("two-rows-unaligned", (70, 75), 76, 19),
        ("three-tiny-rows-unaligned", (11, 12, 8), 13, 3),
    ):
        yield ragged_rows(
            label,
            positions,
            ("score-stride", "memory"),
            tokens=tokens,
            score_cols=score_cols,
            budget=4,
            family="edge",
            schedules=FEW_SCHEDULES,
            reserve=True,
        )
    # Ties of rows that one CTA reads in several tiles, also on a device whose few rows get a cluster each.
    yield ragged_rows(
        "tied-tiles",
        (4 * 4139 - 1, 4 * 4138 + 1, 4 * 4137),
        ties,
        tokens=4 * 4140,
        score_cols=4140,
        budget=BUDGET,
        generator="low-byte",
        family="edge",
        schedules=ONE_SCHEDULE,
        reserve=True,
    )
    yield _scores_behind_a_boundary()
    yield _scores_at_any_address()
    yield ragged_rows(
        "short-rows-all-padding",
        (79, 7),
        ("live-rows", "memory"),
        tokens=80,
        score_cols=20,
        budget=BUDGET,
        live_rows=0,
        family="edge",
        schedules=ONE_SCHEDULE,
        reserve=True,
    )
    yield _vast_capacity("vast-capacity", 1700, None)
    yield _vast_capacity("vast-capacity-sm80", 1100, 80)
    # Eight CTAs and four blocks a part's unit are 2**5, times 2**27 vectors.
    yield _vast_capacity("greatest-capacity", 1700, None, tokens=2**31 - 1)


def _rows(
    label: str,
    clauses: Sequence[str],
    rows: Callable[[np.random.Generator], Sequence[Array]],
    *,
    budget: int,
    stride: int,
    checked: bool = False,
) -> Case:
    """Return a case of given rows of scores, a tail of 0 to 3 tokens behind each."""

    def make() -> Launch:
        prefixes = rows(families.seeded(STAGE_NAME, "edge", label))
        positions = [RATIO * len(row) + at % RATIO - 1 for at, row in enumerate(prefixes)]
        return Launch(prefixes, positions, RATIO * stride, stride, budget)

    return Case(
        STAGE_NAME,
        "edge",
        label,
        tuple(clauses),
        lambda: program(make()),
        oracle_judge(make),
        checked=checked,
        schedules=ONE_SCHEDULE,
        reserve=True,
    )


def _list_lengths(random: np.random.Generator) -> list[Array]:
    """As many scores in the bin of the cut as whole warps rank, one more, and as many as are ranked at all."""
    rows = []
    for length in (33, 65, 97, 126, 128, 129):
        # Whole vectors, so that nothing else is in the bin; low, so that any junk stands before
        # them; ascending, so that the last one listed stands before the others.
        above = random.uniform(2, 4, 5 + -(length + 5) % RATIO)
        crowd = (np.arange(length) * 2.0**-17 - 1.5) * 2.0**100
        rows.append(np.concatenate([above, crowd]).astype(np.float32))
    return rows


def _bin_edges(random: np.random.Generator) -> list[Array]:
    """The least and the greatest score of bins on both sides of the cut."""
    return [_around_bin(random, 1000), _lowest_bin(random)]


def _bin(number: int) -> tuple[np.float32, np.float32]:
    """Return the least and the greatest score of a coarse bin."""
    least = _FIRST_BITS + number * _BIN_BITS
    ends = np.array([least, least + _BIN_BITS - 1], dtype=np.uint32).view(np.float32)
    return ends[0], ends[1]


def _around_bin(random: np.random.Generator, number: int) -> Array:
    least, greatest = _bin(number)
    above, below = _bin(number + 1)[0], _bin(number - 1)[1]
    values = [above] * 50 + [greatest] * 10 + [least] * 10 + [below] * 100
    return random.permutation(np.array(values, dtype=np.float32))


def _lowest_bin(random: np.random.Generator) -> Array:
    """The cut in the zeros of the lowest bin, whose greatest score ten positives have."""
    few = random.uniform(1e-5, 1e-3, 44)
    values = [*few, *[_bin(0)[1]] * 10, *[0.0] * 40, *-random.uniform(1e-3, 1, 120)]
    return random.permutation(np.array(values, dtype=np.float32))


def _sides_of_zero(random: np.random.Generator) -> list[Array]:
    """The cut right after the positives, right after the zeros, and in negative ties below zeros."""
    tiny, negatives = random.uniform(1e-6, 1e-3, 64), -np.exp(random.uniform(-60, 60, 150))
    # The least float there is closes the positives.
    after_positives = [*tiny[1:], 2.0**-149, *[0.0] * 40, *negatives]
    after_zeros = [*tiny[:24], *[0.0, -0.0] * 20, *negatives]
    below_zeros = [*tiny[:10], *[0.0] * 30, *[-0.5] * 200]
    within_zeros = [*tiny[:30], *[0.0, -0.0] * 70, *negatives[:60]]
    rows = (after_positives, after_zeros, below_zeros, within_zeros)
    return [random.permutation(np.array(row, dtype=np.float32)) for row in rows]


def _between_bins(random: np.random.Generator) -> list[Array]:
    """The cut right behind one bin, and more than are ranked in the next one that is not empty."""
    above, crowd = random.uniform(1.7, 1.74, 16), 1.6 + random.permutation(200) * 2.0**-20
    return [random.permutation(np.append(above, crowd)).astype(np.float32)]


def _between_bins_of_a_cluster(random: np.random.Generator) -> list[Array]:
    lower = random.uniform(0.5, 1.4, 1704 - 216)
    row = np.append(_between_bins(random)[0], lower)
    return [random.permutation(row).astype(np.float32)]


def _first_of_a_part(_: np.random.Generator) -> list[Array]:
    """The cut in a bin of eight scores: with the first block of the second of four parts, and of the first."""
    second = np.arange(1704, 0, -1) / 8
    first = second.copy()
    first[[0, 428]] = first[[428, 0]]
    return [row.astype(np.float32) for row in (second, first)]


def _ties_of_the_last_part(random: np.random.Generator) -> list[Array]:
    """The cut in equal scores, more than are ranked, of which the first three of four parts have none."""
    row = random.uniform(0.5, 1.4, 1704)
    row[1400:] = 7.0
    return [row.astype(np.float32)]


def _lowest_scores(random: np.random.Generator) -> list[Array]:
    """The cut in ties at the lowest finite score, alone there or beside the next one."""
    rows = []
    for blocks in (1030, 1031, 302, 301, 300):
        row = np.full(blocks, _LOWEST, dtype=np.float32)
        places = random.permutation(blocks)[:15]
        row[places] = random.standard_normal(15)
        rows.append(row)
    beside = np.where(np.arange(250) % 5 == 0, np.nextafter(_LOWEST, np.float32(0)), _LOWEST)
    return [*rows, beside.astype(np.float32), np.append(beside, _LOWEST).astype(np.float32)]


def _scores_behind_a_boundary() -> Case:
    """A single row whose scores begin four bytes behind a boundary of 16."""

    def make() -> Launch:
        random = families.seeded(STAGE_NAME, "edge", "behind")
        return Launch([families.quantised(random, 75)], [302], 304, 76, 64)

    def build() -> Program:
        made = program(make())
        scores = np.append(np.float32(np.nan), made.array("scores"))
        holes = ((0, 1), (76, 77))
        moved = Buffer("scores", "f32", (77,), Role.INPUT, scores, uninitialised=holes)
        calls = tuple(
            Call(call.kernel, call.entry, {**call.values, "scores": At("scores", 1)})
            for call in made.calls
        )
        return Program((moved, *made.buffers[1:]), calls)

    return Case(
        STAGE_NAME,
        "edge",
        "scores-behind-a-boundary",
        ("score-stride", "memory"),
        build,
        oracle_judge(make),
        checked=True,
        schedules=ONE_SCHEDULE,
        reserve=True,
    )


def _scores_at_any_address() -> Case:
    """A list, again and again, of scores that begin at one address after another.

    Of 34 addresses four bytes apart two each are multiples of 15 and of 17, and one of the two is none of
    16: a launch that took it for a vector's boundary would read vectors that lie on none.
    """
    blocks, places = 70, 34

    def make() -> Launch:
        # Equal scores are the same from wherever they are read.
        scores = np.ones(blocks, dtype=np.float32)
        return Launch([scores], [RATIO * blocks], RATIO * blocks + 1, blocks, 64)

    def build() -> Program:
        made = program(make(), entry="qsa_select_ids")
        size = blocks + places - 1
        scores = Buffer("scores", "f32", (size,), Role.INPUT, np.ones(size, dtype=np.float32))
        buffers = tuple(scores if one.name == "scores" else one for one in made.buffers)
        calls = tuple(
            Call(call.kernel, call.entry, {**call.values, "scores": At("scores", place)})
            for call in made.calls
            for place in range(places)
        )
        return Program(buffers, calls)

    return Case(
        STAGE_NAME,
        "edge",
        "scores-at-any-address",
        ("memory",),
        build,
        oracle_judge(make),
        checked=True,
        schedules=ONE_SCHEDULE,
        reserve=True,
    )


def _vast_capacity(
    label: str, blocks: int, compute_capability: int | None, tokens: int = 2**30
) -> Case:
    """A list of a row that is short for its capacity, 2**30 tokens or more: four times as many are no int."""
    scores = families.relu4(families.seeded(STAGE_NAME, "edge", label), blocks)
    position = RATIO * blocks + 1
    near = Launch([scores], [position], position + 1, blocks, compute_capability=compute_capability)

    def build() -> Program:
        made = program(near, entry="qsa_select_ids")
        # The stride of the only row: the buffer ends with its blocks.
        wide = {"tokens": tokens, "score_cols": tokens // RATIO}
        calls = tuple(Call(call.kernel, call.entry, {**call.values, **wide}) for call in made.calls)
        return Program(made.buffers, calls, made.device)

    return Case(
        STAGE_NAME,
        "edge",
        label,
        ("capacity-and-length",),
        build,
        oracle_judge(lambda: near),
        schedules=ONE_SCHEDULE,
        reserve=True,
    )
