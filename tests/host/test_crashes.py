"""A fault inside a launch: one line that says where, and the exit code that says so."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.host.harness import CRASH_EXIT_CODE, INPUT, Buffer, Library, marked, place_of

FILE = "memory.cu"
FAR = 1 << 40  # elements: no process has this address


def buffers() -> list[Buffer]:
    return [
        Buffer("in", np.arange(5, 105, dtype=np.int32), INPUT),
        Buffer("out", np.zeros(128, np.int32), 0),
    ]


@pytest.fixture(params=["plain", "checked"])
def library(request: pytest.FixtureRequest, build: Callable[[str, str], Library]) -> Library:
    return build(FILE, request.param)


def test_a_faulting_read_names_buffer_offset_block_and_thread(library: Library) -> None:
    good = library.run("crash_read", buffers(), [99])
    assert good.status == 0
    crash = library.crash("crash_read", buffers(), [FAR])
    assert crash.exit_code == CRASH_EXIT_CODE
    finding = crash.finding()
    assert finding["kind"] == "crash"
    assert (finding["block"], finding["thread"]) == ([0, 0, 0], [6, 0, 0])
    assert finding["buffer"] in ("in", "out")
    if finding["buffer"] == "in":
        assert finding["offset"] == 4 * FAR
    assert "reads memory that is not there" in finding["message"]


def test_a_faulting_write_says_that_it_writes(library: Library) -> None:
    good = library.run("crash_write", buffers(), [127])
    assert good.status == 0
    finding = library.crash("crash_write", buffers(), [-FAR]).finding()
    assert "writes memory that is not there" in finding["message"]
    assert finding["thread"] == [6, 0, 0]
    assert finding["offset"] < 0


def test_a_write_through_a_null_pointer_is_no_buffers(library: Library) -> None:
    crash = library.crash("null_write", buffers(), [3])
    assert crash.exit_code == CRASH_EXIT_CODE
    finding = crash.finding()
    assert finding["message"].endswith("memory that is not there, 12 bytes from a null pointer")
    assert "buffer" not in finding
    assert finding["thread"] == [6, 0, 0]


def test_a_division_by_zero_is_a_crash(library: Library) -> None:
    good = library.run("division", buffers(), [5])
    assert (good.status, good.arrays["out"][0]) == (0, 1)
    crash = library.crash("division", buffers(), [0])
    assert crash.exit_code == CRASH_EXIT_CODE
    assert "division by zero" in crash.finding()["message"]


def test_a_stack_that_overflows_is_a_crash(library: Library) -> None:
    good = library.run("recursion", buffers(), [50])
    assert (good.status, good.findings) == (0, [])
    crash = library.crash("recursion", buffers(), [100_000])
    assert crash.exit_code == CRASH_EXIT_CODE
    assert "past the end of a thread's stack" in crash.finding()["message"]


def test_the_checked_mode_knows_the_line_and_tells_what_it_found_before(
    checked: Callable[[str], Library],
) -> None:
    library = checked(FILE)
    for entry, index, marker in (
        ("crash_read", FAR, "crash-read"),
        ("crash_write", -FAR, "crash-write"),
    ):
        crash = library.crash(entry, buffers(), [index])
        (before,) = crash.earlier()
        assert before["kind"] == "bounds"
        assert place_of(library.path, before) == marked(FILE, marker)
        assert place_of(library.path, crash.finding()) == marked(FILE, marker)


def test_faults_outside_a_launch_are_not_the_runtimes(library: Library) -> None:
    # The handlers are gone after a launch: the child dies of the signal as any process would.
    crash = library.crash("fault_after_launch", buffers(), [0])
    assert crash.exit_code == -11
    assert crash.lines == []
