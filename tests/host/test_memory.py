"""The checker: every rule with a kernel that keeps it and one that breaks it, named by place, thread and line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.host.harness import (
    FIFO,
    INITIALISED,
    INPUT,
    LIFO,
    READ_ONLY,
    SEEDED,
    Buffer,
    Library,
    Result,
    View,
    marked,
)

FILE = "memory.cu"
Build = Callable[[str], Library]


@pytest.fixture(name="library")
def _library(checked: Build) -> Library:
    return checked(FILE)


def buffers(
    out_size: int = 128,
    out_flags: int | None = 0,
    out_offset: int = 0,
    in_flags: int | None = INPUT,
) -> list[Buffer]:
    return [
        Buffer("in", np.arange(5, 105, dtype=np.int32), in_flags),
        Buffer("out", np.zeros(out_size, np.int32), out_flags, out_offset),
    ]


def clean(library: Library, entry: str, value: int, given: list[Buffer] | None = None) -> Result:
    """Passes under every schedule; the FIFO result."""
    runs: list[dict[str, int]] = [{"schedule": FIFO}, {"schedule": LIFO}]
    runs += [{"schedule": SEEDED, "seed": seed} for seed in range(4)]
    results = library.runs(entry, buffers() if given is None else given, [value], runs)
    assert all((result.status, result.findings) == (0, []) for result in results)
    return results[0]


def broken(
    library: Library,
    entry: str,
    value: int,
    kind: str,
    marker: str,
    given: list[Buffer] | None = None,
    **options: int,
) -> dict[str, Any]:
    """The first finding; all are of this kind and at this line (a read and a write of one statement are two)."""
    result = library.run(entry, buffers() if given is None else given, [value], **options)
    found = {(finding["kind"], result.line(finding)) for finding in result.findings}
    assert (result.status, found) == (0, {(kind, marked(FILE, marker))})
    return result.findings[0]


def seen(result: Result) -> set[tuple[str, int]]:
    """Kind and line of every finding; all in the kernel file."""
    return {(finding["kind"], result.line(finding)[1]) for finding in result.findings}


def at(kind: str, marker: str) -> tuple[str, int]:
    return kind, marked(FILE, marker)[1]


# --- races inside a block ---


def test_a_barrier_orders_a_write_before_a_read(library: Library) -> None:
    result = clean(library, "exchange", 0)
    assert result.arrays["out"][:64].tolist() == list(range(68, 4, -1))


def test_a_read_without_a_barrier_is_a_race(library: Library) -> None:
    result = library.run("exchange", buffers(), [1])
    # The lower half reads what nobody has written yet and is raced by the writers, the upper half reads too early.
    assert seen(result) == {
        at("uninitialised", "exchange-read"),
        at("race", "exchange-write"),
        at("race", "exchange-read"),
    }
    late = result.findings[-1]
    assert (late["buffer"], late["offset"]) == ("cells", 31 * 4)
    assert (late["block"], late["thread"]) == ([0, 0, 0], [32, 0, 0])
    assert "thread (31,0,0) of block (0,0,0) wrote it" in late["message"]


@pytest.mark.parametrize("schedule", [FIFO, LIFO, SEEDED])
def test_a_missing_trailing_barrier_is_a_race_under_every_order(
    library: Library, schedule: int
) -> None:
    clean(library, "rounds", 0)
    result = library.run("rounds", buffers(), [1], schedule=schedule)
    assert (result.status, result.kinds()) == (0, ["race"])
    assert at("race", "rounds-write") in seen(result)
    assert result.findings[0]["buffer"] == "cells"


def test_atomics_do_not_race_with_each_other(library: Library) -> None:
    result = clean(library, "histogram", 0)
    assert result.arrays["out"][:16].tolist() == [4] * 16


def test_a_plain_update_races_where_an_atomic_does_not(library: Library) -> None:
    finding = broken(library, "histogram", 1, "race", "histogram-plain")
    assert (finding["buffer"], finding["thread"]) == ("bins", [16, 0, 0])


def test_an_atomic_races_with_a_plain_write_before_it(library: Library) -> None:
    result = library.run("histogram", buffers(), [2])
    assert at("race", "histogram-atomic") in seen(result)


def test_a_plain_read_races_with_an_atomic_before_it(library: Library) -> None:
    result = library.run("histogram", buffers(), [3], schedule=LIFO)
    assert (result.status, result.kinds()) == (0, ["race"])
    assert at("race", "histogram-read") == (
        result.findings[0]["kind"],
        result.line(result.findings[0])[1],
    )
    assert "atomically updated it" in result.findings[0]["message"]


def test_an_atomic_of_ones_own_does_not_order_the_others(library: Library) -> None:
    assert clean(library, "own_atomic", 0).arrays["out"][0] == 64
    for schedule in (FIFO, LIFO, SEEDED):
        broken(library, "own_atomic", 1, "race", "own-atomic-read", schedule=schedule)


def test_equal_values_written_by_many_threads_race_unless_atomic(library: Library) -> None:
    assert clean(library, "flag", 0).arrays["out"][0] == 1
    finding = broken(library, "flag", 1, "race", "flag-write")
    assert (finding["thread"], finding["buffer"]) == ([1, 0, 0], "flag")


def test_neighbouring_bytes_of_a_word_are_different_places(library: Library) -> None:
    clean(library, "bytes", 1)
    finding = broken(library, "bytes", 2, "race", "byte-write")
    assert (finding["offset"], finding["thread"]) == (0, [1, 0, 0])


@pytest.mark.parametrize("offset", [1, 2, 3])
def test_a_buffer_may_start_at_any_byte(library: Library, offset: int) -> None:
    clean(library, "bytes", 1, buffers(16, 0, offset))
    broken(library, "bytes", 2, "race", "byte-write", buffers(16, 0, offset))


def test_a_word_remembers_its_bytes(library: Library) -> None:
    assert clean(library, "split_word", 0).arrays["out"][0] == 0x04030202
    finding = broken(library, "split_word", 1, "race", "split-word")
    assert finding["thread"] == [40, 0, 0]


# --- races inside a warp ---


def test_syncwarp_orders_the_lanes_it_names(library: Library) -> None:
    assert clean(library, "warp_exchange", 0).arrays["out"][:32].tolist() == list(range(36, 4, -1))


@pytest.mark.parametrize(
    "value", [1, 2, 3], ids=["a shuffle", "a ballot", "a syncwarp of each half"]
)
def test_nothing_else_orders_lanes(library: Library, value: int) -> None:
    finding = broken(library, "warp_exchange", value, "race", "warp-read")
    assert finding["buffer"] == "cells"


def test_order_is_handed_on_from_lane_to_lane(library: Library) -> None:
    assert clean(library, "warp_chain", 0).arrays["out"][0] == 5
    finding = broken(library, "warp_chain", 1, "race", "warp-chain-read")
    assert finding["thread"] == [2, 0, 0]


# The orders in which both have read before the writer writes.
@pytest.mark.parametrize(
    ("value", "reader", "schedule"), [(1, 32, FIFO), (1, 32, LIFO), (2, 0, FIFO)]
)
def test_a_write_is_compared_with_the_readers_of_every_warp(
    library: Library, value: int, reader: int, schedule: int
) -> None:
    clean(library, "two_readers", 0)
    # Whichever of the two comes second under this order reports the other.
    second = "two-readers-read" if (value, schedule) == (2, LIFO) else "two-readers-write"
    finding = broken(library, "two_readers", value, "race", second, schedule=schedule)
    if second == "two-readers-read":
        assert finding["thread"] == [reader, 0, 0]
        assert "thread (33,0,0) of block (0,0,0) wrote it" in finding["message"]
    else:
        assert f"thread ({reader},0,0) of block (0,0,0) read it" in finding["message"]


def test_a_full_warp_of_readers_does_not_hide_one_of_another_warp(library: Library) -> None:
    finding = broken(library, "two_readers", 3, "race", "two-readers-write")
    assert "thread (32,0,0) of block (0,0,0) read it" in finding["message"]


@pytest.mark.parametrize("writer", [0, 1, 17, 31])
def test_a_write_is_compared_with_other_lanes_reads_not_its_own(
    library: Library, writer: int
) -> None:
    clean(library, "reader_writes", 32 + writer)
    finding = broken(library, "reader_writes", writer, "race", "reader-writes")
    assert finding["thread"] == [writer, 0, 0]


# --- blocks and launches ---


def test_blocks_of_a_launch_are_never_ordered(library: Library) -> None:
    initialised = buffers(out_flags=INITIALISED)
    assert clean(library, "blocks", 0, initialised).arrays["out"][0] == 8
    for schedule, first in ((FIFO, 0), (LIFO, 7)):
        finding = broken(
            library, "blocks", 1, "race", "blocks-write", initialised, schedule=schedule
        )
        assert f"thread (0,0,0) of block ({first},0,0) wrote it" in finding["message"]
        assert finding["block"] == [abs(first - 1), 0, 0]


def test_a_launch_is_ordered_after_the_one_before(library: Library) -> None:
    result = clean(library, "blocks_in_launches", 5, buffers(out_flags=INITIALISED))
    assert result.arrays["out"][0] == 5


# --- bounds ---


@pytest.mark.parametrize(
    ("index", "words"), [(100, "0 bytes past the end of in"), (-1, "4 bytes before in")]
)
def test_a_read_outside_a_buffer_is_named(library: Library, index: int, words: str) -> None:
    clean(library, "global_read", 99)
    finding = broken(library, "global_read", index, "bounds", "global-read")
    assert words in finding["message"]
    assert (finding["buffer"], finding["offset"], finding["thread"]) == ("in", 4 * index, [3, 0, 0])


def test_one_byte_past_the_end_is_outside_and_put_back(library: Library) -> None:
    last = library.run("global_write", buffers(), [511])
    assert (last.status, last.findings) == (0, [])
    assert last.arrays["out"].view(np.uint8)[511] == 7
    result = library.run("global_write", buffers(), [512])
    finding = result.only()
    assert (finding["kind"], finding["buffer"], finding["offset"]) == ("bounds", "out", 512)
    assert result.line(finding) == marked(FILE, "global-write")
    # What lay behind the buffer is as it was: a checked run does not damage its process.
    assert result.after["out"] == bytes(16)


def test_a_plain_run_does_not_see_the_byte_past_the_end(plain: Build) -> None:
    result = plain(FILE).run("global_write", buffers(), [512])
    assert (result.status, result.findings, result.after["out"][0]) == (0, [], 7)


def test_an_access_may_not_begin_inside_and_end_outside(library: Library) -> None:
    clean(library, "wide_read", 96)
    given = [Buffer("in", np.arange(99, dtype=np.int32), INPUT), *buffers()[1:]]
    finding = broken(library, "wide_read", 96, "bounds", "wide-read", given)
    assert finding["offset"] == 4 * 96


def test_memory_nobody_registered_is_outside(library: Library) -> None:
    finding = broken(library, "global_read", 0, "bounds", "global-read", buffers(in_flags=None))
    assert "out" in finding["message"]


@pytest.mark.parametrize("index", [8, 9, 100, -1])
def test_shared_arrays_have_exact_bounds(library: Library, index: int) -> None:
    clean(library, "shared_bounds", 7)
    finding = broken(library, "shared_bounds", index, "bounds", "shared-read")
    if abs(index) < 10:
        assert (finding["buffer"], finding["offset"]) == ("first", 4 * index)


def test_a_vector_may_not_end_outside_a_shared_array(library: Library) -> None:
    clean(library, "wide_shared", 4)
    finding = broken(library, "wide_shared", 8, "bounds", "wide-shared")
    assert (finding["buffer"], finding["offset"]) == ("cells", 32)


@pytest.mark.parametrize("index", [40, -1])
def test_dynamic_shared_memory_has_exact_bounds(library: Library, index: int) -> None:
    clean(library, "dynamic_bounds", 39)
    finding = broken(library, "dynamic_bounds", index, "bounds", "dynamic-write")
    assert (finding["buffer"], finding["offset"], finding["thread"]) == (
        "pool",
        4 * index,
        [5, 0, 0],
    )


def test_another_threads_local_memory_is_not_there(library: Library) -> None:
    clean(library, "local_memory", 0)
    finding = broken(library, "local_memory", 1, "bounds", "local-memory")
    assert "another thread's local memory" in finding["message"]


def test_a_threads_own_array_has_exact_bounds(library: Library) -> None:
    clean(library, "own_array", 4)
    finding = broken(library, "own_array", 5, "bounds", "own-array")
    assert "uses index 4 of an array" in finding["message"]


@pytest.mark.parametrize("count", [32, -1])
def test_a_word_is_shifted_by_less_than_its_bits(library: Library, count: int) -> None:
    clean(library, "shift", 31)
    finding = broken(library, "shift", count, "bounds", "shift")
    assert f"shifts a word by {count}" in finding["message"]


def test_the_library_may_be_read_and_not_written(library: Library) -> None:
    clean(library, "library", 0)
    finding = broken(library, "library", 1, "bounds", "library-write")
    assert "a global variable of the library" in finding["message"]


def test_a_vector_load_wants_its_alignment(library: Library) -> None:
    clean(library, "wide_read", 4)
    crash = library.crash("wide_read", buffers(), [5])
    (misaligned,) = crash.earlier()
    assert misaligned["kind"] == "bounds"
    assert "16 bytes, misaligned, at byte 20 of in" in misaligned["message"]
    assert "misaligned" in crash.finding()["message"]


# --- nobody wrote it ---


def test_shared_memory_starts_unwritten_in_every_block(library: Library) -> None:
    clean(library, "uninitialised_shared", 0)
    finding = broken(library, "uninitialised_shared", 1, "uninitialised", "uninitialised-shared")
    assert (finding["buffer"], finding["offset"]) == ("cells", 63 * 4)
    assert (finding["block"], finding["thread"]) == ([0, 0, 0], [0, 0, 0])
    # What the first block wrote is nothing to the second.
    late = broken(library, "uninitialised_shared", 2, "uninitialised", "uninitialised-shared")
    assert late["block"] == [1, 0, 0]


def test_an_atomic_update_reads_what_it_replaces_and_an_exchange_does_not(library: Library) -> None:
    clean(library, "uninitialised_atomic", 0)
    finding = broken(library, "uninitialised_atomic", 1, "uninitialised", "uninitialised-atomic")
    assert (finding["buffer"], finding["thread"]) == ("count", [0, 0, 0])


def test_a_buffer_is_readable_once_initialised_or_written(library: Library) -> None:
    clean(library, "uninitialised_out", 0)
    clean(library, "uninitialised_out", 1, buffers(out_flags=INITIALISED))
    finding = broken(library, "uninitialised_out", 1, "uninitialised", "uninitialised-out")
    assert (finding["buffer"], finding["offset"], finding["thread"]) == ("out", 0, [0, 0, 0])


def test_a_launch_initialises_for_the_next(library: Library) -> None:
    clean(library, "initialised_by_a_launch", 0)
    broken(library, "initialised_by_a_launch", 1, "uninitialised", "uninitialised-out")


# --- inputs ---


def test_a_read_only_buffer_is_not_written(library: Library) -> None:
    clean(library, "read_only", 0)
    for flags in (INPUT, READ_ONLY):
        given = buffers(in_flags=flags)
        finding = broken(library, "read_only", 1, "read-only", "read-only", given)
        assert (finding["buffer"], finding["offset"], finding["thread"]) == ("in", 8, [9, 0, 0])


# --- structures ---


def test_arguments_by_value_are_the_kernels_own(library: Library) -> None:
    assert clean(library, "big_argument", 0).arrays["out"][:64].tolist() == list(range(5, 69))
    finding = broken(library, "big_argument", 1, "race", "big-read")
    assert finding["buffer"] == "copy"


def test_memcpy_is_an_access(library: Library) -> None:
    clean(library, "copy_bytes", 400, buffers(100))
    finding = broken(library, "copy_bytes", 398, "bounds", "memcpy", buffers(99))
    assert finding["buffer"] == "out"


# --- reports ---


def test_a_finding_is_reported_once(library: Library) -> None:
    result = library.run("flag", buffers(), [1])
    assert len(result.findings) == 1


def test_sixteen_findings_are_enough(library: Library) -> None:
    result = library.run("many_findings", buffers(), [0])
    assert (result.status, len(result.findings)) == (0, 16)
    assert len({finding["offset"] for finding in result.findings}) == 16


def test_a_view_replaces_what_it_overlaps(library: Library) -> None:
    first, last = View("first", 0, 0, 200, INPUT), View("last", 0, 200, 196, INPUT)
    for views, index, name in (
        ([first], 50, "first"),
        ([first, last], 99, "last"),
        ([last, View("all", 0, 0, 400, INPUT), last], 20, "last"),
    ):
        (result,) = library.runs("global_read", buffers(), [index], [{}], views)
        finding = result.only()
        assert (finding["kind"], finding["buffer"]) == ("bounds", name)
    (inside,) = library.runs("global_read", buffers(), [98], [{}], [first, last])
    assert (inside.status, inside.findings) == (0, [])


def test_findings_end_with_the_reset(library: Library) -> None:
    first, second = library.runs("flag", buffers(), [1], [{}, {}])
    assert first.findings == second.findings
    assert len(second.findings) == 1


def test_the_plain_mode_has_no_memory_findings(plain: Build) -> None:
    library = plain(FILE)
    for entry, value in (
        ("exchange", 1),
        ("histogram", 1),
        ("uninitialised_out", 1),
        ("read_only", 1),
    ):
        result = library.run(entry, buffers(), [value])
        assert (result.mode, result.status, result.findings) == (0, 0, [])


def test_a_local_that_nothing_assigned_is_the_same_wrong_word_in_every_run(
    plain: Build, checked: Build
) -> None:
    seen = [
        build(FILE).run("unassigned", [Buffer("out", np.zeros(32, np.uint32), 0)], [8])
        for build in (plain, checked)
        for _ in range(2)
    ]
    for result in seen:
        assert (result.status, result.arrays["out"][:8].tolist()) == (0, [7] * 8)
        assert set(result.arrays["out"][8:].tolist()) == {0xFEFEFEFE}
