"""A second oracle of pool and score: plain loops, exact rationals, nothing shared with the first.

Every value before a rounding is an exact fraction (or a square root of one, compared by its square), so
a rounding here is right by construction. Slow: for a few blocks.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from fractions import Fraction

DIM = 128
HALF = 32

# A bfloat16 number as its exact value.
Vector = list[Fraction]


def value_of(bits: int) -> Fraction:
    """Return the exact value of finite bfloat16 `bits`."""
    sign = -1 if bits & 0x8000 else 1
    exponent = (bits >> 7) & 0xFF
    fraction = bits & 0x7F
    if exponent == 0:
        return Fraction(sign * fraction) * Fraction(2) ** (-133)
    return Fraction(sign * (fraction + 128)) * Fraction(2) ** (exponent - 134)


def bits_of(value: Fraction) -> int:
    """Return the bits of a value that is a bfloat16; zero has no sign here."""
    (word,) = struct.unpack("<I", struct.pack("<f", float(value)))
    assert word & 0xFFFF == 0, value
    return int(word >> 16)


def _quantum(magnitude: Fraction, bits: int) -> Fraction:
    """Return the spacing of normal binary floats with `bits` significant bits at `magnitude` > 0."""
    exponent = math.frexp(float(magnitude))[1]
    return Fraction(2) ** max(exponent - bits, -126 - (bits - 1))


def _nearest(value: Fraction, quantum: Fraction) -> Fraction:
    return Fraction(round(value / quantum)) * quantum  # round() of a Fraction is to even


def to_bf16(value: Fraction) -> Fraction:
    """Return the bfloat16 nearest to `value`, ties to even."""
    if value == 0:
        return value
    return _nearest(value, _quantum(abs(value), 8))


def to_f32(value: Fraction) -> Fraction:
    """Return the float32 nearest to `value`, ties to even."""
    if value == 0:
        return value
    return _nearest(value, _quantum(abs(value), 24))


def signed_root(square: Fraction, sign: int) -> Fraction:
    """Return sign * sqrt(square) to 2^-200 relative."""
    shift = 2 * (220 + max(0, square.denominator.bit_length()))
    scaled = (square.numerator << shift) // square.denominator
    return Fraction(sign * math.isqrt(scaled), 1 << (shift // 2))


def before_norm_rounding(x: Vector, weight: Vector, eps: Fraction) -> Vector:
    """Return x * (1 + w) / sqrt(mean(x^2) + eps) before its rounding."""
    mean_square = sum((v * v for v in x), Fraction(0)) / DIM + eps
    result = []
    for v, w in zip(x, weight, strict=True):
        numerator = v * to_f32(1 + w)
        sign = (numerator > 0) - (numerator < 0)
        result.append(signed_root(numerator * numerator / mean_square, sign))
    return result


def rotate(x: Vector, cos: Vector, sin: Vector) -> Vector:
    """Return the rotation with its three roundings."""
    result = list(x)
    for i in range(2 * HALF):
        turned = -x[i + HALF] if i < HALF else x[i - HALF]
        result[i] = to_bf16(to_f32(to_bf16(x[i] * cos[i]) + to_bf16(turned * sin[i])))
    return result


def mean_of_keys(keys: Sequence[Vector]) -> Vector:
    """Return the bfloat16 mean of the four raw keys."""
    return [to_bf16(sum((key[i] for key in keys), Fraction(0)) / len(keys)) for i in range(DIM)]


def block_key(
    keys: Sequence[Vector], weight: Vector, cos: Vector, sin: Vector, eps: Fraction
) -> Vector:
    """Return the key of a block of four raw keys; cos and sin are those of its first token."""
    normed = before_norm_rounding(mean_of_keys(keys), weight, eps)
    return rotate([to_bf16(v) for v in normed], cos, sin)


def query_head(raw: Vector, weight: Vector, cos: Vector, sin: Vector, eps: Fraction) -> Vector:
    """Return one query head at its own position."""
    return rotate([to_bf16(v) for v in before_norm_rounding(raw, weight, eps)], cos, sin)


def score(heads: Sequence[Vector], key: Vector) -> float:
    """Return sum over heads of relu(q . k) / sqrt(128)."""
    total = Fraction(0)
    for head in heads:
        dot = sum((q * k for q, k in zip(head, key, strict=True)), Fraction(0))
        total += max(dot, Fraction(0))
    return float(signed_root(total * total / DIM, 1))
