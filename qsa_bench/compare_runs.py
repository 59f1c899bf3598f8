"""Two runs of one kind against each other: verdicts from intervals, never from two numbers. Pure.

A ratio's interval follows from the two medians' intervals, each widened by half a step of its
timer. Whole beyond the allowed change: slower or faster; whole within: same; else undecided.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from qsa_bench import limits, stats
from qsa_bench.errors import NotComparableError
from qsa_bench.exit_codes import ExitCode
from qsa_bench.model import Measurement, Run, Usage
from qsa_bench.stats import Interval
from qsa_bench.store import StoredRun
from qsa_bench.timers import NSYS, RESOLUTION_NS

_TIMED = ("kernel", "library", NSYS)
_UNCHANGED = ("peer", limits.CALIBRATION)
# Numbers of a kernel's usage that should not grow.
_FIELDS = ("registers", "spill_stores", "spill_loads", "stack", "shared")


class Change(StrEnum):
    """What became of a time."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "same"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Compared:
    """One measurement in both runs; `ratio` is new over old, None where either is unknown."""

    old: Measurement
    new: Measurement
    old_ns: float | None
    new_ns: float | None
    ratio: Interval | None
    change: Change
    why: str = ""


@dataclass(frozen=True)
class Growth:
    """One number of a kernel's usage in both runs."""

    usage: Usage
    field: str
    old: int
    new: int
    too_much: bool


@dataclass(frozen=True)
class Comparison:
    """Everything that was compared. `drift` is the new over the old time of what did not change."""

    kind: str
    old: Run
    new: Run
    max_slowdown: float
    max_growth: float
    rows: tuple[Compared, ...] = ()
    growths: tuple[Growth, ...] = ()
    only_old: tuple[str, ...] = ()
    only_new: tuple[str, ...] = ()
    drift: float | None = None
    notes: tuple[str, ...] = ()

    @property
    def exit_code(self) -> ExitCode:
        """SLOWER where anything is; INCOMPLETE where that is open.

        What is slower is a finding whatever else is open, so it comes first here.
        """
        if any(row.change is Change.SLOWER for row in self.rows):
            return ExitCode.SLOWER
        if any(growth.too_much for growth in self.growths):
            return ExitCode.SLOWER
        open_ = any(row.change is Change.UNDECIDED for row in self.rows)
        return ExitCode.INCOMPLETE if open_ else ExitCode.OK


def change(
    old: Sequence[int], new: Sequence[int], resolution_ns: float, allowed: float
) -> tuple[Change, Interval | None, str]:
    """Return the verdict on samples in ns, the ratio's interval, and why it is open."""
    intervals = [stats.median_interval(samples) for samples in (old, new)]
    if intervals[0] is None or intervals[1] is None:
        return Change.UNDECIDED, None, f"{len(old)} and {len(new)} samples give no interval"
    before, after = (interval.widened(resolution_ns / 2) for interval in intervals if interval)
    ratio = stats.ratio(after, before)
    if ratio.low > 1 + allowed:
        return Change.SLOWER, ratio, ""
    if ratio.high < 1 / (1 + allowed):
        return Change.FASTER, ratio, ""
    if ratio.low >= 1 / (1 + allowed) and ratio.high <= 1 + allowed:
        return Change.SAME, ratio, ""
    return Change.UNDECIDED, ratio, "the interval of the ratio reaches over the limit"


def compare(old: StoredRun, new: StoredRun, max_slowdown: float, max_growth: float) -> Comparison:
    """Compare two runs of the same kind.

    NotComparableError where they differ in kind, device, timer or cache state, or share nothing.
    """
    kinds = old.run.command, new.run.command
    if kinds[0] != kinds[1]:
        raise NotComparableError(f"comparing a {kinds[0]} run with a {kinds[1]} run")
    if kinds[0] == "build":
        return _usages(old, new, max_slowdown, max_growth)
    if kinds[0] not in ("sweep", NSYS):
        raise NotComparableError(f"comparing {kinds[0]} runs: they hold nothing to compare")
    return _timings(old, new, max_slowdown, max_growth)


def _timings(old: StoredRun, new: StoredRun, slowdown: float, growth: float) -> Comparison:
    if old.run.device != new.run.device:
        raise NotComparableError(
            f"comparing times: the devices differ ({old.run.device} and {new.run.device})"
        )
    before, after = _by_key(old.timings, _TIMED), _by_key(new.timings, _TIMED)
    shared = [key for key in before if key in after]
    if not shared:
        raise NotComparableError(f"comparing times: {_nothing_shared(before, after)}")
    rows = tuple(_compared(before[key], after[key], slowdown) for key in shared)
    notes = [
        f"the {word} run was not finished (exit {run.run.exit_code})"
        for word, run in (("old", old), ("new", new))
        if not run.complete or run.run.exit_code == ExitCode.INTERRUPTED
    ]
    drivers = [run.run.versions.get("driver", "") for run in (old, new)]
    if drivers[0] != drivers[1]:
        notes.append(f"the drivers differ: {drivers[0] or 'none'} and {drivers[1] or 'none'}")
    return Comparison(
        kind=old.run.command,
        old=old.run,
        new=new.run,
        max_slowdown=slowdown,
        max_growth=growth,
        rows=rows,
        only_old=tuple(key for key in before if key not in after),
        only_new=tuple(key for key in after if key not in before),
        drift=_drift(old.timings, new.timings),
        notes=tuple(notes),
    )


def _by_key(timings: Iterable[Measurement], kinds: Sequence[str]) -> dict[str, Measurement]:
    return {timing.key: timing for timing in timings if timing.kind in kinds}


def _nothing_shared(old: dict[str, Measurement], new: dict[str, Measurement]) -> str:
    """Say in which way two sets without a common key differ."""
    sides = [list(each.values()) for each in (old, new)]
    for word, values in (
        ("timer", [{timing.timer for timing in side} for side in sides]),
        ("cache state", [{timing.cache for timing in side} for side in sides]),
    ):
        left, right = values
        if left and right and not left & right:
            return f"the {word}s differ ({', '.join(sorted(left))} and {', '.join(sorted(right))})"
    if not old or not new:
        return f"the {'old' if not old else 'new'} run holds no times of kernels"
    return "they have no measurement in common"


def _compared(old: Measurement, new: Measurement, allowed: float) -> Compared:
    resolution = RESOLUTION_NS.get(old.timer, 0)
    found, ratio, why = change(old.samples_ns, new.samples_ns, resolution, allowed)
    medians = [
        float(statistics.median(timing.samples_ns)) if timing.samples_ns else None
        for timing in (old, new)
    ]
    if found is Change.UNDECIDED and ratio is None:
        why = new.why or old.why or why
    return Compared(old, new, medians[0], medians[1], ratio, found, why)


def _drift(old: Iterable[Measurement], new: Iterable[Measurement]) -> float | None:
    """Return the median ratio of what no change of ours touches: peers and calibration."""
    before, after = _by_key(old, _UNCHANGED), _by_key(new, _UNCHANGED)
    ratios = [
        statistics.median(after[key].samples_ns) / statistics.median(before[key].samples_ns)
        for key in before
        if key in after
        and before[key].samples_ns
        and after[key].samples_ns
        and statistics.median(before[key].samples_ns)
    ]
    return statistics.median(ratios) if ratios else None


def _usages(old: StoredRun, new: StoredRun, slowdown: float, growth: float) -> Comparison:
    before = {usage.key: usage for usage in old.usages}
    after = {usage.key: usage for usage in new.usages}
    shared = [key for key in before if key in after]
    if not shared:
        raise NotComparableError(
            "comparing builds: they share no kernel; `build --resources` keeps what one uses"
        )
    growths: list[Growth] = []
    for key in shared:
        for name in _FIELDS:
            was, now = getattr(before[key], name), getattr(after[key], name)
            if was != now:
                growths.append(Growth(after[key], name, was, now, now > was * (1 + growth)))
        was, now = before[key].warps, after[key].warps
        if was != now:
            growths.append(Growth(after[key], "warps", was, now, now * (1 + growth) < was))
    return Comparison(
        kind="build",
        old=old.run,
        new=new.run,
        max_slowdown=slowdown,
        max_growth=growth,
        growths=tuple(growths),
        only_old=tuple(key for key in before if key not in after),
        only_new=tuple(key for key in after if key not in before),
    )
