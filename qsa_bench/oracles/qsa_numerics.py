"""The float64 oracles of `qsa_pool` and `qsa_score`, and the bound that judges a kernel.

The bound of a score is derived, not chosen. Every score is held at 2e-6 absolute plus relative: what
float32 dot products of 128 terms need. Only a score that sees a key or query element with two legal
bfloat16 roundings is held at more, by exactly what the legal values span (see `qsa_head_vector`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qsa_bench.bf16 import F32, F64, U16, round_to_bf16, to_float32
from qsa_bench.oracles.qsa_head_vector import (
    HEAD_DIM,
    RATIO,
    Mask,
    Rotation,
    Rounded,
    mean_of_blocks,
    rms_norm,
    rotate,
)

QUERY_HEADS = 4
KEY_COLUMN = QUERY_HEADS * HEAD_DIM
FUSED_STRIDE = KEY_COLUMN + HEAD_DIM

ABSOLUTE_BOUND = 2e-6
RELATIVE_BOUND = 2e-6

# Elements worked on at a time: large enough to be fast, small enough for a 262,144-token context.
_BLOCKS_AT_ONCE = 4096
_DOTS_AT_ONCE = 1 << 22

I32 = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Flips:
    """How many elements have more than one legal bfloat16, at each rounding point."""

    mean: int = 0
    normed: int = 0
    along: int = 0  # x * cos
    across: int = 0  # rotate_half(x) * sin
    rotated: int = 0

    def __add__(self, other: Flips) -> Flips:
        """Return the counts of both."""
        return Flips(
            self.mean + other.mean,
            self.normed + other.normed,
            self.along + other.along,
            self.across + other.across,
            self.rotated + other.rotated,
        )


@dataclass(frozen=True)
class PooledKeys:
    """Block keys as bfloat16 bits, uint16 [blocks, 128]: the oracle's and the legal range of each.

    `low` and `high` are ordered as numbers, not as bits.
    """

    value: U16
    low: U16
    high: U16
    flips: Flips

    @staticmethod
    def given(block_keys: U16) -> PooledKeys:
        """Return keys that a stage reads as its input: nothing about them is uncertain."""
        return PooledKeys(block_keys, block_keys, block_keys, Flips())

    def flagged(self) -> Mask:
        """Return which elements have more than one legal value, [blocks, 128]."""
        return to_float32(self.low) < to_float32(self.high)


@dataclass(frozen=True)
class ScoreOracle:
    """Scores [rows, score_cols] and how far a correct kernel may lie from each.

    `value` and `bound` are NaN in the columns that are not `written`. `flagged` marks the scores whose
    bound was widened. `flips` counts query elements; those of keys are in their `PooledKeys`.
    """

    value: F64
    bound: F64
    written: Mask
    flagged: Mask
    flips: Flips

    def unwidened(self) -> F64:
        """Return the bound every score would have without its widening, NaN where not written."""
        return ABSOLUTE_BOUND + RELATIVE_BOUND * np.abs(self.value)


def pool_oracle(
    fused_qk: U16,
    k_norm_weight: U16,
    cos: U16,
    sin: U16,
    eps: float,
    first_block: int = 0,
    block_count: int | None = None,
) -> PooledKeys:
    """Return the keys of blocks `first_block` .. `first_block + block_count - 1`, row 0 the first of them.

    fused_qk [tokens, 640], k_norm_weight [128], cos and sin [tokens, 64], all bfloat16 bits.
    `block_count` None means all complete blocks from `first_block` on.
    """
    complete = fused_qk.shape[0] // RATIO
    count = complete - first_block if block_count is None else block_count
    if first_block < 0 or count < 0 or first_block + count > complete:
        raise ValueError(
            f"blocks {first_block} .. {first_block + count} of {complete} complete ones"
        )
    starts = range(first_block, first_block + count, _BLOCKS_AT_ONCE)
    ends = [min(start + _BLOCKS_AT_ONCE, first_block + count) for start in starts]
    parts = [
        _pool_range(fused_qk, k_norm_weight, cos, sin, eps, start, end)
        for start, end in zip(starts, ends, strict=True)
    ]
    empty = np.empty((0, HEAD_DIM), np.uint16)
    return PooledKeys(
        np.concatenate([empty, *(part.value for part in parts)]),
        np.concatenate([empty, *(part.low for part in parts)]),
        np.concatenate([empty, *(part.high for part in parts)]),
        sum((part.flips for part in parts), Flips()),
    )


def _pool_range(
    fused_qk: U16, k_norm_weight: U16, cos: U16, sin: U16, eps: float, start: int, end: int
) -> PooledKeys:
    tokens = slice(start * RATIO, end * RATIO)
    raw_keys = fused_qk[tokens, KEY_COLUMN:FUSED_STRIDE].reshape(end - start, RATIO, HEAD_DIM)
    mean = mean_of_blocks(raw_keys)
    normed = rms_norm(mean, k_norm_weight, eps)
    rotation = rotate(normed, cos[tokens][::RATIO], sin[tokens][::RATIO])
    key = rotation.result
    return PooledKeys(
        round_to_bf16(key.value),
        round_to_bf16(key.low),
        round_to_bf16(key.high),
        _count_flips(mean, normed, rotation),
    )


def illegal_keys(got: U16, want: PooledKeys) -> Mask:
    """Return which elements of block keys `got` [blocks, 128] no correct kernel may write.

    An element with one legal value must have its bits, except that a zero may carry either sign (the
    sum of four negative zeros depends on what it starts from, and no score can tell) and a NaN any payload.
    """
    value = to_float32(got)
    in_range = (to_float32(want.low) <= value) & (value <= to_float32(want.high))
    both_nan = np.isnan(value) & np.isnan(to_float32(want.value))
    return ~(in_range | both_nan)


def score_oracle(
    fused_qk: U16,
    q_norm_weight: U16,
    cos: U16,
    sin: U16,
    block_keys: PooledKeys | U16,
    rows: I32,
    visible_len: I32,
    eps: float,
    first_position: int = 0,
    score_cols: int | None = None,
) -> ScoreOracle:
    """Return the scores of `rows` [R] against `block_keys`.

    fused_qk [fused_rows, 640] starts at `first_position`; q_norm_weight [128]; cos and sin [tokens, 64]
    by absolute position; all bfloat16 bits. `block_keys` is uint16 [blocks, 128] where a stage reads
    keys, or the oracle's own where keys and scores are judged as one chain. `visible_len` [R] counts
    tokens. Raises ValueError for a row that a kernel must refuse.
    """
    keys = block_keys if isinstance(block_keys, PooledKeys) else PooledKeys.given(block_keys)
    tokens = cos.shape[0]
    columns = max(1, tokens // RATIO) if score_cols is None else score_cols
    visible = visible_len.astype(np.int64) // RATIO
    _require_rows(rows, visible_len, tokens, first_position, fused_qk.shape[0], keys.value.shape[0])

    value = np.full((rows.size, columns), np.nan)
    bound = np.full((rows.size, columns), np.nan)
    flagged = np.zeros((rows.size, columns), np.bool_)
    written = np.arange(columns) < visible[:, None]
    live = np.flatnonzero(visible_len > 0)
    blocks = int(visible.max(initial=0))
    query, flips = query_heads(fused_qk, q_norm_weight, cos, sin, rows[live], eps, first_position)
    key = Rounded(
        to_float32(keys.value[:blocks]),
        to_float32(keys.low[:blocks]),
        to_float32(keys.high[:blocks]),
    )
    rows_at_once = max(1, _DOTS_AT_ONCE // (QUERY_HEADS * max(1, blocks)))
    for first in range(0, live.size, rows_at_once):
        part = slice(first, first + rows_at_once)
        score, widening = _score_rows(_rows_of(query, part), key)
        mask = written[live[part], :blocks]
        value[live[part], :blocks] = np.where(mask, score, np.nan)
        bound[live[part], :blocks] = np.where(mask, widening, np.nan)
        flagged[live[part], :blocks] = mask & (widening > 0)
    bound += ABSOLUTE_BOUND + RELATIVE_BOUND * np.abs(value)
    return ScoreOracle(value, bound, written, flagged, flips)


def score_margin(got: F32, want: ScoreOracle) -> F64:
    """Return error over bound of scores `got` [rows, score_cols], same shape; above 1 is wrong.

    0 where nothing is written, for a NaN where a NaN is due and for an equal infinity; infinite for a
    NaN or infinity on one side only.
    """
    with np.errstate(invalid="ignore"):
        margin = np.abs(got.astype(np.float64) - want.value) / want.bound
    same = (np.isnan(got) & np.isnan(want.value)) | (got == want.value)
    margin = np.where(np.isnan(margin), np.inf, margin)
    return np.where(same | ~want.written, 0.0, margin)


def _require_rows(
    rows: I32, visible_len: I32, tokens: int, first_position: int, fused_rows: int, blocks: int
) -> None:
    if ((visible_len < 0) | (visible_len > tokens)).any():
        raise ValueError(f"visible_len outside 0 .. {tokens}")
    if (visible_len // RATIO > blocks).any():
        raise ValueError(f"more blocks visible than the {blocks} keys there are")
    position = rows[visible_len > 0].astype(np.int64)
    fused_row = position - first_position
    outside = (position < 0) | (position >= tokens) | (fused_row < 0) | (fused_row >= fused_rows)
    if outside.any():
        raise ValueError(f"a row outside 0 .. {tokens - 1} or outside its {fused_rows} fused rows")


def query_heads(
    fused_qk: U16,
    q_norm_weight: U16,
    cos: U16,
    sin: U16,
    rows: I32,
    eps: float,
    first_position: int,
) -> tuple[Rounded, Flips]:
    """Return the query heads [rows, 4, 128] of positions `rows`, arguments as of `score_oracle`."""
    raw = fused_qk[rows - first_position, :KEY_COLUMN].reshape(-1, HEAD_DIM)
    inputs = Rounded.exactly(raw)
    normed = rms_norm(inputs, q_norm_weight, eps)
    at_row = np.repeat(rows, QUERY_HEADS)
    rotation = rotate(normed, cos[at_row], sin[at_row])
    shape = (rows.size, QUERY_HEADS, HEAD_DIM)
    result = rotation.result
    query = Rounded(
        result.value.reshape(shape), result.low.reshape(shape), result.high.reshape(shape)
    )
    return query, _count_flips(inputs, normed, rotation)


def _rows_of(query: Rounded, part: slice) -> Rounded:
    return Rounded(query.value[part], query.low[part], query.high[part])


def _score_rows(query: Rounded, key: Rounded) -> tuple[F64, F64]:
    """Return scores [rows, blocks] of query [rows, 4, 128] and key [blocks, 128], and their widening."""
    with np.errstate(invalid="ignore", over="ignore"):
        q = query.value.astype(np.float64)
        k = key.value.astype(np.float64)
        dot = q @ k.T
        spread = _dot_spread(query, key)
        score = _relu(dot).sum(axis=1)
        # relu has slope 0 or 1, so a head that stays below zero adds nothing.
        above = _relu(dot + spread).sum(axis=1) - score
        below = score - _relu(dot - spread).sum(axis=1)
        widening = np.maximum(above, below)
    scale = math.sqrt(HEAD_DIM)
    # A score that is NaN or infinite is compared as such; its widening means nothing.
    return score / scale, np.where(np.isfinite(score), widening, 0.0) / scale


def _dot_spread(query: Rounded, key: Rounded) -> F64:
    """Return how far each dot product [rows, 4, blocks] moves over the legal values of its factors.

    |q'k' - qk| <= |q| dk + dq (|k| + dk) for |q' - q| <= dq and |k' - k| <= dk.
    """
    key_reach = key.reach()
    query_reach = query.reach()
    spread = np.zeros((*query.value.shape[:2], key.value.shape[0]))
    uncertain_keys = np.flatnonzero(key_reach.any(axis=-1))
    if uncertain_keys.size:
        spread[..., uncertain_keys] += np.abs(query.value) @ key_reach[uncertain_keys].T
    uncertain_rows = np.flatnonzero(query_reach.any(axis=(1, 2)))
    if uncertain_rows.size:
        spread[uncertain_rows] += query_reach[uncertain_rows] @ (np.abs(key.value) + key_reach).T
    return spread


def _relu(x: F64) -> F64:
    """Return `x` cut at zero; a NaN stays."""
    return np.where(x < 0, 0.0, x)


def _count_flips(mean: Rounded, normed: Rounded, rotation: Rotation) -> Flips:
    return Flips(
        int(mean.uncertain().sum()),
        int(normed.uncertain().sum()),
        int(rotation.along.uncertain().sum()),
        int(rotation.across.uncertain().sum()),
        int(rotation.result.uncertain().sum()),
    )
