"""Tables as data: what a page shows, before anyone decides how; and their markdown.

A cell's mark says what it means (bad, good, ...), never a colour alone: the words carry it too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

NOTHING = "-"


class Mark(StrEnum):
    """What a cell or a line means to the reader."""

    PLAIN = ""
    GOOD = "good"
    BAD = "bad"
    WARN = "warn"
    DIM = "dim"


@dataclass(frozen=True)
class Cell:
    """Text with its mark."""

    text: str
    mark: Mark = Mark.PLAIN


@dataclass(frozen=True)
class Column:
    """A heading. Numbers stand to the right; a `whole` column is never broken over lines."""

    title: str
    right: bool = False
    whole: bool = False


@dataclass(frozen=True)
class Table:
    """Rows under headings, with lines below.

    `key` names the kind of table (stable, for those who pick one). `notes` are sentences, which
    may be wrapped; `lines` are for copying (commands, paths) and are never broken. A table
    without columns shows only those two. `detail` tables are shown on request (-v). `dense` ones
    have many columns of a character each, which stand close together.
    """

    key: str
    title: str
    columns: tuple[Column, ...] = ()
    rows: tuple[tuple[Cell, ...], ...] = ()
    notes: tuple[Cell, ...] = ()
    lines: tuple[str, ...] = ()
    detail: bool = False
    dense: bool = False

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"table {self.key}: {len(row)} cells for {len(self.columns)}")


@dataclass(frozen=True)
class Page:
    """What a command has to say: tables, then the headline that sums them up, then paths."""

    headline: Cell
    tables: tuple[Table, ...] = ()
    lines: tuple[str, ...] = ()


def row(*cells: Cell | str | float | None, mark: Mark = Mark.PLAIN) -> tuple[Cell, ...]:
    """Return a row; plain values become cells of `mark`."""
    return tuple(value if isinstance(value, Cell) else Cell(shown(value), mark) for value in cells)


def shown(value: str | float | None) -> str:
    """Return a value as a table shows it: three digits of a real, "-" for what was not measured."""
    if value is None:
        return NOTHING
    if isinstance(value, float):
        return "inf" if value == math.inf else f"{value:.3g}"
    return str(value)


def duration(seconds: float) -> str:
    """Return a duration in the unit a person would choose."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 100:
        return f"{seconds:.1f} s"
    return f"{int(seconds) // 60} min {int(seconds) % 60} s"


def count(number: int, noun: str, plural: str = "") -> str:
    """Return "1 case", "2 cases"."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def pairs(key: str, title: str, entries: Iterable[tuple[str, str]], **more: Any) -> Table:
    """Return a table of two columns, what and its value."""
    rows = tuple(row(name, value) for name, value in entries)
    return Table(key, title, (Column("what", whole=True), Column("value")), rows, **more)


def without_empty(
    columns: Sequence[Column], rows: Sequence[tuple[Cell, ...]]
) -> tuple[tuple[Column, ...], tuple[tuple[Cell, ...], ...]]:
    """Return both without the columns in which every cell is empty or not measured."""
    kept = [
        index
        for index in range(len(columns))
        if not rows or any(cells[index].text not in ("", NOTHING) for cells in rows)
    ]
    return (
        tuple(columns[index] for index in kept),
        tuple(tuple(cells[index] for index in kept) for cells in rows),
    )


def markdown(page: Page, most_bytes: int | None = None) -> str:
    """Return a page as GitHub-flavoured markdown, headline first; ends with a newline.

    What does not fit `most_bytes` is left out from the end, row by row, and the last line says so.
    """
    blocks = [f"**{_escape(page.headline.text)}**"]
    for table in page.tables:
        blocks.extend(_table_markdown(table))
    if page.lines:
        blocks.append(_verbatim(page.lines))
    whole = "\n\n".join(blocks) + "\n"
    if most_bytes is None or len(whole.encode()) <= most_bytes:
        return whole
    said = f"**Cut: the whole is {len(whole.encode()):,} bytes, {most_bytes:,} fit here.**"
    return _cut(blocks, most_bytes - len(said.encode()) - 4) + f"\n\n{said}\n"


def _cut(blocks: Sequence[str], most: int) -> str:
    """Return as many blocks as fit, the last of them cut between lines."""
    kept: list[str] = []
    left = most
    for block in blocks:
        size = len(block.encode()) + 2
        if size <= left:
            kept.append(block)
            left -= size
            continue
        # A table needs its head and one row; verbatim lines are all or none.
        lines: list[str] = []
        for line in block.split("\n") if block.startswith("|") else ():
            left -= len(line.encode()) + 1
            if left < 0:
                break
            lines.append(line)
        if len(lines) > 2:
            kept.append("\n".join(lines))
        break
    return "\n\n".join(kept)


def _table_markdown(table: Table) -> list[str]:
    blocks = [f"### {_escape(table.title)}"]
    if table.columns:
        rules = ("---:" if column.right else "---" for column in table.columns)
        blocks.append(
            "\n".join(
                (
                    f"| {' | '.join(_escape(column.title) for column in table.columns)} |",
                    f"| {' | '.join(rules)} |",
                    *(f"| {' | '.join(map(_cell_markdown, cells))} |" for cells in table.rows),
                )
            )
        )
    blocks.extend(_cell_markdown(note) for note in table.notes)
    if table.lines:
        blocks.append(_verbatim(table.lines))
    return blocks


def _cell_markdown(cell: Cell) -> str:
    text = _escape(cell.text)
    return f"**{text}**" if cell.mark is Mark.BAD and text.strip() else text


def _escape(text: str) -> str:
    """Return text that markdown shows as it is, on one line."""
    for character in "\\`*_<>|[]#":
        text = text.replace(character, f"\\{character}")
    return text.replace("\n", "<br>")


def _verbatim(lines: Sequence[str]) -> str:
    return "\n".join(("```", *lines, "```"))
