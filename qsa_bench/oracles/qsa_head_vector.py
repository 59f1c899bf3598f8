"""The norm and rotation of one QSA head vector, with every bfloat16 a correct kernel may round to.

A bfloat16 rounding is decided by a float32 value that depends on the order of the sums before it.
Where that order can change which bfloat16 is nearest, both are legal and `Rounded` carries both; a
later operation maps the legal range of its inputs to the legal range of its result. Rounding is
monotone, so the ends of a range map to the ends.

Where the order cannot matter nothing is allowed: a product of two bfloat16 is exact in float32, a sum
of two is one IEEE operation, and four bfloat16 of similar size add up exactly in any order (such sums
do land on midpoints, often; every order rounds them alike).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qsa_bench.bf16 import F32, F64, U16, round_trip, to_float32

HEAD_DIM = 128
ROTARY_DIM = 64
ROTARY_HALF = ROTARY_DIM // 2
RATIO = 4

# A float32 result that depends on the order of operations is trusted to this many ulp. An ulp is
# counted relative, 2^-23 of the value, because that is how roundings accumulate; it is one to two
# spacings of float32. Measured on 5 million norms, rms 0.5: a shuffle tree errs by at most 2.15 and
# torch by 2.22, and 1 in 100,000 elements by more than 2, which then still has to meet a midpoint
# within the excess: 1 element in 10^11. A serial sum of the 128 squares (3.8, 2% above 2) and an
# approximate rsqrt that is 2 ulp off are not inside.
WINDOW_ULP = 2.0

_ULP = 2.0**-23
_LEAST_SPACING = 2.0**-149
_UNIT_ROUNDOFF = 2.0**-24
_FLOAT32_MAX = float(np.finfo(np.float32).max)

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Rounded:
    """bfloat16 values as float32, [..., n]: the oracle's own and the least and greatest legal ones."""

    value: F32
    low: F32
    high: F32

    @staticmethod
    def exactly(bits: U16) -> Rounded:
        """Return inputs, which are what they are."""
        value = to_float32(bits)
        return Rounded(value, value, value)

    def uncertain(self) -> Mask:
        """Return where more than one bfloat16 is legal, same shape."""
        return self.low < self.high

    def reach(self) -> F64:
        """Return how far a legal value may lie from `value`, same shape, 0 where nothing else is legal."""
        value = self.value.astype(np.float64)
        with np.errstate(invalid="ignore"):
            reach = np.maximum(self.high - value, value - self.low)
        return np.where(self.uncertain(), reach, 0.0)


def mean_of_blocks(raw_keys: U16) -> Rounded:
    """Return the bfloat16 mean over tokens of `raw_keys` [blocks, 4, 128], as [blocks, 128].

    Only a float32 sum that can be inexact is given a window: three additions, each off by at most
    half a unit of the largest partial sum, and never less than the window of `WINDOW_ULP`.
    """
    keys = to_float32(raw_keys).astype(np.float64)
    with np.errstate(invalid="ignore"):
        total = keys.sum(axis=1)
        magnitude = np.abs(keys).sum(axis=1)
    mean = _overflow_to_infinity(total) / RATIO
    value = round_trip(mean)
    exponent = (raw_keys >> np.uint16(7)) & np.uint16(0xFF)
    is_zero = (raw_keys & np.uint16(0x7FFF)) == 0
    least_exponent = np.where(is_zero, 0xFF, np.maximum(exponent, 1)).min(axis=1).astype(np.int32)
    # Every partial sum is a multiple of the smallest term's last bit; 24 bits of it are exact.
    exact_below = np.ldexp(1.0, least_exponent - 127 - 7 + 24)
    order_matters = np.isfinite(mean) & (magnitude > exact_below)
    if not order_matters.any():
        return Rounded(value, value, value)
    centre = mean[order_matters]
    additions = (RATIO - 1) * _UNIT_ROUNDOFF * magnitude[order_matters] / RATIO
    window = np.maximum(additions, _window(centre))
    low = value.copy()
    high = value.copy()
    low[order_matters] = round_trip(centre - window)
    high[order_matters] = round_trip(centre + window)
    return Rounded(value, low, high)


def rms_norm(x: Rounded, weight: U16, eps: float) -> Rounded:
    """Return bf16(x * rsqrt(mean(x^2) + eps) * (1 + w)) of `x` [n, 128] with `weight` [128].

    `eps` is used as float32, as every kernel gets it.
    """
    # One IEEE operation in every implementation, so it is done in float32 here too.
    factor = (np.float32(1.0) + to_float32(weight)).astype(np.float64)
    epsilon = float(np.float32(eps))
    inverse = _inverse_root(_sum_of_squares(x.value), epsilon)
    with np.errstate(invalid="ignore", over="ignore"):
        exact = x.value * inverse * factor
    value = round_trip(exact)
    low = value.copy()
    high = value.copy()
    near = _near_midpoint(exact)
    window = _window(exact[near])
    low[near] = round_trip(exact[near] - window)
    high[near] = round_trip(exact[near] + window)
    wide = np.flatnonzero(x.uncertain().any(axis=-1))
    if wide.size:
        # An uncertain input moves the mean square, and with it all 128 dims.
        low[wide], high[wide] = _norm_range(x.low[wide], x.high[wide], factor, epsilon)
    return Rounded(value, low, high)


@dataclass(frozen=True)
class Rotation:
    """A rotated vector [n, 128] and its two rounded products [n, 64], for counting."""

    along: Rounded
    across: Rounded
    result: Rounded


def rotate(x: Rounded, cos: U16, sin: U16) -> Rotation:
    """Rotate the first 64 dims of `x` [n, 128] by table rows `cos`, `sin` [n, 64]; three roundings."""
    cosine = to_float32(cos)
    sine = to_float32(sin)
    low_head = x.low[:, :ROTARY_DIM]
    high_head = x.high[:, :ROTARY_DIM]
    with np.errstate(invalid="ignore", over="ignore"):
        along = _product(x.value[:, :ROTARY_DIM], low_head, high_head, cosine)
        turned_low, turned_high = _half_turn(low_head, high_head)
        turned, _ = _half_turn(x.value[:, :ROTARY_DIM], x.value[:, :ROTARY_DIM])
        across = _product(turned, turned_low, turned_high, sine)
        result = Rounded(
            _replace_head(x.value, round_trip(along.value + across.value)),
            _replace_head(x.low, round_trip(along.low + across.low)),
            _replace_head(x.high, round_trip(along.high + across.high)),
        )
    return Rotation(along, across, result)


def _half_turn(low: F32, high: F32) -> tuple[F32, F32]:
    """Return the range of (-second half, first half) of a head's rotated dims."""
    first = slice(0, ROTARY_HALF)
    second = slice(ROTARY_HALF, ROTARY_DIM)
    turned_low = np.concatenate((-high[:, second], low[:, first]), axis=1)
    turned_high = np.concatenate((-low[:, second], high[:, first]), axis=1)
    return turned_low, turned_high


def _product(value: F32, low: F32, high: F32, factor: F32) -> Rounded:
    at_low = round_trip(low * factor)
    at_high = round_trip(high * factor)
    return Rounded(
        round_trip(value * factor), np.minimum(at_low, at_high), np.maximum(at_low, at_high)
    )


def _replace_head(x: F32, head: F32) -> F32:
    return np.concatenate((head, x[:, ROTARY_DIM:]), axis=1)


def _norm_range(low: F32, high: F32, factor: F64, epsilon: float) -> tuple[F32, F32]:
    """Return the least and greatest legal norm of inputs anywhere in `low` .. `high` [n, 128]."""
    least = np.where((low <= 0) & (high >= 0), 0, np.minimum(np.abs(low), np.abs(high)))
    most = np.maximum(np.abs(low), np.abs(high))
    inverses = (
        _inverse_root(_sum_of_squares(most), epsilon),
        _inverse_root(_sum_of_squares(least), epsilon),
    )
    with np.errstate(invalid="ignore", over="ignore"):
        corners = [x * inverse * factor for x in (low, high) for inverse in inverses]
    bottom = np.minimum.reduce(corners)
    top = np.maximum.reduce(corners)
    return (
        round_trip(bottom - _window(bottom)),
        round_trip(top + _window(top)),
    )


def _sum_of_squares(x: F32) -> F64:
    """Return the sum over the last axis, kept; a square is rounded to float32 as kernels round it."""
    with np.errstate(over="ignore", under="ignore"):
        squares = np.square(x, dtype=np.float32)
    return _overflow_to_infinity(squares.sum(axis=-1, keepdims=True, dtype=np.float64))


def _inverse_root(sum_of_squares: F64, epsilon: float) -> F64:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(1.0 / np.sqrt(sum_of_squares / HEAD_DIM + epsilon))


def _overflow_to_infinity(total: F64) -> F64:
    """Return `total` with what float32 cannot hold as an infinity, as a float32 sum would have it."""
    return np.where(np.abs(total) > _FLOAT32_MAX, np.copysign(np.inf, total), total)


def _window(values: F64) -> F64:
    """Return how far a float32 result may lie from its exact `values`."""
    return WINDOW_ULP * np.maximum(_ULP * np.abs(values), _LEAST_SPACING)


def _near_midpoint(values: F64) -> Mask:
    """Return where the window may reach a bfloat16 midpoint: a cheap superset, in spacings of float32."""
    with np.errstate(over="ignore", invalid="ignore"):
        bits = values.astype(np.float32).view(np.uint32)
    past_midpoint = (bits & np.uint32(0xFFFF)).astype(np.int32) - 0x8000
    return np.isfinite(values) & (np.abs(past_midpoint) <= 2 * int(WINDOW_ULP) + 1)
