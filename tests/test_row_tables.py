"""Numbers of single rows in a report."""

from __future__ import annotations

from qsa_bench import gate_tables, row_tables
from qsa_bench.model import Evidence, Status, Verdict
from qsa_bench.store import StoredRun
from tests.made_sweeps import sweep


def _verdict(case: str, **numbers: float) -> Verdict:
    evidence = Evidence(
        0, 3, "rows", numbers={key.replace("__", "@"): v for key, v in numbers.items()}
    )
    return Verdict(
        "d" * 32, "qsa_engine", f"qsa_engine/{case}", "golden", "context", Status.PASS, evidence
    )


def test_numbers_of_rows_stand_row_by_row_and_once_however_often_judged() -> None:
    numbers = {"norm__2050": 80.25, "cosine__2051": 0.5, "norm__2051": 81.0, "rows": 2.0}
    verdicts = [_verdict("golden/case0", **numbers)] * 2 + [_verdict("golden/case1", rows=4.0)]
    (table,) = row_tables.tables(verdicts)
    assert table.title == "qsa_engine, golden/case0: row by row"
    assert [column.title for column in table.columns] == ["row", "norm", "cosine"]
    assert [[cell.text for cell in cells] for cells in table.rows] == [
        ["2050", "80.25", "-"],
        ["2051", "81", "0.5"],
    ]


def test_a_gate_reports_them() -> None:
    made = sweep(None, ())
    run = StoredRun(run=made.run, verdicts=(_verdict("golden/case0", norm__7=1.0),))
    assert "rows" in [table.key for table in gate_tables.tables(run)]
