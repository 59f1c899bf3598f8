"""Pages of what is no run: a replay, a doctor, a list, a golden."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from qsa_bench import results
from qsa_bench.exit_codes import ExitCode
from qsa_bench.model import Evidence, Finding, Status
from qsa_bench.requests import (
    Diagnosis,
    GoldenFile,
    GoldenReport,
    Listing,
    Probe,
    ReplayResult,
    State,
)
from qsa_bench.tables import Cell, Mark, Table


def _texts(table: Table) -> list[list[str]]:
    return [[cell.text for cell in cells] for cells in table.rows]


REPLAY = ReplayResult(
    kernel="qsa_select",
    inputs=Path("in.safetensors"),
    target="host",
    status=Status.PASS,
    exit_code=ExitCode.OK,
    findings=(Finding("mask", Status.PASS),),
    output=Path("out.safetensors"),
)


def test_a_replay_that_equals_the_oracle_says_so() -> None:
    page = results.page(REPLAY)
    assert page.headline == Cell("replay qsa_select in.safetensors: equals the oracle", Mark.GOOD)
    assert page.lines == ("outputs: out.safetensors",)


def test_a_replay_that_differs_shows_the_evidence() -> None:
    evidence = Evidence(count=2, total=8, unit="bits", first="row 0 token 3", want="1", got="0")
    differs = replace(
        REPLAY,
        status=Status.WRONG,
        exit_code=ExitCode.GATE_FAILED,
        findings=(Finding("mask", Status.WRONG, evidence),),
    )
    page = results.page(differs)
    assert page.headline.text.endswith(": wrong: differs from the oracle")
    assert _texts(page.tables[0]) == [
        ["mask", "wrong", "2 of 8 bits differ, first at row 0 token 3, want 1, got 0"]
    ]
    assert results.exit_code(differs) == 3


@pytest.mark.parametrize(
    ("expected", "said"),
    [(True, "(as the contract demands)"), (False, "(the contract demands none)")],
)
def test_a_replay_that_trapped_says_where_why_and_whether_it_should(
    expected: bool, said: str
) -> None:
    trapped = replace(
        REPLAY,
        status=Status.TRAPPED,
        exit_code=ExitCode.GATE_FAILED,
        trap_reason="a score inside the prefix is not finite",
        trap_where="block 0 thread 7, select.cu:88",
        trap_expected=expected,
        mutant="qsa_select/nan-skipped",
    )
    assert results.page(trapped).headline.text == (
        "replay qsa_select in.safetensors: trapped at block 0 thread 7, select.cu:88: a score "
        f"inside the prefix is not finite {said} (mutant qsa_select/nan-skipped)"
    )
    assert results.document(trapped)["trap"]["reason"] == "a score inside the prefix is not finite"


def test_no_replay_is_green_without_a_pass() -> None:
    with pytest.raises(ValueError, match="exit 0 for status wrong"):
        replace(REPLAY, status=Status.WRONG)
    with pytest.raises(ValueError, match="trapped without a reason"):
        replace(REPLAY, status=Status.TRAPPED, exit_code=ExitCode.GATE_FAILED)


def test_a_doctor_says_what_to_do_about_what_is_missing() -> None:
    missing = Probe("g++", State.MISSING, "not on the PATH", "install it")
    absent = Probe("gpu", State.ABSENT, "no library", "only the cuda target needs one")
    sick = Diagnosis("host", (missing, absent))
    page = results.page(sick)
    assert page.headline.text == "doctor: the host target can't work here: missing g++"
    assert [note.text for note in page.tables[0].notes] == [
        "g++: install it",
        "gpu: only the cuda target needs one",
    ]
    assert results.exit_code(sick) == ExitCode.ENVIRONMENT_MISSING
    assert results.exit_code(Diagnosis("host", (absent,))) == 0
    with pytest.raises(ValueError, match="no word on what to do"):
        Probe("g++", State.MISSING, "not on the PATH")


def test_a_list_of_nothing_is_no_success() -> None:
    assert results.exit_code(Listing("runs", ("run",), ())) == ExitCode.NOTHING_SELECTED
    some = Listing("exit-codes", ("code", "what it is"), (("3", "failed"),))
    assert results.exit_code(some) == 0
    assert results.document(some)["exit_codes"] == [{"code": "3", "what_it_is": "failed"}]


def test_a_list_shows_what_fits_and_json_has_the_rest() -> None:
    listing = Listing("mutants", ("mutant", "proves", "clause"), (("a/b", "c", "d"),), shown=2)
    table = results.page(listing).tables[0]
    assert [column.title for column in table.columns] == ["mutant", "proves"]
    assert _texts(table) == [["a/b", "c"]]
    assert results.document(listing)["mutants"] == [{"mutant": "a/b", "proves": "c", "clause": "d"}]


def test_a_golden_says_what_it_was_made_with() -> None:
    golden = GoldenFile(
        path=Path("qsa.safetensors"),
        kind="qsa",
        bytes=3_100_000,
        digest="ab",
        metadata={"torch_version": "2.13.0", "platform": "Linux", "config": "{...}"},
        facts=("133 rows",),
    )
    table = results.page(GoldenReport("verify", (golden,))).tables[0]
    assert ["torch_version", "2.13.0"] in _texts(table)
    assert ["platform", "Linux"] in _texts(table)
    assert ["bytes", "3,100,000"] in _texts(table)
    assert not any(cells[0] == "config" for cells in _texts(table))
    assert table.notes == (Cell("133 rows"),)
