"""The first pass over automatic mutants: dozens in one build, told apart by a number in the library.

Who dies there is done, and so is who lives through the whole gate there and is argued to be equivalent. Any
other that lives, and whatever has no form that shares a build, gets a build of its own.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from qsa_bench import equivalence, outcomes, resources, shared_builds
from qsa_bench.builder import Builder
from qsa_bench.case_order import CaseOrder
from qsa_bench.equivalence import Argument
from qsa_bench.model import Mutant, MutantResult
from qsa_bench.once import Once
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
_Gate = Callable[[StageBuilds, Limits], Seen]


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
        order: CaseOrder | None,
    ) -> None:
        """With an `order` of cases a mutant is run up to its first kill, by cases that take little."""
        self._builder = builder
        self._production = production
        self._workload = workload
        self._arguments = arguments
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
            limits = self._limits_of(shared, self._gate_first) if shared is not None else None
            if shared is None or limits is None:
                return
            rest: Once[None, Limits | None] = Once()
            for form in group:
                if self._workload.stopped.is_set():
                    return
                if not shared.has(form.mutant):
                    continue
                begun = time.perf_counter()
                trial = self._killed(form.mutant, shared, limits)
                if trial is None:
                    trial = self._argued(form.mutant, shared, rest)
                if trial is not None:
                    seconds = round(time.perf_counter() - begun, 3)
                    yield replace(trial, result=replace(trial.result, seconds=seconds))

    def _limits_of(self, shared: SharedBuild, gate: _Gate) -> Limits | None:
        """Gate a build with nothing chosen; None where it is not the production kernel then.

        A schema that is not proves nothing.
        """
        with shared.chosen(None) as untouched:
            clean = gate(untouched, Limits())
        if clean.failures or clean.by_clock:
            return None
        fuel = {key: _PATIENCE * steps for key, steps in clean.limits.fuel.items()}
        return replace(clean.limits, fuel=fuel)

    def _gate_first(self, builds: StageBuilds, limits: Limits) -> Seen:
        """Run what a mutant of the first pass meets, all of it."""
        first = FIRST_ORDER if self._order is None else 0
        return self._workload.gate(builds, limits, cases=self._cases, modes=(PLAIN,), first=first)

    def _gate_rest(self, builds: StageBuilds, limits: Limits) -> Seen:
        """Run what the whole gate has beside that, and the access checker."""
        plain = self._workload.gate(builds, limits, cases=self._rest, modes=(PLAIN,))
        checked = self._workload.gate(builds, limits, modes=(CHECKED,))
        own, more = plain.limits, checked.limits
        return Seen(
            [*plain.verdicts, *checked.verdicts],
            {},
            Limits({**own.fuel, **more.fuel}, {**own.seconds, **more.seconds}),
            plain.by_clock or checked.by_clock,
        )

    def _killed(self, mutant: Mutant, shared: SharedBuild, limits: Limits) -> Trial | None:
        with shared.chosen(mutant) as mutated:
            builds = without_library(mutated)
            if self._order is None:
                seen = self._gate_first(mutated, limits)
                killed = bool(seen.failures) and not seen.by_clock
            else:
                seen, killed = self._order.first_kill(mutated, limits, self._cases)
        if not killed:
            return None
        result, kills = outcomes.result_of(mutant, HOST, seen.verdicts, None, 0.0)
        if self._order is not None and result.as_expected:
            result = replace(result, why=f"{STOPPED}, by {seen.verdicts[0].case}")
        return Trial(refuted(result, self._arguments), kills, builds)

    def _argued(
        self, mutant: Mutant, shared: SharedBuild, rest: Once[None, Limits | None]
    ) -> Trial | None:
        """Hold a mutant that is argued to be equivalent against the whole gate; None where it has more to say."""
        said = equivalence.said_of(mutant, HOST, self._arguments, self._root)
        if said is None or said.is_stale:
            return None
        limits = rest.of(None, lambda: self._limits_of(shared, self._gate_rest))
        if limits is None:
            return None
        with shared.chosen(mutant) as mutated:
            builds = without_library(mutated)
            seen = self._gate_rest(mutated, limits)
        if seen.failures or seen.by_clock:
            return None
        return Trial(MutantResult(mutant, HOST, said.outcome, True, why=said.why), (), builds)
