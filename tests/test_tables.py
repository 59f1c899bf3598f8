"""Pages: what they say is in the run, the worst comes first, and files give the same page."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from qsa_bench import console, gate_tables, mutation_tables, pages, results, store
from qsa_bench.model import SCHEMA_VERSION
from qsa_bench.tables import Cell, Column, Mark, Page, Table, duration, markdown, row, shown
from tests import specimens

DIES = (specimens.killed("drop-the-tail", 201), specimens.killed("keep-one-more", 20))


def _table(page: Page, key: str) -> Table:
    found = [table for table in page.tables if table.key == key]
    assert len(found) == 1, f"{len(found)} tables {key}"
    return found[0]


def _texts(table: Table) -> list[list[str]]:
    return [[cell.text for cell in cells] for cells in table.rows]


def _titles(table: Table) -> list[str]:
    return [column.title for column in table.columns]


def test_a_gate_has_a_row_for_each_check_with_failed_ones_first() -> None:
    run = specimens.gate(
        None,
        specimens.verdict(check="ids"),
        specimens.verdict(),
        specimens.WRONG,
        specimens.OFF_BY_A_BIT,
        exit_code=3,
    )
    checks = _table(pages.of_run(run), "checks")
    assert _titles(checks) == [
        "stage",
        "check",
        "cases",
        "runs",
        "passed",
        "failed",
        "worst margin",
        "first failing case",
    ]
    evidence = "3 of 12330 bits differ, first at row 2 token 8, want 1, got 0, lifo order"
    assert _texts(checks) == [
        [
            specimens.STAGE,
            "mask",
            "2",
            "24",
            "1",
            "1",
            "-",
            f"qsa_select/golden/case-6: {evidence}",
        ],
        [specimens.STAGE, "ids", "1", "12", "1", "0", "-", ""],
        [specimens.STAGE, "scores", "1", "12", "1", "0", "0.75", ""],
    ]
    assert {cell.mark for cell in checks.rows[0]} == {Mark.BAD}
    failures = _table(pages.of_run(run), "failures")
    assert _texts(failures) == [["qsa_select/golden/case-6", "mask", "wrong", evidence]]


def test_a_gate_of_bitwise_checks_that_pass_shows_no_empty_column() -> None:
    checks = _table(pages.of_run(specimens.gate(None, specimens.verdict())), "checks")
    assert _titles(checks) == ["stage", "check", "cases", "runs", "passed", "failed"]


def test_a_case_judged_twice_is_counted_once() -> None:
    plain, checked = specimens.verdict(), replace(specimens.verdict(), build="e" * 32)
    wrong = replace(specimens.WRONG, case=plain.case)
    for verdicts, counts in (
        ((plain, checked), ["1", "24", "1", "0"]),
        ((plain, wrong), ["1", "24", "0", "1"]),
    ):
        checks = _table(pages.of_run(specimens.gate(None, *verdicts)), "checks")
        assert _texts(checks)[0][2:6] == counts


def test_the_golden_says_who_computed_it() -> None:
    run = specimens.gate(None, specimens.verdict())
    used = {
        "path": "qsa.safetensors",
        "metadata": {
            "config": "{...}",
            "transformers_version": "5.16.1",
            "torch_version": "2.13.0+cpu",
            "platform": "Linux-x86_64",
            "seed": "0",
        },
    }
    notes = {"golden": used, "coverage": {specimens.STAGE: {"rows": 133, "differing_bits": 0}}}
    golden = _table(pages.of_run(replace(run, run=replace(run.run, notes=notes))), "golden")
    assert _texts(golden) == [
        ["path", "qsa.safetensors"],
        ["made with", "transformers 5.16.1, torch 2.13.0+cpu, Linux-x86_64, seed 0"],
        [specimens.STAGE, "133 rows"],
    ]


def test_the_golden_line_says_how_its_rows_were_compared() -> None:
    golden = _table(pages.of_run(specimens.gate(None, specimens.verdict())), "golden")
    said = "133 rows, 129 bitwise, 4 up to ties, 128 all-kept, 5 truncating"
    assert [specimens.STAGE, said] in _texts(golden)


@pytest.mark.parametrize(
    ("verdicts", "code", "said", "mark"),
    [
        ((specimens.verdict(),), 0, "gate ok: 1 case, 1 verdict, 0 cases failed; in ", Mark.GOOD),
        (
            (specimens.verdict(), specimens.WRONG),
            3,
            "gate FAILED (exit 3: a kernel failed its parity gate): 2 cases, 2 verdicts, "
            "1 case failed; in ",
            Mark.BAD,
        ),
        (
            (specimens.verdict(),),
            10,
            "gate FAILED (exit 10: the gate passed a kernel that writes nothing): ",
            Mark.BAD,
        ),
        ((), 130, "gate INTERRUPTED (exit 130: stopped by the user; ", Mark.BAD),
        ((), 77, "gate FAILED (exit 77: a code that this version does not know): ", Mark.BAD),
    ],
)
def test_the_headline_says_how_a_gate_ended(
    verdicts: tuple[store.StoredRun, ...], code: int, said: str, mark: Mark
) -> None:
    headline = pages.of_run(specimens.gate(None, *verdicts, exit_code=code)).headline  # type: ignore[arg-type]
    assert headline.text.startswith(said)
    assert headline.mark is mark


def test_an_interrupted_run_never_reads_as_ok(tmp_path: Path) -> None:
    writer = store.RunWriter.create(tmp_path, "mutate", (), "host", "emulated", 30)
    assert writer.folder is not None
    page = pages.of_run(store.read_run(writer.folder))
    assert page.headline.text.startswith("mutate INTERRUPTED: ")
    assert "0 of 30 done" in page.headline.text
    assert page.headline.mark is Mark.BAD


def test_what_stopped_a_run_is_in_its_headline() -> None:
    run = specimens.gate(None, exit_code=5)
    broken = replace(run, run=replace(run.run, notes={"error": "building qsa_select: no type"}))
    assert "): building qsa_select: no type; 0 cases" in pages.of_run(broken).headline.text


def test_blind_and_wavering_cases_are_named() -> None:
    run = specimens.campaign(None, exit_code=10)
    notes = {
        "blind_cases": {specimens.STAGE: ["qsa_select/ramp/0"]},
        "baseline": {specimens.STAGE: {"failures": 0, "wavering": ["qsa_select/ties/1"]}},
    }
    page = pages.of_run(replace(run, run=replace(run.run, notes=notes)))
    assert _texts(_table(page, "blind")) == [["qsa_select/ramp/0"]]
    assert _texts(_table(page, "wavering")) == [["qsa_select/ties/1"]]


def test_unexpected_mutants_come_first_and_say_why() -> None:
    page = pages.of_run(specimens.campaign(None, *DIES, specimens.SURVIVOR, exit_code=4))
    mutants = _table(page, "mutants")
    assert [cells[0].text for cells in mutants.rows] == [
        "skips-a-digit",
        "drop-the-tail",
        "keep-one-more",
    ]
    assert [cells[0].mark for cells in mutants.rows] == [Mark.BAD, Mark.PLAIN, Mark.PLAIN]
    assert mutants.rows[0][2].text == "NO"
    assert mutants.rows[1][2].text == "yes"
    assert mutants.notes == (Cell(f"skips-a-digit: {specimens.SURVIVOR.why}", Mark.BAD),)


def test_each_mutant_says_what_it_proves_or_that_it_proves_nothing() -> None:
    page = pages.of_run(specimens.campaign(None, DIES[0], specimens.SURVIVOR, exit_code=4))
    proofs = _table(page, "proofs")
    assert _titles(proofs) == ["mutant", "clause", "what it proves"]
    assert _texts(proofs) == [
        ["skips-a-digit", "radix", f"nothing: {specimens.SURVIVOR.why}"],
        ["drop-the-tail", "tail", "drop-the-tail is seen"],
    ]


def test_the_named_killers_are_shown_and_the_others_counted() -> None:
    by_named = specimens.killed("a", killed_by=("ids", "mask", "races"))
    by_others = specimens.killed("b", killed_by=("ids", "races"), as_expected=False, why="why")
    mutants = _table(pages.of_run(specimens.campaign(None, by_named, by_others)), "mutants")
    assert [cells[3].text for cells in mutants.rows] == ["ids, races", "mask +2"]


def test_why_an_equivalent_mutant_survives_is_said() -> None:
    page = pages.of_run(specimens.campaign(None, specimens.EQUIVALENT))
    assert _table(page, "mutants").notes == (
        Cell("removes-a-spare-barrier: the next barrier orders the same accesses"),
    )


def test_the_negative_controls_say_what_they_proved() -> None:
    short = replace(
        specimens.killed("invert-the-order", 40),
        differing_bits=38,
        as_expected=False,
        why="38 bits differ, not 40",
    )
    page = pages.of_run(specimens.campaign(None, *DIES, short, specimens.EQUIVALENT))
    controls = _table(page, "controls")
    assert _titles(controls) == ["control", "differing bits", "what it proved"]
    assert _texts(controls) == [
        ["invert-the-order", "38, not 40", "nothing: 38 bits differ, not 40"],
        ["drop-the-tail", "201", "drop-the-tail is seen"],
        ["keep-one-more", "20", "keep-one-more is seen"],
    ]


def test_the_kill_matrix_tells_named_kills_from_others_and_from_silence() -> None:
    run = specimens.campaign(None, *DIES, specimens.SURVIVOR, specimens.EQUIVALENT)
    # One mutant's last check was not run.
    partly = replace(run, kills=run.kills[:2] + run.kills[3:])
    matrix = _table(pages.of_run(partly), "kill-matrix")
    assert _titles(matrix) == ["mutant", "a", "b", "c"]
    assert _texts(matrix) == [
        ["drop-the-tail", "X", "x", ""],
        ["keep-one-more", "X", "x", "."],
        ["removes-a-spare-barrier", ".", ".", "."],
        ["skips-a-digit", "!", ".", "."],
    ]
    assert matrix.rows[3][1].mark is Mark.BAD


def test_each_check_says_what_it_kills_and_what_it_alone_kills() -> None:
    alone = specimens.killed("one-past-the-row", killed_by=("races",))
    checks = _table(pages.of_run(specimens.campaign(None, *DIES, alone)), "checks")
    assert _titles(checks) == ["", "check", "kills", "kills alone", "named by"]
    assert _texts(checks) == [
        ["a", "mask", "2", "0", "3"],
        ["b", "ids", "2", "0", "0"],
        ["c", "races", "1", "1", "0"],
    ]


def test_sixty_checks_have_names_of_their_own() -> None:
    result = specimens.killed("drop-the-tail")
    checks = tuple(f"check-{index}" for index in range(60))
    run = replace(specimens.campaign(None, result), kills=tuple(specimens.kills_of(result, checks)))
    titles = _titles(_table(pages.of_run(run), "kill-matrix"))
    assert len(set(titles)) == 61


def test_checks_no_mutant_needs_and_clauses_none_breaks_are_listed() -> None:
    gaps = _table(pages.of_run(specimens.campaign(None, *DIES)), "gaps")
    assert [note.text for note in gaps.notes] == [
        "checks no mutant needs: qsa_select: races",
        "clauses no mutant breaks: qsa_select: both-zeros, live-rows",
    ]


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        (
            {"killed": 31, "expected_crash": 1, "expected_timeout": 1, "all": 36, "equivalent": 2},
            "score 33/34 (97.1%); of 36: 31 killed, 1 expected crash, 1 expected timeout, "
            "2 equivalent",
        ),
        # Not run counts against the score.
        (
            {"killed": 1, "all": 2, "not_run": 1},
            "score 1/2 (50.0%); of 2: 1 killed, 1 not run",
        ),
        ({"killed": 0, "all": 1, "unviable": 1}, "no score; of 1: 0 killed, 1 unviable"),
        ({"killed": 0, "all": 0}, "no score; of 0: 0 killed"),
    ],
)
def test_a_score_comes_with_every_count_and_never_from_nothing(
    counts: dict[str, int], said: str
) -> None:
    assert mutation_tables.score({"score": counts}) == said
    assert mutation_tables.score({}) == ""


@pytest.mark.parametrize("shape", ["page", "document", "markdown"])
@pytest.mark.parametrize("command", ["gate", "mutate"])
def test_the_files_alone_give_what_the_run_gave(tmp_path: Path, command: str, shape: str) -> None:
    if command == "gate":
        run = specimens.gate(tmp_path, specimens.verdict(), specimens.WRONG, exit_code=3)
    else:
        run = specimens.campaign(tmp_path, *DIES, specimens.EQUIVALENT)
    assert run.folder is not None
    again = store.read_run(run.folder)
    view = {"page": results.page, "document": results.document, "markdown": results.markdown}[shape]
    assert view(again) == view(run)


def test_a_mutation_runs_json_holds_what_became_of_each_mutant() -> None:
    document = results.document(specimens.campaign(None, *DIES, specimens.SURVIVOR, exit_code=4))
    assert document["schema_version"] == SCHEMA_VERSION
    assert document["exit_code"] == 4
    assert document["summary"]["outcomes"] == {"killed": 2, "survived": 1}
    assert document["summary"]["unexpected"] == 1
    first = document["mutants"][0]
    assert first["id"] == "qsa_select/drop-the-tail"
    assert first["outcome"] == "killed"
    assert first["expect"] == "killed"
    assert first["as_expected"] is True
    assert first["killed_by"] == ["mask", "ids"]
    assert first["differing_bits"] == 201
    assert first["margin"] is None
    assert {kill["check"] for kill in document["kills"]} == {"mask", "ids", "races"}


def test_a_gates_json_counts_cases_and_verdicts() -> None:
    document = results.document(specimens.gate(None, specimens.verdict(), specimens.WRONG))
    assert document["summary"] == {
        "cases": 2,
        "failed_cases": 1,
        "verdicts": {"pass": 1, "wrong": 1},
    }
    assert document["verdicts"][1]["numbers"] == {"differing_bits": 3.0}


def test_json_has_no_number_that_json_lacks() -> None:
    document = results.document(specimens.gate(None, specimens.NOT_A_NUMBER))
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert document["verdicts"][0]["error"] == "nan"
    assert document["verdicts"][0]["margin"] == "inf"


def test_markdown_shows_cells_as_they_are() -> None:
    table = Table(
        "x",
        "a|b",
        (Column("name"), Column("n", right=True)),
        (row("qsa_pool*", "1"), row("two\nlines", "<b>", mark=Mark.BAD)),
        lines=("qsa-bench replay qsa_select a_b.safetensors",),
    )
    assert markdown(Page(Cell("done"), (table,))) == (
        "**done**\n\n"
        "### a\\|b\n\n"
        "| name | n |\n"
        "| --- | ---: |\n"
        "| qsa\\_pool\\* | 1 |\n"
        "| **two<br>lines** | **\\<b\\>** |\n\n"
        "```\nqsa-bench replay qsa_select a_b.safetensors\n```\n"
    )


def test_a_row_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="table x: 2 cells for 1"):
        Table("x", "x", (Column("a"),), (row("1", "2"),))


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.0042, "4 ms"), (12.34, "12.3 s"), (185.0, "3 min 5 s")]
)
def test_durations_are_said_as_a_person_would(seconds: float, said: str) -> None:
    assert duration(seconds) == said


def test_what_was_not_measured_is_no_zero() -> None:
    assert shown(None) == "-"
    assert shown(0.0) == "0"
    assert shown(1.23456) == "1.23"


def test_piped_pages_fit_a_hundred_columns_but_commands_are_never_broken(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    command = f"qsa-bench replay qsa_select {'x' * 120}.safetensors"
    run = specimens.gate(None, specimens.verdict(), specimens.WRONG, exit_code=3)
    failed = replace(
        run, run=replace(run.run, notes={**run.run.notes, "replay_commands": [command]})
    )
    console.show(results.page(failed))
    lines = capsys.readouterr().out.splitlines()
    assert command in lines
    assert 80 < max(len(line) for line in lines if line != command) <= 100
    assert all(line == line.rstrip() for line in lines)


def test_a_kill_matrix_of_twenty_checks_fits_a_hundred_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    result = specimens.killed("stride-inferred-from-the-buffer-length")
    checks = ("mask", *(f"check-{index}" for index in range(19)))
    run = replace(specimens.campaign(None, result), kills=tuple(specimens.kills_of(result, checks)))
    console.show(Page(Cell("x"), (_table(pages.of_run(run), "kill-matrix"),)))
    lines = capsys.readouterr().out.splitlines()
    assert f"{result.mutant.id.partition('/')[2]} X {'. ' * 18}." in lines


def test_a_quiet_page_is_its_headline_and_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = specimens.gate(tmp_path, specimens.verdict())
    console.show(results.page(run), quiet=True)
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("gate ok: 1 case")
    assert second == f"run folder: {run.folder}"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("g++ (Debian 12.2.0-14+deb12u1) 12.2.0", "g++ 12.2.0"),
        ("Cuda compilation tools, release 13.0, V13.0.88", "nvcc 13.0"),
        ("", ""),
    ],
)
def test_a_compiler_is_named_in_two_words(line: str, said: str) -> None:
    assert gate_tables.compiler(line) == said


def test_builds_and_times_are_shown_when_asked_and_failed_builds_always() -> None:
    good = specimens.gate(None, specimens.verdict())
    assert _table(pages.of_run(good), "builds").detail
    broken = specimens.build(library=None, log="\n".join(f"line {n}" for n in range(20)))
    table = _table(pages.of_run(replace(good, builds=(broken,))), "builds")
    assert not table.detail
    assert table.rows[0][4] == Cell("FAILED", Mark.BAD)
    assert table.lines[:2] == ("qsa_select, host plain:", "line 0")
    assert table.lines[-1] == "... 8 lines more"
