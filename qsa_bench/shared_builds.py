"""Builds that many mutants share: one library, in which a number chooses whose fault it has."""

from __future__ import annotations

import hashlib
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from qsa_bench import choices, mutants, patches, resources, schemata
from qsa_bench.builder import Builder, Sources
from qsa_bench.model import Build, Mutant
from qsa_bench.once import Once
from qsa_bench.operators import Source
from qsa_bench.parity import StageBuilds, build_stage
from qsa_bench.places import Choice
from qsa_bench.stages.base import Stage

# Two mutants are built by themselves as soon.
_WORTH_A_BUILD = 3
# A compiler that refuses again and again is no cheaper than a build for each.
_ATTEMPTS = 6
_ERROR = re.compile(r"^(\S+?):(\d+):(\d+): (?:fatal )?error:", re.MULTILINE)
# Nothing of a schema is written by hand: its warnings are nobody's.
_FLAGS = ("-w",)
_DIGEST_DIGITS = 32


@dataclass(frozen=True)
class Form:
    """A mutant as choices, by the path of the source they are in."""

    mutant: Mutant
    choices: Mapping[str, tuple[Choice, ...]]

    @property
    def where(self) -> tuple[str, int]:
        """The first place that the mutant edits."""
        return min((path, own[0].place.begin) for path, own in self.choices.items())


def forms_of(chosen: Sequence[Mutant], root: Path) -> list[Form]:
    """Return the mutants that have the form of choices, in order.

    EnvironmentMissingError without tree-sitter.
    """
    locate = mutants.locator(root)
    sources: dict[str, Source] = {}
    found = []
    for mutant in chosen:
        changed = patches.apply_to_tree(mutant.patch, locate)
        if not all(path.startswith("kernels/") for path in changed):
            continue
        own = {}
        for path, text in changed.items():
            if path not in sources:
                sources[path] = Source(path, locate(path).read_bytes())
            # Offsets are those of plain ASCII alone: others are built by themselves.
            is_ascii = sources[path].content.isascii()
            own[path] = choices.choices_of(sources[path], text.encode()) if is_ascii else ()
        if own and all(own.values()):
            found.append(Form(mutant, own))
    return found


def grouped(forms: Sequence[Form], size: int) -> list[tuple[Form, ...]]:
    """Return forms in groups of at most `size`, in order; in none do places cross.

    What is left alone so is in no group.
    """
    groups: list[list[Form]] = []
    for form in forms:
        fits = next((g for g in groups[-2:] if len(g) < size and not _cross(form, g)), None)
        if fits is None:
            groups.append([form])
        else:
            fits.append(form)
    return [tuple(group) for group in groups if len(group) >= _WORTH_A_BUILD]


def _cross(form: Form, group: Sequence[Form]) -> bool:
    return any(
        mine.place.crosses(other.place)
        for path, own in form.choices.items()
        for member in group
        for other in member.choices.get(path, ())
        for mine in own
    )


def without_library(builds: StageBuilds) -> list[Build]:
    """Return the builds of a chosen mutant for a report: its library is gone with its turn."""
    return [replace(build, library="") for build in builds.all if build.mutant is not None]


class SharedBuild:
    """The builds of one group, with any of its mutants chosen; safe from several threads."""

    def __init__(
        self,
        made: StageBuilds,
        production: StageBuilds,
        forms: Mapping[int, Form],
        reached: Mapping[str, frozenset[str]],
        folder: Path,
    ) -> None:
        """`forms` by the numbers that choose them; `reached` are the sources of each kernel, by its name."""
        self._made = made
        self._production = production
        self._folder = folder
        self._numbers = {form.mutant.id: number for number, form in forms.items()}
        self._forms = forms
        self._reached = reached
        self._libraries = {
            (mode, name): Path(build.library or "").read_bytes()
            for mode, builds in made.builds.items()
            for name, build in builds.items()
        }

    def has(self, mutant: Mutant) -> bool:
        """True for a mutant that the compiler took as a choice."""
        return mutant.id in self._numbers

    @contextmanager
    def chosen(self, mutant: Mutant | None) -> Iterator[StageBuilds]:
        """Give the kernels with a mutant chosen, or none; their libraries are gone afterwards.

        What holds no choice is the production kernel's.
        """
        number = schemata.NONE if mutant is None else self._numbers[mutant.id]
        folder = self._folder / str(number)
        try:
            yield StageBuilds(
                {
                    mode: {
                        name: self._choose(mode, name, number, mutant, folder) for name in builds
                    }
                    for mode, builds in self._made.builds.items()
                }
            )
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _choose(
        self, mode: str, name: str, number: int, mutant: Mutant | None, folder: Path
    ) -> Build:
        content = self._libraries[mode, name]
        clean = self._production.builds[mode][name]
        changed = self._forms[number].choices if mutant is not None else self._reached[name]
        if schemata.MARK not in content or self._reached[name].isdisjoint(changed):
            return replace(clean, mutant=mutant.id if mutant else None, cached=True)
        library = folder / mode / f"{name}.so"
        library.parent.mkdir(parents=True, exist_ok=True)
        library.write_bytes(schemata.select(content, number))
        # Who else shares the build changes nothing of a mutant, and no digest.
        source = f"{clean.digest} {mutant.patch if mutant else ''}"
        digest = hashlib.sha256(source.encode()).hexdigest()[:_DIGEST_DIGITS]
        build = self._made.builds[mode][name]
        return replace(
            build,
            digest=digest,
            code_digest=digest,
            library=str(library),
            mutant=mutant.id if mutant else None,
            seconds=build.seconds / max(len(self._numbers), 1),
        )


class SharedBuilds:
    """Builds groups of one stage's mutants; safe from several threads."""

    def __init__(
        self,
        builder: Builder,
        stage: Stage,
        production: StageBuilds,
        modes: Sequence[str],
        scratch: Path,
    ) -> None:
        """`scratch` is a folder that outlives what is built."""
        self._builder = builder
        self._stage = stage
        self._production = production
        self._modes = modes
        self._scratch = scratch
        self._root = resources.tree_root()
        self._built: Once[str, SharedBuild | None] = Once()

    def of(self, group: tuple[Form, ...]) -> SharedBuild | None:
        """Build a group, once, without those that a compiler refuses; None where that fails."""
        return self._built.of(group[0].mutant.id, lambda: self._build(group))

    def _build(self, group: Sequence[Form]) -> SharedBuild | None:
        left = dict(enumerate(group, 1))
        folder = Path(tempfile.mkdtemp(dir=self._scratch, prefix="group-"))
        tree = folder / "tree"
        shutil.copytree(self._root / "kernels", tree / "kernels")
        paths = sorted({path for form in group for path in form.choices})
        sources = {path: Source(path, (self._root / path).read_bytes()) for path in paths}
        for _ in range(_ATTEMPTS):
            if len(left) < _WORTH_A_BUILD:
                return None
            made = {
                path: schemata.compose(
                    source,
                    {n: form.choices[path] for n, form in left.items() if path in form.choices},
                )
                for path, source in sources.items()
            }
            for path, schema in made.items():
                (tree / path).write_text(schema.text)
            kernels = self._stage.kernels
            builds = build_stage(
                self._builder, kernels, "host", tree, self._modes, short=True, flags=_FLAGS
            )
            failure = builds.failure
            if failure is None:
                return SharedBuild(builds, self._production, left, self._reached(), folder)
            refused = _refused(made, failure)
            if not refused:
                return None
            left = {number: form for number, form in left.items() if number not in refused}
        return None

    def _reached(self) -> dict[str, frozenset[str]]:
        """Return the sources that each kernel is made of, relative to the tree's root."""
        sources = Sources(self._root)
        return {
            kernel.name: frozenset(
                path.relative_to(sources.root).as_posix()
                for path in sources.closure(sources.root / kernel.source)
            )
            for kernel in self._stage.kernels
        }


def _refused(made: Mapping[str, schemata.Schema], failure: Build) -> set[int]:
    """Return the mutants that the compiler's errors point at."""
    return {
        number
        for name, line, column in _ERROR.findall(failure.log)
        for path, schema in made.items()
        if name.endswith(path)
        for number in schema.blamed(int(line), int(column))
    }
