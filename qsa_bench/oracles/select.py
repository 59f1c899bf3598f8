"""Oracles of select: the contract by a stable sort, and once more by counting, to check the first.

Used by QSA's block selection and wherever scores are cut to a budget: highest first, ties by
ascending index, both zeros equal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

RATIO = 4


@dataclass(frozen=True)
class Selection:
    """What select gives: mask [R, tokens] u8, ids [R, budget + 3] i32, counts [R] i32."""

    mask: Array
    ids: Array
    counts: Array


def kept_blocks(scores: Array, keep: int) -> Array:
    """Return the ascending indices of the `keep` highest of `scores` [blocks] f32.

    A stable sort on the negated scores orders by score, then by index; -0.0 compares equal to
    0.0 before and after the negation.
    """
    order = np.argsort(-scores, kind="stable")
    return np.sort(order[:keep])


def kept_blocks_by_counting(scores: Array, keep: int) -> Array:
    """Return the same by another road: a block stays if fewer than `keep` blocks go before it.

    Quadratic; independent of any sort.
    """
    kept = []
    for index, score in enumerate(scores.tolist()):
        higher = sum(1 for other in scores.tolist() if other > score)
        equal_before = sum(1 for other in scores.tolist()[:index] if other == score)
        if higher + equal_before < keep:
            kept.append(index)
    return np.array(kept, dtype=np.int64)


def select(
    scores: Array,
    rows: Array,
    tokens: int,
    score_cols: int,
    budget: int,
    live_rows: int | None = None,
) -> Selection:
    """Apply contract section 1 (select) to flat f32 `scores` with row stride `score_cols`.

    `rows` [R] are absolute positions; rows at or past `live_rows` are padding. Nothing past a
    row's block prefix is looked at.
    """
    count = len(rows)
    mask = np.zeros((count, tokens), dtype=np.uint8)
    ids = np.full((count, budget + RATIO - 1), -1, dtype=np.int32)
    counts = np.zeros(count, dtype=np.int32)
    live = count if live_rows is None else min(max(live_rows, 0), count)
    for row in range(live):
        visible = int(rows[row]) + 1
        blocks, tail = divmod(visible, RATIO)
        keep = min(budget // RATIO, blocks)
        prefix = scores[row * score_cols : row * score_cols + blocks]
        kept = np.arange(blocks) if keep == blocks else kept_blocks(prefix, keep)
        chosen = (kept[:, None] * RATIO + np.arange(RATIO)).reshape(-1)
        chosen = np.concatenate([chosen, np.arange(visible - tail, visible)]).astype(np.int64)
        mask[row, chosen] = 1
        ids[row, : chosen.size] = chosen
        counts[row] = chosen.size
    return Selection(mask, ids, counts)


def structural_fault(scores: Array, position: int, budget: int, mask: Array) -> str:
    """Say how a row [tokens] u8 breaks the contract whatever is chosen among ties, or return "".

    Whole blocks and the tail, nothing past the position, everything above the cut, nothing
    below it, and exactly as many tied blocks as there is room for.
    """
    visible = position + 1
    blocks, tail = divmod(visible, RATIO)
    keep = min(budget // RATIO, blocks)
    if mask[visible:].any():
        return "a token past the position is set"
    if tail and not mask[visible - tail : visible].all():
        return "the tail is not set"
    per_block = mask[: blocks * RATIO].reshape(blocks, RATIO)
    kept = np.asarray(per_block.any(axis=1))
    if (per_block != kept[:, None]).any():
        return "a block is set in part"
    if int(kept.sum()) != keep:
        return f"{int(kept.sum())} blocks are kept, not {keep}"
    if keep == 0:
        return ""
    cut = np.sort(scores[:blocks])[::-1][keep - 1]
    if not kept[scores[:blocks] > cut].all():
        return "a block above the cut is dropped"
    if kept[scores[:blocks] < cut].any():
        return "a block below the cut is kept"
    return ""
