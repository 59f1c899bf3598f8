"""Exports of Nsight Systems: what is read, and what is refused in one line."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from qsa_bench import nsys
from qsa_bench.errors import UsageError

COLUMNS = (
    "start, end, demangledName, shortName, gridX, gridY, gridZ, blockX, blockY, blockZ, "
    "registersPerThread"
)
NAMES = {1: "void topk<256>(float const*)", 2: "fill(int*)"}
KERNELS = (
    (1000, 3000, 1, 1, 64, 1, 1, 256, 1, 1, 40),
    (4000, 4640, 2, 2, 1, 1, 1, 32, 1, 1, 8),
    (5000, 7400, 1, 1, 8, 1, 1, 256, 1, 1, 40),
)


def export(path: Path, kernels: Sequence[Sequence[int]] = KERNELS, columns: str = COLUMNS) -> Path:
    """Write as much of an export as is read."""
    with closing(sqlite3.connect(path)) as base, base:
        quoted = ", ".join(f'"{column.strip()}" INTEGER' for column in columns.split(","))
        base.execute(f"CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL ({quoted})")
        base.execute("CREATE TABLE StringIds (id INTEGER, value TEXT)")
        base.execute("CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT)")
        base.execute("INSERT INTO TARGET_INFO_GPU VALUES (0, 'NVIDIA H200')")
        base.executemany("INSERT INTO StringIds VALUES (?, ?)", NAMES.items())
        marks = ", ".join("?" * len(columns.split(",")))
        base.executemany(f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({marks})", kernels)
    return path


def test_kernels_are_read_by_name_the_longest_in_total_first(tmp_path: Path) -> None:
    device, timings = nsys.read(export(tmp_path / "run.sqlite"))
    assert device == "NVIDIA H200"
    assert [(t.name, t.samples_ns) for t in timings] == [
        ("void topk<256>(float const*)", (2000, 2400)),
        ("fill(int*)", (640,)),
    ]
    assert {(t.timer, t.cache, t.kind) for t in timings} == {("nsys", "as-run", "nsys")}


def test_every_shape_of_a_kernel_is_told(tmp_path: Path) -> None:
    _, timings = nsys.read(export(tmp_path / "run.sqlite"))
    assert timings[0].kernels == (
        "void topk<256>(float const*), grid 64x1x1, block 256x1x1, 40 registers",
        "void topk<256>(float const*), grid 8x1x1, block 256x1x1, 40 registers",
    )


def test_reading_leaves_the_export_as_it_is(tmp_path: Path) -> None:
    path = export(tmp_path / "run.sqlite")
    path.chmod(0o444)
    before = path.read_bytes()
    nsys.read(path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["run.sqlite"]


def test_an_export_of_fewer_columns_is_read(tmp_path: Path) -> None:
    path = export(tmp_path / "old.sqlite", [(10, 20, 1)], "start, end, shortName")
    _, timings = nsys.read(path)
    assert timings[0].samples_ns == (10,)
    assert timings[0].kernels == (timings[0].name,)


def test_a_kernel_without_a_name_is_kept(tmp_path: Path) -> None:
    path = export(tmp_path / "odd.sqlite", [(10, 20, 99)], "start, end, shortName")
    assert nsys.read(path)[1][0].name == "unknown kernel"


def test_no_file_no_export_and_no_kernel_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no such file"):
        nsys.read(tmp_path / "missing.sqlite")
    text = tmp_path / "text.sqlite"
    text.write_text("no database at all, but long enough to be looked at" * 20)
    with pytest.raises(UsageError, match="no SQLite export"):
        nsys.read(text)
    with closing(sqlite3.connect(tmp_path / "other.sqlite")) as base, base:
        base.execute("CREATE TABLE anything (x)")
    with pytest.raises(UsageError, match="no table CUPTI_ACTIVITY_KIND_KERNEL"):
        nsys.read(tmp_path / "other.sqlite")
    with pytest.raises(UsageError, match="holds no kernel"):
        nsys.read(export(tmp_path / "empty.sqlite", []))
    with pytest.raises(UsageError, match="no column with the kernel's name"):
        nsys.read(export(tmp_path / "nameless.sqlite", [(1, 2)], "start, end"))
