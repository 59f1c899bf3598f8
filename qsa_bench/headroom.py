"""Headroom: how much of each bound the clean kernel uses, beside what mutants exceed it by.

A well-placed bound has clean << 1 << mutants. Pure functions of verdicts, manifests and kills.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from qsa_bench.model import Kill, Mutant, Verdict

CLEAN = "clean"
STATED = "least of a mutant, as stated"
MEASURED = "least of a mutant, as measured"
Margins = dict[str, dict[str, float]]


def clean_margins(verdicts: Iterable[Verdict]) -> Margins:
    """Return stage to check to the largest error over bound, for the checks that measure one."""
    worst: Margins = {}
    for verdict in verdicts:
        margin = verdict.evidence.margin
        if margin is not None:
            checks = worst.setdefault(verdict.stage, {})
            checks[verdict.check] = max(margin, checks.get(verdict.check, 0.0))
    return worst


def stated_margins(mutants: Iterable[Mutant], measuring: Mapping[str, Iterable[str]]) -> Margins:
    """Return stage to check to the least margin that a manifest states.

    `measuring` names, by stage, the checks that measure a margin. A manifest's margin is that of
    the first of them it names.
    """
    least: Margins = {}
    for mutant in mutants:
        checks = set(measuring.get(mutant.stage, ()))
        named = next((check for check in mutant.killed_by if check in checks), None)
        if named is not None and mutant.least_margin is not None:
            _lower(least, mutant.stage, named, float(mutant.least_margin))
    return least


def measured_margins(mutants: Iterable[Mutant], kills: Iterable[Kill]) -> Margins:
    """Return stage to check to the least margin by which a check killed a mutant that names it."""
    by_id = {mutant.id: mutant for mutant in mutants if not mutant.control}
    least: Margins = {}
    for kill in kills:
        mutant = by_id.get(kill.mutant)
        if mutant is None or kill.margin is None or not kill.failed:
            continue
        if kill.check in mutant.killed_by:
            _lower(least, mutant.stage, kill.check, kill.margin)
    return least


def headroom(
    verdicts: Iterable[Verdict], mutants: Iterable[Mutant], kills: Iterable[Kill] = ()
) -> dict[str, dict[str, dict[str, float]]]:
    """Return stage to check to the figures side by side, each where there is one.

    `verdicts` are those of the unmutated kernel, `kills` those of a mutation run if there was one.
    """
    every = tuple(mutants)
    clean = clean_margins(verdicts)
    columns = (
        (CLEAN, clean),
        (STATED, stated_margins(every, clean)),
        (MEASURED, measured_margins(every, kills)),
    )
    return {
        stage: {
            check: {
                name: margins[stage][check]
                for name, margins in columns
                if check in margins.get(stage, {})
            }
            for check in checks
        }
        for stage, checks in clean.items()
    }


def _lower(least: Margins, stage: str, check: str, margin: float) -> None:
    checks = least.setdefault(stage, {})
    checks[check] = min(margin, checks.get(check, margin))
