"""How far a device's outputs lie from the emulation's: bits, or f32 values at the stage's bound."""

from __future__ import annotations

import numpy as np
import pytest

from qsa_bench.against_host import distance

BOUND = 2e-6


def floats(*values: float) -> dict[str, np.ndarray]:
    return {"scores": np.array([values], np.float32)}


def test_equal_outputs_are_no_distance_apart() -> None:
    found = distance(floats(1.0, 0.0), floats(1.0, 0.0), BOUND)
    assert (found.count, found.margin, found.where) == (0, 0.0, "")


def test_a_float_within_the_bound_has_its_margin() -> None:
    # One step of a f32 above 8 is 9.5e-7, the bound there 2e-6 * (1 + 8).
    found = distance(floats(1.0, 8.0), floats(1.0, float(np.nextafter(np.float32(8), 9))), BOUND)
    assert found.count == 0
    assert found.margin == pytest.approx(2**-20 / (BOUND * 9), rel=1e-6)
    assert found.where == "scores[0, 1]"


def test_a_float_outside_the_bound_is_counted_with_the_worst_place() -> None:
    found = distance(floats(1.0, 1.0, 1.0), floats(1.0, 1.00001, 1.001), BOUND)
    assert (found.count, found.where) == (2, "scores[0, 2]")
    assert found.margin == pytest.approx(1e-3 / (2 * BOUND), rel=1e-3)


def test_a_nan_is_a_nan_whatever_its_payload_but_not_a_number() -> None:
    quiet = np.array([0x7FC00000, 0x3F800000], np.uint32).view(np.float32)
    other = np.array([0x7FFFFFFF, 0x3F800000], np.uint32).view(np.float32)
    found = distance({"scores": quiet}, {"scores": other}, BOUND)
    assert (found.count, found.margin) == (0, 0.0)
    for value in (0.0, float("inf")):
        found = distance(floats(float("nan")), floats(value), BOUND)
        assert (found.count, found.margin) == (1, float("inf"))
        found = distance(floats(value), floats(float("nan")), BOUND)
        assert (found.count, found.margin) == (1, float("inf"))


def test_without_a_bound_each_bit_of_a_float_counts() -> None:
    near = float(np.nextafter(np.float32(1), 2))
    found = distance(floats(1.0, 1.0), floats(1.0, near), None)
    assert (found.count, found.margin, found.where) == (1, float("inf"), "scores[0, 1]")
    assert distance(floats(0.0), floats(-0.0), None).count == 1
    assert distance(floats(0.0), floats(-0.0), BOUND).count == 0


def test_other_types_are_held_to_their_bits() -> None:
    want, got = np.zeros((2, 3), np.uint8), np.zeros((2, 3), np.uint8)
    got[1, 2] = 1
    found = distance({"mask": want}, {"mask": got}, BOUND)
    assert (found.count, found.first, found.want, found.got) == (1, "mask[1, 2]", "0", "1")


def test_the_worst_of_several_outputs_is_told() -> None:
    want = {**floats(1.0), "mask": np.zeros(4, np.uint8)}
    got = {**floats(1.0000001), "mask": np.zeros(4, np.uint8)}
    assert distance(want, got, BOUND).where == "scores[0, 0]"
    got["mask"][3] = 1
    assert distance(want, got, BOUND).where == "mask[3]"
