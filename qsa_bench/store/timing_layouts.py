"""Columns of a sweep's files and of the compiler's resource figures; standard library only."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, replace

from qsa_bench import stats
from qsa_bench.model import Measurement, Usage
from qsa_bench.store.columns import (
    COUNTS,
    INTEGER,
    INTEGERS,
    REAL,
    REALS,
    TEXT,
    TEXTS,
    WORDS,
    Layout,
    Row,
    reals,
)


def _timing_row(timing: Measurement) -> Row:
    summary = stats.summary(timing.samples_ns)
    interval = None if summary is None else summary.interval
    return {
        "key": timing.key,
        "build": timing.build,
        "stage": timing.stage,
        "case": timing.case,
        "name": timing.name,
        "kind": timing.kind,
        "entry": timing.entry,
        "timer": timing.timer,
        "cache": timing.cache,
        "axes": dict(timing.axes),
        "instances": len(timing.samples_ns),
        "calls": timing.calls,
        "total_ns": None if summary is None else summary.total,
        "mean_ns": None if summary is None else summary.mean,
        "median_ns": None if summary is None else summary.median,
        "median_low_ns": None if interval is None else interval.low,
        "median_high_ns": None if interval is None else interval.high,
        "min_ns": None if summary is None else summary.least,
        "max_ns": None if summary is None else summary.most,
        "deviation_ns": None if summary is None else summary.deviation,
        "dropped": dict(timing.dropped),
        "stopped_because": timing.stopped_because,
        "why": timing.why,
        "verdict": timing.verdict,
        "clocks": reals(timing.clocks),
        "bytes_read": timing.bytes_read,
        "bytes_written": timing.bytes_written,
        "kernels": list(timing.kernels),
        "bytes_requested": timing.bytes_requested,
        "flops": timing.flops,
        "parts_ns": list(timing.parts_ns),
    }


def _timing(row: Row) -> Measurement:
    """Return a measurement without its samples, which lie in a file of their own."""
    return Measurement(
        build=row["build"],
        stage=row["stage"],
        case=row["case"],
        name=row["name"],
        timer=row["timer"],
        cache=row["cache"],
        axes=dict(row["axes"] or {}),
        samples_ns=(),
        dropped={str(reason): int(count) for reason, count in dict(row["dropped"] or {}).items()},
        stopped_because=row["stopped_because"],
        verdict=row["verdict"],
        clocks=reals(row["clocks"]),
        kind=row["kind"],
        entry=row["entry"],
        calls=row["calls"],
        bytes_read=row["bytes_read"],
        bytes_written=row["bytes_written"],
        kernels=tuple(row["kernels"]),
        why=row["why"],
        bytes_requested=row["bytes_requested"],
        flops=row["flops"],
        parts_ns=tuple(row["parts_ns"]),
    )


# The statistics are there for those who read the file without us; they are worked out of the
# samples again when it is read here.
TIMINGS = Layout[Measurement](
    name="timings",
    columns={
        "key": TEXT,
        "build": TEXT,
        "stage": TEXT,
        "case": TEXT,
        "name": TEXT,
        "kind": TEXT,
        "entry": TEXT,
        "timer": TEXT,
        "cache": TEXT,
        "axes": WORDS,
        "instances": INTEGER,
        "calls": INTEGER,
        "total_ns": INTEGER,
        "mean_ns": REAL,
        "median_ns": REAL,
        "median_low_ns": REAL,
        "median_high_ns": REAL,
        "min_ns": INTEGER,
        "max_ns": INTEGER,
        "deviation_ns": REAL,
        "dropped": COUNTS,
        "stopped_because": TEXT,
        "why": TEXT,
        "verdict": TEXT,
        "clocks": REALS,
        "bytes_read": INTEGER,
        "bytes_written": INTEGER,
        "kernels": TEXTS,
        "bytes_requested": INTEGER,
        "flops": INTEGER,
        "parts_ns": INTEGERS,
    },
    to_row=_timing_row,
    from_row=_timing,
    added={"bytes_requested": 0, "flops": 0, "parts_ns": ()},
)

Samples = tuple[str, tuple[int, ...]]
SAMPLES = Layout[Samples](
    name="samples",
    columns={"key": TEXT, "samples_ns": INTEGERS},
    to_row=lambda samples: {"key": samples[0], "samples_ns": list(samples[1])},
    from_row=lambda row: (row["key"], tuple(row["samples_ns"])),
)


def with_samples(
    timings: Iterable[Measurement], samples: Iterable[Samples]
) -> tuple[Measurement, ...]:
    """Return the measurements with the samples that their keys name."""
    by_key = dict(samples)
    return tuple(
        replace(timing, samples_ns=by_key[timing.key]) if timing.key in by_key else timing
        for timing in timings
    )


USAGES = Layout[Usage](
    name="resources",
    columns={
        "kernel": TEXT,
        "name": TEXT,
        "architecture": INTEGER,
        "registers": INTEGER,
        "spill_stores": INTEGER,
        "spill_loads": INTEGER,
        "stack": INTEGER,
        "shared": INTEGER,
        "threads": INTEGER,
        "warps": INTEGER,
        "most_warps": INTEGER,
        "occupancy": REAL,
    },
    to_row=lambda usage: {**asdict(usage), "occupancy": usage.occupancy},
    from_row=lambda row: Usage(**{key: row[key] for key in row if key != "occupancy"}),
    order=("kernel", "name"),
)
