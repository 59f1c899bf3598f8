"""Facts about kept outcomes: found for the same inputs alone, marked, never half-read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from qsa_bench.model import Expect, Kill, Mutant, MutantResult, Outcome
from qsa_bench.reuse import Outcomes

MUTANT = Mutant(
    id="stage/drops",
    stage="stage",
    proves="it is seen",
    clause="tail",
    expect=Expect.KILLED,
    patch="--- a/x\n+++ b/x\n",
    killed_by=("mask",),
)
RESULT = MutantResult(MUTANT, "host", Outcome.KILLED, True, ("mask",), 201, float("inf"))
KILLS = [Kill(MUTANT.id, "mask", 7, 3, None, "stage/golden/case0")]
INPUTS = ("host", "2", "golden", "build")


def test_a_kept_outcome_is_found_whole_and_marked_as_reused(tmp_path: Path) -> None:
    Outcomes(tmp_path).keep(MUTANT, INPUTS, RESULT, KILLS)
    found = Outcomes(tmp_path).find(MUTANT, INPUTS)
    assert found is not None
    result, kills = found
    assert result.reused
    assert (result.outcome, result.killed_by, result.differing_bits, result.margin) == (
        Outcome.KILLED,
        ("mask",),
        201,
        float("inf"),
    )
    assert kills == KILLS


@pytest.mark.parametrize("place", range(len(INPUTS)))
def test_another_input_finds_nothing(tmp_path: Path, place: int) -> None:
    Outcomes(tmp_path).keep(MUTANT, INPUTS, RESULT, KILLS)
    changed = [*INPUTS]
    changed[place] += "x"
    assert Outcomes(tmp_path).find(MUTANT, changed) is None


def test_another_manifest_finds_nothing(tmp_path: Path) -> None:
    Outcomes(tmp_path).keep(MUTANT, INPUTS, RESULT, KILLS)
    assert Outcomes(tmp_path).find(replace(MUTANT, killed_by=("ids",)), INPUTS) is None


def test_a_truncated_outcome_is_no_outcome(tmp_path: Path) -> None:
    Outcomes(tmp_path).keep(MUTANT, INPUTS, RESULT, KILLS)
    (kept,) = tmp_path.iterdir()
    kept.write_text(kept.read_text()[:-20])
    assert Outcomes(tmp_path).find(MUTANT, INPUTS) is None


def test_what_was_not_run_is_not_kept(tmp_path: Path) -> None:
    unfinished = replace(RESULT, outcome=Outcome.NOT_RUN)
    Outcomes(tmp_path).keep(MUTANT, INPUTS, unfinished, [])
    assert list(tmp_path.iterdir()) == []


def test_no_folder_keeps_nothing() -> None:
    outcomes = Outcomes(None)
    outcomes.keep(MUTANT, INPUTS, RESULT, KILLS)
    assert outcomes.find(MUTANT, INPUTS) is None
