"""The first pass over automatic mutants: dozens in one build, a few cases each, up to the first kill.

What a case sees there is a kill. Who lives, and whatever has no form that shares a build, gets a
build of its own and the whole gate.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from qsa_bench import outcomes, shared_builds
from qsa_bench.builder import Builder
from qsa_bench.case_order import CaseOrder
from qsa_bench.model import Mutant
from qsa_bench.parity import PLAIN, Seen, StageBuilds, Workload
from qsa_bench.shared_builds import Form, SharedBuilds
from qsa_bench.trials import STOPPED, Trial

# More choices slow a kernel down, fewer cost more builds.
_IN_A_GROUP = 64
# A case of the first pass takes at most this share of what all cases take.
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


class FirstKills:
    """The first pass over one stage's mutants; safe from several threads."""

    def __init__(
        self, builder: Builder, production: StageBuilds, workload: Workload, order: CaseOrder
    ) -> None:
        self._builder = builder
        self._production = production
        self._workload = workload
        self._order = order
        self._cases = order.cheap(_LARGEST_SHARE)

    def run(self, group: tuple[Form, ...]) -> Iterator[Trial]:
        """Yield the mutants of a group that a case of the first pass kills."""
        stage = self._workload.stage
        with tempfile.TemporaryDirectory(prefix="qsa-bench-schema-") as scratch:
            builds = SharedBuilds(
                self._builder, stage, self._production, (PLAIN,), Path(scratch)
            ).of(group)
            if builds is None:
                return
            with builds.chosen(None) as untouched:
                clean = self._workload.gate(untouched, cases=self._cases, modes=(PLAIN,))
            # A schema that is not the production kernel with nothing chosen proves nothing.
            if clean.failures or clean.by_clock:
                return
            fuel = {key: _PATIENCE * steps for key, steps in clean.limits.fuel.items()}
            limits = replace(clean.limits, fuel=fuel)
            for form in group:
                if self._workload.stopped.is_set():
                    return
                if not builds.has(form.mutant):
                    continue
                begun = time.perf_counter()
                with builds.chosen(form.mutant) as mutated:
                    seen, killed = self._order.first_kill(mutated, limits, self._cases)
                if killed:
                    yield _killed(form.mutant, seen, time.perf_counter() - begun)


def _killed(mutant: Mutant, seen: Seen, seconds: float) -> Trial:
    result, kills = outcomes.result_of(mutant, "host", seen.verdicts, None, round(seconds, 3))
    why = f"{STOPPED}, by {seen.verdicts[0].case}"
    return Trial(replace(result, why=why) if result.as_expected else result, kills)
