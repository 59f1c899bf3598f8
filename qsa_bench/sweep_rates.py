"""Rates of a sweep, from its own rows: bandwidths, matrix rate, times a peer, captured pipelines."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence

from qsa_bench import limits, sweeps
from qsa_bench.limits import Limits
from qsa_bench.model import Measurement
from qsa_bench.tables import Cell, Column, Mark, Table, row, without_empty
from qsa_bench.timers import CUPTI, GRAPH, WARM

_OURS = ("kernel", "library")
_US = 1000.0
_DASH = "-"


def tables(timings: Sequence[Measurement], limit: Limits) -> Iterable[Table]:
    """Yield the rates of launches that say what they ask for, and what capturing costs."""
    yield from _rates(timings, limit)
    yield from _bodies(timings)
    yield from _captured(timings)
    yield from _steps(timings)


def median(timing: Measurement) -> float | None:
    """Return the median in ns, None for what was not measured."""
    return float(statistics.median(timing.samples_ns)) if timing.samples_ns else None


def _us(value_ns: float | None) -> str:
    if value_ns is None:
        return _DASH
    value = value_ns / _US
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def point_of(entry: str, axes: Mapping[str, str]) -> str:
    """Return a point in words: entry, context, rows, input."""
    context = axes.get("context", "")
    words = [entry, sweeps.size_text(int(context)) if context.isdigit() else context]
    if axes.get("rows", "").isdigit():
        words.append(f"{axes['rows']} rows" if axes["rows"] != "1" else "1 row")
    return ", ".join(word for word in (*words, axes.get("input", "")) if word)


def _shipped(timings: Iterable[Measurement], timer: str) -> list[Measurement]:
    return [
        timing
        for timing in timings
        if timing.kind == "kernel"
        and timing.name == sweeps.AUTO
        and (timing.timer, timing.cache) == (timer, WARM)
        and timing.samples_ns
    ]


def _tera(amount: int, ns: float) -> str:
    return f"{amount / ns / 1000:.3g}" if amount else _DASH


def _share(amount: int, ns: float, rate: float | None) -> str:
    return f"{amount / ns / rate:.0%}" if amount and rate else _DASH


def _rates(timings: Sequence[Measurement], limit: Limits) -> Iterable[Table]:
    """Yield bytes and operations a second of the shipped build, and how long its peers take."""
    ours = [t for t in _shipped(timings, CUPTI) if t.flops or t.bytes_requested]
    if not ours:
        return
    columns = (
        Column("launch", whole=True),
        Column("us", right=True),
        Column("TB/s moved", right=True),
        Column("of copy", right=True),
        Column("TB/s requested", right=True),
        Column("TFLOP/s", right=True),
        Column("of matrix rate", right=True),
    )
    kept, cells = without_empty(columns, [_rate_row(timing, limit) for timing in ours])
    notes = (
        Cell(
            "moved: the bytes that can't be avoided; requested: every read counted; of copy and of "
            "matrix rate: shares of what this run measured of its device",
            Mark.DIM,
        ),
    )
    yield Table("rates", "rates of the shipped build, warm, by CUPTI", kept, cells, notes=notes)
    yield from _peers(timings, ours)


def _rate_row(timing: Measurement, limit: Limits) -> tuple[Cell, ...]:
    ns = median(timing) or 1.0
    moved = timing.bytes_read + timing.bytes_written
    return row(
        point_of(timing.entry, timing.axes),
        _us(ns),
        _tera(moved, ns),
        _share(moved, ns, limit.bandwidths.get(limits.COPY)),
        _tera(timing.bytes_requested, ns),
        _tera(timing.flops, ns),
        _share(timing.flops, ns, limit.matrix),
    )


def _peers(timings: Sequence[Measurement], ours: Sequence[Measurement]) -> Iterable[Table]:
    """Yield how many times as long each peer takes as the shipped build at the same point."""
    own = {timing.case: median(timing) for timing in ours}
    lines = []
    for timing in timings:
        theirs, ns = median(timing), own.get(timing.case)
        warm = (timing.timer, timing.cache) == (CUPTI, WARM)
        if timing.kind == "peer" and warm and theirs and ns:
            title = timing.axes.get("title") or timing.name
            place = point_of(timing.entry, timing.axes)
            lines.append(row(place, title, _us(theirs), _us(ns), f"{theirs / ns:.2f}"))
    if not lines:
        return
    columns = (
        Column("launch", whole=True),
        Column("peer"),
        Column("us", right=True),
        Column("ours, us", right=True),
        Column("times", right=True),
    )
    yield Table("against", "peers against the shipped build, warm, by CUPTI", columns, tuple(lines))


def _bodies(timings: Sequence[Measurement]) -> Iterable[Table]:
    """Yield how many times as long other entries take that do the same work as the stage's own.

    The same work is the same bytes and operations on the same axes.
    """
    ours = [timing for timing in _shipped(timings, CUPTI) if timing.flops]
    own = {_work(timing): median(timing) for timing in ours if timing.entry == timing.stage}
    lines = []
    for timing in ours:
        ns, automatic = median(timing) or 0.0, own.get(_work(timing))
        if automatic and timing.entry != timing.stage:
            place = point_of(timing.entry, timing.axes)
            lines.append(row(place, _us(ns), _us(automatic), f"{ns / automatic:.2f}"))
    if not lines:
        return
    columns = (
        Column("entry", whole=True),
        Column("us", right=True),
        Column("automatic entry, us", right=True),
        Column("times", right=True),
    )
    yield Table("bodies", "entries of one contract, warm, by CUPTI", columns, tuple(lines))


def _work(timing: Measurement) -> tuple[object, ...]:
    axes = tuple(sorted(timing.axes.items()))
    return timing.stage, axes, timing.bytes_read, timing.bytes_written, timing.flops


def _captured(timings: Sequence[Measurement]) -> Iterable[Table]:
    """Yield a replayed graph's time beside the sum of its kernels, for launches of several."""
    kernels = {t.key.replace(f"|{CUPTI}|", "|"): t for t in _shipped(timings, CUPTI)}
    lines = []
    for timing in _shipped(timings, GRAPH):
        alone = kernels.get(timing.key.replace(f"|{GRAPH}|", "|"))
        if alone is None or len(alone.kernels) < 2:
            continue
        whole, parts = median(timing) or 0.0, median(alone) or 1.0
        lines.append(
            row(
                point_of(timing.entry, timing.axes),
                str(len(alone.kernels)),
                _us(parts),
                _us(whole),
                f"{whole / parts:.2f}",
            )
        )
    if not lines:
        return
    columns = (
        Column("pipeline", whole=True),
        Column("kernels", right=True),
        Column("sum of kernels, us", right=True),
        Column("captured, us", right=True),
        Column("captured / sum", right=True),
    )
    yield Table("captured", "captured in a CUDA graph and replayed, warm", columns, tuple(lines))


def _steps(timings: Sequence[Measurement]) -> Iterable[Table]:
    """Yield where the time of a launch of several kernels goes: each kernel's median."""
    lines = [
        row(place, _kernel_name(said), _us(ns), f"{ns / whole:.0%}")
        for timing in _shipped(timings, CUPTI)
        if len(timing.kernels) == len(timing.parts_ns) > 1
        for place, whole in [(point_of(timing.entry, timing.axes), sum(timing.parts_ns) or 1)]
        for said, ns in zip(timing.kernels, timing.parts_ns, strict=True)
    ]
    if not lines:
        return
    columns = (
        Column("pipeline", whole=True),
        Column("kernel"),
        Column("us", right=True),
        Column("of the sum", right=True),
    )
    yield Table("steps", "kernels of a step, warm, by CUPTI", columns, tuple(lines))


def _kernel_name(described: str) -> str:
    """Return the function's own name out of a kernel's description."""
    name = described.replace("(anonymous namespace)::", "").partition("(")[0].partition("<")[0]
    return name.partition(",")[0].rpartition("::")[2].rpartition(" ")[2]
