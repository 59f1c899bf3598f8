"""Clocks for the sampling loop: one a timer. Nothing here decides when to stop."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from qsa_bench.telemetry import Reading, Telemetry
from qsa_bench.timers import COLD, LEAST_EVENT_NS, WARM
from qsa_bench.timers.activity import Activity, Launched, LostRecordsError, durations
from qsa_bench.timers.session import Profiler, Session, SubjectError, capture
from qsa_bench.timing import Round

# A graph lasts about this long, so that its pair of events (9 to 20 us) is a hundredth of it.
_GRAPH_NS = 1_500_000
_MOST_GRAPH_CALLS = 2000
_LOST = "the profiler lost records"


class Watch:
    """Readings of the device around every round."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self.readings: list[Reading] = []

    def throttled(self, work: Callable[[], Any]) -> tuple[str, ...]:
        """Do the work and return the reasons for which it is worth nothing."""
        around = [self._telemetry.read()]
        work()
        around.append(self._telemetry.read())
        self.readings += around
        return tuple(sorted({reason for reading in around for reason in reading.throttled}))


class CuptiClock:
    """Durations of a call's device activities, summed, as CUPTI records them.

    `parts` keeps those of each activity by subject, of the rounds that nothing throttled.
    Warm: a block is one launch nobody counts and then `launches` back to back. Cold: before
    every launch a kernel reads more than the L2 holds.
    """

    def __init__(
        self,
        session: Session,
        watch: Watch,
        cache: str,
        names: Mapping[str, tuple[str, ...]],
        launches: int = 12,
        profiler: Profiler | None = None,
    ) -> None:
        self._session = session
        self._watch = watch
        self._cache = cache
        self._names = names
        self._launches = launches
        self._profiler = profiler or Profiler(session)
        self._flush_names = self._profiler.names(session.flush) if cache == COLD else ()
        self.parts: dict[str, list[tuple[int, ...]]] = {}

    def seconds(self) -> float:
        """Return a monotonic reading."""
        return time.monotonic()

    def round(self, order: Sequence[str]) -> Round:
        """Launch one block a name; a round whose record does not fit is dropped by that reason."""
        launched: list[Launched] = []
        recorded: list[Activity] = []

        def blocks() -> None:
            for name in order:
                launched.extend(self._block(name))

        throttled = self._watch.throttled(lambda: recorded.extend(self._profiler.record(blocks)))
        samples: dict[str, list[int]] = {name: [] for name in order}
        try:
            for subject, parts in durations(recorded, launched):
                if subject is not None:
                    samples[subject].append(sum(parts))
                    if not throttled:
                        self.parts.setdefault(subject, []).append(parts)
        except LostRecordsError:
            samples = {name: [0] * self._launches * order.count(name) for name in set(order)}
            return Round(samples, (*throttled, _LOST))
        return Round(samples, throttled)

    def _block(self, name: str) -> list[Launched]:
        call, names = self._session.subjects[name].call, self._names[name]
        done: list[Launched] = []
        if self._cache == WARM:
            call()
            done.append(Launched(None, names))
        for _ in range(self._launches):
            if self._cache == COLD:
                self._session.flush()
                done.append(Launched(None, self._flush_names))
            call()
            done.append(Launched(name, names))
        return done


def elapsed_ns(run: Callable[[], Any]) -> int:
    """Return the time between two events around some work, in ns; ValueError below 50 us."""
    event: Any = torch.cuda.Event
    start, end = event(enable_timing=True), event(enable_timing=True)
    start.record()
    run()
    end.record()
    end.synchronize()
    return checked_event_ns(start.elapsed_time(end) * 1e6)


def checked_event_ns(elapsed: float) -> int:
    """Return an event pair's reading; ValueError where the pair itself is most of it."""
    if elapsed < LEAST_EVENT_NS:
        raise ValueError(
            f"a pair of events reads {elapsed / 1000:.1f} us; below "
            f"{LEAST_EVENT_NS // 1000} us that is mostly the pair itself"
        )
    return round(elapsed)


def graph_calls(duration_ns: float) -> int:
    """Return how many calls of that duration a graph holds."""
    return min(max(math.ceil(_GRAPH_NS / max(duration_ns, 1.0)), 1), _MOST_GRAPH_CALLS)


class GraphClock:
    """Replay of a graph of many calls, per call: what an engine that replays a graph sees."""

    def __init__(
        self,
        session: Session,
        watch: Watch,
        expected_ns: Mapping[str, float],
        timed: Callable[[Callable[[], Any]], int] = elapsed_ns,
    ) -> None:
        self._watch = watch
        self._timed = timed
        self.calls = {name: graph_calls(expected) for name, expected in expected_ns.items()}
        self._graphs: dict[str, Any] = {}
        self._refused: dict[str, str] = {}
        for name, calls in self.calls.items():
            subject = session.subjects[name]
            try:
                if not subject.capturable:
                    raise SubjectError(subject.why_not)
                self._graphs[name] = capture(session, subject, calls)
            except SubjectError as error:
                self._refused[name] = str(error)

    def seconds(self) -> float:
        """Return a monotonic reading."""
        return time.monotonic()

    def round(self, order: Sequence[str]) -> Round:
        """Replay each name's graph once a mention."""
        samples: dict[str, list[int]] = {name: [] for name in order}

        def replay() -> None:
            for name in order:
                if name not in self._refused:
                    try:
                        whole = self._timed(self._graphs[name].replay)
                    except ValueError as error:
                        self._refused[name] = str(error)
                        continue
                    samples[name].append(round(whole / self.calls[name]))

        throttled = self._watch.throttled(replay)
        return Round(samples, throttled, dict(self._refused))


class EventClock:
    """A pair of events around each call; refuses what lasts less than 50 us."""

    def __init__(
        self,
        session: Session,
        watch: Watch,
        cache: str,
        launches: int = 6,
        timed: Callable[[Callable[[], Any]], int] = elapsed_ns,
    ) -> None:
        self._session = session
        self._watch = watch
        self._cache = cache
        self._launches = launches
        self._timed = timed
        self._refused: dict[str, str] = {}

    def seconds(self) -> float:
        """Return a monotonic reading."""
        return time.monotonic()

    def round(self, order: Sequence[str]) -> Round:
        """Time one block a name."""
        samples: dict[str, list[int]] = {name: [] for name in order}

        def launch() -> None:
            for name in order:
                call = self._session.subjects[name].call
                for _ in range(self._launches):
                    if name in self._refused:
                        break
                    if self._cache == COLD:
                        self._session.flush()
                    try:
                        samples[name].append(self._timed(call))
                    except ValueError as error:
                        self._refused[name] = str(error)

        throttled = self._watch.throttled(launch)
        return Round(samples, throttled, dict(self._refused))
