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
) -> dict[str, Any]:
    """Return the notes that sum a campaign up; `whole` where nothing narrowed its mutants."""
    notes: dict[str, Any] = {
        "score": outcomes.score_of(results, never_run),
        "worth": outcomes.worth_of_checks(kills),
    }
    # A part of the mutants says nothing about what all of them leave untested.
    if not whole or never_run:
        return notes
    for key, of in (("unneeded_checks", _unneeded), ("unbroken_clauses", _unbroken)):
        notes[key] = [
            f"{stage.name}: {name}"
            for stage in stages
            for name in of(
                stage,
                [kill for kill in kills if kill.mutant.startswith(f"{stage.name}/")],
                [result for result in results if result.mutant.stage == stage.name],
            )
        ]
    return notes


def _unneeded(stage: Stage, kills: Sequence[Kill], _results: Sequence[MutantResult]) -> list[str]:
    return outcomes.unneeded_checks(checks.checks_of(stage), kills)


def _unbroken(stage: Stage, _kills: Sequence[Kill], results: Sequence[MutantResult]) -> list[str]:
    return outcomes.unbroken_clauses(stage.clauses, results)
