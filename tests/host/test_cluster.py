"""Clusters, asynchronous copies and tensor cores: values, and what happens when their rules are broken."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from tests.host.harness import FIFO, INPUT, LIFO, SEEDED, Buffer, Library, Result, marked

FILE = "cluster.cu"
DIVERGED, TRAPPED = 101, 100
Build = Callable[[str], Library]
ORDERS: list[dict[str, int]] = [
    {"schedule": FIFO},
    {"schedule": LIFO},
    {"schedule": SEEDED, "seed": 1},
    {"schedule": SEEDED, "seed": 2},
]
VALUES = np.arange(1000, 1256, dtype=np.int32)


@pytest.fixture(name="library")
def _library(checked: Build) -> Library:
    return checked(FILE)


def buffers(values: npt.NDArray[np.int32] = VALUES, size: int = 256) -> list[Buffer]:
    return [Buffer("in", values, INPUT), Buffer("out", np.zeros(size, np.int32), 0)]


def clean(library: Library, entry: str, given: list[Buffer], value: int = 0) -> Result:
    results = library.runs(entry, given, [value], ORDERS)
    for result in results:
        assert (result.status, result.findings) == (0, [])
        assert (result.arrays["out"] == results[0].arrays["out"]).all()
    return results[0]


def seen(result: Result) -> set[tuple[str, int]]:
    return {(finding["kind"], result.line(finding)[1]) for finding in result.findings}


def at(kind: str, marker: str) -> tuple[str, int]:
    return kind, marked(FILE, marker)[1]


# --- clusters ---


def test_what_lies_between_the_halves_of_a_barrier_may_come_after_it(library: Library) -> None:
    orders = [{"schedule": SEEDED, "seed": seed} for seed in range(20)]
    results = library.runs("between_halves", buffers(), [0], orders)
    assert {int(result.arrays["out"][0]) for result in results} == {0, 1}


def test_a_thread_that_has_arrived_may_be_needed_before_the_others_arrive(library: Library) -> None:
    got = clean(library, "arrive_apart", buffers()).arrays["out"].reshape(4, 64)
    assert (got[:2] == VALUES[:64][::-1]).all()


@pytest.mark.parametrize(("value", "marker"), [(0, "late-atomic"), (1, "late-read")])
def test_a_visitor_is_remembered_beside_the_owners_own(
    library: Library, value: int, marker: str
) -> None:
    # It comes before the owner returns, or after.
    for result in library.runs("late_visitor", buffers(), [value], ORDERS):
        (finding,) = result.findings
        assert "and nothing orders the two" in finding["message"] or (
            (finding["kind"], result.line(finding)[1]) == at("bounds", marker)
        )


def test_warps_may_arrive_on_both_sides_of_their_blocks_barrier(library: Library) -> None:
    clean(library, "skewed", buffers())
    for result in library.runs("skewed", buffers(), [1], ORDERS):
        assert "race" in result.kinds()


def test_blocks_of_a_cluster_read_each_others_shared_memory(library: Library) -> None:
    got = clean(library, "neighbour", buffers()).arrays["out"].reshape(8, 32)
    parts = VALUES.reshape(8, 32)
    for block in range(8):
        partner = block // 4 * 4 + (block + 1) % 4
        assert (got[block] == parts[partner][::-1]).all()


def test_a_cluster_counts_its_ranks_from_zero(library: Library) -> None:
    got = clean(library, "remote_atomic", buffers()).arrays["out"][:16].tolist()
    assert got == [32 * sum(range(1, 17))] + [0] * 15


def test_reading_a_neighbour_without_a_cluster_barrier_is_found(library: Library) -> None:
    result = library.run("neighbour", buffers(), [1])
    # FIFO: the neighbour has not even started, and wrote nothing.
    assert at("bounds", "neighbour-read") in seen(result)
    assert at("uninitialised", "neighbour-read") in seen(result)
    assert "of a block that has not started" in result.findings[0]["message"]
    # The last block of the cluster reads the first one's part, which is there, and unordered.
    assert at("race", "neighbour-read") in seen(result)


def test_leaving_before_a_neighbour_has_read_is_found(library: Library) -> None:
    result = library.run("neighbour", buffers(), [2])
    assert at("bounds", "neighbour-read") in seen(result)
    messages = [finding["message"] for finding in result.findings]
    assert any("of a block that has returned" in message for message in messages)


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_leaving_while_a_neighbour_may_still_read_is_found_in_every_order(
    library: Library, order: dict[str, int]
) -> None:
    result = library.run("neighbour", buffers(), [2], **order)
    races = [finding["message"] for finding in result.findings if finding["kind"] == "race"]
    assert races
    assert all(" returns; thread " in message and "orders the two" in message for message in races)


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_a_part_that_is_read_may_not_be_written_again(
    library: Library, order: dict[str, int]
) -> None:
    clean(library, "reuse", buffers(size=64))
    result = library.run("reuse", buffers(size=64), [1], **order)
    assert at("race", "reuse-write") in seen(result)
    assert result.kinds() == ["race"]


def test_what_comes_before_the_arrival_is_ordered_and_what_comes_after_it_is_not(
    library: Library,
) -> None:
    clean(library, "split_barrier", buffers(size=64))
    result = library.run("split_barrier", buffers(size=64), [1])
    assert seen(result) == {at("race", "split-barrier-read")}


def test_a_cluster_barrier_orders_a_block_too_once_waited_for(library: Library) -> None:
    got = clean(library, "own_block", buffers(size=64)).arrays["out"].reshape(2, 32)
    assert (got == VALUES[:64].reshape(2, 32)[:, ::-1]).all()
    result = library.run("own_block", buffers(size=64), [1])
    assert at("race", "own-block-read") in seen(result)


def test_a_block_barrier_orders_nothing_between_blocks(library: Library) -> None:
    result = library.run("block_barrier", buffers(size=32), [0])
    assert seen(result) == {at("race", "block-barrier-read")}


@pytest.mark.parametrize(
    ("value", "marker", "words"),
    [
        (1, "leave-arrive", "returned"),
        (2, "leave-arrive", "returned between cluster_arrive and cluster_wait"),
        (3, "leave-second-arrive", "twice without a cluster_wait"),
        (4, "leave-second-wait", "without a cluster_arrive"),
    ],
)
@pytest.mark.parametrize("schedule", [FIFO, LIFO])
def test_misuse_of_the_cluster_barrier_is_named(
    library: Library, value: int, marker: str, words: str, schedule: int
) -> None:
    good = library.run("leave", buffers(), [0], schedule=schedule)
    assert (good.status, good.findings) == (0, [])
    result = library.run("leave", buffers(), [value], schedule=schedule)
    finding = result.only()
    assert (result.status, finding["kind"]) == (DIVERGED, "divergence")
    assert result.line(finding) == marked(FILE, marker)
    assert words in finding["message"]


def test_a_rank_outside_the_cluster_traps(library: Library) -> None:
    clean(library, "rank", buffers(), 1)
    result = library.run("rank", buffers(), [2])
    assert (result.status, seen(result)) == (TRAPPED, {at("trap", "bad-rank")})


def test_only_shared_memory_is_mapped(library: Library) -> None:
    result = library.run("not_shared", buffers(), [0])
    assert (result.status, seen(result)) == (TRAPPED, {at("trap", "not-shared")})


# --- asynchronous copies ---


def copied(values: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    return values.reshape(2, 32, 4)[:, ::-1, :].reshape(256)


def test_a_copy_arrives_with_its_wait(library: Library) -> None:
    assert (clean(library, "copy", buffers()).arrays["out"] == copied(VALUES)).all()


def test_without_the_wait_nothing_has_arrived(plain: Build) -> None:
    result = plain(FILE).run("copy", buffers(), [1])
    assert (result.arrays["out"] == -1).all()


def test_a_wait_for_all_but_one_group_leaves_the_last(plain: Build) -> None:
    got = plain(FILE).run("copy", buffers(), [2]).arrays["out"]
    assert (got[:128] == copied(VALUES)[:128]).all()
    assert (got[128:] == -1).all()


def test_a_copy_is_ordered_by_the_barrier_after_its_wait_only(library: Library) -> None:
    result = library.run("copy", buffers(), [3])
    assert at("race", "copy-read") in seen(result)
    assert result.kinds() == ["race"]


def test_a_copy_may_arrive_at_any_time_between_its_issue_and_its_wait(library: Library) -> None:
    clean(library, "copy_under_way", buffers(), 1)
    result = library.run("copy_under_way", buffers(), [2])
    assert at("race", "copy-under-way") in seen(result)
    assert result.kinds() == ["race"]


def test_the_target_of_a_copy_is_unwritten_until_the_wait(library: Library) -> None:
    assert clean(library, "fresh_copy", buffers()).arrays["out"][0] == VALUES[0]
    result = library.run("fresh_copy", buffers(), [1])
    assert seen(result) == {at("uninitialised", "fresh-copy-read")}


def test_a_copy_reads_inside_its_source(library: Library) -> None:
    clean(library, "fresh_copy", buffers(), 252)
    result = library.run("fresh_copy", buffers(), [256])
    assert seen(result) == {at("bounds", "fresh-copy")}
    assert (result.only()["buffer"], result.only()["offset"]) == ("in", 1024)


def test_a_copy_is_aligned(library: Library) -> None:
    result = library.run("fresh_copy", buffers(), [6])
    assert seen(result) == {at("bounds", "fresh-copy")}
    assert "misaligned" in result.only()["message"]


# --- tensor cores ---


def bf16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def test_mma_multiplies_in_ptxs_layout(library: Library) -> None:
    rng = np.random.default_rng(3)
    tiles = bf16(rng.standard_normal(384).astype(np.float32))
    wide = (tiles.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    want = wide[:256].reshape(16, 16) @ wide[256:].reshape(16, 8) + 3
    result = clean(library, "mma", buffers(tiles.view(np.int32), 128), 3)
    got = result.arrays["out"].view(np.float32).reshape(16, 8)
    np.testing.assert_allclose(got, want.astype(np.float32), rtol=1.2e-7, atol=1e-12)


def test_ldmatrix_gives_a_lane_its_pair(library: Library) -> None:
    halves = np.arange(256, dtype=np.uint16)
    result = clean(library, "load_matrix", buffers(halves.view(np.int32), 384))
    got = result.arrays["out"].view(np.uint16).reshape(12, 32, 2)
    tiles = halves.reshape(4, 8, 8)
    for lane in range(32):
        g, t = lane // 4, 2 * (lane % 4)
        for m in range(4):
            assert got[m, lane].tolist() == tiles[m, g, t : t + 2].tolist()
            assert got[4 + m, lane].tolist() == tiles[m, t : t + 2, g].tolist()
        for m in range(2):
            assert got[8 + m, lane].tolist() == tiles[m, g, t : t + 2].tolist()
            assert got[10 + m, lane].tolist() == tiles[m, t : t + 2, g].tolist()


def test_a_warp_of_thirty_lanes_has_no_tensor_core_tile(plain: Build) -> None:
    finding = plain(FILE).run("short_mma", buffers(), [0]).only()
    assert (finding["kind"], "lanes the block does not have" in finding["message"]) == (
        "divergence",
        True,
    )


@pytest.mark.parametrize(
    ("value", "kind", "words"),
    [
        (1, "race", "wrote it, and nothing orders the two"),
        (2, "bounds", "misaligned"),
        (3, "bounds", "not in the block's shared memory"),
    ],
)
def test_ldmatrix_reads_ordered_aligned_shared_rows(
    library: Library, value: int, kind: str, words: str
) -> None:
    halves = np.arange(256, dtype=np.uint16)
    result = library.run("load_matrix", buffers(halves.view(np.int32), 384), [value])
    first = result.findings[0]
    assert (first["kind"], result.line(first)) == (kind, marked(FILE, "load-matrix"))
    assert words in first["message"]
