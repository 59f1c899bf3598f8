"""What every report of a campaign needs: what an outcome means, where a mutant stands. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from qsa_bench import patches
from qsa_bench.errors import RunFileError
from qsa_bench.model import Kill, MutantResult, Outcome
from qsa_bench.store import StoredRun

KILLS = (Outcome.KILLED, Outcome.KILLED_BY_CRASH, Outcome.KILLED_BY_TIMEOUT)
# Not a mutant of the score: nothing could have been seen here.
LEFT_OUT = (Outcome.EQUIVALENT, Outcome.GPU_ONLY)
INCONCLUSIVE = (Outcome.UNVIABLE, Outcome.NOT_RUN, Outcome.STALE)


@dataclass(frozen=True)
class Place:
    """Where a mutant's first hunk changes a file: lines and columns from 1, the end exclusive."""

    path: str
    line: int
    column: int
    end_line: int
    end_column: int
    replacement: str


def campaign(run: StoredRun) -> StoredRun:
    """Return the run; RunFileError where it is of another kind."""
    if run.run.command != "mutate":
        raise RunFileError(
            f"reporting {run.run.id}: this format tells of mutants, and the run is a "
            f"{run.run.command}"
        )
    return run


def survivors_first(results: Iterable[MutantResult]) -> list[MutantResult]:
    """Return results with what needs a look in front: survivors, then other surprises, by id."""
    return sorted(
        results,
        key=lambda result: (
            result.as_expected,
            result.outcome is not Outcome.SURVIVED,
            result.mutant.id,
        ),
    )


def kills_by_mutant(kills: Iterable[Kill]) -> Mapping[str, list[Kill]]:
    """Return each mutant's row of the kill matrix."""
    rows: dict[str, list[Kill]] = {}
    for kill in kills:
        rows.setdefault(kill.mutant, []).append(kill)
    return rows


def places(result: MutantResult, sources: Mapping[str, str]) -> list[Place]:
    """Return a place for each hunk; exact where the source is known, else as the patch counts."""
    found = []
    for patch in patches.parse(result.mutant.patch):
        lines = sources.get(patch.path, "").split("\n")
        for hunk, counted in zip(patch.hunks, _counted(result, patch.path), strict=False):
            at = patches.place_of(lines, hunk.old)
            found.append(_place(patch.path, hunk.old, hunk.new, counted if at is None else at))
    return found


def _counted(result: MutantResult, path: str) -> Sequence[int]:
    """Return the first line of each hunk, from 0, as the headers count."""
    return [first for name, first in patches.hunk_lines(result.mutant.patch) if name == path]


def _place(path: str, old: Sequence[str], new: Sequence[str], at: int) -> Place:
    """Return the smallest text in which both sides of a hunk differ."""
    top = _alike(old, new)
    bottom = min(_alike(old[::-1], new[::-1]), len(old) - top, len(new) - top)
    before, after = old[top : len(old) - bottom], new[top : len(new) - bottom]
    if not before:
        line = max(at + top, 1)
        return Place(path, line, 1, line + 1, 1, "\n".join(after))
    first, last = before[0], before[-1]
    left = _alike(first, after[0]) if after else 0
    right = _alike(last[::-1], after[-1][::-1]) if after else 0
    if len(before) == 1 or len(after) == 1:
        right = min(right, len(last) - left, (len(after[-1]) - left) if after else 0)
    end = len(last) - max(right, 0)
    whole = "\n".join(after)
    text = whole[left : len(whole) - right] if right > 0 else whole[left:]
    end_line = at + top + len(before)
    begin, column = at + top + 1, left + 1
    # An end before its beginning has no extent; viewers want one character.
    if end_line == begin and end + 1 <= column:
        end = column
    return Place(path, begin, column, end_line, end + 1, text)


def _alike(left: Sequence[str] | str, right: Sequence[str] | str) -> int:
    """Return how many elements two sequences begin with in common."""
    count = 0
    for one, other in zip(left, right, strict=False):
        if one != other:
            break
        count += 1
    return count
