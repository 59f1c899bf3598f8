"""What the DSA scores' judge sees, and what it lets pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from qsa_bench.goldens.dsa import MASKED
from qsa_bench.stages import _dsa_inputs as dsa
from qsa_bench.stages import _dsa_score_launch as launches
from qsa_bench.stages import _dsa_score_sweep as sweep
from qsa_bench.stages import load_stage
from tests.stages.dsa_judged import case_of, faults, golden_cases, untouched
from tests.stages.judged import by_check, gated, judged

Array = npt.NDArray[Any]

STAGE = load_stage("dsa_index_scores")


def correct(number: int) -> tuple[Any, dict[str, Array], Any]:
    """Return a golden case, its outputs as the oracle has them, and the oracle."""
    case = case_of(STAGE, f"golden/case{number}")
    recorded = golden_cases()[number]
    inputs = dsa.of_golden(recorded)
    own = tuple(dsa.listed_pool_keys(recorded, row) for row in range(recorded.batch))
    want = launches.wanted_of(launches.Launch(inputs, own, inputs.tokens))
    outputs = untouched(case.build())
    scores = outputs["scores"]
    scores[want.written] = np.where(want.candidate, want.value, MASKED)[want.written]
    outputs["visible_pools"][:] = want.visible
    return case, outputs, want


def test_the_oracles_scores_pass_every_check() -> None:
    case, outputs, _ = correct(6)
    assert faults(case, outputs) == set()
    assert set(by_check(judged(case, **outputs))) == {*STAGE.checks} - {"padded-equals-unpadded"}


@pytest.mark.parametrize("times", [0.9, 1.1])
def test_a_score_is_held_at_its_own_bound(times: float) -> None:
    case, outputs, want = correct(9)
    place = tuple(np.argwhere(want.candidate)[1000])
    outputs["scores"][place] = want.value[place] + times * want.bound[place]
    assert faults(case, outputs) == ({"score"} if times > 1 else set())


@pytest.mark.parametrize("error", [2e-7, 1e-6])
def test_a_scale_error_that_no_single_bound_sees_is_seen_on_all_together(error: float) -> None:
    case, outputs, want = correct(9)
    outputs["scores"][want.candidate] *= np.float32(1 + error)
    assert faults(case, outputs) == ({"scale"} if error > 4e-7 else set())


def test_masked_and_untouched_columns_and_counts_have_checks_of_their_own() -> None:
    case, outputs, want = correct(6)
    for where, check in (
        (want.written & ~want.candidate, "masked"),
        (~want.written, "untouched-scores"),
    ):
        changed = {name: array.copy() for name, array in outputs.items()}
        changed["scores"][tuple(np.argwhere(where)[-1])] = 0.0
        assert faults(case, changed) == {check}
    outputs["visible_pools"][1, 4] += 1
    assert faults(case, outputs) == {"visible-pools"}


def test_a_score_where_nothing_is_written_is_not_mistaken_for_zero() -> None:
    case, outputs, want = correct(5)
    outputs["scores"][want.candidate] = untouched(case.build())["scores"][want.candidate]
    assert "score" in faults(case, outputs)


def test_a_nan_must_meet_a_nan() -> None:
    case = case_of(STAGE, "nan/key")
    (verdict,) = [v for v in gated(STAGE, [case]) if v.check == "score"]
    assert verdict.passed
    built = case.build()
    outputs = untouched(built)
    assert "score" in faults(case, outputs)


def test_a_point_of_the_sweep_sees_a_wrong_score_in_any_row() -> None:
    point = sweep.point("dsa_index_scores", {"context": "2048", "rows": "20", "input": "normal"})
    want = sweep._oracle(20, 2048)
    places = np.arange(20) % 7
    scores = want.value[:, places].astype(np.float32)
    visible = want.visible[:, places]
    outputs = {"scores": scores, "visible_pools": visible}

    def seen() -> set[str]:
        found = point.judge(point.program, outputs)
        return {finding.check for finding in found if finding.status != "pass"}

    assert seen() == set()
    for row in (0, 6, 13, 19):
        before = scores[0, row, 500]
        scores[0, row, 500] += 0.1
        assert "score" in seen()
        scores[0, row, 500] = before
