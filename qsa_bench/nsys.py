"""Kernel durations out of an Nsight Systems export (`nsys export --type sqlite`).

What a user's own engine did, as measurements like those of a sweep: one a kernel name, the timer
named nsys, the cache state as it was. Nothing is known there of passes.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from qsa_bench.errors import UsageError
from qsa_bench.model import Measurement
from qsa_bench.timers import NSYS

_KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
_STRINGS = "StringIds"
_GPUS = "TARGET_INFO_GPU"
_NEEDED = ("start", "end")
AS_RUN = "as-run"
# Shapes that a kernel was launched in, listed up to here; an engine may use hundreds.
_MOST_SHAPES = 4


def read(path: Path) -> tuple[str, tuple[Measurement, ...]]:
    """Return the device's name ("" where the export has none) and the kernels by total time.

    UsageError, one line, for a file that is no export or holds no kernel.
    """
    if not path.is_file():
        raise UsageError(f"reading {path}: there is no such file")
    try:
        # Read only: opening must not make a file, nor a journal beside someone's export.
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as base:
            return _device(base), _measurements(path, base)
    except sqlite3.Error as error:
        raise UsageError(
            f"reading {path}: it is no SQLite export of Nsight Systems ({error}); "
            "make one with `nsys export --type sqlite`"
        ) from None


def _columns(base: sqlite3.Connection, table: str) -> set[str]:
    return {row[1] for row in base.execute(f"PRAGMA table_info({table})")}


def _device(base: sqlite3.Connection) -> str:
    if "name" not in _columns(base, _GPUS):
        return ""
    names = [str(row[0]) for row in base.execute(f"SELECT DISTINCT name FROM {_GPUS}")]  # noqa: S608
    return ", ".join(names)


def _measurements(path: Path, base: sqlite3.Connection) -> tuple[Measurement, ...]:
    columns = _columns(base, _KERNELS)
    if not columns:
        raise UsageError(f"reading {path}: the export holds no kernel (no table {_KERNELS})")
    if not set(_NEEDED) <= columns or not _columns(base, _STRINGS):
        raise UsageError(f"reading {path}: {_KERNELS} or {_STRINGS} lacks columns")
    name = next((c for c in ("demangledName", "shortName", "nameId") if c in columns), None)
    if name is None:
        raise UsageError(f"reading {path}: {_KERNELS} has no column with the kernel's name")
    shape = [c for c in ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ") if c in columns]
    registers = ["registersPerThread"] if "registersPerThread" in columns else []
    # Only names out of the lists above are put into the query.
    query = (
        f'SELECT s.value, k.start, k."end"{"".join(f", k.{c}" for c in (*shape, *registers))} '  # noqa: S608
        f"FROM {_KERNELS} AS k LEFT JOIN {_STRINGS} AS s ON s.id = k.{name} ORDER BY k.start"
    )
    durations: dict[str, list[int]] = {}
    shapes: dict[str, dict[str, None]] = {}
    for kernel, start, end, *rest in base.execute(query):
        key = str(kernel) if kernel is not None else "unknown kernel"
        durations.setdefault(key, []).append(max(int(end) - int(start), 0))
        shapes.setdefault(key, {})[_shape(rest, len(shape), bool(registers))] = None
    if not durations:
        raise UsageError(f"reading {path}: the export holds no kernel")
    made = [_measurement(name, samples, shapes[name]) for name, samples in durations.items()]
    return tuple(sorted(made, key=lambda timing: -sum(timing.samples_ns)))


def _shape(values: list[int | None], extents: int, has_registers: bool) -> str:
    parts = []
    if extents == 6:
        grid, block = values[:3], values[3:6]
        parts.append(f"grid {'x'.join(str(v) for v in grid)}")
        parts.append(f"block {'x'.join(str(v) for v in block)}")
    if has_registers:
        parts.append(f"{values[-1]} registers")
    return ", ".join(parts)


def _measurement(name: str, samples: list[int], shapes: Iterable[str]) -> Measurement:
    listed = [shape for shape in shapes if shape]
    kernels = [f"{name}, {shape}" for shape in listed[:_MOST_SHAPES]]
    if len(listed) > _MOST_SHAPES:
        kernels.append(f"and {len(listed) - _MOST_SHAPES} more shapes")
    return Measurement(
        build="",
        stage="nsys",
        case="nsys",
        name=name,
        timer=NSYS,
        cache=AS_RUN,
        axes={},
        samples_ns=tuple(samples),
        dropped={},
        stopped_because="recorded",
        kind=NSYS,
        kernels=tuple(kernels) or (name,),
    )
