"""Points of the sweeps: what is launched, what it must move, that a wrong output is seen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from qsa_bench.model import Role, Status
from qsa_bench.oracles.select import select
from qsa_bench.stages import _qsa_score_sweep as score
from qsa_bench.stages import _qsa_select_sweep as chosen
from qsa_bench.stages import load_stage
from qsa_bench.stages._qsa_score_launch import SCORES
from qsa_bench.stages.base import SweepPoint

Array = npt.NDArray[Any]


def _select(
    entry: str = "qsa_select", context: int = 2052, rows: int = 3, kind: str = "relu4"
) -> SweepPoint:
    return chosen.point(entry, {"context": str(context), "rows": str(rows), "input": kind})


def _score(context: int = 2048, rows: int = 3) -> SweepPoint:
    return score.point("qsa_score", {"context": str(context), "rows": str(rows), "input": "normal"})


def _failed(point: SweepPoint, outputs: Mapping[str, Array]) -> set[str]:
    found = list(point.judge(point.program, outputs))
    assert found
    return {finding.check for finding in found if finding.status is not Status.PASS}


def _wanted(point: SweepPoint) -> dict[str, Array]:
    values = point.program.calls[0].values
    tokens, cols, budget = (int(str(values[n])) for n in ("tokens", "score_cols", "budget"))
    scores, rows = point.program.array("scores"), point.program.array("rows")
    found = select(scores, rows, tokens, cols, budget)
    return {"mask": found.mask, "ids": found.ids, "counts": found.counts}


@pytest.mark.parametrize("kind", chosen.INPUTS)
def test_every_kind_of_input_is_one_that_the_oracle_judges(kind: str) -> None:
    point = _select(kind=kind)
    assert _failed(point, {"mask": _wanted(point)["mask"]}) == set()


def test_every_row_sits_at_the_last_position_of_its_context() -> None:
    point = _select(context=8192, rows=8)
    assert point.program.array("rows").tolist() == [8191] * 8
    assert point.program.array("scores").size == 8 * 2048


def test_rows_differ_and_repeat_after_a_prime() -> None:
    scores = _select(rows=130).program.array("scores").reshape(130, -1)
    assert len({row.tobytes() for row in scores}) == 61
    assert np.array_equal(scores[0], scores[61])
    # Half a million scores a row: fewer rows differ, and still a prime number of them.
    assert chosen._different(64, 1 << 19) == 7


@pytest.mark.parametrize("row", [0, 60, 61, 129])
def test_a_wrong_bit_in_any_row_is_seen(row: int) -> None:
    point = _select(rows=130)
    mask = _wanted(point)["mask"]
    assert _failed(point, {"mask": mask}) == set()
    mask[row, 7] ^= 1
    assert _failed(point, {"mask": mask}) == {"mask"}


def test_the_id_lists_are_judged_with_their_counts() -> None:
    point = _select("qsa_select_ids")
    want = _wanted(point)
    given = {"ids": want["ids"], "counts": want["counts"]}
    assert _failed(point, given) == set()
    assert _failed(point, {**given, "counts": want["counts"] + 1}) == {"counts"}


def test_both_entries_are_timed_on_the_same_scores() -> None:
    first = _select("qsa_select")
    chosen._wanted.cache_clear()
    second = _select("qsa_select_ids")
    left, right = (point.program.array("scores") for point in (first, second))
    assert left.tobytes() == right.tobytes()
    assert [len(point.program.calls) for point in (first, second)] == [1, 1]


def test_bytes_are_those_that_cant_be_avoided() -> None:
    mask, ids = (_select(entry, 65536, 8) for entry in ("qsa_select", "qsa_select_ids"))
    assert (mask.bytes_read, mask.bytes_written) == (8 * (16384 * 4 + 4), 8 * 65536)
    assert (ids.bytes_read, ids.bytes_written) == (mask.bytes_read, 8 * (2051 * 4 + 4))
    read = sum(b.bytes for b in mask.program.buffers if b.role is Role.INPUT)
    assert mask.bytes_read == read


def _scores(point: SweepPoint) -> Array:
    """Return what the oracle wants, row by row, as a kernel would give it."""
    rows = int(point.axes["rows"])
    want = score.oracle(rows, int(point.axes["context"])).value
    return want[np.arange(rows) % want.shape[0]].astype(np.float32)


@pytest.mark.parametrize("rows", [1, 3, 61, 100])
def test_the_score_oracles_own_result_passes_whatever_the_rows(rows: int) -> None:
    point = _score(rows=rows)
    assert _failed(point, {"scores": _scores(point)}) == set()


@pytest.mark.parametrize("row", [0, 60, 61, 99])
def test_a_wrong_score_in_any_row_is_seen(row: int) -> None:
    point = _score(rows=100)
    got = _scores(point)
    got[row, 100] += np.float32(1e-2)
    assert "score" in _failed(point, {"scores": got}) or "widened" in _failed(
        point, {"scores": got}
    )


def test_rows_mixed_up_by_a_power_of_two_are_seen() -> None:
    point = _score(rows=100)
    assert _failed(point, {"scores": np.roll(_scores(point), 32, axis=0)}) != set()


def test_the_rows_of_a_score_launch_see_the_whole_context() -> None:
    point = _score(8192, 100)
    assert point.program.array("visible_len").tolist() == [8192] * 100
    assert sorted(set(point.program.array("rows").tolist())) == list(range(8192 - 61, 8192))
    assert point.program.buffer("fused_qk").shape == (61, 640)
    assert point.bytes_written == 100 * 2048 * 4
    # Keys, the query columns and table rows of the 61 positions, the weight, two numbers a row.
    assert point.bytes_read == 2 * (2048 * 128 + 61 * (512 + 128) + 128) + 800


@pytest.mark.parametrize("entry", list(SCORES))
def test_a_point_of_a_score_entry_times_that_entry_alone(entry: str) -> None:
    point = score.point(entry, {"context": "2048", "rows": "3", "input": "normal"})
    assert (point.entry, [call.entry for call in point.program.calls]) == (entry, [entry])
    assert _failed(point, {SCORES[entry]: _scores(point)}) == set()
    assert _failed(point, {SCORES[entry]: 2 * _scores(point)}) != set()


def test_tables_hold_the_rotation_of_their_positions() -> None:
    from qsa_bench.stages._qsa_inputs import rotary_tables

    launch = score.launch_of(3, 2048)
    for made, whole in zip(
        (launch.inputs.cos, launch.inputs.sin), rotary_tables(2048), strict=True
    ):
        assert np.array_equal(made[2045:], whole[2045:])


@pytest.mark.parametrize("name", ["qsa_select", "qsa_score"])
def test_what_a_sweep_names_is_the_stages_own(name: str) -> None:
    stage = load_stage(name)
    assert stage.sweep is not None
    symbols = {entry.symbol for kernel in stage.kernels for entry in kernel.entries}
    assert set(stage.sweep.entries) <= symbols
    assert set(stage.sweep.peers) <= symbols
    known = {"entry", "cache", *stage.sweep.axes, *stage.kernels[0].axes}
    assert all(set(grid) <= known for grid in stage.sweep.standard)
