"""Differences have a count, a place and a size."""

from __future__ import annotations

import math

import numpy as np
import pytest

from qsa_bench.compare import bitwise, bounded, coordinates
from qsa_bench.model import Status

INF, NAN = math.inf, math.nan


def f32(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32)


def test_a_flat_index_is_spelt_in_its_shape() -> None:
    assert coordinates((2, 3), 5) == "[1, 2]"
    assert coordinates((7,), 0) == "[0]"


def test_equal_bits_pass_and_are_counted() -> None:
    found = bitwise("mask", "mask", f32(1, 2), f32(1, 2), "bits")
    assert (found.check, found.status) == ("mask", Status.PASS)
    assert (found.evidence.count, found.evidence.total, found.evidence.unit) == (0, 2, "bits")


def test_a_bitwise_difference_is_counted_and_its_first_place_shown() -> None:
    want = np.arange(6, dtype=np.int32).reshape(2, 3)
    got = want.copy()
    got[0, 2], got[1, 1] = 9, 8
    evidence = bitwise("ids", "ids", want, got).evidence
    assert (evidence.count, evidence.total) == (2, 6)
    assert (evidence.first, evidence.want, evidence.got) == ("ids[0, 2]", "2", "9")
    assert evidence.note == "2 of 6 elements of ids differ"
    assert evidence.margin is None


def test_zeros_of_both_signs_differ_bit_by_bit() -> None:
    assert bitwise("x", "x", f32(0.0), f32(-0.0)).status is Status.WRONG


def test_a_nan_equals_its_own_bits_and_no_others() -> None:
    quiet, other = np.array([0x7FC00000, 0x7FC00001], dtype=np.uint32).view(np.float32)
    assert bitwise("x", "x", f32(quiet), f32(quiet)).status is Status.PASS
    pair = np.array([quiet]), np.array([other])
    assert bitwise("x", "x", *pair).status is Status.WRONG


def test_a_transposed_view_is_compared_by_its_values() -> None:
    array = np.arange(6, dtype=np.uint8).reshape(2, 3).T
    assert bitwise("x", "x", array, np.ascontiguousarray(array)).status is Status.PASS


@pytest.mark.parametrize(
    "got", [np.zeros(3, np.float32), np.zeros(2, np.int32), np.zeros((1, 2), np.float32)]
)
def test_arrays_of_another_shape_or_type_are_no_comparison(got: np.ndarray) -> None:
    with pytest.raises(ValueError, match="x: float32"):
        bitwise("x", "x", np.zeros(2, np.float32), got)


def test_nothing_against_nothing_passes() -> None:
    empty = np.zeros((0, 4), np.float32)
    assert bitwise("x", "x", empty, empty).status is Status.PASS
    assert bounded("x", "x", empty, empty, empty).status is Status.PASS


def test_an_error_at_its_bound_passes_with_margin_one() -> None:
    found = bounded("x", "x", f32(1.0), f32(1.5), f32(0.5))
    assert found.status is Status.PASS
    assert found.evidence.margin == 1.0
    assert (found.evidence.count, found.evidence.note) == (0, "")


def test_the_margin_is_the_largest_error_over_its_own_bound() -> None:
    want, got = f32(0, 0, 0), f32(0.5, 0.25, 0)
    found = bounded("x", "x", want, got, f32(1.0, 0.125, 1.0))
    assert found.status is Status.WRONG
    evidence = found.evidence
    assert (evidence.margin, evidence.error, evidence.bound) == (2.0, 0.25, 0.125)
    assert (evidence.where, evidence.count, evidence.got) == ("x[1]", 1, "0.25")
    assert evidence.note == "1 of 3 elements of x outside their bound"


def test_the_first_failure_and_the_worst_are_told_apart() -> None:
    found = bounded("x", "x", np.zeros((2, 2)), np.array([[0, 2], [5, 1]]), np.ones((2, 2)))
    assert (found.evidence.first, found.evidence.where) == ("x[0, 1]", "x[1, 0]")
    assert found.evidence.count == 2


def test_errors_are_measured_in_double_precision() -> None:
    want = np.array([1.0 + 2.0**-40])
    found = bounded("x", "x", want, f32(1.0), np.array([2.0**-41]))
    assert found.evidence.error == 2.0**-40
    assert found.evidence.margin == 2.0
    swapped = bounded("x", "x", f32(1.0), want, np.array([2.0**-41]))
    assert swapped.evidence.margin == 2.0


@pytest.mark.parametrize(
    ("want", "got", "passes"),
    [
        (NAN, NAN, True),
        (NAN, 0.0, False),
        (0.0, NAN, False),
        (INF, INF, True),
        (-INF, INF, False),
        (INF, 1.0, False),
        (1.0, -INF, False),
    ],
)
def test_what_is_not_finite_meets_its_like_or_fails_without_a_bound(
    want: float, got: float, passes: bool
) -> None:
    found = bounded("x", "x", f32(want), f32(got), f32(1e30))
    assert (found.status is Status.PASS) is passes
    assert found.evidence.margin == (0.0 if passes else INF)


def test_a_bound_of_zero_demands_equality() -> None:
    bound = f32(0.0)
    assert bounded("x", "x", f32(1), f32(1), bound).status is Status.PASS
    assert bounded("x", "x", f32(0.0), f32(-0.0), bound).status is Status.PASS
    found = bounded("x", "x", f32(1), f32(np.nextafter(np.float32(1), np.float32(2))), bound)
    assert found.status is Status.WRONG
    assert found.evidence.margin == INF


def test_a_bound_that_is_no_number_is_met_by_equality_alone() -> None:
    assert bounded("x", "x", f32(1), f32(1), f32(NAN)).status is Status.PASS
    assert bounded("x", "x", f32(1), f32(2), f32(NAN)).status is Status.WRONG


def test_what_has_no_bound_has_no_margin_to_speak_of() -> None:
    found = bounded("x", "x", f32(1, 1), f32(5, 1), f32(INF, 1))
    assert found.status is Status.PASS
    assert found.evidence.margin == 0.0


def test_sizes_that_differ_are_no_comparison() -> None:
    with pytest.raises(ValueError, match="x: sizes 2, 1, 2"):
        bounded("x", "x", f32(1, 2), f32(1), f32(1, 1))
