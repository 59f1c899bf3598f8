"""Lines told by the production source: what a compiler says of a mutant is found where a reader looks."""

from __future__ import annotations

import difflib

_LINE = "#line {}"


def told(old: str, new: str, first: int = 1) -> str:
    """Return `new` so that a compiler numbers each line that stands in `old`, too, as it is there.

    `first` is the number of the first line of both. Lines that a mutant adds go on from the one
    before them. Nothing is put between the lines of a macro's definition.
    """
    before, after = old.split("\n"), new.split("\n")
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    lines: list[str] = []
    shift = 0
    for tag, i, _, k, m in matcher.get_opcodes():
        if tag == "equal" and k - i != shift and not (k and after[k - 1].endswith("\\")):
            lines.append(_LINE.format(first + i))
            shift = k - i
        lines.extend(after[k:m])
    return "\n".join(lines)
