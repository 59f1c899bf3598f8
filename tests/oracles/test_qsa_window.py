"""The 2 ulp window of a norm holds what correct float32 kernels compute, and not much more."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from qsa_bench.bf16 import round_trip
from qsa_bench.oracles.qsa_head_vector import WINDOW_ULP

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]

_ONE = np.float32(1.0)


def _butterfly_sum(squares: F32) -> F32:
    lanes = squares.reshape(-1, 32, 4)
    total = (lanes[..., 0] + lanes[..., 1]) + (lanes[..., 2] + lanes[..., 3])
    for distance in (16, 8, 4, 2, 1):
        total = total + total[:, np.arange(32) ^ distance]
    return total[:, 0]


def _serial_sum(squares: F32) -> F32:
    return np.asarray(np.add.accumulate(squares, axis=1, dtype=np.float32)[:, -1])


def _error_in_ulp(x: F32, weight: F32, sum_of_squares: F32) -> F64:
    mean_square = sum_of_squares * np.float32(1 / 128) + np.float32(1e-6)
    inverse = _ONE / np.sqrt(mean_square)
    got = (x * inverse[:, None]) * (_ONE + weight)
    wide = x.astype(np.float64)
    root = np.sqrt(np.square(wide).mean(axis=1, keepdims=True) + float(np.float32(1e-6)))
    want = wide / root * (_ONE + weight)
    nonzero = want != 0
    return np.asarray(np.abs(got - want)[nonzero] / (np.abs(want)[nonzero] * 2.0**-23))


def _vectors(scale: float) -> tuple[F32, F32]:
    rng = np.random.default_rng(17)
    x = round_trip((scale * rng.standard_normal((8000, 128))).astype(np.float32))
    return x, round_trip((0.1 * rng.standard_normal(128)).astype(np.float32))


@pytest.mark.parametrize("scale", [1.0, 3e-3])
def test_a_shuffle_tree_leaves_the_window_once_in_ten_thousand_at_most(scale: float) -> None:
    x, weight = _vectors(scale)
    error = _error_in_ulp(x, weight, _butterfly_sum(x * x))
    assert np.count_nonzero(error > WINDOW_ULP) <= 1e-4 * error.size
    assert error.max() < WINDOW_ULP + 0.5
    # Half as wide would not do.
    assert np.count_nonzero(error > WINDOW_ULP / 2) > 0.01 * error.size


def test_a_serial_sum_is_outside_in_more_than_one_of_a_hundred() -> None:
    x, weight = _vectors(1.0)
    error = _error_in_ulp(x, weight, _serial_sum(x * x))
    assert np.count_nonzero(error > WINDOW_ULP) > 0.01 * error.size
