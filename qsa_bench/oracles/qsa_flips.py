"""Which legal roundings recorded scores took, and whether they explain every score.

A widened bound says how far a score may lie; it does not say that one choice of roundings gives all
scores of a row at once. This looks for that choice: it tells a reference whose elements flipped (nothing
is left over) from one that is wrong by as much as a flip.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from qsa_bench.bf16 import F32, F64, U16, to_float32
from qsa_bench.oracles.qsa_head_vector import HEAD_DIM, Mask, Rounded
from qsa_bench.oracles.qsa_numerics import I32, PooledKeys, query_heads, score_oracle

# Two sweeps settle elements that share a score; a third finds nothing new on any golden seen.
_SWEEPS = 3
# Below half its bound a score needs no explanation.
_NOTICED = 0.5


@dataclass(frozen=True)
class Explanation:
    """How far flips explain scores; errors are in units of the bound without any widening.

    Of `legal` uncertain elements of keys and queries, `taken` were rounded the other way. `beyond` scores
    exceed the unwidened bound of the oracle's own roundings, `left` still do after that choice, and
    `worst` is the largest error then.
    """

    legal: int
    taken: int
    beyond: int
    left: int
    worst: float


def explain_scores(
    got: F32,
    fused_qk: U16,
    q_norm_weight: U16,
    cos: U16,
    sin: U16,
    keys: PooledKeys,
    rows: I32,
    visible_len: I32,
    eps: float,
    first_position: int = 0,
) -> Explanation:
    """Explain finite scores `got` [rows, score_cols]; other arguments as of `score_oracle`."""
    live = visible_len > 0
    got, rows, visible_len = got[live], rows[live], visible_len[live]
    want = score_oracle(
        fused_qk,
        q_norm_weight,
        cos,
        sin,
        keys,
        rows,
        visible_len,
        eps,
        first_position,
        got.shape[1],
    )
    query, _ = query_heads(fused_qk, q_norm_weight, cos, sin, rows, eps, first_position)
    blocks = min(keys.value.shape[0], got.shape[1])
    key = Rounded(
        to_float32(keys.value[:blocks]),
        to_float32(keys.low[:blocks]),
        to_float32(keys.high[:blocks]),
    )
    search = _Search(
        got[:, :blocks].astype(np.float64),
        want.unwidened()[:, :blocks],
        want.written[:, :blocks],
        query.value.astype(np.float64),
        key.value.astype(np.float64),
    )
    beyond = search.count_beyond()
    if beyond:
        for _ in range(_SWEEPS):
            _choose_keys(search, key)
            _choose_queries(search, query)
    return Explanation(
        legal=int(key.uncertain().sum() + query.uncertain().sum()),
        taken=int((search.key != key.value).sum() + (search.query != query.value).sum()),
        beyond=beyond,
        left=search.count_beyond(),
        worst=float(search.errors().max(initial=0.0)),
    )


@dataclass(frozen=True)
class _Search:
    """Scores, their bounds, and the choice of key [blocks, 128] and query [rows, 4, 128] so far."""

    got: F64
    bound: F64
    written: Mask
    query: F64
    key: F64

    def errors(self, rows: slice = slice(None), blocks: slice = slice(None)) -> F64:
        """Return error over bound of a part of the scores, 0 where nothing is written."""
        dot = self.query[rows] @ self.key[blocks].T
        score = np.maximum(dot, 0.0).sum(axis=1) / math.sqrt(HEAD_DIM)
        error = np.abs(self.got[rows, blocks] - score) / self.bound[rows, blocks]
        return np.where(self.written[rows, blocks], error, 0.0)

    def count_beyond(self) -> int:
        """Return how many scores exceed their bound."""
        return int((self.errors() > 1).sum())


def _choose_keys(search: _Search, key: Rounded) -> None:
    for block, dim in np.argwhere(key.uncertain()):
        column = slice(block, block + 1)
        costs = []
        choices = (key.value[block, dim], key.low[block, dim], key.high[block, dim])
        for choice in choices:
            search.key[block, dim] = choice
            costs.append(_cost(search.errors(blocks=column)))
        search.key[block, dim] = choices[int(np.argmin(costs))]


def _choose_queries(search: _Search, query: Rounded) -> None:
    for row, head, dim in np.argwhere(query.uncertain()):
        at = (row, head, dim)
        costs = []
        choices = (query.value[at], query.low[at], query.high[at])
        for choice in choices:
            search.query[at] = choice
            costs.append(_cost(search.errors(rows=slice(row, row + 1))))
        search.query[at] = choices[int(np.argmin(costs))]


def _cost(errors: F64) -> float:
    return float(np.maximum(errors - _NOTICED, 0.0).sum())
