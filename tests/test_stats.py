"""Statistics: intervals cover what they claim, and nothing measured is no zero."""

from __future__ import annotations

import math
import random

import pytest

from qsa_bench import stats
from qsa_bench.stats import Interval


def test_no_sample_has_no_summary() -> None:
    assert stats.summary(()) is None


def test_a_summary_holds_the_columns_of_a_kernel_summary() -> None:
    found = stats.summary([10, 30, 20, 20, 40, 60])
    assert found is not None
    assert (found.instances, found.total, found.mean, found.median) == (6, 180, 30.0, 25.0)
    assert (found.least, found.most) == (10, 60)
    assert found.deviation == pytest.approx(17.8885, rel=1e-4)


def test_fewer_than_six_samples_have_no_95_percent_interval() -> None:
    # Two ends of n samples miss the median with probability 2 / 2^n: 6.25% at 5, 3.1% at 6.
    assert stats.median_interval([1, 2, 3, 4, 5]) is None
    assert stats.median_interval([6, 5, 4, 3, 2, 1]) == Interval(1.0, 6.0)


def test_the_interval_is_that_of_the_tables() -> None:
    # Order statistics 6 and 15 of 20, 40 and 61 of 100: the published 95% ranks for a median.
    assert stats.median_interval(range(1, 21)) == Interval(6.0, 15.0)
    assert stats.median_interval(range(1, 101)) == Interval(40.0, 61.0)


@pytest.mark.parametrize("count", [6, 17, 50])
def test_the_interval_covers_a_skewed_median_as_often_as_it_says(count: int) -> None:
    draw = random.Random(count)
    median = 1000 * math.log(2)
    covered = 0
    for _ in range(2000):
        interval = stats.median_interval([round(draw.expovariate(1) * 1000) for _ in range(count)])
        assert interval is not None
        covered += interval.low <= median <= interval.high
    assert covered / 2000 >= 0.94


def test_many_samples_take_the_approximation_within_a_rank_of_the_exact() -> None:
    exact = stats._depth(stats._EXACT_UP_TO, stats.CONFIDENCE)
    beyond = stats._depth(stats._EXACT_UP_TO + 1, stats.CONFIDENCE)
    assert abs(exact - beyond) <= 1


def test_samples_of_one_step_of_the_timer_give_a_point() -> None:
    found = stats.summary([1984] * 50)
    assert found is not None
    assert found.relative_half_width == 0.0


def test_fifty_nine_of_fifty_nine_rules_out_what_happens_less_than_94_of_100() -> None:
    interval = stats.exact_interval(59, 59)
    assert interval.low == pytest.approx(0.9394, abs=1e-4)
    assert interval.high == pytest.approx(1.0)


def test_a_proportion_without_a_trial_is_no_number() -> None:
    with pytest.raises(ValueError, match="0 hits of 0"):
        stats.exact_interval(0, 0)


def test_a_ratio_reaches_from_the_best_to_the_worst_case() -> None:
    assert stats.ratio(Interval(90, 110), Interval(100, 120)) == Interval(0.75, 1.1)


def test_a_widened_interval_stays_above_zero() -> None:
    assert Interval(10, 20).widened(16) == Interval(0.0, 36)
    with pytest.raises(ValueError, match="from 2 to 1"):
        Interval(2, 1)
