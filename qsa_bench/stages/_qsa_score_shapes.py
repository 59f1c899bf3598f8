"""Launches of qsa_score by how rows and keys are shared out: the values are like everywhere.

Up to 32 rows the mma body takes 2, 4 or 8 at a time, from 33 on 128; up to 23 rows is what the
automatic one leaves to it on compute capability 9.0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from qsa_bench.model import TARGETS
from qsa_bench.oracles.qsa_numerics import pool_oracle
from qsa_bench.stages import _qsa_inputs as qsa
from qsa_bench.stages._qsa_score_case import VARIANTS, launch_case
from qsa_bench.stages._qsa_score_launch import MMA, Launch, launch_of
from qsa_bench.stages.base import FEW_SCHEDULES, ONE_SCHEDULE, Case


def shapes() -> Iterator[Case]:
    """Yield a case for every way in which rows and keys are shared out."""
    for count in (1, 2, 8, 9, 30, 33, 129, 131):
        yield from launch_case(
            "rows",
            str(count),
            ("rows-apart", "untouched-tail"),
            lambda count=count: mixed_rows(140, count),  # type: ignore[misc]
            reserve=count == 129,
        )
    # Few CTAs that walk the keys, and as many as there are keys to share out.
    for processors in (1, 132):
        for family, tokens, rows in (("split", 560, 2), ("walk", 2120, 1), ("tiles", 776, 34)):
            yield from launch_case(
                family,
                f"multiprocessors{processors}",
                ("block-order", "rows-apart"),
                lambda tokens=tokens, rows=rows, processors=processors: replace(  # type: ignore[misc]
                    _last_rows(tokens, rows), multiprocessors=processors
                ),
                schedules=ONE_SCHEDULE if family == "walk" else FEW_SCHEDULES,
            )
    # The second of two CTAs has one key, the 129th.
    yield from launch_case(
        "split",
        "one-key-more",
        ("block-order",),
        lambda: replace(_last_rows(518, 2), multiprocessors=132),
        schedules=ONE_SCHEDULE,
        reserve=True,
    )
    # One CTA that walks the keys: of one or two rows there are four.
    yield from launch_case(
        "walk",
        "rows9",
        ("block-order", "rows-apart"),
        lambda: replace(_last_rows(1100, 9), multiprocessors=1),
        schedules=ONE_SCHEDULE,
        reserve=True,
    )
    # The same on a device: more keys than are in flight on 188 multiprocessors, so that its warps come to
    # their second keys and its ranges are five tiles long. The automatic entry leaves 32 rows to wgmma.
    for family, keys, rows in (("walk", 100_000, 1), ("walk", 13_000, 32), ("tiles", 9_000, 600)):
        yield from launch_case(
            family,
            f"device-rows{rows}",
            ("block-order", "rows-apart"),
            lambda keys=keys, rows=rows: _wide_launch(keys, rows),  # type: ignore[misc]
            schedules=ONE_SCHEDULE,
            variants=tuple((entries, ending, ("cuda",)) for entries, ending, _ in VARIANTS),
            reserve=True,
            large=True,
        )
    # Two ranges, of four tiles and of three. The second one's third tile, the first to be copied while
    # others are multiplied, has another place than in the first.
    yield from launch_case(
        "tiles",
        "multiprocessors2",
        ("block-order",),
        lambda: replace(_last_rows(1700, 34), multiprocessors=2),
        schedules=ONE_SCHEDULE,
        reserve=True,
    )
    # Chunks of prefill whose last rows alone come to another tile of 64 keys, or 128.
    for tokens, count in ((263, 128), (520, 64)):
        yield from launch_case(
            "chunk",
            str(count),
            ("rows-apart", "untouched-tail"),
            lambda tokens=tokens, count=count: launch_of(  # type: ignore[misc]
                qsa.random_inputs(tokens, "chunk"),
                range(tokens - count, tokens),
                fused_first=tokens - count,
            ),
            schedules=ONE_SCHEDULE,
        )
    # The least shared memory a CTA may have on what is supported: every body has to fit. Before compute
    # capability 8.0 the automatic entry serves by its scalar body; from there on the mma one does.
    on_host = (((MMA,), "-mma", TARGETS[:1]),)
    for capability, count, variants in (
        *((86, count, VARIANTS) for count in (1, 3, 34)),
        (79, 2, VARIANTS),
        (80, 2, on_host),
    ):
        yield from launch_case(
            "small-device",
            f"sm{capability}-rows{count}",
            ("rows-apart",),
            lambda capability=capability, count=count: replace(  # type: ignore[misc]
                mixed_rows(100, count), compute_capability=capability
            ),
            schedules=ONE_SCHEDULE,
            variants=variants,
        )
    # Strides that leave rows on 4 and on 8 bytes, and so many rows that wherever the scores begin one of
    # them lies on a multiple of 15 and not of 16.
    for extra in (1, 2):
        yield from launch_case(
            "spare-cols",
            f"tile-{extra}",
            ("score-stride", "untouched-tail"),
            lambda extra=extra: replace(mixed_rows(84, 45), extra_cols=extra),  # type: ignore[misc]
        )
    yield from launch_case(
        "nan",
        "tile",
        ("nan-stays", "rows-apart"),
        lambda: launch_of(qsa.poisoned_key(164, 81), range(60, 164, 3)),
    )
    for rows in (2, 40):
        yield from launch_case(
            "unseen",
            f"rows{rows}",
            ("unseen-keys",),
            lambda rows=rows: _unseen_keys(rows),  # type: ignore[misc]
        )
    yield from launch_case(
        "long",
        "blocks-past-32768",
        ("block-order",),
        _long_launch,
        schedules=ONE_SCHEDULE,
    )


def mixed_rows(tokens: int, count: int) -> Launch:
    """Return `count` rows in no order of length, every seventh of a longer launch a padding row."""
    rows = [(37 * row + tokens - 1) % tokens for row in range(count)]
    seen = [0 if row % 7 == 6 else position + 1 for row, position in enumerate(rows)]
    at = [-1 if length == 0 else position for position, length in zip(rows, seen, strict=True)]
    return launch_of(qsa.random_inputs(tokens, "rows"), at, seen)


def _last_rows(tokens: int, count: int) -> Launch:
    """Return the last `count` rows of a context, without the fused rows of those before.

    Each sees less than the one before it, the last half of the context.
    """
    rows = range(tokens - count, tokens)
    seen = [tokens - row * (tokens // 2) // max(count - 1, 1) for row in range(count)]
    inputs = qsa.random_inputs(tokens, "last")
    return launch_of(inputs, rows, seen, fused_first=tokens - count)


def _unseen_keys(count: int) -> Launch:
    """Return rows that see up to 27 blocks of 50, the keys of the others being NaN."""
    launch = launch_of(
        qsa.random_inputs(200, "unseen"),
        range(200 - count, 200),
        [111 - 2 * row for row in range(count)],
    )
    keys = launch.block_keys.copy()
    keys[27:] = 0x7FC0
    return replace(launch, block_keys=keys, unseen=27)


def _wide_launch(blocks: int, count: int) -> Launch:
    """Return the last `count` rows over `blocks` keys, which are 1,021 and those again.

    No CTA's keys and no grid's are a multiple of 1,021 apart.
    """
    tokens = blocks * qsa.RATIO
    near = qsa.random_inputs(1021 * qsa.RATIO, "wide")
    keys = pool_oracle(near.fused_qk, near.k_norm_weight, near.cos, near.sin, qsa.EPS).value
    keys = np.resize(keys, (blocks, qsa.HEAD_DIM))
    tables = [np.zeros((tokens, qsa.ROTARY_DIM), dtype=np.uint16) for _ in range(2)]
    for table, rows in zip(tables, (near.cos, near.sin), strict=True):
        table[-count:] = rows[-count:]
    fused = np.zeros((tokens, near.fused_qk.shape[1]), dtype=np.uint16)
    fused[-count:] = near.fused_qk[-count:]
    inputs = qsa.Inputs(fused, near.q_norm_weight, near.k_norm_weight, *tables)
    last = range(tokens - count, tokens)
    seen = [position + 1 for position in last]
    return Launch(inputs, keys, last, seen, fused_first=tokens - count)


def _long_launch() -> Launch:
    """One row that sees 32,800 blocks, of which the last 48 have keys that are not zero.

    Only the fused row and the table rows at the row's own position are read, so the others stay
    zero: what would be 170 MB of random numbers is none.
    """
    blocks, live = 32800, 48
    tokens = blocks * qsa.RATIO
    near = qsa.random_inputs(live * qsa.RATIO, "long")
    keys = np.zeros((blocks, qsa.HEAD_DIM), dtype=np.uint16)
    keys[-live:] = pool_oracle(near.fused_qk, near.k_norm_weight, near.cos, near.sin, qsa.EPS).value
    tables = [np.zeros((tokens, qsa.ROTARY_DIM), dtype=np.uint16) for _ in range(2)]
    for table, rows in zip(tables, (near.cos, near.sin), strict=True):
        table[-4:] = rows[-4:]
    fused = np.zeros((tokens, near.fused_qk.shape[1]), dtype=np.uint16)
    fused[-4:] = near.fused_qk[-4:]
    inputs = qsa.Inputs(fused, near.q_norm_weight, near.k_norm_weight, *tables)
    return Launch(inputs, keys, (tokens - 1,), (tokens,), fused_first=tokens - 4)
