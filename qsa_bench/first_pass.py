"""The first pass over automatic mutants: dozens in one build, told apart by a number in the library.

Who dies there is done, and so is who lives through the whole gate there and is argued to be equivalent. Any
other that lives, and whatever has no form that shares a build, gets a build of its own.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from qsa_bench import equivalence, outcomes, resources, shared_builds
from qsa_bench.builder import Builder
from qsa_bench.case_order import CaseOrder
from qsa_bench.equivalence import Argument
from qsa_bench.model import Mutant, MutantResult
from qsa_bench.parity import (
    CHECKED,
    FIRST_ORDER,
    PLAIN,
    Limits,
    Seen,
    StageBuilds,
    Workload,
    modes_of,
)
from qsa_bench.runner import HOST
from qsa_bench.shared_builds import Form, SharedBuild, SharedBuilds, without_library
from qsa_bench.trials import STOPPED, Trial, refuted

# More choices slow a kernel down, fewer cost more builds.
_IN_A_GROUP = 64
# Up to the first kill, a case takes at most this share of what all cases take.
_LARGEST_SHARE = 0.02
# Choices cost steps, not everywhere alike: only what takes this many times a mutant's fuel is endless.
_PATIENCE = 4


def groups_of(chosen: Sequence[Mutant], root: Path) -> list[tuple[Form, ...]]:
    """Return the mutants that can share a build, in groups of one source; the others are in none."""
    # What breaks an order of accesses is asked in how many orders it shows, by a build of its own.
    derived = [mutant for mutant in chosen if mutant.operator and not mutant.race]
    sources: dict[str, list[Form]] = {}
    for form in sorted(shared_builds.forms_of(derived, root), key=lambda form: form.where):
        sources.setdefault(form.where[0], []).append(form)
    return [
        group for forms in sources.values() for group in shared_builds.grouped(forms, _IN_A_GROUP)
    ]


class FirstPass:
    """The first pass over one stage's mutants; safe from several threads."""

    def __init__(
        self,
        builder: Builder,
        production: StageBuilds,
        workload: Workload,
        arguments: Mapping[str, Argument],
        limits: Limits,
        order: CaseOrder | None,
    ) -> None:
        """`limits` are those of the production kernel's mutants.

        With an `order` of cases a mutant is run up to its first kill, by cases that take little.
        """
        self._builder = builder
        self._production = production
        self._workload = workload
        self._arguments = arguments
        self._limits = _patient(limits)
        self._order = order
        self._cases = workload.cases if order is None else order.cheap(_LARGEST_SHARE)
        # Up to the first kill a mutant that lives has met these under every order, else under one.
        met = {case.id for case in self._cases} if order is not None else set()
        self._rest = [case for case in workload.cases if case.id not in met]
        self._root = resources.tree_root()

    def run(self, group: tuple[Form, ...]) -> Iterator[Trial]:
        """Yield the mutants of a group whose end is known after the first pass."""
        stage = self._workload.stage
        modes = modes_of(HOST)
        with tempfile.TemporaryDirectory(prefix="qsa-bench-schema-") as scratch:
            shared = SharedBuilds(self._builder, stage, self._production, modes, Path(scratch)).of(
                group
            )
            limits = self._limits_of(shared) if shared is not None else None
            if shared is None or limits is None:
                return
            for form in group:
                if self._workload.stopped.is_set():
                    return
                if not shared.has(form.mutant):
                    continue
                begun = time.perf_counter()
                trial = self._trial(form.mutant, shared, limits)
                if trial is not None:
                    seconds = round(time.perf_counter() - begun, 3)
                    yield replace(trial, result=replace(trial.result, seconds=seconds))

    def _limits_of(self, shared: SharedBuild) -> Limits | None:
        """Gate a build with nothing chosen; None where it is not the production kernel then.

        A schema that is not kills nothing.
        """
        with shared.chosen(None) as untouched:
            clean = self._gate_first(untouched, Limits())
        return None if clean.failures or clean.by_clock else _patient(clean.limits)

    def _gate_first(self, builds: StageBuilds, limits: Limits) -> Seen:
        """Run what a mutant of the first pass meets, all of it."""
        first = FIRST_ORDER if self._order is None else 0
        return self._workload.gate(builds, limits, cases=self._cases, modes=(PLAIN,), first=first)

    def _lives(self, builds: StageBuilds) -> bool:
        """Run what the whole gate has beside that, and the access checker; True if nothing fails."""
        limits = self._limits
        plain = self._workload.gate(builds, limits, cases=self._rest, modes=(PLAIN,))
        if plain.failures or plain.by_clock:
            return False
        checked = self._workload.gate(builds, limits, modes=(CHECKED,))
        return not checked.failures and not checked.by_clock

    def _trial(self, mutant: Mutant, shared: SharedBuild, limits: Limits) -> Trial | None:
        """Run a mutant; None where its end is not known then."""
        with shared.chosen(mutant) as mutated:
            builds = without_library(mutated)
            if self._order is None:
                seen = self._gate_first(mutated, limits)
                killed = bool(seen.failures) and not seen.by_clock
            else:
                seen, killed = self._order.first_kill(mutated, limits, self._cases)
            # What a clock ended neither died nor lived.
            if not killed and not seen.failures and not seen.by_clock:
                return self._argued(mutant, mutated)
        if not killed:
            return None
        result, kills = outcomes.result_of(mutant, HOST, seen.verdicts, None, 0.0)
        if self._order is not None and result.as_expected:
            result = replace(result, why=f"{STOPPED}, by {seen.verdicts[0].case}")
        return Trial(refuted(result, self._arguments), kills, builds)

    def _argued(self, mutant: Mutant, mutated: StageBuilds) -> Trial | None:
        """Hold a mutant that lives so far to the rest of the gate; None where no argument clears it then."""
        said = equivalence.said_of(mutant, HOST, self._arguments, self._root)
        if said is None or said.is_stale or not self._lives(mutated):
            return None
        result = MutantResult(mutant, HOST, said.outcome, True, why=said.why)
        return Trial(result, (), without_library(mutated))


def _patient(limits: Limits) -> Limits:
    return replace(limits, fuel={key: _PATIENCE * steps for key, steps in limits.fuel.items()})
