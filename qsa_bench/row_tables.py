"""Diagnostics of single rows that a judge counted: what an engineer asks of a kernel that passes.

A number of a verdict named "what@row" belongs to a row; `row` is free text, the same for all numbers
of one row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from qsa_bench.model import Verdict
from qsa_bench.tables import Column, Table, row, without_empty

_OF = "@"


def tables(verdicts: Iterable[Verdict]) -> Iterable[Table]:
    """Yield one table a case with such numbers, rows in the order they were counted."""
    told: dict[tuple[str, str], Mapping[str, float]] = {}
    for verdict in verdicts:
        found = {key: value for key, value in verdict.evidence.numbers.items() if _OF in key}
        if found:
            # A case is judged more than once (plain, checked, again).
            told.setdefault((verdict.stage, verdict.case), found)
    for (stage, case), numbers in told.items():
        yield _table(stage, case, numbers)


def _table(stage: str, case: str, numbers: Mapping[str, float]) -> Table:
    names = list(dict.fromkeys(key.partition(_OF)[0] for key in numbers))
    places = list(dict.fromkeys(key.partition(_OF)[2] for key in numbers))
    lines = [
        row(place, *(_number(numbers.get(f"{name}{_OF}{place}")) for name in names))
        for place in places
    ]
    columns = (
        Column("row", whole=True),
        *(Column(name.replace("_", " "), right=True) for name in names),
    )
    kept, cells = without_empty(columns, lines)
    name = case.removeprefix(f"{stage}/")
    return Table("rows", f"{stage}, {name}: row by row", kept, cells)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"
