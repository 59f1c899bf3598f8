"""Sweep runs made by hand, as a GPU would leave them; records, no behaviour."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from qsa_bench.model import Measurement, Usage
from qsa_bench.store import RunWriter, StoredRun

STAGE = "qsa_select"
DEVICE = "NVIDIA H200"


def around(median: int, spread: int = 0, count: int = 50) -> tuple[int, ...]:
    """Return samples with that median; most lie within `spread` of it."""
    return tuple(median + spread * ((place % 5) - 2) // 2 for place in range(count))


def timing(
    samples: tuple[int, ...] = around(2000),
    *,
    context: int = 2052,
    rows: int = 1,
    kind_of_input: str = "relu4",
    **fields: object,
) -> Measurement:
    """Return a measurement of the shipped build that passed."""
    axes = {"context": str(context), "rows": str(rows), "input": kind_of_input}
    words = ",".join(f"{name}={value}" for name, value in axes.items())
    made = Measurement(
        build="d" * 32,
        stage=STAGE,
        case=f"{STAGE}/sweep/qsa_select,{words}",
        name="auto",
        timer="cupti",
        cache="warm",
        axes=axes,
        samples_ns=samples,
        dropped={},
        stopped_because="precise",
        verdict="900 verdicts on 250 cases passed",
        clocks={"sm_mhz": 1980.0, "power_w": 210.0, "temperature_c": 41.0, "others": 0.0},
        entry="qsa_select",
        bytes_read=rows * (context // 4 * 4 + 4),
        bytes_written=rows * context,
        kernels=("select_mask_kernel<256, 1>, grid 1x1x1, block 256x1x1, 52 registers",),
        parts_ns=(2000,),
    )
    return replace(made, **fields)  # type: ignore[arg-type]


def calibration(name: str, median: int, **fields: object) -> Measurement:
    """Return a measurement of the device's own limits."""
    made = Measurement(
        build="e" * 32,
        stage="bench",
        case=f"calibration/{name}",
        name=name,
        timer="cupti",
        cache="warm",
        axes={},
        samples_ns=around(median),
        dropped={},
        stopped_because="precise",
        kind="calibration",
    )
    return replace(made, **fields)  # type: ignore[arg-type]


GIB = 1 << 30
CALIBRATIONS = (
    calibration("empty kernel", 640),
    calibration("empty kernel", 672, cache="cold"),
    calibration("empty kernel", 810, timer="graph"),
    calibration("copy", 504_000, bytes_read=GIB, bytes_written=GIB),
    calibration("read", 227_000, bytes_read=GIB),
    calibration("write", 228_000, bytes_written=GIB),
    calibration("read 16 MiB", 4200, bytes_read=1 << 24),
    calibration("read 16 MiB", 9000, bytes_read=1 << 24, cache="cold"),
)


def peer(samples: tuple[int, ...] = around(12_000), **fields: object) -> Measurement:
    """Return a measurement of torch.topk, which breaks ties."""
    where = "qsa_bench.peers.select:topk"
    made = timing(samples)
    axes = {**made.axes, "title": "torch.topk + scatter"}
    verdict = "breaks ties: row 0: 3 of the equal scores kept are not the lowest indices"
    made = replace(made, name=where, kind="peer", build=f"peer:{where}", axes=axes, verdict=verdict)
    return replace(made, **fields)  # type: ignore[arg-type]


def usage(**fields: object) -> Usage:
    """Return what the compiler gave a kernel."""
    made = Usage("qsa_select", "select_mask_kernel<256, 1>", 90, 52, 0, 0, 0, 9616, 256, 32, 64)
    return replace(made, **fields)  # type: ignore[arg-type]


def sweep(
    results: Path | None,
    timings: Iterable[Measurement],
    *,
    device: str = DEVICE,
    command: str = "sweep",
    exit_code: int = 0,
) -> StoredRun:
    """Write a run of these measurements and return it as it reads."""
    writer = RunWriter.create(results, command, ("qsa-bench", command), "cuda", device)
    rows = list(timings)
    writer.add_timings(rows)
    asked = sum(row.kind == "kernel" for row in rows)
    done = sum(row.kind == "kernel" and bool(row.samples_ns) for row in rows)
    return writer.finish(asked, done, exit_code, {})


def build(results: Path | None, usages: Iterable[Usage]) -> StoredRun:
    """Write a build run of these usages and return it as it reads."""
    writer = RunWriter.create(results, "build", ("qsa-bench", "build"), "cuda", "sm_90")
    writer.add_usages(usages)
    return writer.finish(1, 1, 0, {})
