"""Two campaigns against each other: which survivors are new, which are gone. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from qsa_bench.errors import NotComparableError
from qsa_bench.exit_codes import ExitCode
from qsa_bench.model import MutantResult, Outcome, Run
from qsa_bench.store import StoredRun


@dataclass(frozen=True)
class CampaignComparison:
    """Survivors of the newer campaign alone, of the older alone and of both; by the newer's record.

    `unknown` survived in the old campaign and was not run to an end in the new one: nobody knows.
    """

    old: Run
    new: Run
    appeared: tuple[MutantResult, ...] = ()
    fixed: tuple[MutantResult, ...] = ()
    remaining: tuple[MutantResult, ...] = ()
    unknown: tuple[MutantResult, ...] = ()
    only_old: int = 0
    only_new: int = 0

    @property
    def exit_code(self) -> ExitCode:
        """MUTATION_MISMATCH for a new survivor, INCOMPLETE where the new campaign lacks an end."""
        if self.appeared:
            return ExitCode.MUTATION_MISMATCH
        unfinished = self.new.done != self.new.asked or self.unknown
        return ExitCode.INCOMPLETE if unfinished else ExitCode.OK


def compare(old: StoredRun, new: StoredRun) -> CampaignComparison:
    """Compare two campaigns; NotComparableError where the target differs or nothing is shared."""
    if old.run.target != new.run.target:
        raise NotComparableError(
            f"comparing campaigns: the targets differ ({old.run.target} and {new.run.target})"
        )
    before = {result.mutant.id: result for result in old.mutants}
    after = {result.mutant.id: result for result in new.mutants}
    if not before.keys() & after.keys():
        raise NotComparableError("comparing campaigns: they have no mutant in common")
    survived = [result for result in old.mutants if _lives(result)]
    lives = [result for result in new.mutants if _lives(result)]
    known = {result.mutant.id for result in survived}
    open_ = [r for r in survived if r.mutant.id in after and not _ended(after[r.mutant.id])]
    return CampaignComparison(
        old.run,
        new.run,
        tuple(result for result in lives if result.mutant.id not in known),
        tuple(
            after[result.mutant.id]
            for result in survived
            if result.mutant.id in after
            and _ended(after[result.mutant.id])
            and not _lives(after[result.mutant.id])
        ),
        tuple(result for result in lives if result.mutant.id in known),
        tuple(open_),
        len(before.keys() - after.keys()),
        len(after.keys() - before.keys()),
    )


def _lives(result: MutantResult) -> bool:
    return result.outcome is Outcome.SURVIVED and not result.as_expected


def _ended(result: MutantResult) -> bool:
    return result.outcome not in (Outcome.NOT_RUN, Outcome.STALE)
