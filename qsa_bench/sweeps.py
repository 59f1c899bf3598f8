"""From asked axes to the points of a sweep; pure.

A point is one program (stage, entry, context, rows, input). At a point several subjects (builds of
the kernel, peers) are timed together, by each timer, in each cache state.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

from qsa_bench.errors import NothingSelectedError, UsageError
from qsa_bench.model import Kernel
from qsa_bench.stages.base import Stage, SweepAxis, SweepSpec
from qsa_bench.timers import CACHES, COLD, CUPTI, EVENT, GRAPH, TIMERS, WARM

# The build as it ships: no axis is given to the compiler, the source chooses.
AUTO = "auto"
# The family of verdicts on timed points, beside those of the gate's cases.
FAMILY = "sweep"
ENTRY = "entry"
CACHE = "cache"
_SIZE = re.compile(r"(\d+)([kKmM]?)")
_FACTORS = {"": 1, "k": 1 << 10, "m": 1 << 20}


def parse_size(text: str) -> int:
    """Return a size: 2052, 2k (2,048), 1M (1,048,576). UsageError for anything else."""
    match = _SIZE.fullmatch(text.strip())
    size = 0 if match is None else int(match[1]) * _FACTORS[match[2].lower()]
    if size < 1:
        raise UsageError(f"a size is {text!r}; give a number, 2k, 64k or 1M")
    return size


def size_text(size: int) -> str:
    """Return a size as a person writes it: 2052, 2k, 64k, 1M."""
    for suffix, factor in (("M", 1 << 20), ("k", 1 << 10)):
        if size >= factor and size % factor == 0:
            return f"{size // factor}{suffix}"
    return str(size)


def _axis_values(name: str, axis: SweepAxis, words: Iterable[str]) -> tuple[str, ...]:
    values: list[str] = []
    for word in words:
        if axis.kind == "word":
            if word not in axis.choices:
                raise UsageError(
                    f"--{name} {word}: there is no such {name}; use {', '.join(axis.choices)}"
                )
            values.append(word)
        elif axis.kind == "size":
            values.append(str(parse_size(word)))
        else:
            if not word.isdecimal() or int(word) < 1:
                raise UsageError(f"--{name} {word}: a whole number of 1 or more is needed")
            values.append(str(int(word)))
    return tuple(dict.fromkeys(values))


def _build_values(kernel: Kernel, name: str, words: Iterable[str]) -> tuple[str, ...]:
    allowed = (AUTO, *(str(value) for value in kernel.axes[name].values))
    for word in words:
        if word not in allowed:
            raise UsageError(f"--{name} {word}: {kernel.name} is built for {', '.join(allowed)}")
    return tuple(words)


@dataclass(frozen=True)
class Grid:
    """Asked values by axis, all valid: entries, cache states, the stage's axes, build axes."""

    entries: tuple[str, ...]
    caches: tuple[str, ...]
    axes: Mapping[str, tuple[str, ...]]
    builds: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class Variant:
    """A build of a kernel: its build axes' values; none for the build as it ships."""

    values: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Readable: "auto" or "threads=256"."""
        return ",".join(f"{axis}={value}" for axis, value in self.values.items()) or AUTO

    def defines(self, kernel: Kernel) -> dict[str, int | str]:
        """Return the compiler's defines."""
        return {kernel.axes[axis].define: value for axis, value in self.values.items()}


@dataclass(frozen=True)
class Point:
    """One program to be timed, and the variants and cache states it is timed for."""

    stage: str
    entry: str
    axes: Mapping[str, str]
    variants: tuple[Variant, ...]
    caches: tuple[str, ...]

    @property
    def case(self) -> str:
        """Readable and unique in a sweep; equal in another sweep of the same point."""
        words = ",".join(f"{name}={value}" for name, value in self.axes.items())
        return f"{self.stage}/{FAMILY}/{self.entry},{words}"


def spec_of(stage: Stage) -> SweepSpec:
    """Return what can be timed of a stage; UsageError when nothing can."""
    if stage.sweep is None:
        raise UsageError(f"sweeping {stage.name}: nothing of this stage can be timed")
    return stage.sweep


def grid(stage: Stage, kernel: Kernel, asked: Mapping[str, Sequence[str]]) -> Grid:
    """Return asked lists (by axis; what is not asked has its default) as a valid grid."""
    spec = spec_of(stage)
    known = {ENTRY, CACHE, *spec.axes, *kernel.axes}
    for name in asked:
        if name not in known:
            raise UsageError(f"--{name}: {stage.name} has no such axis; it has {_named(known)}")
    entries = tuple(asked.get(ENTRY, spec.entries[:1]))
    for entry in entries:
        if entry not in spec.entries:
            raise UsageError(
                f"--entry {entry}: {stage.name} times no such entry; use {', '.join(spec.entries)}"
            )
    caches = tuple(asked.get(CACHE, (WARM,)))
    for cache in caches:
        if cache not in CACHES:
            raise UsageError(f"--cache {cache}: use {' or '.join(CACHES)}")
    return Grid(
        entries,
        caches,
        {
            name: _axis_values(name, axis, asked.get(name, axis.default))
            for name, axis in spec.axes.items()
        },
        {name: _build_values(kernel, name, asked.get(name, (AUTO,))) for name in kernel.axes},
    )


def _named(names: Iterable[str]) -> str:
    return ", ".join(f"--{name}" for name in sorted(names))


def points(stage: Stage, grids: Sequence[Grid]) -> list[Point]:
    """Return the points of all grids, each once, those with the same inputs side by side.

    NothingSelectedError when there is none.
    """
    merged: dict[str, Point] = {}
    for each in grids:
        variants = tuple(
            Variant(
                {
                    name: value
                    for name, value in zip(each.builds, values, strict=True)
                    if value != AUTO
                }
            )
            for values in product(*each.builds.values())
        )
        for entry in each.entries:
            for values in product(*each.axes.values()):
                axes = dict(zip(each.axes, values, strict=True))
                made = Point(stage.name, entry, axes, variants, each.caches)
                before = merged.get(made.case)
                merged[made.case] = made if before is None else _join(before, made)
    if not merged:
        raise NothingSelectedError(f"sweeping {stage.name}: the axes leave no point")
    # Points of the same inputs stand side by side, so that what was made for one serves both.
    groups: dict[tuple[str, ...], list[Point]] = {}
    for point in merged.values():
        groups.setdefault(tuple(point.axes.values()), []).append(point)
    return [point for group in groups.values() for point in group]


def _join(left: Point, right: Point) -> Point:
    names = {variant.name for variant in left.variants}
    more = tuple(variant for variant in right.variants if variant.name not in names)
    caches = left.caches + tuple(cache for cache in right.caches if cache not in left.caches)
    return Point(left.stage, left.entry, left.axes, left.variants + more, caches)


def plan(stage: Stage, kernel: Kernel, asked: Mapping[str, Sequence[str]]) -> list[Point]:
    """Return the points that are asked for: all axes crossed; the standard grids when none is."""
    if asked:
        return points(stage, [grid(stage, kernel, asked)])
    return points(stage, [grid(stage, kernel, each) for each in spec_of(stage).standard])


def timings(timers: Sequence[str], caches: Sequence[str]) -> list[tuple[str, str]]:
    """Return the pairs of timer and cache state that there are of those asked for.

    A graph holds launches back to back, so it knows no cold cache. UsageError for an unknown
    timer or when nothing is left.
    """
    for timer in timers:
        if timer not in TIMERS:
            raise UsageError(f"--timer {timer}: there is no such timer; use {', '.join(TIMERS)}")
    pairs = [
        (timer, cache)
        for timer in (CUPTI, GRAPH, EVENT)
        for cache in caches
        if timer in timers and not (timer == GRAPH and cache == COLD)
    ]
    if not pairs:
        raise UsageError("--timer graph goes with a warm cache: a graph replays back to back")
    return pairs
