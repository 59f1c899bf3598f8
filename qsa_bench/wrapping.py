"""How wide a table's columns become and where their text breaks: between words, or behind a separator.

Pure functions on text; a terminal's cells are counted as characters.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

# What a long name may be broken behind, when there is no space: paths, ids, lists, options.
_PIECE = re.compile(r"[^/,:_.=-]*[/,:_.=-]+|[^/,:_.=-]+")
# A piece longer than this may be broken anywhere: digests and the like.
_LONGEST_PIECE = 20


def pieces(word: str) -> list[str]:
    """Return a word cut behind its separators; together they are the word."""
    return _PIECE.findall(word)


def wrap(text: str, width: int) -> list[str]:
    """Return text as lines of at most `width` characters.

    It breaks at spaces; within a word that has no room on a line of its own behind separators, and
    elsewhere only where a piece is longer than a line.
    """
    lines: list[str] = []
    for paragraph in text.split("\n"):
        line = ""
        for word in paragraph.split(" "):
            joined = f"{line} {word}" if line else word
            if len(joined) <= width:
                line = joined
                continue
            if line:
                lines.append(line)
            *full, line = _fold(word, width)
            lines.extend(full)
        lines.append(line)
    return lines


def _fold(word: str, width: int) -> list[str]:
    """Return a word as lines of at most `width` characters, at least one."""
    lines = [""]
    for piece in pieces(word):
        if len(lines[-1]) + len(piece) <= width:
            lines[-1] += piece
            continue
        if lines[-1]:
            lines.append("")
        cut = [piece[start : start + width] for start in range(0, len(piece), width)]
        lines[-1:] = cut
    return lines


def widths(columns: Sequence[Sequence[str]], whole: Sequence[bool], room: int) -> list[int]:
    """Return a width for each column of texts, together at most `room` where that can be.

    A column is as wide as its longest text where there is room, else no narrower than its longest
    word; a `whole` one keeps its width while the others have that much. What is left over goes to
    the columns that lack most.
    """
    natural = [
        max((len(line) for text in c for line in text.split("\n")), default=0) for c in columns
    ]
    if sum(natural) <= room:
        return natural
    words = [_longest(texts, str.split) for texts in columns]
    parts = [_longest(texts, _split) for texts in columns]
    for least in (
        [n if kept else w for n, w, kept in zip(natural, words, whole, strict=True)],
        [n if kept else p for n, p, kept in zip(natural, parts, whole, strict=True)],
        parts,
    ):
        if sum(least) <= room:
            return _share(least, natural, room)
    # Not even the pieces fit: the widest give way.
    made = list(parts)
    while sum(made) > max(room, len(made)):
        made[made.index(max(made))] -= 1
    return made


def _split(text: str) -> list[str]:
    return [piece for word in text.split() for piece in pieces(word)]


def _longest(texts: Sequence[str], split: Callable[[str], list[str]]) -> int:
    return max(
        (min(len(part), _LONGEST_PIECE) for text in texts for part in split(text)), default=0
    )


def _share(least: Sequence[int], natural: Sequence[int], room: int) -> list[int]:
    """Give what is left of `room`, one by one, to the column that is narrowest for its text."""
    made = list(least)
    for _ in range(room - sum(least)):
        lacking = [i for i, width in enumerate(made) if width < natural[i]]
        if not lacking:
            break
        # Lines a full cell takes now: the tallest column is what makes rows long.
        made[max(lacking, key=lambda i: natural[i] / max(made[i], 1))] += 1
    return made
