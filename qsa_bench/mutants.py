"""Mutants by hand: a patch and a manifest a wrong behaviour, applied to a scratch copy.

`mutations/<stage>/<what-goes-wrong>.patch` with a `.toml` of the same name; the controls (a patch
that does nothing, one that writes nothing) lie in `controls/`. Unknown keys are errors, so that a
misspelt expectation can't pass for a missing one.
"""

from __future__ import annotations

import fnmatch
import hashlib
import os
import shutil
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import qsa_bench
from qsa_bench import patches, source_lines
from qsa_bench.errors import ManifestError, NothingSelectedError
from qsa_bench.model import TARGETS, Expect, Mutant

# Beside the manifests: what was argued of automatic mutants (equivalence.py).
ARGUMENTS = "equivalent.toml"
WRITES_NOTHING = "controls/writes-nothing"
_KEYS: Mapping[str, type | tuple[type, ...]] = {
    "proves": str,
    "clause": str,
    "expect": str,
    "killed_by": list,
    "targets": list,
    "differing_bits": int,
    "least_margin": (int, float),
    "why_survives": str,
    "equivalent": bool,
    "race": bool,
}
_REQUIRED = ("proves", "clause", "expect")


def locator(root: Path) -> Callable[[str], Path]:
    """Return where a patch's paths lie: kernels under `root`, Python in the imported package.

    The two differ in a wheel, which carries kernels as data inside the package. PatchError for a
    path that is in neither.
    """
    package = Path(qsa_bench.__file__).parent

    def locate(path: str) -> Path:
        if not path.startswith(("kernels/", "qsa_bench/")):
            raise patches.PatchError(f"{path}: a mutant patches kernels/ or qsa_bench/ alone")
        inside = path.removeprefix("qsa_bench/")
        return root / path if inside == path else package / inside

    return locate


def load(
    root: Path,
    stage: str,
    clauses: Iterable[str],
    checks: Iterable[str],
    only: str | None = None,
) -> list[Mutant]:
    """Read every mutant of a stage, sorted by id; one ManifestError lists all that is wrong.

    `clauses` and `checks` are the names a manifest may use. `only` names a single mutant to read
    (as "controls/writes-nothing"), so that what became of the others does not matter.
    """
    folder = root / "mutations" / stage
    problems: list[str] = []
    mutants: list[Mutant] = []
    stems = {
        path.with_suffix("")
        for path in folder.rglob("*")
        if path.suffix in (".toml", ".patch") and path != folder / ARGUMENTS
    }
    for stem in sorted(stems):
        name = str(stem.relative_to(folder))
        if only not in (None, name):
            continue
        try:
            mutant = _read(stem, f"{stage}/{name}", stage)
            _check_names(mutant, set(clauses), set(checks))
            patches.apply_to_tree(mutant.patch, locator(root))
        except (ValueError, OSError) as error:
            problems.append(f"{stage}/{name}: {error}")
        else:
            mutants.append(mutant)
    if problems:
        listing = "; ".join(problems)
        raise ManifestError(
            f"reading the mutants of {stage}: {len(problems)} invalid or stale: {listing}; "
            "mend the manifest, or make the patch again from the present source"
        )
    return mutants


def _read(stem: Path, mutant_id: str, stage: str) -> Mutant:
    manifest, patch = stem.with_suffix(".toml"), stem.with_suffix(".patch")
    for path in (manifest, patch):
        if not path.is_file():
            raise ValueError(f"{path.name} is missing")
    try:
        fields: dict[str, Any] = tomllib.loads(manifest.read_text())
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{manifest.name}: {error}") from None
    unknown = sorted(set(fields) - set(_KEYS))
    if unknown:
        raise ValueError(f"{manifest.name}: unknown keys {', '.join(unknown)}")
    missing = [key for key in _REQUIRED if key not in fields]
    if missing:
        raise ValueError(f"{manifest.name}: missing {', '.join(missing)}")
    for key, value in fields.items():
        kind = _KEYS[key]
        wrong_bool = isinstance(value, bool) and kind is not bool
        if wrong_bool or not isinstance(value, kind):
            raise ValueError(f"{manifest.name}: {key} is a {type(value).__name__}")
    if fields["expect"] not in list(Expect):
        raise ValueError(
            f"{manifest.name}: expect is {fields['expect']!r}, not one of {', '.join(Expect)}"
        )
    return Mutant(
        id=mutant_id,
        stage=stage,
        proves=fields["proves"],
        clause=fields["clause"],
        expect=Expect(fields["expect"]),
        patch=patch.read_text(),
        killed_by=tuple(fields.get("killed_by", ())),
        targets=tuple(fields.get("targets", TARGETS)),
        differing_bits=fields.get("differing_bits"),
        least_margin=fields.get("least_margin"),
        why_survives=fields.get("why_survives", ""),
        equivalent=fields.get("equivalent", False),
        control="/controls/" in mutant_id,
        race=fields.get("race", False),
    )


def _check_names(mutant: Mutant, clauses: set[str], checks: set[str]) -> None:
    if not mutant.control and mutant.clause not in clauses:
        raise ValueError(f"clause {mutant.clause!r} is none of the stage's")
    for check in mutant.killed_by:
        if check not in checks:
            raise ValueError(f"killed_by names {check!r}, which is no check of the stage")


def select(mutants: Sequence[Mutant], globs: Sequence[str]) -> list[Mutant]:
    """Return the mutants whose id, or name without the stage, matches one of `globs`; all if none.

    NothingSelectedError when nothing matches.
    """
    chosen = [
        mutant
        for mutant in mutants
        if not globs
        or any(
            fnmatch.fnmatchcase(mutant.id, glob)
            or fnmatch.fnmatchcase(mutant.id.partition("/")[2], glob)
            for glob in globs
        )
    ]
    if not chosen:
        raise NothingSelectedError(
            f"selecting mutants: none of {len(mutants)} matches {', '.join(globs) or 'anything'}; "
            "see `qsa-bench list mutants`"
        )
    return chosen


@dataclass(frozen=True)
class Tree:
    """A scratch copy with one mutant applied; `python` says that its package must come first."""

    root: Path
    python: bool


def apply(mutant: Mutant, root: Path, scratch: Path) -> Tree:
    """Make a copy of the tree in `scratch`, apply the patch there and prove that nothing else changed.

    Kernels that the patch does not name are links to the tree's; those that it does say which lines of the
    tree's theirs are. ManifestError when the patch is stale, or a file it does not name differs.
    """
    try:
        changed = patches.apply_to_tree(mutant.patch, locator(root))
    except patches.PatchError as error:
        raise ManifestError(f"applying {mutant.id}: {error}") from None
    python = any(path.startswith("qsa_bench/") for path in changed)
    ignore = shutil.ignore_patterns("__pycache__", "*.pyc", "*.safetensors")
    locate = locator(root)
    parts = ["kernels"] + (["qsa_bench"] if python else [])
    for part in parts:
        # A package that is imported asks where its files lie: links would lead back to the tree.
        copy = shutil.copy2 if part == "qsa_bench" else os.symlink
        source = locate(f"{part}/").resolve()
        shutil.copytree(source, scratch / part, ignore=ignore, copy_function=copy)
    for path, content in changed.items():
        (scratch / path).unlink()
        of_kernels = path.startswith("kernels/")
        text = source_lines.told(locate(path).read_text(), content) if of_kernels else content
        (scratch / path).write_text(text)
    differing = {
        str(path.relative_to(scratch))
        for part in parts
        for path in (scratch / part).rglob("*")
        if path.is_file()
        and not path.is_symlink()
        and _hash(path) != _hash(locate(str(path.relative_to(scratch))))
    }
    if differing != set(changed):
        raise ManifestError(
            f"applying {mutant.id}: the patch names {sorted(changed)}, "
            f"but {sorted(differing)} differ"
        )
    return Tree(scratch, python)


def _hash(path: Path) -> bytes:
    return hashlib.sha256(path.read_bytes()).digest()
