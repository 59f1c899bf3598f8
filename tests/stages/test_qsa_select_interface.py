"""How another implementation of select is judged: what it may choose, and what it breaks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from qsa_bench.model import Role, Status
from qsa_bench.oracles.select import RATIO, select
from qsa_bench.program import Program
from qsa_bench.stages import _qsa_select_interface as interface
from qsa_bench.stages import load_stage
from qsa_bench.stages._qsa_select_cases import Launch, program
from qsa_bench.stages.qsa_select import KERNEL

Array = npt.NDArray[Any]
BUDGET = 16
# Blocks 1, 3, 4 and 6 lead; 0.5 stands at 0, 2, 5 and 7, of which none is kept.
SCORES = np.array([0.5, 3.0, 0.5, 2.0, 4.0, 0.5, 1.0, 0.5], dtype=np.float32)
TIED = np.array([0.5, 3.0, 0.5, 2.0, 0.5, 0.5, 0.1, 0.5], dtype=np.float32)


def _program(*rows: Array, tail: int = 2, **more: Any) -> Program:
    positions = [len(row) * RATIO + tail - 1 for row in rows]
    tokens = max(positions) + 3
    return program(Launch(rows, positions, tokens, tokens // RATIO, BUDGET, **more))


def _mask(blocks: Sequence[int], built: Program, row: int = 0, count: int = 1) -> Array:
    """Return masks of `count` equal rows that keep `blocks` and the tail."""
    tokens = int(str(built.calls[0].values["tokens"]))
    position = int(built.array("rows")[row])
    mask = np.zeros((count, tokens), dtype=np.uint8)
    for block in blocks:
        mask[:, block * RATIO : (block + 1) * RATIO] = 1
    mask[:, (position + 1) // RATIO * RATIO : position + 1] = 1
    return mask


def _judged(built: Program, form: str, given: Array, ties: str = "exact") -> dict[str, Status]:
    return {f.check: f.status for f in interface.judge(form, ties)(built, {form: given})}


def _broken(built: Program, form: str, given: Array, ties: str = "exact") -> set[str]:
    found = _judged(built, form, given, ties)
    return {check for check, status in found.items() if status is not Status.PASS}


def test_the_oracles_own_result_passes_in_every_form() -> None:
    built = _program(SCORES, TIED[:3], TIED)
    values = built.calls[0].values
    want = select(
        built.array("scores"),
        built.array("rows"),
        int(str(values["tokens"])),
        int(str(values["score_cols"])),
        BUDGET,
    )
    blocks = np.full((3, BUDGET // RATIO), -1, dtype=np.int32)
    for row in range(3):
        length = (int(built.array("rows")[row]) + 1) // RATIO
        kept = np.unique(want.ids[row][want.ids[row] >= 0] // RATIO)
        kept = kept[kept < length]
        blocks[row, : kept.size] = kept[::-1]
    shuffled = np.random.default_rng(0).permuted(want.ids, axis=1)
    for form, given in (("mask", want.mask), ("tokens", shuffled), ("blocks", blocks)):
        assert _judged(built, form, given) == dict.fromkeys(
            ("selection", "ties", "zeros"), Status.PASS
        ), form


def test_equal_scores_at_higher_indices_break_the_tie_rule_and_nothing_else() -> None:
    built = _program(TIED)
    assert _broken(built, "mask", _mask((1, 3, 0, 2), built)) == set()
    assert _broken(built, "mask", _mask((1, 3, 5, 7), built)) == {"ties"}
    assert _broken(built, "blocks", np.array([[1, 3, 5, 7]], dtype=np.int64)) == {"ties"}


def test_a_free_tie_rule_lets_any_of_equal_scores_be_kept() -> None:
    built = _program(TIED)
    assert _judged(built, "mask", _mask((1, 3, 5, 7), built), "free") == {"selection": Status.PASS}
    assert _broken(built, "mask", _mask((1, 3, 5, 6), built), "free") == {"selection"}


def test_a_kept_plus_zero_before_a_minus_zero_breaks_the_zeros() -> None:
    row = np.array([-0.0, 2.0, 1.0, 3.0, 0.0, -0.0, -1.0], dtype=np.float32)
    built = _program(row)
    assert _broken(built, "mask", _mask((1, 2, 3, 0), built)) == set()
    assert _broken(built, "mask", _mask((1, 2, 3, 4), built)) == {"zeros"}
    # The other minus zero: no order of the zeros gives it.
    assert _broken(built, "mask", _mask((1, 2, 3, 5), built)) == {"ties"}


@pytest.mark.parametrize(
    "blocks", [(1, 3, 4, 0), (1, 3, 4), (1, 3, 4, 6, 0)], ids=["lower", "fewer", "more"]
)
def test_a_selection_that_no_tie_explains_is_wrong(blocks: tuple[int, ...]) -> None:
    built = _program(SCORES)
    assert _broken(built, "mask", _mask(blocks, built)) == {"selection"}


def test_a_missing_tail_and_a_token_past_the_position_are_wrong() -> None:
    built = _program(SCORES)
    right = _mask((1, 3, 4, 6), built)
    assert _broken(built, "mask", right) == set()
    for token, value in ((32, 0), (34, 1)):
        wrong = right.copy()
        wrong[0, token] = value
        assert _broken(built, "mask", wrong) == {"selection"}


@pytest.mark.parametrize(
    ("listed", "said"),
    [
        ([1, 3, 4, 8], "block 8 is none of the row's"),
        ([1, 3, 4, -1], "block -1 is none of the row's"),
        ([1, 3, 4, 4], "a block is listed twice"),
    ],
)
def test_a_list_of_what_is_no_block_is_wrong(listed: list[int], said: str) -> None:
    built = _program(SCORES)
    given = np.array([listed], dtype=np.int32)
    found = {f.check: f for f in interface.judge("blocks", "exact")(built, {"blocks": given})}
    assert found["selection"].status is Status.WRONG
    assert said in found["selection"].evidence.note


def test_what_follows_a_short_rows_list_is_not_looked_at() -> None:
    built = _program(SCORES[:2])
    assert _broken(built, "blocks", np.array([[1, 0, 77, -5]], dtype=np.int32)) == set()


def test_padding_rows_owe_zeros() -> None:
    built = _program(SCORES, SCORES, live_rows=1)
    right = _mask((1, 3, 4, 6), built, count=2)
    right[1] = 0
    assert _broken(built, "mask", right) == set()
    right[1, 0] = 1
    assert _broken(built, "mask", right) == {"selection"}


def test_scores_beyond_two_to_the_31_are_judged_by_their_rows() -> None:
    stage = load_stage("qsa_select")
    case = next(case for case in stage.cases(None) if case.family == "far-offset")
    built = case.build()
    view = interface.view(built, "mask")
    assert view is not None
    shape = view.buffers[-1].shape
    assert _broken(built, "mask", np.zeros(shape, np.uint8)) == {"selection"}
    launch = interface._launch(built)
    oracle = interface._Oracle(launch)
    right = np.stack([oracle.row(row) for row in range(shape[0])])
    assert _broken(built, "mask", right) == set()


def test_a_view_holds_everything_that_may_be_named() -> None:
    built = _program(SCORES, TIED[:3])
    for form, argument in interface.FORMS.items():
        view = interface.view(built, form)
        assert view is not None
        values = view.calls[0]
        left_out = {a.name for f, a in interface.FORMS.items() if f != form} | {"live_rows"}
        assert set(values) == set(interface.ARGUMENTS) - left_out - {"stream"}
        buffers = {buffer.name: buffer for buffer in view.buffers}
        assert buffers[argument.name].role is Role.OUTPUT
        assert buffers["lengths"].data is not None
        assert buffers["lengths"].data.tolist() == [8, 3]
        for name, buffer in buffers.items():
            assert buffer.dtype == interface.ARGUMENTS[name].dtype


def test_a_program_that_must_fail_is_nobody_elses_business() -> None:
    stage = load_stage("qsa_select")
    seen = {"trap": 0, "refusal": 0}
    for case in stage.cases(None):
        if case.family in seen:
            seen[case.family] += 1
            assert interface.view(case.build(), "mask") is None
    assert all(seen.values())


def test_a_list_of_nothing_owes_no_byte() -> None:
    built = _program(np.zeros(0, np.float32))
    for form, owes in (("mask", True), ("tokens", True), ("blocks", False)):
        view = interface.view(built, form)
        assert view is not None
        assert view.writes is owes


def test_the_names_are_those_of_the_kernels_own_entry() -> None:
    own = KERNEL.entry("qsa_select")
    for argument in own.arguments:
        offered = interface.ARGUMENTS[argument.name]
        assert (offered.dtype, offered.role) == (argument.dtype, argument.role)
        assert offered.optional == argument.optional
