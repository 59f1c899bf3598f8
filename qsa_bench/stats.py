"""Pure functions on samples: medians with intervals, summaries, proportions.

Durations of kernels are skewed and come in steps of the timer, so nothing here assumes a normal
distribution: the interval of a median is made of order statistics.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

CONFIDENCE = 0.95
# Above this many samples the binomial's normal approximation is off by less than one rank.
_EXACT_UP_TO = 1000


@dataclass(frozen=True)
class Interval:
    """A closed interval; `low` <= `high`."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not self.low <= self.high:
            raise ValueError(f"interval from {self.low} to {self.high}")

    @property
    def half_width(self) -> float:
        """Half the distance between the ends."""
        return (self.high - self.low) / 2

    def widened(self, by: float) -> Interval:
        """Return the interval with both ends moved outwards, the lower one not below zero."""
        return Interval(max(self.low - by, 0.0), self.high + by)


@dataclass(frozen=True)
class Summary:
    """What the samples of one measurement come to, in their unit. `interval` is the median's."""

    instances: int
    total: int
    mean: float
    median: float
    least: int
    most: int
    deviation: float
    interval: Interval | None

    @property
    def relative_half_width(self) -> float | None:
        """Half-width of the median's interval over the median; None where there is none."""
        if self.interval is None or self.median == 0:
            return None
        return self.interval.half_width / self.median


def summary(samples: Sequence[int], confidence: float = CONFIDENCE) -> Summary | None:
    """Return the summary of samples, None of no sample: nothing measured is no zero."""
    if not samples:
        return None
    return Summary(
        instances=len(samples),
        total=sum(samples),
        mean=statistics.fmean(samples),
        median=statistics.median(samples),
        least=min(samples),
        most=max(samples),
        deviation=statistics.stdev(samples) if len(samples) > 1 else 0.0,
        interval=median_interval(samples, confidence),
    )


def median_interval(samples: Sequence[int], confidence: float = CONFIDENCE) -> Interval | None:
    """Return an interval that holds the population's median with `confidence` at least.

    It is made of two order statistics of equal depth, so it holds whatever the distribution.
    None where there are too few samples for one (fewer than 6 at 95%).
    """
    depth = _depth(len(samples), confidence)
    if depth < 1:
        return None
    ordered = sorted(samples)
    return Interval(float(ordered[depth - 1]), float(ordered[len(ordered) - depth]))


@lru_cache(maxsize=4096)
def _depth(count: int, confidence: float) -> int:
    """Return how deep from either end the interval's ends lie, 0 where even the ends won't do.

    The largest d with P(Binomial(n, 1/2) < d) <= (1 - confidence) / 2.
    """
    tail = (1.0 - confidence) / 2
    if count > _EXACT_UP_TO:
        z = statistics.NormalDist().inv_cdf(1.0 - tail)
        return max(math.floor(count / 2 - z * math.sqrt(count) / 2), 0)
    below, depth = 0.0, 0
    for successes in range(count // 2 + 1):
        below += math.comb(count, successes) / 2**count
        if below > tail:
            break
        depth = successes + 1
    return depth


def exact_interval(hits: int, trials: int, confidence: float = CONFIDENCE) -> Interval:
    """Return Clopper and Pearson's interval of a proportion; ValueError without a trial.

    It holds at least the confidence whatever the proportion, so 0 of 20 still allows for 0.17.
    """
    if trials < 1 or not 0 <= hits <= trials:
        raise ValueError(f"{hits} hits of {trials} trials")
    tail = (1.0 - confidence) / 2

    def at_most(count: int, share: float) -> float:
        return sum(
            math.comb(trials, k) * share**k * (1 - share) ** (trials - k) for k in range(count + 1)
        )

    def solve(count: int, wanted: float) -> float:
        """Return the share at which no more than `count` hits are as likely as wanted."""
        low, high = 0.0, 1.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if at_most(count, middle) > wanted else (low, middle)
        return (low + high) / 2

    least = 0.0 if hits == 0 else solve(hits - 1, 1.0 - tail)
    most = 1.0 if hits == trials else solve(hits, tail)
    return Interval(least, most)


def ratio(new: Interval, old: Interval) -> Interval:
    """Return the interval of new / old from theirs; the far end is infinite where old may be 0."""
    return Interval(
        new.low / old.high if old.high > 0 else 0.0,
        new.high / old.low if old.low > 0 else math.inf,
    )
