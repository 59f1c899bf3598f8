"""What the pipeline sees and what it lets pass: where a mask may differ, and what steps hand on."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from qsa_bench.bf16 import to_float32
from qsa_bench.model import Finding, Status
from qsa_bench.oracles.qsa_numerics import ScoreOracle
from qsa_bench.oracles.select import select
from qsa_bench.program import At, Call
from qsa_bench.stages import _qsa_inputs as qsa
from qsa_bench.stages import load_stage, qsa_chain
from qsa_bench.stages.qsa_chain import Pipeline, Step, against_reference, program, whole
from tests.stages.judged import (
    as_f32,
    by_check,
    case_of,
    failed,
    gated,
    golden_cases,
    judged,
    written,
)

Array = npt.NDArray[Any]
STAGE = load_stage("qsa_chain")
# One row of eight blocks and a tail of two; four are kept.
SCORES = np.array([[1.0, 5.0, 3.0, 4.0, 3.0 - 1e-6, 0.0, 2.0, 0.0]])
BOUND = np.full(SCORES.shape, 2e-6)
POSITION = 33
TOKENS = 40


def oracle(bound: Array = BOUND) -> ScoreOracle:
    everywhere = np.ones(SCORES.shape, dtype=bool)
    return ScoreOracle(SCORES, bound, everywhere, ~everywhere, None)  # type: ignore[arg-type]


def mask_of(*blocks: int) -> Array:
    mask = np.zeros((1, TOKENS), dtype=np.uint8)
    for block in blocks:
        mask[0, 4 * block : 4 * block + 4] = 1
    mask[0, 32 : POSITION + 1] = 1
    return mask


def held(mask: Array, reference: Array, budget: int = 12, bound: Array = BOUND) -> Finding:
    return against_reference(oracle(bound), mask, reference, (POSITION,), budget)


def test_blocks_within_their_bounds_of_the_cut_may_be_swapped_and_are_counted() -> None:
    finding = held(mask_of(1, 3, 4), mask_of(1, 2, 3))
    assert finding.status is Status.PASS
    assert finding.evidence.numbers == {"near_cut": 2, "differing_blocks": 2}


def test_the_last_kept_and_the_first_dropped_may_not_be_swapped_when_no_bound_joins_them() -> None:
    finding = held(mask_of(1, 2, 3, 6), mask_of(1, 2, 3, 4), budget=16)
    assert finding.status is Status.WRONG
    assert finding.evidence.where == "row 0 (position 33)"
    assert finding.evidence.numbers["near_cut"] == 0


def test_exact_zeros_that_tie_at_the_cut_may_be_swapped() -> None:
    reference = mask_of(0, 1, 2, 3, 4, 5, 6)
    assert held(mask_of(0, 1, 2, 3, 4, 6, 7), reference, budget=28).status is Status.PASS


@pytest.mark.parametrize(
    "mask",
    [
        mask_of(1, 2, 3, 4),
        mask_of(1, 3),
        mask_of(1, 2, 6),
        mask_of(3, 4, 2),
    ],
    ids=["one-more", "one-fewer", "below-the-cut", "the-highest-dropped"],
)
def test_other_blocks_are_seen(mask: Array) -> None:
    assert held(mask, mask_of(1, 2, 3)).status is Status.WRONG


@pytest.mark.parametrize("token", [8, 17, 32, 33, 34, 39])
def test_one_token_that_differs_is_seen_at_the_cut_in_the_tail_and_behind_it(token: int) -> None:
    mask = mask_of(1, 2, 3)
    mask[0, token] ^= 1
    assert held(mask, mask_of(1, 2, 3)).status is Status.WRONG


def test_half_a_block_is_no_pick_though_as_many_tokens_are_kept() -> None:
    mask = mask_of(1, 2, 3)
    mask[0, 10:12], mask[0, 16:18] = 0, 1  # half of block 2 for half of block 4, both at the cut
    assert held(mask, mask_of(1, 2, 3)).status is Status.WRONG


def test_a_row_that_keeps_everything_may_differ_nowhere() -> None:
    everything = mask_of(*range(8))
    assert held(everything, everything, budget=32).evidence.numbers["near_cut"] == 0
    assert held(mask_of(*range(7)), everything, budget=32).status is Status.WRONG


def test_a_wide_bound_joins_blocks_that_a_tight_one_keeps_apart() -> None:
    wide = BOUND.copy()
    wide[0, 6] = 1.5  # block 6 may be anything from 0.5 to 3.5
    swapped, reference = mask_of(1, 3, 6), mask_of(1, 2, 3)
    assert held(swapped, reference).status is Status.WRONG
    assert held(swapped, reference, bound=wide).status is Status.PASS


def test_the_goldens_own_scores_are_explained_by_its_flips_and_leave_nothing() -> None:
    """The reference's recorded scores and masks, put in the place of a kernel's."""
    beyond = flips = 0.0
    for case in golden_cases():
        keys = qsa_chain._oracles(pipeline_of(case.index))[0].value
        want = qsa_chain._oracles(pipeline_of(case.index))[1]
        outputs = {
            "block_keys": keys,
            "scores": written(case.scores, want.written),
            "mask": case.mask,
        }
        found = by_check(judged(case_of(STAGE, f"golden/case{case.index}"), **outputs))
        # Its ties are cut arbitrarily, so only the stable selection may say no.
        assert {check for check in found if found[check].status is not Status.PASS} <= {"mask"}
        numbers = found["reference-scores"].evidence.numbers
        assert numbers["reference_unexplained"] == 0
        beyond += numbers["reference_beyond"]
        flips += numbers["reference_flips"]
    assert beyond > 0
    assert 0 < flips < beyond


def pipeline_of(index: int) -> Pipeline:
    """Return the pipeline of a golden's case."""
    case = golden_cases()[index]
    built = case_of(STAGE, f"golden/case{index}").build()
    names = ("fused_qk", "q_norm_weight", "k_norm_weight", "cos", "sin")
    inputs = qsa.Inputs(*(built.array(name) for name in names))
    return whole(inputs, case.rows.tolist(), case.budget)


def test_a_score_far_from_the_recorded_one_is_seen_beside_the_oracle() -> None:
    case = golden_cases()[5]
    keys, want = qsa_chain._oracles(pipeline_of(5))
    scores = written(as_f32(want.value * 1.001), want.written)
    mask = select(
        np.nan_to_num(scores).reshape(-1), case.rows, case.tokens, scores.shape[1], case.budget
    ).mask
    found = judged(case_of(STAGE, "golden/case5"), block_keys=keys.value, scores=scores, mask=mask)
    # Order is all that a selection reads: no mask shows the error.
    assert failed(found) == {"score", "scale", "reference-scores"}


@pytest.mark.parametrize("label", ["kept", "reused"])
def test_a_decode_pools_each_block_once_when_its_last_token_comes(label: str) -> None:
    calls = case_of(STAGE, f"decode/{label}").build().calls
    pooled: list[int] = []
    for call in calls:
        if call.entry == "qsa_pool":
            first = int(str(call.values["first_block"]))
            pooled += range(first, first + int(str(call.values["block_count"])))
        elif call.entry == "qsa_score":
            # What a row sees is there by then.
            assert max(rows_of(call, label)) + 1 < 4 * (len(pooled) + 1)
    assert pooled == list(range(22))


def rows_of(call: Call, label: str) -> list[int]:
    rows = call.values["rows"]
    assert isinstance(rows, At)
    built = case_of(STAGE, f"decode/{label}").build()
    count = int(str(call.values["row_count"]))
    return [int(row) for row in built.array("rows")[rows.offset : rows.offset + count]]


def test_a_decode_reads_its_own_fused_rows_and_ends_with_a_shorter_row() -> None:
    positions: list[int] = []
    for call in case_of(STAGE, "decode/reused").build().calls:
        if call.entry == "qsa_score":
            fused = call.values["fused_qk"]
            assert isinstance(fused, At)
            assert fused.offset == 640 * int(str(call.values["first_position"]))
            assert call.values["scores"] == At("scores", 0)
            positions += rows_of(call, "reused")
    assert positions[-1] < positions[-2] // 2


def test_steps_that_keep_their_scores_are_judged_row_by_row_as_one_call_is() -> None:
    inputs = qsa.random_inputs(40, "steps")
    one = whole(inputs, (15, 39), 16)
    two = Pipeline(inputs, (Step((0, 4), (15,)), Step((4, 6), (39,), 20)), 16)
    assert one.rows == two.rows
    for name in ("scores", "mask", "block_keys"):
        assert program(one).buffer(name).shape == program(two).buffer(name).shape
    left, right = qsa_chain._oracles(one)[1], qsa_chain._oracles(two)[1]
    np.testing.assert_array_equal(left.value, right.value)


def test_small_keys_of_the_chain_depend_on_eps() -> None:
    built = case_of(STAGE, "scale/0.003").build()
    keys = to_float32(built.array("fused_qk")[:, 512:]).astype(np.float64)
    mean_square = (keys**2).mean()
    assert 1e-6 < mean_square < 1e-4  # not far above eps


def test_the_kernels_pass_fifty_fresh_seeds() -> None:
    cases = [
        qsa_chain._case(
            "fresh", str(seed), whole(qsa.random_inputs(240, "fresh", seed), (239, 202, 97), 64)
        )
        for seed in range(50)
    ]
    verdicts = gated(STAGE, cases)
    assert [verdict for verdict in verdicts if not verdict.passed] == []
    assert {verdict.case for verdict in verdicts} == {case.id for case in cases}
