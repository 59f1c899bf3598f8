"""From verdicts to a mutant's outcome, the kill matrix and the score; pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from qsa_bench import checks
from qsa_bench.model import TARGETS, Expect, Kill, Mutant, MutantResult, Outcome, Verdict

# A check that ends here saw nothing wrong of its own: the child died or did not end.
_CRASH, _ENDLESS = "no-crash", "terminates"
_EXPECTED: Mapping[Expect, tuple[Outcome, ...]] = {
    Expect.KILLED: (Outcome.KILLED,),
    Expect.KILLED_BY_CRASH: (Outcome.KILLED_BY_CRASH,),
    Expect.KILLED_BY_TIMEOUT: (Outcome.KILLED_BY_TIMEOUT,),
    Expect.SURVIVES: (Outcome.SURVIVED, Outcome.EQUIVALENT),
}

# An automatic mutant has no manifest: whatever sees it, it must not live unexplained.
_NOT_ALIVE = (
    Outcome.KILLED,
    Outcome.KILLED_BY_CRASH,
    Outcome.KILLED_BY_TIMEOUT,
    Outcome.EQUIVALENT,
    Outcome.UNVIABLE,
    Outcome.GPU_ONLY,
)


def kills_of(mutant: str, verdicts: Iterable[Verdict]) -> list[Kill]:
    """Return one mutant's row of the kill matrix: a cell for every check that had its say."""
    by_check: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        if not verdict.status.says_nothing:
            by_check.setdefault(verdict.check, []).append(verdict)
    kills = []
    for check, seen in by_check.items():
        failed = [verdict for verdict in seen if not verdict.passed]
        margins = [m for verdict in seen if (m := verdict.evidence.margin) is not None]
        first = failed[0].case if failed else ""
        kills.append(Kill(mutant, check, len(seen), len(failed), max(margins, default=None), first))
    return kills


def outcome_of(kills: Sequence[Kill], not_run: bool) -> Outcome:
    """Derive the outcome of a mutant that was built and run.

    A crash or an endless loop is named as such only when no other check saw anything.
    """
    killing = {kill.check for kill in kills if kill.failed}
    if killing - {_CRASH, _ENDLESS}:
        return Outcome.KILLED
    if _CRASH in killing:
        return Outcome.KILLED_BY_CRASH
    if _ENDLESS in killing:
        return Outcome.KILLED_BY_TIMEOUT
    return Outcome.NOT_RUN if not_run else Outcome.SURVIVED


def result_of(
    mutant: Mutant,
    target: str,
    verdicts: Sequence[Verdict],
    differing_bits: int | None,
    seconds: float,
    race: tuple[int, int] | None = None,
) -> tuple[MutantResult, list[Kill]]:
    """Judge a mutant that ran against its manifest, both ways.

    `race` are the hits of a race mutant on a device and the runs they were seen in.
    """
    kills = kills_of(mutant.id, verdicts)
    if race is not None:
        kills.append(Kill(mutant.id, "repeats", race[1], race[0]))
    not_run = any(verdict.status.says_nothing for verdict in verdicts)
    outcome = outcome_of(kills, not_run)
    if outcome is Outcome.SURVIVED and _is_the_emulations(mutant, target):
        outcome = Outcome.HOST_ONLY
    killed_by = tuple(kill.check for kill in kills if kill.failed)
    # The margin that counts is that of a check the manifest names; others may see more by chance.
    worst = _worst([v for v in verdicts if v.check in mutant.killed_by]) or _worst(verdicts)
    if mutant.equivalent and outcome is Outcome.SURVIVED:
        outcome = Outcome.EQUIVALENT
    complaints = _complaints(mutant, target, outcome, killed_by, kills, differing_bits)
    return (
        MutantResult(
            mutant=mutant,
            target=target,
            outcome=outcome,
            as_expected=not complaints,
            killed_by=killed_by,
            differing_bits=differing_bits,
            margin=worst.evidence.margin if worst else None,
            worst_error=worst.evidence.error if worst else None,
            where=(worst or _first_failure(verdicts) or verdicts[0]).evidence.where
            if verdicts
            else "",
            why="; ".join(complaints) or mutant.why_survives or _why_host_only(mutant, outcome),
            seconds=seconds,
            race_hits=race[0] if race else None,
            race_runs=race[1] if race else None,
        ),
        kills,
    )


def _is_the_emulations(mutant: Mutant, target: str) -> bool:
    """True for a mutant on a device whose manifest names what the emulation alone is sure to see."""
    return target != TARGETS[0] and bool(set(mutant.killed_by) & checks.EMULATION)


def _why_host_only(mutant: Mutant, outcome: Outcome) -> str:
    if outcome is not Outcome.HOST_ONLY:
        return ""
    seen_by = ", ".join(check for check in mutant.killed_by if check in checks.EMULATION)
    return f"nothing showed on the device; on the host {seen_by} must see it"


def _on_a_device(mutant: Mutant, outcome: Outcome) -> tuple[bool, tuple[str, ...]]:
    """Return whether an outcome on a device is one expected, and the checks that must have killed.

    The same fault may end in another way there (what faults on the host may write into a
    neighbour): any way to die will do, and how it died on the host is not demanded.
    """
    dead = (Outcome.KILLED, Outcome.KILLED_BY_CRASH, Outcome.KILLED_BY_TIMEOUT)
    if mutant.expect is Expect.SURVIVES:
        return outcome in _EXPECTED[mutant.expect], ()
    if outcome is not Outcome.KILLED:
        return outcome in (*dead, Outcome.HOST_ONLY), ()
    loose = {_CRASH, _ENDLESS, *checks.EMULATION}
    return True, tuple(check for check in mutant.killed_by if check not in loose)


def _complaints(
    mutant: Mutant,
    target: str,
    outcome: Outcome,
    killed_by: Sequence[str],
    kills: Sequence[Kill],
    differing_bits: int | None,
) -> list[str]:
    complaints = []
    expected, demanded = outcome in _EXPECTED[mutant.expect], mutant.killed_by
    if mutant.operator:
        expected = outcome in _NOT_ALIVE
    elif target != TARGETS[0]:
        expected, demanded = _on_a_device(mutant, outcome)
    if not expected:
        complaints.append(f"expected {mutant.expect}, it {_verb(outcome)}")
    missing = [check for check in demanded if check not in killed_by]
    if missing:
        complaints.append(f"not killed by {', '.join(missing)}, as its manifest says")
    if mutant.differing_bits is not None and differing_bits != mutant.differing_bits:
        complaints.append(f"{differing_bits} bits differ, not {mutant.differing_bits}")
    # What the emulation alone shows has no error on a device to be measured.
    if mutant.least_margin is not None and outcome is not Outcome.HOST_ONLY:
        named = [
            kill.margin
            for kill in kills
            if kill.check in mutant.killed_by and kill.margin is not None
        ]
        best = max(named, default=0.0)
        if best < mutant.least_margin:
            complaints.append(f"margin {best:.3g} is below {mutant.least_margin:.3g}")
    return complaints


def _verb(outcome: Outcome) -> str:
    return {Outcome.SURVIVED: "survived", Outcome.NOT_RUN: "was not run to its end"}.get(
        outcome, f"was {outcome}"
    )


def _worst(verdicts: Sequence[Verdict]) -> Verdict | None:
    failing = [v for v in verdicts if not v.passed and v.evidence.margin is not None]
    return max(failing, key=lambda v: v.evidence.margin or 0.0, default=None)


def _first_failure(verdicts: Sequence[Verdict]) -> Verdict | None:
    return next((verdict for verdict in verdicts if not verdict.passed), None)


def score_of(results: Sequence[MutantResult], never_run: int = 0) -> dict[str, int]:
    """Count what the score is made of; controls are no part of it, `never_run` counts against it.

    score = (killed + expected crash + expected timeout)
    / (all - equivalent - unviable - gpu-only - host-only)
    """
    counted = [r for r in results if not r.mutant.control]
    counts = Counter(result.outcome for result in counted)
    expected = Counter(result.outcome for result in counted if result.as_expected)
    return {
        "killed": counts[Outcome.KILLED],
        "expected_crash": expected[Outcome.KILLED_BY_CRASH],
        "expected_timeout": expected[Outcome.KILLED_BY_TIMEOUT],
        "all": len(counted) + never_run,
        "equivalent": counts[Outcome.EQUIVALENT],
        "unviable": counts[Outcome.UNVIABLE],
        "gpu_only": counts[Outcome.GPU_ONLY],
        **({"host_only": counts[Outcome.HOST_ONLY]} if counts[Outcome.HOST_ONLY] else {}),
        "survived": counts[Outcome.SURVIVED],
        "not_run": counts[Outcome.NOT_RUN] + never_run,
    }


def worth_of_checks(kills: Sequence[Kill]) -> dict[str, dict[str, int]]:
    """Return, per check, how many mutants it kills and how many it alone kills.

    A mutant that was run up to its first kill says nothing of what other checks would have seen.
    """
    killers: dict[str, set[str]] = {}
    whole = whole_rows(kills)
    for kill in kills:
        if kill.failed:
            killers.setdefault(kill.mutant, set()).add(kill.check)
    worth: dict[str, dict[str, int]] = {kill.check: {"kills": 0, "alone": 0} for kill in kills}
    for mutant, killed_by in killers.items():
        for check in killed_by:
            worth[check]["kills"] += 1
            worth[check]["alone"] += len(killed_by) == 1 and mutant in whole
    return worth


def whole_rows(kills: Iterable[Kill]) -> set[str]:
    """Return the mutants that met the whole gate: of one stopped early the failures alone are kept."""
    return {kill.mutant for kill in kills if not kill.failed}


def unneeded_checks(all_checks: Iterable[str], kills: Sequence[Kill]) -> list[str]:
    """Return the checks that kill no mutant of this run."""
    worth = worth_of_checks(kills)
    return [check for check in all_checks if not worth.get(check, {}).get("kills")]


def unbroken_clauses(clauses: Iterable[str], results: Sequence[MutantResult]) -> list[str]:
    """Return the clauses that no killed mutant breaks."""
    dead = {Outcome.KILLED, Outcome.KILLED_BY_CRASH, Outcome.KILLED_BY_TIMEOUT}
    broken = {result.mutant.clause for result in results if result.outcome in dead}
    return [clause for clause in clauses if clause not in broken]
