"""What a campaign's results come to: score, worth of checks, gaps. Shared by mutate and merge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qsa_bench import checks, outcomes
from qsa_bench.model import Kill, MutantResult
from qsa_bench.stages.base import Stage


def conclude(
    stages: Sequence[Stage],
    results: Sequence[MutantResult],
    kills: Sequence[Kill],
    never_run: int,
    whole: bool,
    target: str,
) -> dict[str, Any]:
    """Return the notes that sum up a campaign on a target; `whole`: nothing narrowed its mutants."""
    notes: dict[str, Any] = {
        "score": outcomes.score_of(results, never_run),
        "worth": outcomes.worth_of_checks(kills),
    }
    # A part of the mutants says nothing about what all of them leave untested.
    if not whole or never_run:
        return notes
    notes["unneeded_checks"] = [
        f"{stage.name}: {check}" for stage in stages for check in _unneeded(stage, kills, target)
    ]
    notes["unbroken_clauses"] = [
        f"{stage.name}: {clause}" for stage in stages for clause in _unbroken(stage, results)
    ]
    return notes


def _unneeded(stage: Stage, kills: Sequence[Kill], target: str) -> list[str]:
    """Return the checks that a mutant of the stage can die by on the target, and none did."""
    asked = [check for check in checks.checks_on(stage, target) if check not in checks.DEVICE]
    own = [kill for kill in kills if kill.mutant.startswith(f"{stage.name}/")]
    return outcomes.unneeded_checks(asked, own)


def _unbroken(stage: Stage, results: Sequence[MutantResult]) -> list[str]:
    own = [result for result in results if result.mutant.stage == stage.name]
    return outcomes.unbroken_clauses(stage.clauses, own)
