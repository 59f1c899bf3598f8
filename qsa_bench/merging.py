"""Shards of one campaign as one run: what they hold together, or why they are not one. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from qsa_bench.errors import IncompleteError, NotComparableError, UsageError
from qsa_bench.model import Build, Kill, MutantResult, SourceText, Verdict
from qsa_bench.store import StoredRun

T = TypeVar("T")


@dataclass(frozen=True)
class Merged:
    """The rows of all shards; `listed` is how many mutants the campaign is of."""

    results: tuple[MutantResult, ...]
    kills: tuple[Kill, ...]
    verdicts: tuple[Verdict, ...]
    builds: tuple[Build, ...]
    sources: tuple[SourceText, ...]
    listed: int
    whole: bool


def merge(shards: Sequence[StoredRun]) -> Merged:
    """Return the shards together.

    UsageError for what is no shard or stands twice, NotComparableError for shards of another list,
    target or commit, IncompleteError for a gap.
    """
    marks = [_mark(shard) for shard in shards]
    first = shards[0]
    for shard in shards[1:]:
        for what, of in _ALIKE:
            if of(shard) != of(first):
                raise NotComparableError(
                    f"merging {first.run.id} and {shard.run.id}: their {what} differ "
                    f"({of(first)} and {of(shard)}); shards come from one commit and one command"
                )
    count = marks[0][1]
    numbers = [number for number, _ in marks]
    twice = sorted({number for number in numbers if numbers.count(number) > 1})
    if twice:
        raise UsageError(f"merging {len(shards)} shards: {twice[0]}/{count} is there twice")
    missing = sorted(set(range(1, count + 1)) - set(numbers))
    if missing:
        named = ", ".join(f"{number}/{count}" for number in missing)
        raise IncompleteError(f"merging {len(shards)} shards: {named} missing")
    ordered = [shard for _, shard in sorted(zip(numbers, shards, strict=True), key=_number)]
    results = tuple(result for shard in ordered for result in shard.mutants)
    ids = [result.mutant.id for result in results]
    if len(set(ids)) != len(ids):
        double = next(name for name in ids if ids.count(name) > 1)
        raise UsageError(f"merging {len(shards)} shards: {double} is in two of them")
    selection = _selection(first)
    return Merged(
        results,
        tuple(kill for shard in ordered for kill in shard.kills),
        # Each shard gated the production kernel.
        _distinct([verdict for shard in ordered for verdict in shard.verdicts], repr),
        _distinct([build for shard in ordered for build in shard.builds], _build_key),
        _distinct([source for shard in ordered for source in shard.sources], repr),
        int(selection["listed"]),
        bool(selection["whole"]),
    )


def _number(pair: tuple[int, StoredRun]) -> int:
    return pair[0]


def _selection(run: StoredRun) -> dict[str, Any]:
    selection = run.run.notes.get("selection")
    return selection if isinstance(selection, dict) else {}


def _mark(run: StoredRun) -> tuple[int, int]:
    """Return the shard's (K, N)."""
    shard = _selection(run).get("shard")
    if run.run.command != "mutate" or not isinstance(shard, list):
        raise UsageError(f"merging {run.run.id}: it is no shard; `mutate --shard K/N` makes one")
    if not run.complete:
        raise IncompleteError(f"merging {run.run.id}: it was interrupted; run it again")
    number, count = shard
    return int(number), int(count)


_ALIKE = (
    ("lists of mutants", lambda run: _selection(run).get("list")),
    ("numbers of shards", lambda run: _mark(run)[1]),
    ("targets", lambda run: run.run.target),
    ("commits", lambda run: run.run.commit),
)


def _build_key(build: Build) -> str:
    return repr((build.kernel, build.target, build.mode, build.mutant, build.digest))


def _distinct(rows: Sequence[T], key: Any) -> tuple[T, ...]:
    return tuple({key(row): row for row in rows}.values())
