"""The float64 oracle of the attentions, and the bound that judges a kernel.

The bound is derived. With u = 2^-23 (a tensor core may cut where f32 arithmetic would round):
a score of D products errs by (D + 4) u of the sum of its products' sizes; its exponential, taken in
base 2 relative to a running maximum, by that much relative, by 4 u of the sizes of score and maximum,
and by 4 u for each rescale on the way; a probability rounded to bf16 by 2^-8 relative; a sum of n
terms by n u. Numerator and denominator err independently, and the context is rounded to bf16 once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from qsa_bench.bf16 import to_float32

Array = npt.NDArray[Any]

UNIT = 2.0**-23
PROBABILITY_ROUNDING = 2.0**-8
# Tokens that four warps take at a time, the fewest there are: how often a running maximum can move.
_TOKENS_A_RESCALE = 64


@dataclass(frozen=True)
class Attended:
    """Context [heads, dims] f64, how far a correct kernel may lie from it, and what was attended.

    `weights` [heads, tokens] are the probabilities.
    """

    value: Array
    bound: Array
    weights: Array


def attend(
    q: Array, keys: Array, values: Array, probability: float = PROBABILITY_ROUNDING
) -> Attended:
    """Return the context of q [heads, dims] over keys and values [tokens, kv_heads, dims], bf16 bits.

    Heads share the KV heads in order; no tokens give zeros.
    """
    heads, dims = q.shape
    tokens, kv_heads = keys.shape[:2]
    if tokens == 0:
        nothing = np.zeros((heads, dims))
        return Attended(nothing, nothing, np.zeros((heads, 0)))
    groups = (kv_heads, heads // kv_heads)
    query = to_float32(q).astype(np.float64).reshape(*groups, dims)
    key = to_float32(keys).astype(np.float64)
    value = to_float32(values).astype(np.float64)
    scale = dims**-0.5
    with np.errstate(invalid="ignore", over="ignore"):
        scores = np.einsum("kgd,tkd->kgt", query, key) * scale
        sizes = np.einsum("kgd,tkd->kgt", np.abs(query), np.abs(key)) * scale
        peak = np.max(scores, axis=2, keepdims=True)
        weights = np.exp(scores - peak)
        weights /= weights.sum(axis=2, keepdims=True)
        context = np.einsum("kgt,tkd->kgd", weights, value)
        error = (
            (dims + 4) * UNIT * sizes
            + 4 * UNIT * (np.abs(scores) + np.abs(peak))
            + 4 * UNIT * (2 + tokens / _TOKENS_A_RESCALE)
        )
        summing = tokens * UNIT
        above = np.einsum("kgt,tkd->kgd", weights * (error + probability + summing), np.abs(value))
        below = (weights * (error + summing)).sum(axis=2, keepdims=True)
        bound = above + below * np.abs(context)
        bound += half_spacing(np.abs(context) + bound)
    return Attended(
        context.reshape(heads, dims),
        bound.reshape(heads, dims),
        weights.reshape(heads, tokens),
    )


def half_spacing(size: Array) -> Array:
    """Return half the distance between bf16 of this size: what the last rounding may add."""
    with np.errstate(divide="ignore", invalid="ignore"):
        exponent = np.floor(np.log2(np.maximum(size, 2.0**-126)))
    return np.where(np.isfinite(exponent), 2.0 ** (exponent - 8), np.inf)
