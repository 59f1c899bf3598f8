"""Limits: the launch floor or the bytes, both of the same run; and whether cold was cold."""

from __future__ import annotations

import pytest

from qsa_bench import limits
from qsa_bench.limits import Limits
from qsa_bench.model import Measurement
from qsa_bench.timers import COLD, CUPTI, GRAPH, WARM

GIB = 1 << 30


def _calibration(
    name: str,
    median: int,
    *,
    timer: str = CUPTI,
    cache: str = WARM,
    read: int = 0,
    written: int = 0,
) -> Measurement:
    return Measurement(
        "d" * 32,
        "bench",
        f"calibration/{name}",
        name,
        timer,
        cache,
        {},
        (median,) * 9,
        {},
        "precise",
        kind=limits.CALIBRATION,
        bytes_read=read,
        bytes_written=written,
    )


EMPTY = _calibration("empty kernel", 640)
COPY = _calibration("copy", 504_000, read=GIB, written=GIB)
READ = _calibration("read", 227_000, read=GIB)


def test_a_small_launch_is_held_to_the_empty_kernel() -> None:
    assert limits.of([EMPTY, COPY]).of(CUPTI, 2056, 2052) == 640


def test_a_large_launch_is_held_to_its_bytes_at_the_copy_bandwidth() -> None:
    found = limits.of([EMPTY, COPY]).of(CUPTI, 2048 * 65536, 2048 * 65536)
    assert found == pytest.approx(504_000 * (2 * 2048 * 65536) / (2 * GIB))


def test_a_launch_that_only_reads_is_held_to_the_read_bandwidth() -> None:
    found = limits.of([EMPTY, COPY, READ]).of(CUPTI, GIB, 0)
    assert found == pytest.approx(227_000)


def test_each_timer_has_its_own_floor() -> None:
    graph = _calibration("empty kernel", 810, timer=GRAPH)
    found = limits.of([EMPTY, graph, COPY])
    assert (found.of(CUPTI, 4, 4), found.of(GRAPH, 4, 4)) == (640, 810)


def test_a_run_that_measured_no_limit_states_none() -> None:
    assert Limits().of(CUPTI, 4, 4) is None
    assert limits.of([EMPTY]).of(CUPTI, 4, 4) is None
    assert limits.of([COPY]).of(CUPTI, 4, 4) is None


def test_a_measurement_of_a_kernel_is_no_calibration() -> None:
    own = Measurement(
        "d", "s", "c", "empty kernel", CUPTI, WARM, {}, (1,), {}, "precise", verdict="x"
    )
    assert limits.of([own]).floors == {}


@pytest.mark.parametrize(
    ("cold_floor", "cold_read", "said"),
    [
        (672, 9000, ""),
        (1600, 9000, "an empty kernel takes 1600 ns after a flush, 640 ns without"),
        (672, 4000, "16 MiB are read in 4000 ns after a flush, 4200 ns without"),
    ],
)
def test_cold_is_trusted_where_the_floor_held_and_the_cache_was_empty(
    cold_floor: int, cold_read: int, said: str
) -> None:
    found = limits.of(
        [
            EMPTY,
            _calibration("empty kernel", cold_floor, cache=COLD),
            _calibration("read 16 MiB", 4200, read=1 << 24),
            _calibration("read 16 MiB", cold_read, read=1 << 24, cache=COLD),
        ]
    )
    assert found.cold_problem() == said


def test_cold_without_its_controls_is_not_trusted() -> None:
    assert "no empty kernel" in limits.of([EMPTY]).cold_problem()
    both = [EMPTY, _calibration("empty kernel", 640, cache=COLD)]
    assert "no small read" in limits.of(both).cold_problem()
