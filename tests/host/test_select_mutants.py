"""A correct select and its mutants: what a plain run sees, and what the checker sees."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.host.harness import FIFO, INPUT, LIFO, SEEDED, Buffer, Library, Result, marked

FILE = "select_mutants.cu"
ROWS, TOKENS, BUDGET = 5, 200, 60
DIVERGED, OUT_OF_FUEL = 101, 102
Build = Callable[[str], Library]

NAMES = (
    "correct plain-bitmap no-barrier-after-histogram no-trailing-barrier write-past-the-end"
    " read-past-the-end bitmap-not-cleared plain-histogram plain-counter early-return ballot-of-twenty"
    " divergent-barrier endless-loop no-redundant-barrier"
).split()
ORDERS: list[dict[str, int]] = [{"schedule": FIFO}, {"schedule": LIFO}]
ORDERS += [{"schedule": SEEDED, "seed": seed} for seed in range(10)]

# Few distinct values: ties at every cut.
SCORES = (np.random.default_rng(11).integers(0, 24, (ROWS, TOKENS)) / 32).astype(np.float32)


def wanted() -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    mask = np.zeros((ROWS, TOKENS), np.uint8)
    for row in range(ROWS):
        mask[row, np.argsort(-SCORES[row], kind="stable")[:BUDGET]] = 1
    return mask


def runs(library: Library, name: str, orders: list[dict[str, int]] = ORDERS) -> list[Result]:
    buffers = [
        Buffer("scores", SCORES, INPUT),
        Buffer("mask", np.full((ROWS, TOKENS), 0xAA, np.uint8), 0),
        Buffer("kept", np.zeros(1, np.int32)),
    ]
    fuel = {"fuel": 30_000_000}
    scalars = [ROWS, TOKENS, BUDGET, NAMES.index(name)]
    return library.runs("little_select", buffers, scalars, [{**order, **fuel} for order in orders])


def right(result: Result) -> bool:
    same = bool((result.arrays["mask"] == wanted()).all())
    return same and bool(result.arrays["kept"][0] == ROWS * BUDGET)


@pytest.mark.parametrize("name", ["correct", "no-redundant-barrier"])
def test_the_correct_select_and_its_equivalent_are_silent_in_both_modes(
    plain: Build, checked: Build, name: str
) -> None:
    for library in (plain(FILE), checked(FILE)):
        for result in runs(library, name):
            assert (result.status, result.findings, right(result)) == (0, [], True)


@pytest.mark.parametrize(
    "name",
    ["plain-bitmap", "plain-histogram", "plain-counter", "write-past-the-end", "read-past-the-end"],
)
def test_a_plain_run_never_sees_these(plain: Build, name: str) -> None:
    for result in runs(plain(FILE), name):
        assert (result.status, result.findings, right(result)) == (0, [], True)


@pytest.mark.parametrize("name", ["no-barrier-after-histogram", "no-trailing-barrier"])
def test_a_plain_run_sees_a_missing_barrier_under_some_order(plain: Build, name: str) -> None:
    results = runs(plain(FILE), name)
    assert not all(right(result) for result in results)


def test_a_plain_run_sees_an_uncleared_bitmap(plain: Build) -> None:
    assert not any(right(result) for result in runs(plain(FILE), "bitmap-not-cleared"))


@pytest.mark.parametrize(
    ("name", "kind", "buffer", "marker"),
    [
        ("plain-bitmap", "race", "bitmap", "plain-bitmap"),
        ("no-barrier-after-histogram", "race", "histogram", None),
        ("no-trailing-barrier", "race", "bitmap", None),
        ("write-past-the-end", "bounds", "mask", "one-byte-past"),
        ("read-past-the-end", "bounds", "scores", "one-word-past"),
        ("bitmap-not-cleared", "uninitialised", "bitmap", None),
        ("plain-histogram", "race", "histogram", "plain-histogram"),
        ("plain-counter", "race", "kept", "plain-counter"),
    ],
)
def test_the_checker_names_kind_buffer_and_line_under_every_order(
    checked: Build, name: str, kind: str, buffer: str, marker: str | None
) -> None:
    for result in runs(checked(FILE), name, ORDERS[:4]):
        hits = [f for f in result.findings if (f["kind"], f["buffer"]) == (kind, buffer)]
        assert hits, result.findings
        if marker is not None:
            assert {result.line(f) for f in result.findings} == {marked(FILE, marker)}


@pytest.mark.parametrize("mode", ["plain", "checked"])
@pytest.mark.parametrize(
    ("name", "kinds", "status"),
    [
        ("early-return", {"divergence"}, DIVERGED),
        ("ballot-of-twenty", {"divergence", "deadlock"}, DIVERGED),
        ("divergent-barrier", {"divergence", "deadlock"}, DIVERGED),
        ("endless-loop", {"fuel"}, OUT_OF_FUEL),
    ],
)
def test_both_modes_name_what_never_ends(
    build: Callable[[str, str], Library], mode: str, name: str, kinds: set[str], status: int
) -> None:
    for result in runs(build(FILE, mode), name, ORDERS[:3]):
        assert result.status == status
        assert set(result.kinds()) <= kinds
        assert result.only()["thread"] is not None
