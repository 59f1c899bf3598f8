"""Want against got: how many differ, where first, want and got, the worst error over its bound.

Never one similarity number for a whole tensor: an error has a place and a size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from qsa_bench.model import Evidence, Finding, Status

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Held:
    """Values that a check held at a bound: `got` and `bound`, f64 of one shape."""

    check: str
    name: str
    got: Array
    bound: Array
    unit: str


_watched: ContextVar[list[Held] | None] = ContextVar("watched", default=None)


@contextmanager
def watch() -> Iterator[list[Held]]:
    """Collect what `bounded` holds in this thread, in order: two outputs can then be told apart."""
    seen: list[Held] = []
    token = _watched.set(seen)
    try:
        yield seen
    finally:
        _watched.reset(token)


def coordinates(shape: Sequence[int], index: int) -> str:
    """Spell a flat index of `shape` as [i, j]."""
    place = np.unravel_index(index, tuple(shape))
    return "[" + ", ".join(str(int(part)) for part in place) + "]"


def bitwise(check: str, name: str, want: Array, got: Array, unit: str = "elements") -> Finding:
    """Compare two arrays of one shape and dtype bit by bit."""
    left = np.ascontiguousarray(want)
    right = np.ascontiguousarray(got)
    if left.shape != right.shape or left.dtype != right.dtype:
        raise ValueError(f"{name}: {left.dtype}{left.shape} against {right.dtype}{right.shape}")
    raw = f"u{left.dtype.itemsize}"
    differing = np.flatnonzero(left.view(raw).reshape(-1) != right.view(raw).reshape(-1))
    if differing.size == 0:
        return Finding(check, Status.PASS, Evidence(0, left.size, unit))
    first = int(differing[0])
    place = f"{name}{coordinates(left.shape, first)}"
    values = str(left.reshape(-1)[first]), str(right.reshape(-1)[first])
    return Finding(
        check,
        Status.WRONG,
        Evidence(
            int(differing.size),
            left.size,
            unit,
            first=place,
            want=values[0],
            got=values[1],
            where=place,
            note=f"{differing.size} of {left.size} {unit} of {name} differ",
        ),
    )


def bounded(
    check: str, name: str, want: Array, got: Array, bound: Array, unit: str = "elements"
) -> Finding:
    """Hold |got - want| at `bound` elementwise (arrays of one shape; want and bound f64).

    NaN must meet NaN and nothing else; the margin is the largest error over bound, with its
    place. A bound of 0 demands equality.
    """
    watched = _watched.get()
    if watched is not None:
        given, limits = (np.asarray(array, dtype=np.float64) for array in (got, bound))
        watched.append(Held(check, name, given, limits.reshape(given.shape), unit))
    wanted = np.asarray(want, dtype=np.float64).reshape(-1)
    given = np.asarray(got, dtype=np.float64).reshape(-1)
    limits = np.asarray(bound, dtype=np.float64).reshape(-1)
    if not wanted.size == given.size == limits.size:
        raise ValueError(f"{name}: sizes {wanted.size}, {given.size}, {limits.size}")
    if wanted.size == 0:
        return Finding(check, Status.PASS, Evidence(0, 0, unit))
    with np.errstate(invalid="ignore", divide="ignore"):
        error = np.abs(given - wanted)
        ratio = np.where(error == 0, 0.0, error / limits)
    nan_mismatch = np.isnan(wanted) != np.isnan(given)
    both_nan = np.isnan(wanted) & np.isnan(given)
    equal = given == wanted
    ratio = np.where(both_nan | equal, 0.0, np.where(nan_mismatch | np.isnan(ratio), np.inf, ratio))
    error = np.where(both_nan | equal, 0.0, np.where(np.isnan(error), np.inf, error))
    failing = np.flatnonzero(ratio > 1.0)
    worst = int(np.argmax(ratio))
    shape = np.shape(want)
    place = f"{name}{coordinates(shape, worst)}"
    evidence = Evidence(
        int(failing.size),
        int(wanted.size),
        unit,
        first=f"{name}{coordinates(shape, int(failing[0]))}" if failing.size else "",
        want=f"{wanted[worst]:.9g}",
        got=f"{given[worst]:.9g}",
        error=float(error[worst]) if np.isfinite(ratio[worst]) else float("inf"),
        bound=0.0 if np.isnan(limits[worst]) else float(limits[worst]),
        where=place,
        note=f"{failing.size} of {wanted.size} {unit} of {name} outside their bound"
        if failing.size
        else "",
    )
    return Finding(check, Status.WRONG if failing.size else Status.PASS, evidence)
