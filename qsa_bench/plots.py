"""Log-log plots of a sweep, PNG and SVG; matplotlib (extra: plots) is loaded when one is drawn."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from qsa_bench import limits, sweeps
from qsa_bench.errors import EnvironmentMissingError, NothingSelectedError, UsageError
from qsa_bench.limits import Limits
from qsa_bench.model import Measurement
from qsa_bench.timers import CUPTI

FORMATS = ("png", "svg")
_OURS = ("kernel", "library")
_US = 1000.0


def _series(timings: Iterable[Measurement]) -> dict[tuple[str, ...], list[Measurement]]:
    """Return what one picture each shows: entry, number of rows, input and cache state."""
    pictures: dict[tuple[str, ...], list[Measurement]] = {}
    for timing in timings:
        if timing.timer != CUPTI or not timing.samples_ns or "context" not in timing.axes:
            continue
        key = (
            timing.entry,
            timing.axes.get("rows", ""),
            timing.axes.get("input", ""),
            timing.cache,
        )
        pictures.setdefault(key, []).append(timing)
    # A line needs two points.
    return {
        key: group
        for key, group in pictures.items()
        if len({timing.axes["context"] for timing in group if timing.kind in _OURS}) > 1
    }


def draw(timings: Sequence[Measurement], device: str, folder: Path) -> list[Path]:
    """Draw time against context, one line a build, with limit and peers; returns the files.

    EnvironmentMissingError without matplotlib, NothingSelectedError where nothing can be drawn,
    UsageError where the folder can't be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise EnvironmentMissingError(
            "drawing plots: matplotlib is not installed; pip install 'qsa-bench[plots]'"
        ) from None
    pictures = _series(timings)
    if not pictures:
        raise NothingSelectedError("drawing plots: the run holds no times at two contexts")
    limit = limits.of(timings)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"drawing plots into {folder}: {error.strerror}") from None
    made: list[Path] = []
    for (entry, rows, kind, cache), group in pictures.items():
        figure = Figure(figsize=(8, 5), layout="constrained")
        axes = figure.subplots()
        _lines(axes, group, limit)
        words = ", ".join(word for word in (entry, f"{rows} rows", kind, cache) if word)
        axes.set_title(f"{words} ({device})")
        name = "-".join(word for word in (entry, f"rows{rows}", kind, cache) if word)
        for suffix in FORMATS:
            path = folder / f"{name}.{suffix}"
            # Without a date the same run draws the same file.
            figure.savefig(path, dpi=150, metadata={"Date": None} if suffix == "svg" else None)
            made.append(path)
    return made


def _lines(axes: Any, group: Sequence[Measurement], limit: Limits) -> None:
    contexts = sorted({int(timing.axes["context"]) for timing in group})
    named: dict[tuple[bool, str], dict[int, Measurement]] = {}
    for timing in group:
        label = timing.axes.get("title") or timing.name
        line = named.setdefault((timing.kind in _OURS, label), {})
        line[int(timing.axes["context"])] = timing
    for (ours, label), line in named.items():
        places = sorted(line)
        medians = [statistics.median(line[place].samples_ns) / _US for place in places]
        axes.plot(
            places, medians, marker="o" if ours else ".", ls="-" if ours else ":", label=label
        )
    least: dict[int, float] = {}
    for timing in group:
        bound = limit.of(timing.timer, timing.bytes_read, timing.bytes_written)
        if bound is not None:
            least[int(timing.axes["context"])] = bound / _US
    if least:
        places = sorted(least)
        axes.plot(places, [least[place] for place in places], color="black", ls="--", label="limit")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(contexts, [sweeps.size_text(context) for context in contexts])
    axes.minorticks_off()
    axes.set_xlabel("context, tokens")
    axes.set_ylabel("median, us")
    axes.grid(visible=True, which="major", alpha=0.3)
    axes.legend(fontsize="small")
