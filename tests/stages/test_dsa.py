"""The DSA pipeline: what its judge sees of a whole run, and the real kernels on chosen steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from qsa_bench.stages import _dsa_inputs as dsa
from qsa_bench.stages import load_stage
from qsa_bench.stages._dsa_pipeline import Pipeline, Step, StepWanted, program, wanted_of, whole
from qsa_bench.stages._dsa_pipeline_judge import judge_reference, row_fault
from tests.stages.dsa_judged import case_of, golden_cases
from tests.stages.judged import gated

Array = npt.NDArray[Any]

STAGE = load_stage("dsa")
CASE = 5  # 47 tokens, 4 pools kept of up to 11


@pytest.fixture(scope="module")
def pipeline() -> Pipeline:
    return whole(dsa.of_golden(golden_cases()[CASE]))


@pytest.fixture(scope="module")
def want(pipeline: Pipeline) -> StepWanted:
    return wanted_of(pipeline)[0]


def ids_of(pipeline: Pipeline, want: StepWanted, row: int, order: Array | None = None) -> Array:
    """Return a row's ids as the contract has them, from the float64 scores."""
    seen = int(want.scores.visible[0, row])
    value = want.scores.value[0, row, :seen]
    best = np.argsort(-value, kind="stable")[: pipeline.inputs.keep] if order is None else order
    starts = np.sort(pipeline.inputs.lists()[0].starts[best])
    position = int(want.positions[row])
    tail = np.arange(position + 1 - (position + 1) % 4, position + 1)
    ids = np.full(pipeline.layout.output_width, -1, dtype=np.int32)
    listed = np.concatenate([(starts[:, None] + np.arange(4)).reshape(-1), tail])
    ids[: listed.size] = listed
    return ids


def test_a_rows_ids_are_right_for_the_highest_scores_alone(
    pipeline: Pipeline, want: StepWanted
) -> None:
    row = 12
    assert row_fault(pipeline, want, 0, row, ids_of(pipeline, want, row)) == (0, "")
    seen = int(want.scores.visible[0, row])
    order = np.argsort(-want.scores.value[0, row, :seen], kind="stable")
    swapped = np.append(order[:3], order[4])
    _, fault = row_fault(pipeline, want, 0, row, ids_of(pipeline, want, row, swapped))
    assert "away from the cut" in fault


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda ids: ids[[4, 5, 6, 7, 0, 1, 2, 3, *range(8, ids.size)]], "do not ascend"),
        (lambda ids: np.where(np.arange(ids.size) == 1, ids + 1, ids), "no whole pools"),
        (lambda ids: np.where(np.arange(ids.size) == 16, -1, ids), "not the tail"),
        (lambda ids: np.where(np.arange(ids.size) == ids.size - 1, 0, ids), "not the tail"),
    ],
)
def test_other_ids_are_wrong_by_name(
    pipeline: Pipeline, want: StepWanted, change: Any, said: str
) -> None:
    ids = ids_of(pipeline, want, 12)
    _, fault = row_fault(pipeline, want, 0, 12, change(ids))
    assert said in fault


def test_the_references_ids_are_the_oracles_on_every_golden_case() -> None:
    for recorded in golden_cases():
        given = whole(dsa.of_golden(recorded))
        assert judge_reference(given, wanted_of(given)[-1], recorded).status == "pass"


def test_a_reference_that_keeps_another_pool_is_seen(pipeline: Pipeline, want: StepWanted) -> None:
    from dataclasses import replace

    recorded = golden_cases()[CASE]
    moved = recorded.token_ids.copy()
    row = moved[0, 12]
    dropped = next(start for start in range(0, 40, 4) if start not in row)
    row[:4] = np.arange(dropped, dropped + 4)
    changed = replace(recorded, token_ids=moved)
    assert judge_reference(pipeline, want, changed).status == "wrong"


def test_scores_within_their_bounds_leave_a_cut_open_and_no_other() -> None:
    inputs = dsa.random_inputs(48, "open", topk=16, rows=(47,))
    given = whole(inputs)
    (step,) = wanted_of(given)
    value, bound = step.scores.value[0, 0], step.scores.bound[0, 0]
    order = np.argsort(-value[:12])
    value[order[4]] = value[order[3]] - bound[order[3]]  # fifth and fourth may change places
    for last, fault in ((3, ""), (4, ""), (5, "a pool away from the cut is kept or dropped")):
        ids = ids_of(given, step, 0, np.append(order[:3], order[last]))
        assert row_fault(given, step, 0, 0, ids) == (2, fault)


def test_replayed_steps_are_five_launches_at_one_ceiling() -> None:
    inputs = dsa.random_inputs(40, "shape", topk=16, rows=(6, 7))
    calls = program(Pipeline(inputs, (Step(7, 1, 1), Step(8, 1, 1)), replayed=True)).calls
    assert len(calls) == 10
    for first, second in zip(calls[1:5], calls[6:], strict=True):
        same = {name for name in first.values if first.values[name] == second.values[name]}
        # Where a step's row lies differs; every scalar is the capture's.
        assert set(first.values) - same == {"q", "weights", "token_ids"}
    assert [call.values["live"] for call in calls if "live" in call.values] == [7, 8]


def test_a_decode_and_a_replay_pass_on_the_kernels() -> None:
    names = ("decode/padded", "replay/plain", "verify/five-rows", "padding/holes-tail")
    verdicts = gated(STAGE, [case_of(STAGE, name) for name in names])
    assert {verdict.status for verdict in verdicts} == {"pass"}
