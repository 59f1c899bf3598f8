"""Dials change what they say, by as much as they say, and nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from qsa_bench.bf16 import round_to_bf16, to_float32
from qsa_bench.dials import Dial, Subject, dials_of, moved
from qsa_bench.model import Role
from qsa_bench.oracles.select import select
from qsa_bench.poison import POISON
from qsa_bench.program import Buffer, Call, Program
from qsa_bench.stages._dsa_topk_launch import Launch as PoolLaunch
from qsa_bench.stages._dsa_topk_launch import judge_kept
from qsa_bench.stages._dsa_topk_launch import program as pool_program
from qsa_bench.stages._dsa_topk_plants import FAULTS as POOL_FAULTS
from qsa_bench.stages._qsa_select_cases import Launch, oracle_judge, program
from qsa_bench.stages._qsa_select_plants import FAULTS
from qsa_bench.stages.base import Fault, Outputs

UNWRITTEN = np.frombuffer(bytes([POISON] * 4), np.float32)[0]


def subject(case: str = "a", **outputs: Any) -> Subject:
    """Return a subject of outputs given as (dtype, array)."""
    buffers = tuple(
        Buffer(name, dtype, array.shape, Role.OUTPUT) for name, (dtype, array) in outputs.items()
    )
    made = Program(buffers, (Call("k", "k", {}),))
    return Subject(case, made, {name: array for name, (_, array) in outputs.items()})


def dial(subjects: list[Subject], name: str, faults: dict[str, Fault] | None = None) -> Dial:
    """Return the named dial of these subjects."""
    return next(d for d in dials_of(subjects, faults or {}) if d.name == name)


FLOATS = np.array([[1.5, -3.0, 0.0], [np.nan, np.inf, UNWRITTEN]], np.float32)


def test_a_scale_turns_every_finite_float_that_was_written_to_either_side() -> None:
    subjects = [subject(x=("f32", FLOATS), key=("bf16", round_to_bf16(FLOATS[:1])))]
    turned = dial(subjects, "scale")
    for repeat, factor in ((0, 1.25), (1, 0.75)):
        ((_, outputs),) = turned.apply(subjects, 0.25, repeat)
        assert outputs["x"][0].tolist() == [1.5 * factor, -3.0 * factor, 0.0]
        assert outputs["x"][1].tobytes() == FLOATS[1].tobytes()
        assert to_float32(outputs["key"]).tolist() == [[1.5 * factor, -3.0 * factor, 0.0]]


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f64"])
def test_a_bias_moves_by_units_in_the_last_place_over_zero_and_no_further_than_finite(
    dtype: str,
) -> None:
    small, largest = {
        "f32": (2.0**-149, np.finfo(np.float32).max),
        "f64": (5e-324, np.finfo(np.float64).max),
        "bf16": (2.0**-133, float(to_float32(np.array([0x7F7F], np.uint16))[0])),
    }[dtype]

    def bits(values: list[float]) -> Any:
        if dtype == "bf16":
            return round_to_bf16(np.array(values))
        return np.array(values, {"f32": np.float32, "f64": np.float64}[dtype])

    def back(values: Any) -> list[float]:
        shown: list[float] = (to_float32(values) if dtype == "bf16" else values).tolist()
        return shown

    assert back(moved(dtype, bits([0.0, -0.0, small]), 1)) == back(bits([small, small, 2 * small]))
    assert back(moved(dtype, bits([small, 0.0]), -1)) == back(bits([0.0, -small]))
    assert back(moved(dtype, bits([largest, -largest]), 3))[0] == largest
    up = moved(dtype, bits([1.0, -1.0]), 1)
    assert back(up)[0] > 1.0 > -back(up)[1]
    assert back(moved(dtype, up, -1)) == [1.0, -1.0]


def test_so_many_elements_are_corrupted_and_a_larger_dose_holds_the_smaller() -> None:
    subjects = [
        subject(x=("f32", np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8))),
        subject(case="b", mask=("u8", np.ones((4, 8), np.uint8))),
    ]
    turned = dial(subjects, "corrupt")
    assert turned.show(1.0) == "1 of 96"
    assert turned.sizes == (1.0, 2.0, 4.0, 8.0, 12.0)
    before: set[tuple[str, int]] = set()
    for size in turned.sizes:
        places = set()
        for index, outputs in turned.apply(subjects, size, 3):
            for name, array in outputs.items():
                was = subjects[index].outputs[name]
                assert array.shape == was.shape
                places |= {(name, int(place)) for place in np.flatnonzero(array != was)}
        assert len(places) == size
        assert before <= places
        before = places


def test_a_zero_is_corrupted_to_one_and_other_floats_by_a_quarter_to_a_half() -> None:
    values = np.array([0.0, -0.0, 3.0, 0.7, -9.0, 1e-40], np.float32)
    subjects = [subject(x=("f32", values))]
    changed = np.array(values)
    for repeat in range(40):
        for _, outputs in dial(subjects, "corrupt").apply(subjects, 1.0, repeat):
            differs = outputs["x"] != values
            changed[differs] = outputs["x"][differs]
    assert changed[[0, 1, 5]].tolist() == [1.0, 1.0, 1.0]
    share = np.abs(changed[2:5] / values[2:5] - 1)
    assert ((share >= 0.25) & (share <= 0.5)).all()


def test_a_bit_of_the_last_row_is_a_masks_where_there_is_one() -> None:
    subjects = [
        subject(mask=("u8", np.zeros((3, 5), np.uint8)), ids=("i32", np.zeros((3, 5), np.int32))),
        subject(case="b", ids=("i32", np.zeros(7, np.int32))),
    ]
    turned = dial(subjects, "last-row-bit")
    assert turned.show(1.0) == "1 of 2 cases"
    for repeat in range(8):
        changed = dict(turned.apply(subjects, 2.0, repeat))
        assert np.flatnonzero(changed[0]["mask"]).min() >= 10
        assert changed[0]["mask"].sum() == 1
        assert not changed[0]["ids"].any()
        assert changed[1]["ids"].tolist() == [0, 0, 0, 0, 0, 0, 1]


def test_a_case_with_nothing_to_change_has_no_dial() -> None:
    assert dials_of([subject(x=("f32", np.zeros((0, 4), np.float32)))], {}) == []


def selected() -> Subject:
    """Return a select of two rows, one within its budget, as it should be."""
    scores = [np.array([3, 1, 2, 5], np.float32), np.array([1], np.float32)]
    launch = Launch(scores, [17, 5], 18, 4, budget=8)
    want = select(launch.scores(), np.array(launch.rows), 18, 4, 8)
    outputs = {"mask": want.mask, "ids": want.ids, "counts": want.counts}
    return Subject("a", program(launch), outputs)


def test_a_swap_keeps_the_first_loser_for_the_last_winner() -> None:
    given = selected()
    turned = dial([given], "swap", dict(FAULTS))
    ((_, outputs),) = turned.apply([given], 1.0, 0)
    # Blocks 3 and 0 win; 2 comes for 0. The second row keeps all it has.
    assert outputs["ids"][0].tolist() == [8, 9, 10, 11, 12, 13, 14, 15, 16, 17, -1]
    assert np.flatnonzero(outputs["mask"][0]).tolist() == list(range(8, 18))
    assert outputs["mask"][1].tobytes() == given.outputs["mask"][1].tobytes()
    assert outputs["counts"].tolist() == given.outputs["counts"].tolist()
    launch = Launch(
        [np.array([3, 1, 2, 5], np.float32), np.array([1], np.float32)], [17, 5], 18, 4, 8
    )
    seen = {f.check: f.status for f in oracle_judge(lambda: launch)(given.program, outputs)}
    assert seen == {"mask": "wrong", "ids": "wrong", "counts": "pass"}


def test_a_swap_of_pools_lists_them_in_order() -> None:
    launch = PoolLaunch((np.array([3, 1, 2, 5], np.float32), np.array([1], np.float32)), 8, 4)
    made = pool_program(launch)
    kept = np.array([[0, 3], [0, -1]], np.int32)
    right: Outputs = {"kept_pools": kept, "kept_counts": np.array([2, 1], np.int32)}
    visible = np.array([4, 1])
    assert all(f.status == "pass" for f in judge_kept(made.array("scores"), visible, 2, right))
    given = Subject("a", made, right)
    ((_, outputs),) = dial([given], "swap", dict(POOL_FAULTS)).apply([given], 1.0, 0)
    assert outputs["kept_pools"].tolist() == [[2, 3], [0, -1]]
