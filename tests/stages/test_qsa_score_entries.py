"""The entries of score held to each other: the same selection, whatever body computed it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from qsa_bench.model import Status
from qsa_bench.oracles.qsa_numerics import Flips, ScoreOracle
from qsa_bench.program import OK
from qsa_bench.stages import _qsa_inputs as qsa
from qsa_bench.stages import load_stage
from qsa_bench.stages._qsa_score_judge import _inversions, judge_entries
from qsa_bench.stages._qsa_score_launch import (
    AUTOMATIC,
    MMA,
    SCALAR,
    launch_of,
    oracle_of,
)
from tests.stages.judged import (
    as_f32,
    by_check,
    case_of,
    failed,
    golden,
    golden_cases,
    judged,
    written,
)

Array = npt.NDArray[Any]
STAGE = load_stage("qsa_score")


def test_a_case_calls_both_entries_and_a_gpu_the_mma_one_on_the_same_inputs() -> None:
    cases = {case.id: case for case in STAGE.cases(golden())}
    entries = {name: [c.entry for c in case.build().calls] for name, case in cases.items()}
    both = [name for name, called in entries.items() if called[0] == AUTOMATIC and len(called) > 1]
    assert len(both) > 60
    for name in both:
        assert entries[name] == [AUTOMATIC, SCALAR]
        twin = cases[f"{name}-mma"]
        assert (twin.targets, entries[twin.id]) == (("cuda",), [MMA, SCALAR])
        for buffer in twin.build().buffers[:-2]:
            np.testing.assert_array_equal(buffer.data, cases[name].build().buffer(buffer.name).data)
    for family in ("trap", "refusal", "no-rows"):
        alone = [name for name in entries if f"/{family}/" in name]
        assert {entry for name in alone for entry in entries[name]} == {AUTOMATIC, SCALAR, MMA}
        assert all(len(entries[name]) == 1 for name in alone)


def test_the_mma_entry_is_called_where_it_just_serves_and_where_it_does_not_yet() -> None:
    """On the CPU the automatic entry hides whether it may: nothing else told a device apart."""
    cases = {case.id.partition("/")[2]: case for case in STAGE.cases(None)}
    first, before = cases["small-device/sm80-rows2-mma"], cases["refusal/before-sm80-mma"]
    for case, capability, expect in ((first, 80, OK), (before, 79, qsa.UNSUPPORTED)):
        built = case.build()
        (call,) = built.calls
        assert (call.entry, call.expect, case.targets) == (MMA, expect, ("host",))
        assert built.device == {"compute_capability": capability}
    assert cases["small-device/sm79-rows2"].build().device == {"compute_capability": 79}


@pytest.mark.parametrize("buffer", ["scores", "scores_scalar"])
def test_a_wrong_score_of_either_entry_is_seen_and_named(buffer: str) -> None:
    case = case_of(STAGE, "golden/case2")
    recorded = golden_cases()[2]
    want = oracle_of(launch_of(qsa.of_golden(golden(), recorded), recorded.rows.tolist()))
    got = written(as_f32(want.value), want.written)
    outputs = {"scores": got, "scores_scalar": got}
    assert failed(judged(case, **outputs)) == set()
    wrong = got.copy()
    place = tuple(int(part) for part in np.argwhere(want.written & ~want.flagged)[9])
    wrong[place] += np.float32(1)
    found = by_check(judged(case, **{**outputs, buffer: wrong}))
    assert found["score"].evidence.where == f"{buffer}[{place[0]}, {place[1]}]"
    assert found["score"].status is Status.WRONG
    # Golden scores are counted once, whatever is wrong, and what is left by either entry.
    assert found["score"].evidence.numbers["scores"] == want.written.sum()
    assert found["score"].evidence.numbers["left"] == 1


def of_one_row(value: list[float], bound: float = 0.0) -> ScoreOracle:
    """Return the oracle of a row of scores, each held at `bound` more than without flips."""
    score = np.array([value])
    unwidened = 2e-6 + 2e-6 * np.abs(score)
    written = np.ones(score.shape, dtype=np.bool_)
    return ScoreOracle(score, unwidened + bound, written, written & (bound > 0), Flips())


def test_entries_that_order_two_blocks_differently_select_differently() -> None:
    left, right = [3.0, 1.0, 2.0, 0.0], [3.0, 2.0, 1.0, 0.0]
    want = of_one_row(left, bound=2.0)
    outputs = {"scores": as_f32(np.array([left])), "scores_scalar": as_f32(np.array([right]))}
    found = by_check(judge_entries(want, outputs))
    # Each by itself is legal: an element of the query may have been rounded the other way.
    assert found["widened"].status is Status.PASS
    assert found["selection"].status is Status.WRONG
    assert found["selection"].evidence.where == "scores[0, 1]"


@pytest.mark.parametrize(("gap", "status"), [(1e-5, Status.PASS), (3e-5, Status.WRONG)])
def test_blocks_closer_than_f32_tells_may_change_places(gap: float, status: Status) -> None:
    # Both scores may err by 6e-6 and both entries do: 2.4e-5 apart they still may trade places.
    row = [2.0, 2.0 + gap]
    outputs = {
        "scores": as_f32(np.array([row])),
        "scores_scalar": as_f32(np.array([row[::-1]])),
    }
    assert by_check(judge_entries(of_one_row(row, 1.0), outputs))["selection"].status is status


def test_equal_scores_are_ordered_by_index_and_a_nan_is_nobodys_order() -> None:
    row = np.array([[0.0, 0.0, 1.0, np.nan, 0.0]], dtype=np.float32)
    want = of_one_row([0.0, 0.0, 1.0, math.nan, 0.0])
    nudged = row + np.array([[0, 2e-6, 0, 0, 1e-6]], dtype=np.float32)
    found = by_check(judge_entries(want, {"scores": row, "scores_scalar": nudged}))
    assert found["selection"].status is Status.PASS
    assert found["selection"].evidence.total == 6
    assert 0 < (found["selection"].evidence.margin or 0) < 1


def test_inversions_are_those_of_every_pair() -> None:
    random = np.random.default_rng(5)
    for _ in range(50):
        size = int(random.integers(2, 30))
        by = random.integers(0, 8, size).astype(np.float32)
        scores = by + random.normal(0, 1, size)
        bound = random.uniform(0.1, 0.5, size)
        gap, limit, pair = _inversions(scores, by, bound)
        order = sorted(range(size), key=lambda block: (-by[block], block))
        for place, (upper, lower) in enumerate(pair):
            assert upper == order[place]
            assert limit[place] == pytest.approx(2 * (bound[upper] + bound[lower]))
            excess = max(
                scores[block] - scores[upper] - 2 * (bound[block] + bound[upper])
                for block in order[place + 1 :]
            )
            assert (gap[place] > limit[place]) == (excess > 0)
