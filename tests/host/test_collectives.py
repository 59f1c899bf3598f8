"""Barriers, warp collectives, traps and fuel: right ones return CUDA's values, wrong ones are named."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.host.harness import FIFO, LIFO, SEEDED, Buffer, Library, Result, marked

FILE = "collectives.cu"
DIVERGED, TRAPPED, OUT_OF_FUEL = 101, 100, 102
Build = Callable[[str], Library]
MODES = ("plain", "checked")


@pytest.fixture(params=MODES)
def library(request: pytest.FixtureRequest, build: Callable[[str, str], Library]) -> Library:
    return build(FILE, request.param)


def run(library: Library, entry: str, value: int = 0, size: int = 64, **options: int) -> Result:
    out = Buffer("out", np.zeros(size, np.int32))
    return library.run(entry, [out], [value], **options)


def expect(result: Result, kind: str, status: int, marker: str) -> dict[str, object]:
    finding = result.only()
    assert (finding["kind"], result.status) == (kind, status)
    assert result.line(finding) == marked(FILE, marker)
    return finding


LANES = list(range(32))


def expected_values() -> list[list[int]]:
    def match(lane: int) -> int:
        return sum(1 << other for other in LANES if other // 3 == lane // 3)

    def uniform(value: int) -> list[int]:
        return [value] * 32

    xor = 0
    for lane in LANES:
        xor ^= lane * lane
    return [
        uniform(15),
        [(lane + 1) % 32 for lane in LANES],
        [lane // 8 * 8 + 1 for lane in LANES],
        [lane if lane < 3 else lane - 3 for lane in LANES],
        [lane if lane % 16 < 3 else lane - 3 for lane in LANES],
        [lane if lane > 28 else lane + 3 for lane in LANES],
        [lane if lane % 8 > 4 else lane + 3 for lane in LANES],
        [lane ^ 7 for lane in LANES],
        # The partner lies in the next group of 16 for the first, in the one before for the second: PTX allows that.
        [lane if lane < 16 else lane - 16 for lane in LANES],
        uniform(sum(1 << lane for lane in LANES if lane % 3 == 0)),
        uniform(1),
        uniform(0),
        uniform(1),
        uniform(0),
        [match(lane) for lane in LANES],
        uniform(sum(LANES)),
        uniform(-5),
        uniform(-19),
        uniform(0),
        uniform(-1),
        uniform(4),
        uniform(0x1F00),
        uniform(xor),
        uniform(7),
        [lane ^ 1 for lane in LANES],
        [1 << lane for lane in LANES],
    ]


@pytest.mark.parametrize("schedule", [FIFO, LIFO, SEEDED])
def test_every_warp_collective_returns_cudas_value(library: Library, schedule: int) -> None:
    want = np.array(expected_values(), np.int64).astype(np.uint32).view(np.int32)
    result = run(library, "values", size=want.size, schedule=schedule, seed=5)
    assert (result.status, result.findings) == (0, [])
    np.testing.assert_array_equal(result.arrays["out"].reshape(want.shape), want)


def test_every_barrier_returns_cudas_value(library: Library) -> None:
    result = run(library, "barrier_values", size=5 * 70)
    assert (result.status, result.findings) == (0, [])
    rows = result.arrays["out"].reshape(5, 70)
    for row, want in zip(rows, (24, 1, 0, 1, 0), strict=True):
        assert (row == want).all()


def test_coordinates_run_x_first_and_lanes_follow_them(library: Library) -> None:
    result = run(library, "coordinates", size=12 * 48 * 7)
    assert (result.status, result.findings) == (0, [])
    got = result.arrays["out"].reshape(12, 48, 7)
    for block in range(12):
        for thread in range(48):
            want = [
                thread % 4,
                thread // 4 % 3,
                thread // 12,
                block % 2,
                block // 2 % 3,
                block // 6,
            ]
            before = thread % 4 if thread % 32 == 0 else (thread - 1) % 4
            assert got[block, thread].tolist() == [*want, before]


def test_half_warps_may_meet_apart(library: Library) -> None:
    result = run(library, "half_warps")
    assert (result.status, result.findings) == (0, [])
    assert result.arrays["out"][:32].tolist() == [120] * 16 + [376] * 16


def test_a_ballot_of_twenty_lanes_takes_their_mask(library: Library) -> None:
    result = run(library, "partial_ballot", 0xFFFFF)
    assert (result.status, result.findings) == (0, [])
    assert (result.arrays["out"][:20] == 0xFFFFF).all()


def test_a_ballot_of_twenty_lanes_with_a_full_mask_waits_for_ever(library: Library) -> None:
    finding = expect(
        run(library, "partial_ballot", 0xFFFFFFFF), "deadlock", DIVERGED, "partial-ballot"
    )
    message = str(finding["message"])
    assert "20 from thread (0,0,0) of block (0,0,0) in __ballot_sync" in message
    assert "12 from thread (20,0,0) of block (0,0,0) in __syncthreads" in message


def test_a_mask_may_not_name_lanes_that_do_not_exist(library: Library) -> None:
    good = run(library, "short_block", 0xFFFFF)
    assert (good.status, good.findings) == (0, [])
    expect(run(library, "short_block", 0xFFFFFFFF), "divergence", DIVERGED, "short-block")


def test_a_mask_names_its_caller(library: Library) -> None:
    good = run(library, "mask_without_caller", 0)
    assert (good.status, good.findings) == (0, [])
    finding = expect(
        run(library, "mask_without_caller", 1), "divergence", DIVERGED, "mask-without-caller"
    )
    assert finding["thread"] == [3, 0, 0]
    assert "does not name the calling lane 3" in str(finding["message"])


@pytest.mark.parametrize("schedule", [FIFO, LIFO])
def test_a_mask_may_not_name_a_lane_that_returned(library: Library, schedule: int) -> None:
    good = run(library, "returned_lane", 0, schedule=schedule)
    assert (good.status, good.findings) == (0, [])
    # FIFO: the lane is gone when the others come; LIFO: they wait when it goes.
    expect(
        run(library, "returned_lane", 1, schedule=schedule), "divergence", DIVERGED, "returned-lane"
    )


def test_lanes_of_one_collective_agree_on_the_mask(library: Library) -> None:
    good = run(library, "different_masks", 0)
    assert (good.status, good.findings) == (0, [])
    finding = expect(run(library, "different_masks", 1), "divergence", DIVERGED, "different-masks")
    assert "0x0000ffff" in str(finding["message"])
    assert "0xffffffff" in str(finding["message"])


def test_a_shuffle_width_is_a_power_of_two(library: Library) -> None:
    good = run(library, "odd_width", 16)
    assert (good.status, good.findings) == (0, [])
    for width in (0, 24, 64):
        expect(run(library, "odd_width", width), "divergence", DIVERGED, "odd-width")


def test_lanes_of_one_collective_agree_on_the_operation(library: Library) -> None:
    good = run(library, "mixed_operations", 0)
    assert (good.status, good.findings) == (0, [])
    finding = expect(run(library, "mixed_operations", 1), "divergence", DIVERGED, "mixed-shuffle")
    assert f"{FILE}:{marked(FILE, 'mixed-ballot')[1]}" in str(finding["message"])


def test_two_collectives_of_one_line_are_told_apart(library: Library) -> None:
    good = run(library, "two_sites", 0)
    assert (good.status, good.findings) == (0, [])
    expect(run(library, "two_sites", 1), "divergence", DIVERGED, "two-sites")


def test_threads_of_one_barrier_stand_at_one_place(library: Library) -> None:
    good = run(library, "barrier_sites", 0)
    assert (good.status, good.findings) == (0, [])
    finding = expect(run(library, "barrier_sites", 1), "divergence", DIVERGED, "barrier-site-b")
    assert finding["thread"] == [32, 0, 0]


def test_threads_of_one_barrier_agree_on_the_operation(library: Library) -> None:
    good = run(library, "barrier_operations", 0)
    assert (good.status, good.findings) == (0, [])
    finding = expect(run(library, "barrier_operations", 1), "divergence", DIVERGED, "barrier-and")
    assert "__syncthreads_or" in str(finding["message"])


@pytest.mark.parametrize("schedule", [FIFO, LIFO, SEEDED])
def test_a_barrier_that_threads_left_is_named(library: Library, schedule: int) -> None:
    good = run(library, "early_return", 0, schedule=schedule)
    assert (good.status, good.findings) == (0, [])
    expect(
        run(library, "early_return", 1, schedule=schedule), "divergence", DIVERGED, "early-return"
    )


def test_a_barrier_under_divergence_is_named(library: Library) -> None:
    good = run(library, "divergent_barrier", 0)
    assert (good.status, good.findings) == (0, [])
    expect(run(library, "divergent_barrier", 1), "divergence", DIVERGED, "divergent-barrier")


def test_a_deadlock_says_who_waits_where(library: Library) -> None:
    good = run(library, "deadlock", 0)
    assert (good.status, good.findings) == (0, [])
    finding = expect(run(library, "deadlock", 1), "deadlock", DIVERGED, "deadlock-syncwarp")
    barrier = marked(FILE, "deadlock-barrier")[1]
    syncwarp = marked(FILE, "deadlock-syncwarp")[1]
    message = str(finding["message"])
    assert "31 from thread (0,0,0) of block (0,0,0) in __syncwarp with mask 0xffffffff" in message
    assert f"{FILE}:{syncwarp}" in message
    assert f"{FILE}:{barrier}" in message
    assert "1 from thread (5,0,0)" in message


def test_a_trap_says_who_and_why_and_the_process_lives(library: Library) -> None:
    good = run(library, "trap_at", -1, size=160)
    assert (good.status, good.findings) == (0, [])
    assert good.arrays["out"].sum() == 160
    results = library.runs("trap_at", [Buffer("out", np.zeros(160, np.int32))], [33], [{}, {}])
    for result in results:
        finding = expect(result, "trap", TRAPPED, "trap")
        assert finding["message"] == 'a score is "not" finite'
        assert (finding["block"], finding["thread"]) == ([2, 0, 0], [33, 0, 0])
        # What ran before the trap is done, what would have run after it is not.
        assert result.arrays["out"].sum() == 80 + 33


def test_cudas_own_trap_is_named_too(library: Library) -> None:
    good = run(library, "plain_trap", 0)
    assert (good.status, good.findings) == (0, [])
    expect(run(library, "plain_trap", 1), "trap", TRAPPED, "plain-trap")


def test_a_loop_without_calls_runs_out_of_fuel(library: Library) -> None:
    good = run(library, "endless_loop", 1000)
    assert (good.status, good.findings) == (0, [])
    assert 1000 <= good.fuel <= 5000
    short = run(library, "endless_loop", 1000, fuel=good.fuel)
    assert (short.status, short.findings) == (0, [])
    result = run(library, "endless_loop", -1, fuel=10 * good.fuel)
    assert (result.status, result.only()["kind"], result.fuel) == (
        OUT_OF_FUEL,
        "fuel",
        10 * good.fuel,
    )
    if result.mode == 1:  # only the checked mode carries line tables
        assert result.line(result.only()) == marked(FILE, "endless-loop")


def test_one_unit_less_than_a_clean_run_needs_is_too_little(library: Library) -> None:
    good = run(library, "endless_loop", 1000)
    result = run(library, "endless_loop", 1000, fuel=good.fuel - 1)
    assert (result.status, result.only()["kind"]) == (OUT_OF_FUEL, "fuel")


def test_a_loop_of_barriers_runs_out_of_fuel(library: Library) -> None:
    good = run(library, "endless_barriers", 5)
    assert (good.status, good.findings) == (0, [])
    assert good.fuel >= 5 * 64
    result = run(library, "endless_barriers", -1, fuel=100_000)
    assert (result.status, result.only()["kind"]) == (OUT_OF_FUEL, "fuel")


def test_a_step_over_lanes_has_five_bits(library: Library) -> None:
    ones = [lane + min(lane + 1, 31) if lane < 31 else 31 for lane in LANES]
    for step, sums in ((1, ones), (31, [31, *LANES[1:]]), (32, [2 * lane for lane in LANES])):
        result = run(library, "lane_above", step)
        assert result.arrays["out"][:32].tolist() == sums
