"""The terminal: pages, progress and errors. The only importer of rich.

Answers go to stdout, everything on the way to stderr. Colour and progress bars are for a terminal;
rich honours NO_COLOR, FORCE_COLOR and TERM=dumb, and COLUMNS sets the width.
"""

from __future__ import annotations

import os
import sys
from typing import IO, TYPE_CHECKING, Any

from qsa_bench import wrapping
from qsa_bench.requests import NullProgress, Progress
from qsa_bench.tables import Cell, Mark, Page, Table

if TYPE_CHECKING:
    from rich.console import Console

PROGRAM = "qsa-bench"
# Wide enough for a mutant's sentence, narrow enough for half a screen and a CI log.
PIPED_WIDTH = 100

_STYLES = {
    Mark.PLAIN: "",
    Mark.GOOD: "green",
    Mark.BAD: "bold red",
    Mark.WARN: "yellow",
    Mark.DIM: "dim",
}


def _console(stream: IO[str]) -> Console:
    from rich.console import Console

    # rich takes COLUMNS at its word, and prints nothing at all in a width of 0.
    asked = os.environ.get("COLUMNS", "")
    chosen = asked.isdecimal() and int(asked) > 0
    fixed = None if stream.isatty() or chosen else PIPED_WIDTH
    return Console(file=stream, width=fixed, highlight=False, markup=False, emoji=False)


def show(page: Page, *, quiet: bool = False, verbose: bool = False) -> None:
    """Print a page to stdout: the headline alone when quiet, detail tables too when verbose."""
    console = _console(sys.stdout)
    with console.capture() as written:
        _show_page(console, page, quiet=quiet, verbose=verbose)
    # A table pads its last column; nobody wants that in a file or a diff.
    for line in written.get().removesuffix("\n").split("\n"):
        print(line.rstrip())


def _show_page(console: Console, page: Page, *, quiet: bool, verbose: bool) -> None:
    if not quiet:
        for table in page.tables:
            if verbose or not table.detail:
                _show_table(console, table)
    _show_cell(console, page.headline)
    for line in page.lines:
        _show_verbatim(console, line)


def _show_table(console: Console, table: Table) -> None:
    from rich import box
    from rich.table import Table as Grid

    _show_cell(console, Cell(table.title), style="bold")
    if table.columns:
        # Between two columns rich sets what pads both, and the box's blank line.
        gap = 1 if table.dense else 3
        grid = Grid(
            box=None if table.dense else box.SIMPLE_HEAD,
            padding=(0, 1, 0, 0) if table.dense else (0, 1),
            pad_edge=False,
            show_edge=False,
            header_style="bold",
        )
        made = wrapping.widths(
            [
                [column.title, *(cells[index].text for cells in table.rows)]
                for index, column in enumerate(table.columns)
            ],
            [column.whole for column in table.columns],
            console.width - gap * (len(table.columns) - 1),
        )
        for column, width in zip(table.columns, made, strict=True):
            grid.add_column(
                _text(_wrapped(Cell(column.title), width)),
                justify="right" if column.right else "left",
                width=width,
                overflow="fold",
            )
        for cells in table.rows:
            grid.add_row(*(_text(_wrapped(c, w)) for c, w in zip(cells, made, strict=True)))
        console.print(grid)
    for note in table.notes:
        _show_cell(console, note)
    for line in table.lines:
        _show_verbatim(console, line)
    console.print()


def _wrapped(cell: Cell, width: int) -> Cell:
    return Cell("\n".join(wrapping.wrap(cell.text, width)), cell.mark)


def _text(cell: Cell, style: str = "") -> Any:
    from rich.text import Text

    return Text(cell.text, style=style or _STYLES[cell.mark])


def _show_cell(console: Console, cell: Cell, style: str = "") -> None:
    console.print(_text(cell, style))


def _show_verbatim(console: Console, line: str) -> None:
    """Print a line to be copied: never broken, whatever the width."""
    console.print(_text(Cell(line)), soft_wrap=True)


def error(message: str) -> None:
    """Print one line to stderr: "qsa-bench: ..."."""
    print(f"{PROGRAM}: {' '.join(message.split())}", file=sys.stderr)


def progress(*, quiet: bool) -> Progress:
    """Return a bar on stderr, or nothing where nobody would see it move."""
    return NullProgress() if quiet or not sys.stderr.isatty() else _Bar()


class _Bar:
    """A bar that is gone when its task is over."""

    def __init__(self) -> None:
        self._progress: Any = None
        self._task: Any = None

    def start(self, description: str, total: int | None) -> None:
        """Begin a task of `total` steps."""
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bars

        self.finish()
        self._progress = Bars(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[step]}", markup=False),
            console=_console(sys.stderr),
            transient=True,
        )
        self._task = self._progress.add_task(description, total=total, step="")
        self._progress.start()

    def advance(self, text: str = "") -> None:
        """One step is done."""
        if self._progress is not None:
            self._progress.update(self._task, advance=1, step=text)

    def finish(self) -> None:
        """Take the bar away."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
