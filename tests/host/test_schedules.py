"""The order in which threads run, and that a run is its own repetition."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.host.harness import FIFO, INPUT, LIFO, SEEDED, Buffer, Library

Build = Callable[[str], Library]


def order(library: Library, **options: int) -> list[int]:
    result = library.run("order", [Buffer("out", np.zeros(121, np.int32))], [0], **options)
    assert result.status == 0
    assert result.arrays["out"][0] == 120
    return [int(thread) for thread in result.arrays["out"][1:]]


def test_fifo_runs_blocks_and_threads_upwards(plain: Build) -> None:
    assert order(plain("collectives.cu"), schedule=FIFO) == list(range(120))


def test_lifo_runs_blocks_and_threads_downwards(plain: Build) -> None:
    assert order(plain("collectives.cu"), schedule=LIFO) == list(range(119, -1, -1))


def test_a_seed_is_an_order_and_another_seed_another(plain: Build) -> None:
    library = plain("collectives.cu")
    first = order(library, schedule=SEEDED, seed=1)
    assert sorted(first) == list(range(120))
    assert first != list(range(120))
    assert order(library, schedule=SEEDED, seed=1) == first
    assert order(library, schedule=SEEDED, seed=2) != first
    # Blocks come in a drawn order too, each to its end.
    blocks = {
        tuple(t // 40 for t in order(library, schedule=SEEDED, seed=s))[::40] for s in range(12)
    }
    assert len(blocks) > 2
    assert all(sorted(b) == [0, 1, 2] for b in blocks)


@pytest.mark.parametrize("mode", ["plain", "checked"])
def test_equal_runs_leave_equal_bytes_fuel_and_findings(
    build: Callable[[str, str], Library], mode: str
) -> None:
    library = build("memory.cu", mode)
    buffers = [
        Buffer("in", np.arange(64, dtype=np.int32), INPUT),
        Buffer("out", np.zeros(64, np.int32)),
    ]
    # value 1 is the racy one: even a wrong kernel is wrong in the same way.
    for options in ({"schedule": FIFO}, {"schedule": LIFO}, {"schedule": SEEDED, "seed": 9}):
        one, two = library.runs("exchange", buffers, [1], [options, options])
        (again,) = library.runs("exchange", buffers, [1], [options])
        for other in (two, again):
            assert other.arrays["out"].tobytes() == one.arrays["out"].tobytes()
            assert (other.fuel, other.findings) == (one.fuel, one.findings)


def test_a_removed_trailing_barrier_shows_under_some_order_only(plain: Build) -> None:
    values = np.arange(100, 164, dtype=np.int32)
    buffers = [Buffer("in", values, INPUT), Buffer("out", np.zeros(64, np.int32))]
    want = np.append(3 * values[1:] + 3, 0)
    options = [{"schedule": FIFO}, {"schedule": LIFO}]
    options += [{"schedule": SEEDED, "seed": seed} for seed in range(4)]
    right = plain("memory.cu").runs("upward_rounds", buffers, [0], options)
    assert all((result.arrays["out"] == want).all() for result in right)
    wrong = plain("memory.cu").runs("upward_rounds", buffers, [1], options)
    assert all((result.status, result.findings) == (0, []) for result in wrong)
    assert [bool((result.arrays["out"] == want).all()) for result in wrong] == [True] + [False] * 5


def test_fresh_shared_memory_is_junk_that_follows_the_seed(plain: Build) -> None:
    buffers = [Buffer("in", np.zeros(1, np.int32), INPUT), Buffer("out", np.zeros(128, np.int32))]
    runs = [{"seed": 0}, {"seed": 0}, {"seed": 1}]
    one, again, other = plain("memory.cu").runs("junk", buffers, [0], runs)
    junk = one.arrays["out"]
    assert (junk == again.arrays["out"]).all()
    assert (junk != other.arrays["out"]).all()
    # The second block zeroed nothing yet, and finds neither the first one's zeros nor its junk.
    assert (junk != 0).all()
    assert (junk[:64] != junk[64:]).all()


def test_the_device_is_what_the_options_say(plain: Build) -> None:
    out = Buffer("out", np.zeros(2, np.int32))
    library = plain("limits.cu")
    assert library.run("device", [out], [0] * 4).arrays["out"].tolist() == [90, 132]
    ada = library.run("device", [out], [0] * 4, compute_capability=89, multiprocessors=92)
    assert ada.arrays["out"].tolist() == [89, 92]
