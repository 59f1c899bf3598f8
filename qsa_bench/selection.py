"""Which mutants a campaign runs: by id, operator, diff, sample and shard, in that order. Pure."""

from __future__ import annotations

import fnmatch
import hashlib
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from qsa_bench import mutants, patches, resources
from qsa_bench.campaign_requests import MutateRequest
from qsa_bench.errors import NothingSelectedError, UsageError
from qsa_bench.model import Mutant
from qsa_bench.operators import OPERATORS


@dataclass(frozen=True)
class Selection:
    """What a command line asks for.

    `operators` are globs of automatic mutants' operators: with any, no mutant written by hand is
    meant. `touched` are lines by path that a diff touches, None without a diff. `shard` is (K, N),
    K from 1.
    """

    ids: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()
    touched: Mapping[str, set[int]] | None = None
    sample: int | None = None
    seed: int = 0
    shard: tuple[int, int] | None = None


@dataclass(frozen=True)
class Chosen:
    """The mutants of a campaign, and what its record says of how they were chosen.

    `whole` is True where nothing narrowed the choice: only then is what no mutant kills a gap.
    """

    mutants: tuple[Mutant, ...]
    whole: bool
    notes: Mapping[str, Any] = field(default_factory=dict)


def asked_by(request: MutateRequest) -> tuple[Selection, Callable[[str], Path]]:
    """Return what a request selects, and where a patch's paths lie; UsageError for a bad diff."""
    touched = None if request.in_diff is None else touched_by(request.in_diff)
    wanted = Selection(
        ids=request.id_globs,
        operators=request.operators,
        touched=touched,
        sample=request.sample,
        seed=request.sample_seed,
        shard=request.shard,
    )
    return wanted, mutants.locator(resources.tree_root())


def touched_by(path: Path) -> dict[str, set[int]]:
    """Return the lines by path that a diff touches; UsageError for a file that is no diff."""
    try:
        return patches.touched_lines(path.read_text())
    except (OSError, UnicodeDecodeError, patches.PatchError) as error:
        raise UsageError(f"--in-diff {path}: {error}") from None


def choose(found: Sequence[Mutant], selection: Selection, locate: Callable[[str], Path]) -> Chosen:
    """Return the chosen mutants in the order of `found`; NothingSelectedError says what left none.

    `locate` says where a path of a patch lies.
    """
    left = mutants.select(found, selection.ids)
    if selection.operators:
        unknown = [g for g in selection.operators if not fnmatch.filter(OPERATORS, g)]
        if unknown:
            raise UsageError(
                f"--operator {unknown[0]}: there is no such operator; use {', '.join(OPERATORS)}"
            )
        left = [
            mutant
            for mutant in left
            if any(fnmatch.fnmatchcase(mutant.operator, glob) for glob in selection.operators)
        ]
        _some(left, f"--operator {', '.join(selection.operators)}")
    if selection.touched is not None:
        left = [mutant for mutant in left if _touches(mutant, selection.touched, locate)]
        _some(left, "--in-diff: the diff touches no line that a mutant changes")
    if selection.sample is not None and selection.sample < len(left):
        kept = set(random.Random(selection.seed).sample(range(len(left)), selection.sample))  # noqa: S311
        left = [mutant for index, mutant in enumerate(left) if index in kept]
    whole = replace(selection, shard=None) == Selection()
    notes: dict[str, Any] = {"list": list_digest(left), "listed": len(left), "whole": whole}
    if selection.sample is not None:
        notes["sample"] = {"size": selection.sample, "seed": selection.seed}
    if selection.shard is not None:
        shard, count = selection.shard
        # Dealt like cards: neighbours cost alike.
        left = left[shard - 1 :: count]
        notes["shard"] = [shard, count]
        _some(left, f"--shard {shard}/{count}: {notes['listed']} mutants leave none for it")
    return Chosen(tuple(left), selection == Selection(), notes)


def list_digest(found: Iterable[Mutant]) -> str:
    """Digest the ids and patches of a list, so that shards of other lists can be told."""
    digest = hashlib.sha256()
    for mutant in found:
        digest.update(f"{mutant.id}\0{mutant.patch}\0".encode())
    return digest.hexdigest()[:16]


def _some(left: Sequence[Mutant], how: str) -> None:
    if not left:
        raise NothingSelectedError(f"selecting mutants: {how}; `mutate --auto --list` shows all")


def _touches(
    mutant: Mutant, touched: Mapping[str, set[int]], locate: Callable[[str], Path]
) -> bool:
    for patch in patches.parse(mutant.patch):
        lines = touched.get(patch.path)
        if lines and lines & patches.changed_lines(patch, locate(patch.path).read_text()):
            return True
    return False
