"""The physical limit of a launch: an empty kernel's time, or its bytes over the measured bandwidth.

Both come from the same run as what is held to them. Device memory is the bandwidth meant: a warm
launch whose bytes fit the L2 may go below.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from qsa_bench.model import STREAM, Argument, Entry, Kernel, Measurement, Role
from qsa_bench.timers import COLD, CUPTI, WARM

_WORDS = Argument("words", "i64", Role.SCALAR, doc="a multiple of 4")
_SOURCE = Argument("source", "u32", Role.INPUT, ("words",))
_TARGET = Argument("target", "u32", Role.OUTPUT, ("words",))
_SINK = Argument("sink", "u32", Role.SCRATCH, ("1",))
_VALUE = Argument("value", "u32", Role.SCALAR)
# What is measured beside every sweep; no stage, for it computes nothing.
KERNEL = Kernel(
    "calibration",
    "kernels/bench/calibration.cu",
    (
        Entry("bench_empty", (STREAM,), "an empty launch"),
        Entry("bench_read", (_SOURCE, _SINK, _WORDS, STREAM), "a plain read"),
        Entry("bench_write", (_TARGET, _WORDS, _VALUE, STREAM), "a plain write"),
        Entry("bench_copy", (_SOURCE, _TARGET, _WORDS, STREAM), "a plain copy"),
    ),
)

CALIBRATION = "calibration"
EMPTY = "empty kernel"
COPY, READ, WRITE = "copy", "read", "write"
CACHED_READ = "read 16 MiB"
MATRIX = "bf16 matrix product"
MATRIX_FLOPS = 2 * 8192**3
# A flush may leave the floor within a few steps of CUPTI's clock of where it was.
_FLOOR_SLACK_NS = 160


@dataclass(frozen=True)
class Limits:
    """What one run measured of its device: floors in ns by timer and cache, bandwidths in bytes/ns.

    A bandwidth of 1 byte/ns is 1 GB/s. `cached_read_ns` is the time of a small read by cache
    state, which shows whether a flush empties the cache. `matrix` is the rate of a large bf16
    product in flops/ns, None in runs from before it was measured.
    """

    floors: Mapping[tuple[str, str], float] = field(default_factory=dict)
    bandwidths: Mapping[str, float] = field(default_factory=dict)
    cached_read_ns: Mapping[str, float] = field(default_factory=dict)
    matrix: float | None = None

    def of(self, timer: str, bytes_read: int, bytes_written: int) -> float | None:
        """Return the least time of a launch in ns, None where the run measured no limit."""
        floor = self.floors.get((timer, WARM))
        kind = COPY if bytes_read and bytes_written else READ if bytes_read else WRITE
        bandwidth = self.bandwidths.get(kind)
        if floor is None or bandwidth is None:
            return None
        return max(floor, (bytes_read + bytes_written) / bandwidth)

    def cold_problem(self) -> str:
        """Say why the cold figures can't be trusted, or return "": not cold, or the flush leaks.

        An empty kernel must take as long after a flush as without one, and a small read longer.
        """
        warm, cold = (self.floors.get((CUPTI, cache)) for cache in (WARM, COLD))
        if warm is None or cold is None:
            return "no empty kernel was timed in both cache states"
        if cold - warm > _FLOOR_SLACK_NS:
            return f"an empty kernel takes {cold:.0f} ns after a flush, {warm:.0f} ns without"
        reads = [self.cached_read_ns.get(cache) for cache in (WARM, COLD)]
        if None in reads:
            return "no small read was timed in both cache states"
        least, most = (float(value or 0.0) for value in reads)
        if most <= least:
            return f"16 MiB are read in {most:.0f} ns after a flush, {least:.0f} ns without"
        return ""


def of(timings: Iterable[Measurement]) -> Limits:
    """Return the limits that a run's calibration gives."""
    floors: dict[tuple[str, str], float] = {}
    bandwidths: dict[str, float] = {}
    cached: dict[str, float] = {}
    matrix: float | None = None
    for timing in timings:
        if timing.kind != CALIBRATION or not timing.samples_ns:
            continue
        median = float(statistics.median(timing.samples_ns))
        if timing.name == EMPTY:
            floors[(timing.timer, timing.cache)] = median
        elif timing.timer != CUPTI:
            continue
        elif timing.name in (COPY, READ, WRITE) and timing.cache == WARM and median:
            bandwidths[timing.name] = (timing.bytes_read + timing.bytes_written) / median
        elif timing.name == CACHED_READ:
            cached[timing.cache] = median
        elif timing.name == MATRIX and median:
            matrix = MATRIX_FLOPS / median
    return Limits(floors, bandwidths, cached, matrix)
