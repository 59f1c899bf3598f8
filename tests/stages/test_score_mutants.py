"""Facts about the mutants of pool, score and chain as a set, from their manifests alone."""

from __future__ import annotations

from functools import cache

import pytest

from qsa_bench import baseline
from qsa_bench.model import Expect, Mutant
from qsa_bench.stages import load_stage

NAMES = ("qsa_pool", "qsa_score", "qsa_chain")
# Checks that compare a number with a bound; the rest is bitwise or yes and no.
BOUNDED = {"block-keys", "score", "widened", "scale", "lean", "reference-scores"}


@cache
def mutants_of(stage: str) -> tuple[Mutant, ...]:
    return tuple(baseline.read_mutants(load_stage(stage)))


@pytest.mark.parametrize("stage", NAMES)
def test_every_clause_is_broken_by_a_mutant_that_should_die(stage: str) -> None:
    broken = {
        mutant.clause
        for mutant in mutants_of(stage)
        if not mutant.control and mutant.expect is not Expect.SURVIVES
    }
    assert broken == set(load_stage(stage).clauses)


@pytest.mark.parametrize("stage", NAMES)
def test_a_mutant_that_a_bound_sees_states_ten_times_that_bound_at_least(stage: str) -> None:
    for mutant in mutants_of(stage):
        if BOUNDED & set(mutant.killed_by) and not mutant.control:
            assert mutant.least_margin is not None, mutant.id
            assert mutant.least_margin >= 10, mutant.id
        elif not mutant.control:
            assert mutant.least_margin is None, mutant.id


@pytest.mark.parametrize("stage", NAMES)
def test_each_stage_has_both_controls_and_an_equivalent_that_says_why(stage: str) -> None:
    mutants = mutants_of(stage)
    ids = {mutant.id for mutant in mutants}
    assert {f"{stage}/controls/writes-nothing", f"{stage}/controls/does-nothing"} <= ids
    assert any(mutant.equivalent and mutant.why_survives for mutant in mutants)


@pytest.mark.parametrize("stage", NAMES)
def test_another_legal_order_of_a_sum_stands_among_the_controls(stage: str) -> None:
    names = {mutant.id for mutant in mutants_of(stage) if mutant.expect is Expect.SURVIVES}
    assert any("controls/sums-" in name and "upwards" in name for name in names)


def test_the_single_bound_is_named_by_no_manifest() -> None:
    for stage in NAMES:
        for mutant in mutants_of(stage):
            assert "single-bound" not in mutant.killed_by
