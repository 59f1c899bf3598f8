"""Tables of numbers that audit a gate: how narrowly it saw, how seldom, and what ran only once."""

from __future__ import annotations

from collections.abc import Sequence

from qsa_bench import outcomes, stats
from qsa_bench.model import Kill, MutantResult
from qsa_bench.tables import Cell, Column, Mark, Table, row

# Error over bound. A fault that comes this near is seen by luck; one no further beyond, barely.
NEAR, BARELY = 0.1, 3.0
_CHECKER = "races"


def tables(stage: str, results: Sequence[MutantResult], kills: Sequence[Kill]) -> list[Table]:
    """Return the tables of a stage that have a row."""
    made = (_margins(stage, results, kills), _orders(stage, results), _alike(stage, results))
    return [table for table in made if table.rows]


def narrow(results: Sequence[MutantResult], kills: Sequence[Kill]) -> list[tuple[str, Kill]]:
    """Return the mutants that the gate all but missed or all but saw, by margin.

    A near miss is a mutant that nothing killed, and whose largest error came within a tenth of a
    bound; one is barely caught when no check that killed it saw more than three times its bound,
    or compared bits. The cell named is the one with the largest margin.
    """
    alive = {result.mutant.id for result in results if not result.killed_by}
    rows: dict[str, list[Kill]] = {}
    for kill in kills:
        rows.setdefault(kill.mutant, []).append(kill)
    found: list[tuple[str, Kill]] = []
    whole = outcomes.whole_rows(kills)
    for mutant, cells in rows.items():
        if mutant not in whole:
            continue  # what other checks would have seen is not known
        if mutant in alive:
            measured = [cell for cell in cells if cell.margin is not None]
            best = max(measured, key=_margin, default=None)
            if best is not None and NEAR <= _margin(best) <= 1.0:
                found.append(("near miss", best))
            continue
        killing = [cell for cell in cells if cell.failed]
        if killing and all(cell.margin is not None for cell in killing):
            best = max(killing, key=_margin)
            if _margin(best) <= BARELY:
                found.append(("barely caught", best))
    return sorted(found, key=lambda pair: _margin(pair[1]))


def _margin(kill: Kill) -> float:
    return kill.margin if kill.margin is not None else 0.0


def _margins(stage: str, results: Sequence[MutantResult], kills: Sequence[Kill]) -> Table:
    own = {result.mutant.id for result in results if not result.mutant.control}
    rows = tuple(
        row(
            kill.mutant.removeprefix(f"{stage}/"),
            what,
            kill.check,
            kill.margin,
            mark=Mark.WARN,
        )
        for what, kill in narrow(results, [kill for kill in kills if kill.mutant in own])
    )
    columns = (
        Column("mutant", whole=True),
        Column("how narrowly", whole=True),
        Column("check", whole=True),
        Column("error / bound", right=True),
    )
    return Table("margins", f"seen or missed narrowly by {stage}'s gate", columns, rows)


def _orders(stage: str, results: Sequence[MutantResult]) -> Table:
    rows = []
    for result in results:
        if result.orders is None or result.orders_killed is None:
            continue
        share = stats.exact_interval(result.orders_killed, result.orders)
        checker = _CHECKER in result.killed_by
        rows.append(
            row(
                result.mutant.id.removeprefix(f"{stage}/"),
                f"{result.orders_killed} of {result.orders}",
                f"{share.low:.2f} to {share.high:.2f}",
                Cell("race", Mark.GOOD) if checker else Cell("silent", Mark.DIM),
            )
        )
    columns = (
        Column("mutant", whole=True),
        Column("orders that show it", right=True, whole=True),
        Column("95% interval", right=True, whole=True),
        Column("access checker", whole=True),
    )
    note = Cell("Plain runs of small cases; the checker needs one order.", Mark.DIM)
    return Table("orders", f"race mutants of {stage}", columns, tuple(rows), (note,))


def _alike(stage: str, results: Sequence[MutantResult]) -> Table:
    groups: dict[str, list[str]] = {}
    for result in results:
        if result.code:
            groups.setdefault(result.code, []).append(result.mutant.id.removeprefix(f"{stage}/"))
    rows = tuple(
        row(code, str(len(ids)), ", ".join(ids))
        for code, ids in sorted(groups.items())
        if len(ids) > 1
    )
    columns = (Column("code", whole=True), Column("mutants", right=True), Column("ids"))
    title = f"mutants of {stage} with the same machine code: one run each"
    return Table("alike", title, columns, rows, detail=True)
