"""Launches beyond the device are refused, with a finding that says what was asked and what there is."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.host.harness import Buffer, Library, Result

LAUNCH_LIMIT = 103
Build = Callable[[str], Library]
KIB = 1024


def launch(
    library: Library, grid: int = 1, block: int = 32, cluster: int = 1, size: int = 0, cc: int = 90
) -> Result:
    out = Buffer("out", np.zeros(2, np.int32))
    return library.run("launch", [out], [grid, block, cluster, size], compute_capability=cc)


@pytest.mark.parametrize(
    "asked",
    [
        {"block": 1024},
        {"block": 1},
        {"grid": 3},
        {"size": 227 * KIB},
        {"size": 163 * KIB, "cc": 80},
        {"size": 99 * KIB, "cc": 86},
        {"size": 99 * KIB, "cc": 89},
        {"size": 227 * KIB, "cc": 100},
        {"grid": 16, "cluster": 16},
        {"grid": 16, "cluster": 8, "cc": 120},
    ],
    ids=str,
)
def test_what_the_device_has_is_served(plain: Build, asked: dict[str, int]) -> None:
    result = launch(plain("limits.cu"), **asked)
    assert (result.status, result.findings, result.arrays["out"][0]) == (0, [], 1)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"block": 1025}, "a block of (1025,1,1) threads"),
        ({"block": 0}, "a block of (0,1,1) threads"),
        ({"grid": 0}, "a grid of (0,1,1)"),
        ({"size": 227 * KIB + 1}, "compute capability 90 has 232448"),
        ({"size": 163 * KIB + 16, "cc": 80}, "compute capability 80 has 166912"),
        ({"size": 99 * KIB + 16, "cc": 86}, "compute capability 86 has 101376"),
        ({"size": 99 * KIB + 16, "cc": 89}, "compute capability 89 has 101376"),
        ({"grid": 17, "cluster": 17}, "a cluster of 17; compute capability 90 has 16"),
        ({"grid": 16, "cluster": 16, "cc": 120}, "a cluster of 16; compute capability 120 has 8"),
        ({"grid": 2, "cluster": 2, "cc": 89}, "a cluster of 2; compute capability 89 has 1"),
        ({"grid": 6, "cluster": 4}, "a grid of 6 blocks is not a multiple of the cluster of 4"),
        ({"cluster": 0}, "a cluster of 0"),
    ],
    ids=str,
)
def test_what_the_device_has_not_is_refused(
    plain: Build, asked: dict[str, int], words: str
) -> None:
    result = launch(plain("limits.cu"), **asked)
    finding = result.only()
    assert (result.status, finding["kind"]) == (LAUNCH_LIMIT, "launch-limit")
    assert words in finding["message"]
    assert result.arrays["out"][0] == 0


def test_a_grid_has_at_most_65535_rows(plain: Build) -> None:
    library = plain("limits.cu")
    out = Buffer("out", np.zeros(2, np.int32))
    served = library.run("launch_y", [out], [65535, 0, 0, 0])
    assert (served.status, served.findings) == (0, [])
    refused = library.run("launch_y", [out], [65536, 0, 0, 0])
    assert (refused.status, refused.only()["kind"]) == (LAUNCH_LIMIT, "launch-limit")


def test_static_and_dynamic_shared_memory_count_together(plain: Build) -> None:
    library = plain("limits.cu")
    out = Buffer("out", np.zeros(2, np.int32))
    static = 40 * KIB
    served = library.run("launch_static", [out], [227 * KIB - static, 0, 0, 0])
    assert (served.status, served.findings, served.arrays["out"][0]) == (0, [], 1)
    refused = library.run("launch_static", [out], [227 * KIB - static + 16, 0, 0, 0])
    assert (refused.status, refused.only()["kind"]) == (LAUNCH_LIMIT, "launch-limit")


def test_a_kernel_has_at_most_48_kib_of_static_shared_memory(plain: Build) -> None:
    result = plain("limits.cu").run(
        "launch_too_static", [Buffer("out", np.zeros(2, np.int32))], [0] * 4
    )
    finding = result.only()
    assert (result.status, finding["kind"]) == (LAUNCH_LIMIT, "launch-limit")
    assert "49168 bytes of static shared memory, with large" in finding["message"]


# --- the checked mode counts blocks, barriers and __syncwarps in 64 bits a stamp, and says when they run out ---


def too_many(result: Result, words: str) -> None:
    finding = result.only()
    assert (result.status, finding["kind"]) == (LAUNCH_LIMIT, "launch-limit")
    assert words in finding["message"]


def test_the_checker_says_when_it_cannot_count_the_blocks(checked: Build) -> None:
    library = checked("limits.cu")
    assert launch(library, grid=(1 << 18) - 1, block=1).status == 0
    too_many(launch(library, grid=1 << 18, block=1), "too many blocks")


def test_a_reset_gives_the_checker_its_blocks_back(checked: Build) -> None:
    out = Buffer("out", np.zeros(2, np.int32))
    blocks = [150_000, 1, 1, 0]
    results = checked("limits.cu").runs("launch", [out], blocks, [{}, {}, {}, {}])
    assert [(result.status, result.findings) for result in results] == [(0, [])] * 4


@pytest.mark.parametrize(
    ("entry", "count", "words"),
    [
        ("endless_barriers", 1 << 18, "too many barriers in a block"),
        ("many_syncwarps", 1 << 16, "too many __syncwarps between two barriers"),
    ],
)
def test_the_checker_says_when_it_cannot_count_the_barriers(
    checked: Build, entry: str, count: int, words: str
) -> None:
    out = Buffer("out", np.zeros(64, np.int32))
    library = checked("collectives.cu")
    assert library.run(entry, [out], [count - 2]).status == 0
    too_many(library.run(entry, [out], [count]), words)
