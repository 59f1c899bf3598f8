"""Where a sequence's pools lie, and their keys with every bfloat16 a correct kernel may round to.

Contract section 2, "compress". A probability follows from float32 operations whose order and whose
exponential are an implementation's own; where these can turn its rounding to bfloat16, both are
legal, and so on through the products and their sum (see `qsa_head_vector`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from qsa_bench.bf16 import F32, F64, U16, round_to_bf16, round_trip, to_float32
from qsa_bench.oracles.qsa_numerics import Flips, PooledKeys

Array = npt.NDArray[Any]

HEAD_DIM = 128

_ULP = 2.0**-23
_UNIT_ROUNDOFF = 2.0**-24
# An exponential within 1 ulp above and below the fraction, a sum of 16 and a division: 4 ulp. Beside
# that the exponent d is rounded, by up to half an ulp of d, and some kernels multiply it by log2(e)
# first, as much again: |d| ulp of e^d.
_WINDOW_ULP = 4.0
# Below this a probability may have been flushed to zero: no bfloat16 beside a one is so small.
_FLUSHED = 2.0**-120


@dataclass(frozen=True)
class PoolLists:
    """The pools of one sequence.

    `first` is its first valid key, the token count where there is none; `slots` [whole + 1, 2] are
    the keys and pools before each slot; `starts` [pools] the pools' first tokens, ascending.
    """

    first: int
    slots: Array
    starts: Array

    def pools_seen(self, position: int, kpool: int) -> int:
        """Return how many pools end at `position` or before it."""
        return int(np.count_nonzero(self.starts + kpool - 1 <= position))


def pool_lists(valid: Array, kpool: int) -> PoolLists:
    """Return the pools of a sequence whose live tokens are `valid` [tokens] u8."""
    keys = np.flatnonzero(valid)
    first = int(keys[0]) if keys.size else int(valid.size)
    whole = (valid.size - first) // kpool
    by_slot = valid[first : first + whole * kpool].reshape(whole, kpool).astype(np.int64)
    full = by_slot.all(axis=1)
    slots = np.zeros((whole + 1, 2), dtype=np.int64)
    slots[1:, 0] = np.cumsum(by_slot.sum(axis=1))
    slots[1:, 1] = np.cumsum(full)
    return PoolLists(first, slots, first + kpool * np.flatnonzero(full))


def compress(keys: U16, gate: U16, ape: F32, starts: Array) -> PooledKeys:
    """Return the keys of the pools that begin at `starts` [pools] of one sequence.

    keys, gate [tokens, 128] bfloat16 bits; ape [kpool, 128] float32.
    """
    kpool = ape.shape[0]
    tokens = starts[:, None] + np.arange(kpool)
    # One IEEE addition in every implementation, so it is done in float32 here too.
    with np.errstate(invalid="ignore", over="ignore"):
        logit = to_float32(gate[tokens]) + ape[None]
        low, value, high = _probabilities(logit.astype(np.float64))
        raw = to_float32(keys[tokens])
        corners = round_trip(low * raw), round_trip(high * raw)
        product = round_trip(value * raw)
        return _sum(product, np.minimum(*corners), np.maximum(*corners))


def _probabilities(logit: F64) -> tuple[F32, F32, F32]:
    """Return least, own and greatest bfloat16 probabilities of logits [pools, kpool, 128]."""
    depth = logit - logit.max(axis=1, keepdims=True)
    power = np.exp(depth)
    exact = power / power.sum(axis=1, keepdims=True)
    # The sum's terms err as its largest does, which is the one of depth zero.
    window = _ULP * (_WINDOW_ULP + np.abs(np.maximum(depth, -200.0))) * exact
    least = np.where(exact < _FLUSHED, 0.0, exact - window)
    return round_trip(least), round_trip(exact), round_trip(exact + window)


def _sum(product: F32, low: F32, high: F32) -> PooledKeys:
    """Return the bfloat16 sums over tokens of products [pools, kpool, 128] and of their ranges."""
    total = product.sum(axis=1, dtype=np.float64)
    bottom, top = low.sum(axis=1, dtype=np.float64), high.sum(axis=1, dtype=np.float64)
    magnitude = np.maximum(np.abs(low), np.abs(high)).sum(axis=1, dtype=np.float64)
    window = (product.shape[1] - 1) * _UNIT_ROUNDOFF * magnitude
    window = np.where(_sums_exactly(product, magnitude) & (low == high).all(axis=1), 0.0, window)
    return PooledKeys(
        round_to_bf16(total), round_to_bf16(bottom - window), round_to_bf16(top + window), Flips()
    )


def _sums_exactly(product: F32, magnitude: F64) -> Array:
    """Return where float32 adds the bfloat16 products without an error, in any order.

    Every partial sum is a multiple of the smallest term's last bit; 24 bits of it are exact.
    """
    _, exponent = np.frexp(np.where(product == 0, np.float32(2.0**127), product))
    return np.asarray(magnitude <= np.ldexp(1.0, exponent.min(axis=1).astype(np.int64) - 8 + 24))
