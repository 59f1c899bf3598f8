"""What the key pooling's judge sees, and what it lets pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from qsa_bench.stages import _dsa_compress_launch as launches
from qsa_bench.stages import _dsa_inputs as dsa
from qsa_bench.stages import load_stage
from tests.stages.dsa_judged import case_of, faults, golden_cases, untouched
from tests.stages.judged import by_check, gated, judged

Array = npt.NDArray[Any]

STAGE = load_stage("dsa_kpool_compress")


def correct(name: str) -> tuple[Any, dict[str, Array]]:
    """Return a golden case and its outputs as the oracle has them."""
    case = case_of(STAGE, f"golden/{name}")
    recorded = golden_cases()[int(name.removeprefix("case"))]
    inputs = dsa.of_golden(recorded)
    step = launches.Step(inputs.tokens, inputs.tokens)
    want = launches.wanted_of(launches.Launch(inputs, (step,)))
    outputs = untouched(case.build())
    for row, lists in enumerate(want.lists):
        outputs["pool_keys"][row, : lists.starts.size] = want.keys[row].value
        outputs["first_keys"][row] = lists.first
        outputs["slots"][row, : len(lists.slots)] = lists.slots
        outputs["pool_starts"][row, : lists.starts.size] = lists.starts
    return case, outputs


def test_the_oracles_outputs_pass_every_check() -> None:
    case, outputs = correct("case6")
    found = by_check(judged(case, **outputs))
    assert set(found) == {"pool-keys", "untouched", "lists", "reference-keys"}
    assert faults(case, outputs) == set()


def test_a_legal_rounding_passes_and_is_counted() -> None:
    case, outputs = correct("case9")
    recorded = golden_cases()[9]
    inputs = dsa.of_golden(recorded)
    step = launches.Step(inputs.tokens, inputs.tokens)
    want = launches.wanted_of(launches.Launch(inputs, (step,))).keys[0]
    place = tuple(np.argwhere(want.flagged())[0])
    other = want.low[place] if want.value[place] == want.high[place] else want.high[place]
    outputs["pool_keys"][0][place] = other
    found = by_check(judged(case, **outputs))["pool-keys"]
    assert faults(case, outputs) == set()
    assert found.evidence.numbers["flipped"] == 1
    assert found.evidence.numbers["may_flip"] == want.flagged().sum() > 1


@pytest.mark.parametrize(
    ("name", "place", "check"),
    [
        ("pool_keys", (0, 3, 9), "pool-keys"),
        ("pool_keys", (2, -1, 0), "untouched"),
        ("first_keys", (1,), "lists"),
        ("slots", (1, 2, 1), "lists"),
        ("slots", (2, -1, 0), "lists"),
        ("pool_starts", (2, 1), "lists"),
        ("pool_starts", (2, -1), "lists"),
    ],
)
def test_one_wrong_value_is_seen_by_its_check_alone(
    name: str, place: tuple[int, ...], check: str
) -> None:
    case, outputs = correct("case6")
    outputs[name][place] += 1
    assert faults(case, outputs) == {check}


def test_a_wrong_key_of_the_reference_is_seen() -> None:
    recorded = golden_cases()[5]
    keys = [
        launches.compress(recorded.k_normed[0], recorded.gate[0], np.float32(0) * _ape(), _starts())
    ]
    assert launches.reference_finding(recorded, keys).status == "wrong"


def _ape() -> Array:
    return np.asarray(dsa.of_golden(golden_cases()[5]).ape)


def _starts() -> Array:
    return dsa.of_golden(golden_cases()[5]).lists()[0].starts


def test_steps_pool_what_they_complete_and_rewound_ones_again() -> None:
    names = ("decode", "decode-padded", "replayed-padded", "chunk-padded", "nothing-live")
    verdicts = gated(STAGE, [case_of(STAGE, f"steps/{name}") for name in names])
    assert {verdict.status for verdict in verdicts} == {"pass"}
