"""Log-log plots of a sweep, as PNG, SVG and one HTML page that holds them all.

matplotlib (extra: plots) is loaded when one is drawn.
"""

from __future__ import annotations

import html
import io
import statistics
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from qsa_bench import limits, sweeps
from qsa_bench.errors import EnvironmentMissingError, NothingSelectedError, UsageError
from qsa_bench.limits import Limits
from qsa_bench.model import Measurement
from qsa_bench.timers import CUPTI

FORMATS = ("png", "svg")
PAGE = "index.html"
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
    figures = list(_figures(timings, device))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        made: list[Path] = []
        for name, figure in figures:
            for suffix in FORMATS:
                path = folder / f"{name}.{suffix}"
                _save(figure, path, suffix)
                made.append(path)
        page = folder / PAGE
        title = html.escape(f"Sweep on {device}")
        parts = (_fragment(name, figure) for name, figure in figures)
        page.write_text(
            f'<!doctype html>\n<meta charset="utf-8">\n<title>{title}</title>\n'
            f"<h1>{title}</h1>\n{''.join(parts)}",
            encoding="utf-8",
        )
    except OSError as error:
        raise UsageError(f"drawing plots into {folder}: {error.strerror}") from None
    return [*made, page]


def fragment(timings: Sequence[Measurement], device: str) -> str:
    """Return the plots as HTML figures that load nothing, to put into a page.

    Raises as `draw` does.
    """
    return "".join(_fragment(name, figure) for name, figure in _figures(timings, device))


def _fragment(name: str, figure: Any) -> str:
    text = io.StringIO()
    _save(figure, text, "svg")
    # From the element on: what comes before it belongs to a file of its own.
    svg = text.getvalue()[text.getvalue().index("<svg") :]
    return f"<figure>\n<figcaption>{html.escape(name)}</figcaption>\n{svg}</figure>\n"


def _save(figure: Any, target: Path | io.StringIO, suffix: str) -> None:
    # Without a date the same run draws the same file.
    metadata = {"Date": None} if suffix == "svg" else None
    figure.savefig(target, format=suffix, dpi=150, metadata=metadata)


def _figures(timings: Sequence[Measurement], device: str) -> Iterator[tuple[str, Any]]:
    """Yield each picture with its name."""
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
    for (entry, rows, kind, cache), group in pictures.items():
        figure = Figure(figsize=(8, 5), layout="constrained")
        axes = figure.subplots()
        _lines(axes, group, limit)
        words = ", ".join(word for word in (entry, f"{rows} rows", kind, cache) if word)
        axes.set_title(f"{words} ({device})")
        yield "-".join(word for word in (entry, f"rows{rows}", kind, cache) if word), figure


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
