"""bfloat16 in numpy equals exact rational rounding."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from qsa_bench.bf16 import NAN_BITS, U16, round_to_bf16, round_trip, to_float32
from tests.oracles import naive_qsa as naive


def _every_finite_bit_pattern() -> U16:
    bits = np.arange(0x10000, dtype=np.uint32).astype(np.uint16)
    return bits[np.isfinite(to_float32(bits))]


def test_every_bfloat16_survives_the_round_trip() -> None:
    bits = _every_finite_bit_pattern()
    assert np.array_equal(round_to_bf16(to_float32(bits)), bits)


def test_every_bfloat16_has_its_exact_value() -> None:
    bits = _every_finite_bit_pattern()[::97]
    assert [naive.value_of(int(b)) for b in bits] == [Fraction(float(v)) for v in to_float32(bits)]


def test_a_midpoint_goes_to_the_even_neighbour() -> None:
    bits = np.arange(0x0000, 0x7F7F, dtype=np.uint16)
    midpoint = (to_float32(bits).astype(np.float64) + to_float32(bits + np.uint16(1))) / 2
    even = bits + (bits & np.uint16(1))
    assert np.array_equal(round_to_bf16(midpoint), even)
    assert np.array_equal(round_to_bf16(midpoint.astype(np.float32)), even)


@pytest.mark.parametrize(("factor", "step"), [(1 + 2.0**-50, 1), (1 - 2.0**-50, 0)])
def test_a_float64_beside_a_midpoint_is_rounded_once(factor: float, step: int) -> None:
    # A rounding to float32 first would land on the midpoint and go to the even side.
    bits = np.arange(0x0080, 0x7F7F, dtype=np.uint16)
    midpoint = (to_float32(bits).astype(np.float64) + to_float32(bits + np.uint16(1))) / 2
    assert np.array_equal(round_to_bf16(midpoint * factor), bits + np.uint16(step))


def test_random_floats_round_as_exact_fractions_do() -> None:
    rng = np.random.default_rng(7)
    values = rng.standard_normal(2000) * 2.0 ** rng.integers(-40, 40, 2000)
    want = [naive.bits_of(naive.to_bf16(Fraction(float(v)))) for v in values]
    assert round_to_bf16(values).tolist() == want


def test_past_the_largest_bfloat16_lies_infinity() -> None:
    largest = float(to_float32(np.array([0x7F7F], np.uint16))[0])
    values = np.array([largest, largest * (1 + 2.0**-8), 1e300, -1e300, np.inf])
    assert round_to_bf16(values).tolist() == [0x7F7F, 0x7F80, 0x7F80, 0xFF80, 0x7F80]


def test_a_nan_has_one_bit_pattern() -> None:
    signalling = np.array([0x7F800001, 0xFFFFFFFF, 0x7FC00000], np.uint32).view(np.float32)
    assert set(round_to_bf16(signalling).tolist()) == {NAN_BITS}
    assert set(round_to_bf16(np.array([np.nan, -np.nan])).tolist()) == {NAN_BITS}


def test_shapes_are_kept() -> None:
    assert round_to_bf16(np.float64(1.5) * np.ones(())).shape == ()
    assert round_trip(np.zeros((3, 0, 2), np.float32)).shape == (3, 0, 2)
