"""Select's cases at the edges of its search lie on those edges."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from qsa_bench.stages import qsa_select
from qsa_bench.stages.base import Case

Array = npt.NDArray[Any]
LOWEST = np.finfo(np.float32).min
CASES = {case.label: case for case in qsa_select.STAGE.cases(None) if case.family == "edge"}


def rows_of(case: Case) -> tuple[list[Array], int]:
    """Return the scores of each row's blocks, and how many blocks are kept."""
    built = case.build()
    values = built.calls[0].values
    scores, stride = built.array("scores").reshape(-1), int(str(values["score_cols"]))
    blocks = (built.array("rows") + 1) // 4
    rows = [scores[at * stride : at * stride + count] for at, count in enumerate(blocks.tolist())]
    return rows, int(str(values["budget"])) // 4


def coarse_bins(scores: Array) -> Array:
    """Number the coarse bins of scores as the search does: 128 an octave from 2**-8 to 2**8."""
    first = (127 - 8) << 7
    bins: Array = np.clip(scores.view(np.int32) >> 16, first, first + 2047) - first
    return bins


def test_a_mutant_meets_them_only_where_the_others_leave_it_alive() -> None:
    assert len(CASES) == 24
    assert all(case.reserve for case in CASES.values())


def test_the_bins_of_the_cut_hold_as_many_scores_as_they_should() -> None:
    rows, keep = rows_of(CASES["list-lengths"])
    lengths = []
    for row in rows:
        bins = coarse_bins(row)
        lengths.append(int((bins == np.sort(bins)[::-1][keep - 1]).sum()))
        assert len(row) % 4 == 0
        # The last one listed stands before the others.
        assert row[-1] == row[row < 0].max()
    assert lengths == [33, 65, 97, 126, 128, 129]


def test_scores_stand_on_both_ends_of_the_bins_around_the_cut() -> None:
    rows, keep = rows_of(CASES["bin-edges"])
    above, cut = np.sort(rows[0])[::-1][keep - 15 : keep + 1 : 15]
    bins = coarse_bins(np.array([above, cut]))
    assert bins[0] == bins[1] + 1
    around = np.unique(rows[0])
    assert np.diff(around.view(np.uint32)).tolist() == [1, 0xFFFF, 1]
    assert (coarse_bins(rows[1]) == 0).all()
    assert (rows[1].view(np.uint32) == (119 << 23) + 0xFFFF).sum() == 10


def test_cuts_lie_right_behind_positives_behind_zeros_and_in_negative_ties() -> None:
    rows, keep = rows_of(CASES["sides-of-zero"])
    assert [int((row > 0).sum()) for row in rows] == [keep, keep - 40, 10, 30]
    assert [int((row >= 0).sum()) for row in rows] == [keep + 40, keep, 40, 170]
    assert np.sort(rows[0])[::-1][keep - 1] == np.float32(2.0**-149)
    assert np.sort(rows[2])[::-1][keep - 1 : keep + 1].tolist() == [-0.5, -0.5]
    # More than are ranked lie in the lowest bin.
    assert all((coarse_bins(row) == 0).sum() > 128 for row in rows)


@pytest.mark.parametrize("label", ["between-bins", "between-bins-of-a-cluster"])
def test_one_bin_ends_at_the_cut_and_the_next_one_is_crowded(label: str) -> None:
    (row,), keep = rows_of(CASES[label])
    bins = np.sort(coarse_bins(row))[::-1]
    assert bins[keep - 1] > bins[keep]
    assert (bins == bins[keep]).sum() == 200


def test_the_lowest_score_is_tied_at_the_cut_of_rows_on_every_boundary() -> None:
    case = CASES["lowest-scores"]
    rows, keep = rows_of(case)
    for row in rows:
        assert np.sort(row)[::-1][keep - 1 : keep + 1].tolist() == [LOWEST, LOWEST]
    stride = int(str(case.build().calls[0].values["score_cols"]))
    assert {at * stride % 4 for at in range(len(rows))} == {0, 1, 2, 3}


@pytest.mark.parametrize("label", ["vast-capacity", "vast-capacity-sm80"])
def test_four_times_a_vast_capacity_is_no_int32(label: str) -> None:
    (call,) = CASES[label].build().calls
    assert int(str(call.values["tokens"])) * 4 > 2**31 - 1 >= int(str(call.values["tokens"]))
    assert int(str(call.values["score_cols"])) * 4 == int(str(call.values["tokens"]))


def test_parts_begin_with_a_block_that_is_kept_from_the_bin_of_the_cut() -> None:
    rows, keep = rows_of(CASES["first-of-a-part"])
    for row, begins in zip(rows, (428, 0), strict=True):
        bins = coarse_bins(row)
        cut = np.sort(row)[::-1][keep - 1]
        assert row[begins] > cut
        assert bins[begins] == bins[row == cut][0]
        assert (bins == bins[begins]).sum() == 8


def test_scores_begin_on_every_address_that_could_pass_for_a_vectors() -> None:
    built = CASES["scores-at-any-address"].build()
    places = [call.values["scores"].offset for call in built.calls]
    assert places == list(range(34))
    for width in (15, 17):
        for base in range(0, 16 * width, 4):
            begins = [base + 4 * place for place in places]
            assert any(at % width == 0 and at % 16 != 0 for at in begins)


def test_the_ties_of_the_cut_lie_in_the_last_part_and_are_more_than_are_ranked() -> None:
    (row,), keep = rows_of(CASES["ties-of-the-last-part"])
    tied = np.flatnonzero(row == row.max())
    assert tied.size > max(128, keep)
    assert tied.min() > 3 * 428
