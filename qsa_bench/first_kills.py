"""The first pass over automatic mutants: dozens in one build, a few cases each, up to the first kill.

A schema holds the mutants of a stretch of source; one library of it with another number chosen is
another mutant. What a case sees there is a kill. Who lives, and whatever has no such form, gets a
build of its own and the whole gate.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from qsa_bench import mutants, outcomes, patches, resources, schemata
from qsa_bench.builder import Builder
from qsa_bench.case_order import CaseOrder
from qsa_bench.model import Build, Mutant
from qsa_bench.operators import Source
from qsa_bench.parity import PLAIN, Seen, StageBuilds, Workload, build_stage
from qsa_bench.schemata import Choice
from qsa_bench.trials import STOPPED, Trial

# More choices slow a kernel down, fewer cost more builds.
_IN_A_SCHEMA = 64
# Two mutants are built by themselves as soon.
_WORTH_A_BUILD = 3
# A case of the first pass takes at most this share of what all cases take.
_LARGEST_SHARE = 0.02
# A compiler that refuses again and again is no cheaper than a build for each.
_ATTEMPTS = 6
_ERROR = re.compile(r"^(\S+?):(\d+):(\d+): (?:fatal )?error:", re.MULTILINE)
# Choices cost steps, not everywhere alike: only what takes this many times a mutant's fuel is endless.
_PATIENCE = 4
# Nothing of a schema is written by hand: its warnings are nobody's.
_FLAGS = ("-w",)


@dataclass(frozen=True)
class Group:
    """Mutants of one file that are built together, each with its choice."""

    path: str
    mutants: tuple[tuple[Mutant, Choice], ...]


def groups_of(chosen: Sequence[Mutant], root: Path) -> list[Group]:
    """Return the mutants that have the form of a choice, in groups; the others are in none."""
    locate = mutants.locator(root)
    sources: dict[str, Source] = {}
    found: dict[str, list[tuple[Mutant, Choice]]] = {}
    for mutant in chosen:
        changed = patches.apply_to_tree(mutant.patch, locate)
        # What breaks an order of accesses is asked in how many orders it shows, by a build of its own.
        if not mutant.operator or mutant.race or len(changed) != 1:
            continue
        ((path, text),) = changed.items()
        if path not in sources:
            sources[path] = Source(path, locate(path).read_bytes())
        choice = schemata.choice_of(sources[path], text.encode())
        if choice is not None:
            found.setdefault(path, []).append((mutant, choice))
    groups = []
    for path, pairs in found.items():
        pairs.sort(key=lambda pair: pair[1].place.begin)
        for first in range(0, len(pairs), _IN_A_SCHEMA):
            groups.append(Group(path, tuple(pairs[first : first + _IN_A_SCHEMA])))
    return groups


class FirstKills:
    """The first pass over one stage's mutants; safe from several threads."""

    def __init__(
        self, builder: Builder, production: StageBuilds, workload: Workload, order: CaseOrder
    ) -> None:
        self._builder = builder
        self._production = production
        self._workload = workload
        self._root = resources.tree_root()
        self._order = order
        self._cases = order.cheap(_LARGEST_SHARE)

    def run(self, group: Group) -> Iterator[Trial]:
        """Yield the mutants of a group that a case of the first pass kills."""
        with tempfile.TemporaryDirectory(prefix="qsa-bench-schema-") as scratch:
            made = self._build(group, Path(scratch))
            if made is None:
                return
            builds, numbered = made
            chosen = _Chosen(builds, self._production, Path(scratch))
            untouched = chosen.builds(schemata.NONE)
            clean = self._workload.gate(untouched, cases=self._cases, modes=(PLAIN,))
            # A schema that is not the production kernel with nothing chosen proves nothing.
            if clean.failures or clean.by_clock:
                return
            fuel = {key: _PATIENCE * steps for key, steps in clean.limits.fuel.items()}
            limits = replace(clean.limits, fuel=fuel)
            for number, mutant in numbered.items():
                if self._workload.stopped.is_set():
                    return
                begun = time.perf_counter()
                builds = chosen.builds(number)
                seen, killed = self._order.first_kill(builds, limits, self._cases)
                if killed:
                    yield _killed(mutant, seen, time.perf_counter() - begun)

    def _build(
        self, group: Group, scratch: Path
    ) -> tuple[StageBuilds, Mapping[int, Mutant]] | None:
        """Build a group's schema, without those that a compiler refuses; None where that fails."""
        left = dict(enumerate(group.mutants, 1))
        tree = scratch / "tree"
        shutil.copytree(self._root / "kernels", tree / "kernels")
        source = Source(group.path, (self._root / group.path).read_bytes())
        for _ in range(_ATTEMPTS):
            if len(left) < _WORTH_A_BUILD:
                return None
            schema = schemata.compose(source, {number: pair[1] for number, pair in left.items()})
            (tree / group.path).write_text(schema.text)
            kernels = self._workload.stage.kernels
            builds = build_stage(
                self._builder, kernels, "host", tree, (PLAIN,), short=True, flags=_FLAGS
            )
            failure = builds.failure
            if failure is None:
                return builds, {number: pair[0] for number, pair in left.items()}
            refused = _refused(schema, failure, group.path)
            if not refused:
                return None
            left = {number: pair for number, pair in left.items() if number not in refused}
        return None


def _killed(mutant: Mutant, seen: Seen, seconds: float) -> Trial:
    result, kills = outcomes.result_of(mutant, "host", seen.verdicts, None, round(seconds, 3))
    why = f"{STOPPED}, by {seen.verdicts[0].case}"
    return Trial(replace(result, why=why) if result.as_expected else result, kills)


def _refused(schema: schemata.Schema, failure: Build, path: str) -> set[int]:
    """Return the mutants that the compiler's errors point at."""
    return {
        number
        for name, line, column in _ERROR.findall(failure.log)
        if name.endswith(path)
        for number in schema.blamed(int(line), int(column))
    }


class _Chosen:
    """A schema's libraries with one mutant chosen: the bytes of one, but for a number."""

    def __init__(self, schema: StageBuilds, production: StageBuilds, scratch: Path) -> None:
        self._schema = schema
        self._production = production
        self._folder = scratch
        self._libraries = {
            name: Path(build.library or "").read_bytes()
            for name, build in schema.builds[PLAIN].items()
        }

    def builds(self, number: int) -> StageBuilds:
        """Return the kernels with mutant `number` chosen; what holds no choice is production's."""
        made: dict[str, Build] = {}
        for name, build in self._schema.builds[PLAIN].items():
            content = self._libraries[name]
            if schemata.MARK not in content:
                made[name] = self._production.builds[PLAIN][name]
                continue
            folder = self._folder / str(number)
            folder.mkdir(exist_ok=True)
            library = folder / f"{name}.so"
            library.write_bytes(schemata.select(content, number))
            made[name] = replace(build, digest=f"{build.digest}-{number}", library=str(library))
        return StageBuilds({PLAIN: made})
