"""How far a device's outputs lie from the emulation's: bits, or values at the bound of their check."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from qsa_bench.against_host import distance
from qsa_bench.compare import bitwise, bounded, watch
from qsa_bench.model import Evidence, Finding, Role
from qsa_bench.program import Buffer, Call, Program
from qsa_bench.stages.base import Case, Outputs

ORACLE = np.array([[1.0, 8.0, 3.0]])
BOUND = np.array([[1e-5, 2e-5, 0.0]])
MASK = np.array([[0, 1, 1, 0]], np.uint8)
PROGRAM = Program(
    (Buffer("scores", "f32", (1, 3), Role.OUTPUT),),
    (Call("kernel", "entry", {"scores": "scores"}),),
)


def judge(_program: Program, outputs: Outputs) -> Iterable[Finding]:
    """Hold scores at a bound of their own each, and a mask to its bits."""
    yield bounded("score", "scores", ORACLE, outputs["scores"], BOUND)
    yield bitwise("mask", "mask", MASK, outputs["mask"])


def exact(_program: Program, outputs: Outputs) -> Iterable[Finding]:
    """Look at the mask's sum alone."""
    del outputs
    return ()


CASE = Case("stage", "family", "label", (), lambda: PROGRAM, judge)
UNBOUND = Case("stage", "family", "label", (), lambda: PROGRAM, exact)


def outputs(first: float, second: float = 8.0, third: float = 3.0) -> dict[str, np.ndarray]:
    return {"scores": np.array([[first, second, third]], np.float32), "mask": MASK}


def apart(want: Outputs, got: Outputs, case: Case = CASE) -> Evidence:
    return distance(case, PROGRAM, want, got)


def test_equal_outputs_are_no_distance_apart() -> None:
    found = apart(outputs(1.0), outputs(1.0))
    assert (found.count, found.margin, found.where) == (0, 0.0, "")


def test_two_values_lie_apart_by_their_own_distance_not_the_oracles() -> None:
    # Each lies 0.8 of its bound from the oracle, on two sides.
    found = apart(outputs(1.0 - 8e-6), outputs(1.0 + 8e-6))
    assert found.count == 0
    assert found.margin == pytest.approx(0.8, rel=1e-2)
    assert found.where == "scores[0, 0]"
    near = apart(outputs(1.0, 8.0), outputs(1.0, 8.0 + 1e-5))
    assert (near.count, near.where) == (0, "scores[0, 1]")
    assert near.margin == pytest.approx(0.25, rel=0.1)


def test_what_a_side_alone_gets_wrong_is_told_by_the_side() -> None:
    for side, pair in (
        ("host", (outputs(1.1), outputs(1.0))),
        ("device", (outputs(1.0), outputs(1.1))),
    ):
        found = apart(*pair)
        assert found.count == 1
        assert found.note.startswith(f"score fails on the {side}: ")
    other = {**outputs(1.0), "mask": MASK ^ 1}
    assert apart(outputs(1.0), other).note.startswith("mask fails on the device: ")


def test_a_nan_is_a_nan_whatever_its_payload() -> None:
    quiet = np.array([[0x7FC00000]], np.uint32).view(np.float32)
    other = np.array([[0x7FFFFFFF]], np.uint32).view(np.float32)

    def nan(_program: Program, given: Outputs) -> Iterable[Finding]:
        yield bounded("score", "scores", [[np.nan]], given["scores"], [[1.0]])

    case = Case("stage", "family", "label", (), lambda: PROGRAM, nan)
    found = apart({"scores": quiet}, {"scores": other}, case)
    assert (found.count, found.margin) == (0, 0.0)


def test_where_nothing_is_held_at_a_bound_each_bit_counts() -> None:
    near = float(np.nextafter(np.float32(1), 2))
    found = apart(outputs(1.0), outputs(near), UNBOUND)
    assert (found.count, found.margin, found.where) == (1, float("inf"), "scores[0, 0]")
    assert apart(outputs(0.0), outputs(-0.0), UNBOUND).count == 1
    bent = MASK.copy()
    bent[0, 2] = 0
    found = apart({"mask": MASK}, {"mask": bent}, UNBOUND)
    assert (found.count, found.first, found.want, found.got) == (1, "mask[0, 2]", "1", "0")


def test_nothing_is_watched_that_another_thread_or_an_earlier_judge_held() -> None:
    list(judge(PROGRAM, outputs(1.0)))
    with watch() as held:
        assert held == []
        list(judge(PROGRAM, outputs(1.0)))
    assert [(each.check, each.name) for each in held] == [("score", "scores")]
    list(judge(PROGRAM, outputs(1.0)))
    assert len(held) == 1
