"""What the DSA expansion's judge sees: against the oracle in full, the reference as sets."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from qsa_bench.stages import _dsa_expand_launch as launches
from qsa_bench.stages import _dsa_inputs as dsa
from qsa_bench.stages import load_stage
from qsa_bench.stages.dsa_expand_selection import as_sets
from tests.stages.dsa_judged import case_of, faults, golden_cases
from tests.stages.judged import gated

Array = npt.NDArray[Any]

STAGE = load_stage("dsa_expand_selection")


def correct(number: int) -> tuple[Any, dict[str, Array]]:
    case = case_of(STAGE, f"golden/case{number}")
    built = case.build()
    recorded = golden_cases()[number]
    inputs = dsa.of_golden(recorded)
    kept, counts = built.array("kept_pools"), built.array("kept_counts")
    ids = launches.wanted_ids(inputs, kept, counts, inputs.q_pos, inputs.tokens)
    return case, {"token_ids": ids}


def test_the_oracles_ids_pass_and_are_the_references() -> None:
    for number in range(len(golden_cases())):
        case, outputs = correct(number)
        assert faults(case, outputs) == set(), case.id


def test_another_order_is_the_references_set_and_not_the_contract() -> None:
    case, outputs = correct(6)
    outputs["token_ids"][0, 20, :8] = outputs["token_ids"][0, 20, :8][::-1]
    assert faults(case, outputs) == {"token-ids"}


def test_a_token_twice_is_the_references_set_and_not_the_contract() -> None:
    case, outputs = correct(6)
    ids = outputs["token_ids"][0, 20]
    ids[(ids >= 0).sum()] = ids[0]
    assert faults(case, outputs) == {"token-ids"}


def test_another_token_is_seen_by_both() -> None:
    case, outputs = correct(6)
    outputs["token_ids"][0, 20, 0] += 1
    assert faults(case, outputs) == {"token-ids", "reference-ids"}


def test_sets_are_compared_without_order_fill_and_repeats() -> None:
    one = np.array([[[4, 5, -1, 7, 5, -1]]], dtype=np.int32)
    assert as_sets(one, np.array([[[7, 5, 4, -1, -1, -1]]], dtype=np.int32)).status == "pass"
    for other in ([7, 5, -1, -1, -1, -1], [7, 5, 4, 3, -1, -1], [7, 6, 4, -1, -1, -1]):
        assert as_sets(one, np.array([[other]], dtype=np.int32)).status == "wrong"


def test_rows_of_padding_and_holes_expand_as_the_oracle_says() -> None:
    names = ("left", "all-padding", "hole-in-the-tail", "tail-in-a-kept-pool", "shifted")
    verdicts = gated(STAGE, [case_of(STAGE, f"padding/{name}") for name in names])
    assert {verdict.status for verdict in verdicts} == {"pass"}
