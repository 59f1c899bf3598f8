"""The kernels that measure the device's limits do what they are measured at."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest

from qsa_bench import limits, program, resources
from qsa_bench.builder import Builder
from qsa_bench.child import Ending
from qsa_bench.model import Role
from qsa_bench.program import Buffer, Call, Program, Value
from qsa_bench.runner import Job, RunResult, Schedule, observe

BAD_EXTENT, NULL_POINTER = 2, 1


def _buffers(words: int) -> tuple[Buffer, ...]:
    source = np.arange(1, words + 1, dtype=np.uint32) * np.uint32(2654435761)
    return (
        Buffer("source", "u32", (words,), Role.INPUT, source),
        Buffer("target", "u32", (words,), Role.OUTPUT),
        Buffer("sink", "u32", (1,), Role.SCRATCH),
    )


def _run(
    entry: str, size: int, **values: Value
) -> tuple[RunResult, np.ndarray[tuple[int, ...], np.dtype[np.uint32]]]:
    built = Program(_buffers(max(size, 4)), (Call("calibration", entry, values),))
    made = Builder(resources.cache_root()).build(
        limits.KERNEL, "host", root=resources.tree_root(), mode="plain"
    )
    assert made.library, made.log
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "program.safetensors"
        program.write(path, built, [limits.KERNEL])
        job = Job("case", "case", path, (Schedule("fifo"),))
        seen = next(observe("host", {"calibration": made.library}, [job], Path(folder)))
        assert seen.ending is Ending.RAN
        run = seen.runs[0]
        output = Path(folder) / f"case.{run.digest}.target"
        target = np.fromfile(output, dtype=np.uint32) if run.digest else np.zeros(0, np.uint32)
    return run, target


@pytest.mark.parametrize("words", [4, 8, 20, 4 * 256 * 3, 40_000])
def test_a_copy_copies_every_word(words: int) -> None:
    run, target = _run("bench_copy", words, source="source", target="target", words=words)
    assert (run.statuses, run.fences, run.inputs_changed) == ((0,), (), ())
    assert np.array_equal(target, _buffers(words)[0].data)  # type: ignore[arg-type]


@pytest.mark.parametrize("words", [4, 4 * 256 * 3, 40_000])
def test_a_write_writes_every_word(words: int) -> None:
    run, target = _run("bench_write", words, target="target", words=words, value=0x12345678)
    assert (run.statuses, run.fences) == ((0,), ())
    assert set(target.tolist()) == {0x12345678}


def test_a_read_changes_nothing() -> None:
    run, _ = _run("bench_read", 40_000, source="source", sink="sink", words=40_000)
    assert (run.statuses, run.fences, run.inputs_changed, run.touched) == ((0,), (), (), ())


def test_an_empty_launch_succeeds() -> None:
    assert _run("bench_empty", 4)[0].statuses == (0,)


@pytest.mark.parametrize("words", [-4, 2, 7])
def test_half_a_vector_is_refused(words: int) -> None:
    run, _ = _run("bench_copy", 8, source="source", target="target", words=words)
    assert run.statuses == (BAD_EXTENT,)
    assert _run("bench_write", 8, target="target", words=words, value=1)[0].statuses == (
        BAD_EXTENT,
    )
    read, _ = _run("bench_read", 8, source="source", sink="sink", words=words)
    assert read.statuses == (BAD_EXTENT,)


def test_null_pointers_are_refused() -> None:
    assert _run("bench_copy", 8, source=None, target="target", words=8)[0].statuses == (
        NULL_POINTER,
    )
    assert _run("bench_read", 8, source="source", sink=None, words=8)[0].statuses == (NULL_POINTER,)
    assert _run("bench_write", 8, target=None, words=8, value=1)[0].statuses == (NULL_POINTER,)
