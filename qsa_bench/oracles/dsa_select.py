"""Top pools and their token ids: the contract by a stable sort, and the reference's sets.

Contract section 2, "top pools" and "expand".
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from qsa_bench.oracles.dsa_pools import PoolLists
from qsa_bench.oracles.select import kept_blocks

Array = npt.NDArray[Any]


def top_pools(scores: Array, visible: Array, keep: int) -> tuple[Array, Array]:
    """Return kept pools [rows, keep] i32, ascending, then -1, and how many [rows] i32.

    Of each row of `scores` [rows, cols] f32 the first `visible` [rows] are looked at: highest
    first, ties by ascending index, both zeros equal.
    """
    rows = len(visible)
    pools = np.full((rows, keep), -1, dtype=np.int32)
    counts = np.minimum(visible, keep).astype(np.int32)
    for row, (seen, count) in enumerate(zip(visible.tolist(), counts.tolist(), strict=True)):
        pools[row, :count] = kept_blocks(scores[row, :seen], count)
    return pools, counts


def tail_of(valid: Array, position: int, kpool: int) -> Array:
    """Return the tail of a row at `position` of a sequence with `valid` [tokens] u8.

    The reference's rule: of n visible keys the last n % kpool slots of the first n past the first
    key, as far as they are visible keys themselves. With no key missing this is the incomplete
    pool.
    """
    seen = valid[: position + 1]
    keys = np.flatnonzero(seen)
    if keys.size == 0:
        return keys
    tail = keys.size % kpool
    slots = np.arange(keys.size - tail, keys.size) + keys[0]
    visible = (slots <= position) & (valid[np.minimum(slots, valid.size - 1)] != 0)
    return np.asarray(slots[visible])


def token_ids(
    kept: Array, lists: PoolLists, valid: Array, position: int, topk: int, kpool: int, tail: bool
) -> Array:
    """Return a row's ids [topk + kpool - 1] (without a tail [topk]) i32, from its kept pools.

    Tokens of the pools ascending, then the tail's that no kept pool holds, then -1.
    """
    width = topk + (kpool - 1 if tail else 0)
    ids = np.full(width, -1, dtype=np.int32)
    if position < 0 or not valid[position]:
        return ids
    pools = np.sort(lists.starts[kept])[:, None] + np.arange(kpool)
    chosen = pools.reshape(-1)
    if tail:
        own = tail_of(valid, position, kpool)
        chosen = np.concatenate([chosen, own[~np.isin(own, chosen)]])
    ids[: chosen.size] = chosen
    return ids
