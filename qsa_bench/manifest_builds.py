"""Builds that mutants written by hand share, and the order in which none waits for another's build.

A mutant that dies in such a build as its manifest says is done: it was seen, so its machine code is
not the production kernel's. All others, those that should live among them, are built by themselves.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path

from qsa_bench import resources, shared_builds
from qsa_bench.builder import Builder
from qsa_bench.errors import EnvironmentMissingError
from qsa_bench.model import Expect, Mutant
from qsa_bench.once import Once
from qsa_bench.parity import FIRST_ORDERS, Limits, StageBuilds, Workload, modes_of
from qsa_bench.shared_builds import Form, SharedBuild, SharedBuilds

# 107 choices in select's sources cost its compiler 1.5 times one build, and its runs a tenth.
_IN_A_GROUP = 64


class ManifestBuilds:
    """Shared builds of one stage's mutants written by hand; safe from several threads. Close it.

    Without tree-sitter there are none, nor on a device: what a choice does to the registers of a
    kernel there is not known.
    """

    def __init__(
        self,
        chosen: Sequence[Mutant],
        builder: Builder,
        production: StageBuilds,
        workload: Workload,
        limits: Limits,
        jobs: int,
    ) -> None:
        """`limits` are those of the production kernel's mutants."""
        self._workload = workload
        self._clean = limits
        self._jobs = jobs
        self._folder = tempfile.TemporaryDirectory(prefix="qsa-bench-schema-")
        modes = modes_of(workload.target)
        self._builds = SharedBuilds(
            builder, workload.stage, production, modes, Path(self._folder.name)
        )
        dying = [m for m in chosen if not m.operator and m.expect is not Expect.SURVIVES]
        forms = _forms(dying) if workload.target == "host" else []
        # As many groups as there are jobs, or a multiple: each job then builds one of them.
        rounds = -(-len(forms) // (jobs * _IN_A_GROUP)) or 1
        self._groups = shared_builds.grouped(forms, max(-(-len(forms) // (jobs * rounds)), 1))
        self._group_of = {form.mutant.id: group for group in self._groups for form in group}
        self._limits: Once[str, Limits | None] = Once()

    def close(self) -> None:
        """Remove the builds."""
        self._folder.cleanup()

    def ordered(self, left: Sequence[Mutant]) -> list[Mutant]:
        """Return mutants in the order they are best run in: who shares no build first."""
        alone = [mutant for mutant in left if mutant.id not in self._group_of]
        asked = {mutant.id for mutant in left}
        shared: list[Mutant] = []
        for first in range(0, len(self._groups), self._jobs):
            for forms in zip_longest(*self._groups[first : first + self._jobs]):
                shared.extend(form.mutant for form in forms if form is not None)
        return [*alone, *(mutant for mutant in shared if mutant.id in asked)]

    @contextmanager
    def lent(self, mutant: Mutant) -> Iterator[tuple[StageBuilds, Limits] | None]:
        """Give a mutant's share of a build and the limits of its runs; None where it has none."""
        group = self._group_of.get(mutant.id)
        build = self._builds.of(group) if group is not None else None
        if group is None or build is None or not build.has(mutant):
            yield None
            return
        limits = self._limits_of(group, build)
        if limits is None:
            yield None
            return
        with build.chosen(mutant) as chosen:
            yield chosen, limits

    def _limits_of(self, group: tuple[Form, ...], build: SharedBuild) -> Limits | None:
        """Gate a build with nothing chosen; None where it is not the production kernel then."""
        return self._limits.of(group[0].mutant.id, lambda: self._limits_found(build))

    def _limits_found(self, build: SharedBuild) -> Limits | None:
        with build.chosen(None) as untouched:
            clean = self._workload.gate(untouched, first=FIRST_ORDERS)
        green = not clean.failures and not clean.by_clock
        return self._joined(clean.limits) if green else None

    def _joined(self, own: Limits) -> Limits:
        """Return the limits that choices call for; the production kernel's where no case told."""
        return Limits(
            {**self._clean.fuel, **own.fuel},
            {**self._clean.seconds, **own.seconds},
        )


def _forms(chosen: Sequence[Mutant]) -> list[Form]:
    try:
        return shared_builds.forms_of(chosen, resources.tree_root())
    except EnvironmentMissingError:
        return []
