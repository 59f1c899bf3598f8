"""A campaign beside those of other targets, and beside what an audit says of false alarms. Pure.

A mutant exists when some target could tell it from the production kernel; each target is held to all
that exist, and what it did not run or could not see counts as not killed there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from qsa_bench.errors import NotComparableError
from qsa_bench.exit_codes import ExitCode
from qsa_bench.model import TARGETS, MutantResult, Outcome
from qsa_bench.sensitivity import Alarms
from qsa_bench.store import StoredRun

_KILLS = (Outcome.KILLED, Outcome.KILLED_BY_CRASH, Outcome.KILLED_BY_TIMEOUT)
_NOTHING_THERE = (Outcome.EQUIVALENT, Outcome.UNVIABLE)


@dataclass(frozen=True)
class TargetScore:
    """What one target's gate did to the mutants of a stage that exist.

    `killed` + `survived` + `unseen` (its code is not there, or its fault shows on the other target
    alone) + `not_run` are `exists`. `alone` of the killed are killed on no other target. `run` is
    None where no campaign of the target was given.
    """

    stage: str
    target: str
    run: str | None
    exists: int
    killed: int = 0
    alone: int = 0
    survived: int = 0
    unseen: int = 0
    not_run: int = 0

    @property
    def share(self) -> float | None:
        """Killed of what exists; None where nothing exists or no campaign was given."""
        return self.killed / self.exists if self.exists and self.run is not None else None


@dataclass(frozen=True)
class SideBySide:
    """A run and those shown beside it."""

    run: StoredRun
    scores: tuple[TargetScore, ...]
    alarms: tuple[Alarms, ...]
    notes: tuple[str, ...] = ()

    @property
    def exit_code(self) -> ExitCode:
        """What could be read and compared is a success."""
        return ExitCode.OK


def beside(run: StoredRun, others: Sequence[StoredRun]) -> SideBySide:
    """Put runs together; NotComparableError for two campaigns of one target or of other mutants."""
    campaigns = [each for each in (run, *others) if each.run.command == "mutate"]
    alarms = tuple(row for each in (run, *others) for row in each.alarms)
    for each in (run, *others):
        if each.run.command != "mutate" and not each.alarms:
            raise NotComparableError(
                f"showing {each.run.id} beside {run.run.id}: it is a {each.run.command} that holds "
                "neither mutants nor false alarms"
            )
    by_target: dict[str, StoredRun] = {}
    for each in campaigns:
        twin = by_target.setdefault(each.run.target, each)
        if twin is not each:
            raise NotComparableError(
                f"showing {twin.run.id} beside {each.run.id}: both are campaigns on "
                f"{each.run.target}; `compare` tells what they differ in"
            )
    notes = []
    if len({each.run.commit for each in campaigns}) > 1:
        told = ", ".join(f"{each.run.target} {each.run.commit[:7]}" for each in campaigns)
        notes.append(f"the campaigns are of different commits: {told}")
    for each in campaigns:
        if not each.complete or each.run.done != each.run.asked:
            notes.append(f"{each.run.target}: {each.run.done} of {each.run.asked} mutants were run")
    return SideBySide(run, tuple(_scores(by_target)), alarms, tuple(notes))


def _scores(by_target: dict[str, StoredRun]) -> list[TargetScore]:
    found = {
        target: {r.mutant.id: r for r in run.mutants if not r.mutant.control}
        for target, run in by_target.items()
    }
    ids = dict.fromkeys(name for own in found.values() for name in own)
    if len(found) > 1 and not set.intersection(*(set(own) for own in found.values())):
        raise NotComparableError("showing campaigns side by side: they have no mutant in common")
    exists = [
        name
        for name in ids
        if any(name in own and own[name].outcome not in _NOTHING_THERE for own in found.values())
    ]
    scores = []
    for stage in dict.fromkeys(name.partition("/")[0] for name in exists):
        here = [name for name in exists if name.partition("/")[0] == stage]
        for target in TARGETS if found else ():
            run = by_target.get(target)
            if run is None:
                scores.append(TargetScore(stage, target, None, len(here), not_run=len(here)))
                continue
            others = [own for other, own in found.items() if other != target]
            scores.append(_score(stage, target, run.run.id, here, found[target], others))
    return scores


def _score(
    stage: str,
    target: str,
    run: str,
    names: Sequence[str],
    own: dict[str, MutantResult],
    others: Sequence[dict[str, MutantResult]],
) -> TargetScore:
    killed = [name for name in names if _dead(own, name)]
    ends = [own[name].outcome for name in names if name in own]
    survived = ends.count(Outcome.SURVIVED)
    not_run = len(names) - len(ends) + ends.count(Outcome.NOT_RUN) + ends.count(Outcome.STALE)
    return TargetScore(
        stage,
        target,
        run,
        len(names),
        len(killed),
        sum(not any(_dead(other, name) for other in others) for name in killed),
        survived,
        len(names) - len(killed) - survived - not_run,
        not_run,
    )


def _dead(results: dict[str, MutantResult], name: str) -> bool:
    return name in results and results[name].outcome in _KILLS
