"""The sampling loop and its stopping rule, against a Clock; pure, no device is known here.

What is compared is sampled in one loop, in random order, so that a drift of the device hits all
alike. A round that the device was throttled in is dropped whole and counted by its reason.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from qsa_bench import stats

# Limits that a device has in which every round was dropped.
_PATIENCE = 4.0


class Stop(StrEnum):
    """Why sampling stopped."""

    PRECISE = "precise"
    MOST_SAMPLES = "most-samples"
    TIME_LIMIT = "time-limit"
    REFUSED = "refused"


@dataclass(frozen=True)
class Rule:
    """When a median is known well enough.

    Sampling stops once the half-width of the median's interval is at most `half_width` of the
    median, with `least` samples at least; or at `most` samples; or when the loop has run for
    `limit_s`, whatever it then has: but not with nothing before four times as long, for a device that
    slept drops its first rounds.
    """

    half_width: float = 0.01
    confidence: float = stats.CONFIDENCE
    least: int = 50
    most: int = 400
    limit_s: float = 3.0

    def __post_init__(self) -> None:
        if not 0 < self.half_width < 1 or not 0 < self.confidence < 1:
            raise ValueError("rule: half-width and confidence lie between 0 and 1")
        if not 1 <= self.least <= self.most:
            raise ValueError(f"rule: at least {self.least}, at most {self.most} samples")
        if self.limit_s <= 0:
            raise ValueError(f"rule: a time limit of {self.limit_s} s")

    def stop(self, samples: Sequence[int], seconds: float) -> Stop | None:
        """Return why to stop now, or None to go on."""
        if len(samples) >= self.least:
            summary = stats.summary(samples, self.confidence)
            width = None if summary is None else summary.relative_half_width
            if width is not None and width <= self.half_width:
                return Stop.PRECISE
        if len(samples) >= self.most:
            return Stop.MOST_SAMPLES
        limit = self.limit_s if samples else _PATIENCE * self.limit_s
        return Stop.TIME_LIMIT if seconds >= limit else None


@dataclass(frozen=True)
class Round:
    """What a clock saw of one round: samples in ns by subject.

    `throttled` are reasons that hold for the whole round, whose samples are then worth nothing.
    `refused` says of subjects that this clock can't time them, and why.
    """

    samples: Mapping[str, Sequence[int]]
    throttled: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)


class Clock(Protocol):
    """Times launches of named subjects."""

    def round(self, order: Sequence[str]) -> Round:
        """Launch the subjects in this order, some launches a time, and return their durations."""
        ...

    def seconds(self) -> float:
        """A monotonic reading, for the time limit."""
        ...


@dataclass(frozen=True)
class Sampled:
    """The samples of one subject, how many were dropped for which reason, why sampling stopped.

    `why` says more where it was refused. No samples means unknown, never zero.
    """

    samples_ns: tuple[int, ...]
    dropped: Mapping[str, int]
    stopped: Stop
    why: str = ""


class _Open:
    """A subject that still wants samples."""

    def __init__(self) -> None:
        self.samples: list[int] = []
        self.dropped: Counter[str] = Counter()


def measure(
    clock: Clock,
    subjects: Sequence[str],
    rule: Rule,
    shuffle: random.Random,
    blocks: int = 2,
) -> dict[str, Sampled]:
    """Sample all subjects interleaved until the rule has stopped each; one result a subject.

    Every round takes each open subject `blocks` times, in an order drawn anew.
    """
    states = {subject: _Open() for subject in subjects}
    done: dict[str, Sampled] = {}
    begun = clock.seconds()
    while len(done) < len(states):
        going = [subject for subject in subjects if subject not in done]
        order = going * blocks
        shuffle.shuffle(order)
        seen = clock.round(order)
        spent = clock.seconds() - begun
        for subject in going:
            state = states[subject]
            taken = seen.samples.get(subject, ())
            if subject in seen.refused:
                done[subject] = Sampled((), {}, Stop.REFUSED, seen.refused[subject])
                continue
            if seen.throttled:
                state.dropped[" and ".join(sorted(seen.throttled))] += len(taken)
            else:
                state.samples.extend(taken[: rule.most - len(state.samples)])
            stop = rule.stop(state.samples, spent)
            if stop is not None:
                done[subject] = Sampled(tuple(state.samples), dict(state.dropped), stop)
    return {subject: done[subject] for subject in subjects}
