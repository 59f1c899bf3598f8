"""Where mutants edit a source, and what they put there; standard library only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """Bytes `begin` to `end` of a source that mutants replace.

    An expression or statements; where `begin` is `end`, between statements.
    """

    begin: int
    end: int
    is_statement: bool = False

    def crosses(self, other: Place) -> bool:
        """True where two places have bytes in common and neither holds the other."""
        first, second = sorted((self, other), key=lambda place: (place.begin, -place.end))
        return first.begin < second.begin < first.end < second.end


@dataclass(frozen=True)
class Choice:
    """One mutant's text at a place."""

    place: Place
    text: str


@dataclass(frozen=True)
class Change:
    """Bytes `begin` to `end` of the old text that became `new_begin` to `new_end` of the new one."""

    begin: int
    end: int
    new_begin: int
    new_end: int
