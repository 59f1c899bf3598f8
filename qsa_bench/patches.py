"""Strict unified diffs: a hunk applies where its old text stands, and it must stand exactly once.

`git apply` is not used: inside another work tree it answers 0 and changes nothing, and it accepts
a hunk whose context has moved without a word. Here line numbers are hints that nothing relies on;
a hunk whose old text is missing, or stands twice, is an error that says so.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_HUNK = re.compile(r"^@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")

_RANGES = re.compile(r"^@@ -\d+(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


class PatchError(ValueError):
    """A patch that is malformed, does not apply or changes nothing; one line."""


@dataclass(frozen=True)
class Hunk:
    """Old and new lines of one place, context included."""

    old: tuple[str, ...]
    new: tuple[str, ...]


@dataclass(frozen=True)
class FilePatch:
    """The hunks of one file; `path` is relative to the tree's root."""

    path: str
    hunks: tuple[Hunk, ...]


def parse(text: str) -> tuple[FilePatch, ...]:
    """Parse a unified diff; PatchError when it is none, or names a path outside the tree."""
    files: list[FilePatch] = []
    lines = text.split("\n")
    index = 0
    while index < len(lines):
        if not lines[index].startswith("--- "):
            index += 1
            continue
        if index + 1 >= len(lines) or not lines[index + 1].startswith("+++ "):
            raise PatchError(f"line {index + 1}: '---' without '+++' after it")
        old_path, path = _path(lines[index]), _path(lines[index + 1])
        if old_path != path:
            raise PatchError(f"line {index + 1}: a mutant neither renames nor adds: {path}")
        index += 2
        hunks: list[Hunk] = []
        while index < len(lines) and lines[index].startswith("@@"):
            hunk, index = _hunk(lines, index)
            hunks.append(hunk)
        if not hunks:
            raise PatchError(f"{path}: no hunk")
        rest = lines[index] if index < len(lines) else ""
        if rest[:1] in ("+", "-", " ") and not rest.startswith("--- "):
            raise PatchError(f"line {index + 1}: the hunk before it says that it has ended")
        files.append(FilePatch(path, tuple(hunks)))
    if not files:
        raise PatchError("no '---' line: this is no unified diff")
    if len({patch.path for patch in files}) != len(files):
        raise PatchError("a file stands twice")
    return tuple(files)


def _path(line: str) -> str:
    name = line[4:].split("\t", 1)[0].strip()
    path = name[2:] if name[:2] in ("a/", "b/") else name
    if path.startswith("/") or ".." in Path(path).parts:
        raise PatchError(f"path {path} leads out of the tree")
    return path


def _hunk(lines: list[str], index: int) -> tuple[Hunk, int]:
    match = _HUNK.match(lines[index])
    if match is None:
        raise PatchError(f"line {index + 1}: malformed hunk header")
    old_left, new_left = (int(count) if count else 1 for count in match.groups())
    old: list[str] = []
    new: list[str] = []
    at = index + 1
    while old_left > 0 or new_left > 0:
        if at >= len(lines):
            raise PatchError(f"line {index + 1}: the hunk ends early")
        line = lines[at]
        mark, body = (line[0], line[1:]) if line else (" ", "")
        if mark in " -":
            old.append(body)
            old_left -= 1
        if mark in " +":
            new.append(body)
            new_left -= 1
        if mark not in " -+\\":
            raise PatchError(f"line {at + 1}: a hunk line starts with {mark!r}")
        at += 1
    if old_left or new_left:
        raise PatchError(f"line {index + 1}: the hunk's counts are wrong")
    return Hunk(tuple(old), tuple(new)), at


def apply(patch: FilePatch, text: str) -> str:
    """Return `text` with the patch applied; PatchError when it is stale or changes nothing."""
    lines = text.split("\n")
    for number, hunk in enumerate(patch.hunks, 1):
        if not hunk.old:
            raise PatchError(f"{patch.path}: hunk {number} has no old lines to find its place by")
        places = _places(lines, hunk.old)
        if len(places) != 1:
            where = ", ".join(str(place + 1) for place in places[:4])
            raise PatchError(
                f"{patch.path}: the old text of hunk {number} "
                + (f"stands {len(places)} times (lines {where})" if places else "is not there")
            )
        lines[places[0] : places[0] + len(hunk.old)] = hunk.new
    result = "\n".join(lines)
    if result == text:
        raise PatchError(f"{patch.path}: the patch changes nothing")
    return result


def _places(lines: list[str], old: tuple[str, ...]) -> list[int]:
    first = old[0]
    wanted = list(old)
    return [
        index
        for index, line in enumerate(lines)
        if line == first and lines[index : index + len(wanted)] == wanted
    ]


def changed_lines(patch: FilePatch, text: str) -> set[int]:
    """Return the lines of `text`, from 1, that a patch's old side changes.

    A hunk that only adds names the line it adds after. PatchError when a hunk is stale.
    """
    found: set[int] = set()
    lines = text.split("\n")
    for number, hunk in enumerate(patch.hunks, 1):
        places = _places(lines, hunk.old)
        if len(places) != 1:
            raise PatchError(f"{patch.path}: the old text of hunk {number} is not there once")
        matcher = difflib.SequenceMatcher(None, hunk.old, hunk.new, autojunk=False)
        for tag, begin, end, _, _ in matcher.get_opcodes():
            if tag != "equal":
                first = places[0] + begin + 1
                found.update(range(first, places[0] + end + 1) or (max(first - 1, 1),))
    return found


def place_of(lines: Sequence[str], old: Sequence[str]) -> int | None:
    """Return the line, from 0, where a hunk's old text stands; None unless it stands once."""
    found = _places(list(lines), tuple(old))
    return found[0] if len(found) == 1 else None


def hunk_lines(text: str) -> list[tuple[str, int]]:
    """Return path and first line, from 0, of each hunk as its header counts."""
    found: list[tuple[str, int]] = []
    path = ""
    for line in text.split("\n"):
        if line.startswith("+++ "):
            path = _path(line)
        elif _RANGES.match(line):
            found.append((path, max(int(line.split()[1][1:].partition(",")[0]) - 1, 0)))
    return found


def places(text: str) -> list[tuple[str, int, int]]:
    """Return path, first and last line that a patch changes, as its hunks' headers count them.

    A hint where the patch was made from another source; a hunk that only adds has one line.
    """
    found: list[tuple[str, int, int]] = []
    path, at = "", 0
    changed: list[int] = []
    for line in [*text.split("\n"), "--- end"]:
        match = _RANGES.match(line)
        if match is not None or line.startswith("--- "):
            if changed:
                found.append((path, changed[0], changed[-1]))
            changed = []
        if match is not None:
            at = int(line.split()[1][1:].partition(",")[0])
        elif line.startswith("+++ "):
            path = _path(line)
        elif line.startswith("-") and not line.startswith("--- "):
            changed.append(at)
            at += 1
        elif line.startswith("+"):
            changed = changed or [max(at - 1, 1)]
        else:
            at += 1
    return found


def touched_lines(text: str) -> dict[str, set[int]]:
    """Return, by path, the lines of the new side that any unified diff adds, changes or leaves.

    Around lines that are gone the two beside them count. PatchError when the text is no diff.
    Unlike a mutant's patch it may add, remove and rename files.
    """
    found: dict[str, set[int]] = {}
    current: set[int] | None = None
    at = old_left = new_left = 0
    for line in text.split("\n"):
        if old_left > 0 or new_left > 0:
            if line[:1] == "-":
                old_left -= 1
                if current is not None:
                    current.update((max(at - 1, 1), at))
            elif line[:1] == "+":
                new_left -= 1
                if current is not None:
                    current.add(at)
                at += 1
            elif line[:1] != "\\":
                old_left -= 1
                new_left -= 1
                at += 1
            continue
        if line.startswith("+++ "):
            name = line[4:].split("\t", 1)[0].strip()
            path = name[2:] if name[:2] == "b/" else name
            current = None if path == "/dev/null" else found.setdefault(path, set())
        match = _RANGES.match(line)
        if match is not None:
            old_left, new_left = (int(match[i]) if match[i] else 1 for i in (1, 3))
            at = int(match[2]) + (new_left == 0)
    if not found:
        raise PatchError("no '+++' line: this is no unified diff")
    return found


def apply_to_tree(text: str, locate: Callable[[str], Path]) -> Mapping[str, str]:
    """Return path to new content for every file the patch names; nothing is written.

    `locate` says where a path of the patch lies. PatchError when the patch is malformed, stale,
    changes nothing or names a missing file.
    """
    changed: dict[str, str] = {}
    for patch in parse(text):
        source = locate(patch.path)
        if not source.is_file():
            raise PatchError(f"{patch.path}: there is no such file")
        changed[patch.path] = apply(patch, source.read_text())
    return changed
