"""A campaign for other programs: each format says what became of each mutant, and no less."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import jsonschema
import pytest

from qsa_bench import results, tables
from qsa_bench.errors import RunFileError
from qsa_bench.model import Outcome
from qsa_bench.reports import elements, facts, github, html, junit
from qsa_bench.tables import Cell, Column, Page, Table, row
from tests import specimens
from tests.reports import campaigns
from tests.reports.campaigns import PATH, RESULTS, SOURCE, STAGE, campaign, mutant, result

SCHEMA = json.loads((Path(__file__).parent / "mutation-testing-report-schema.json").read_text())


def test_every_mutant_is_a_junit_case_and_survivors_are_its_failures(tmp_path: Path) -> None:
    root = ElementTree.fromstring(junit.text(campaign(tmp_path)))
    (suite,) = root
    told = {case.get("name"): [child.tag for child in case] for case in suite}
    names = {made.outcome: made.mutant.id for made in RESULTS}
    assert len(told) == len(RESULTS)
    assert told[names[Outcome.KILLED]] == []
    assert told[names[Outcome.SURVIVED]] == ["failure"]
    assert told[names[Outcome.EQUIVALENT]] == told[names[Outcome.GPU_ONLY]] == ["skipped"]
    assert told[names[Outcome.UNVIABLE]] == told[names[Outcome.NOT_RUN]] == ["error"]
    wanted = {"tests": "9", "failures": "2", "errors": "2", "skipped": "2"}
    assert {name: root.get(name) for name in wanted} == wanted
    failure = suite.find("testcase/failure")
    assert failure is not None
    assert "100%" in (failure.get("message") or "")
    assert "+int line_4 = 5;" in (failure.text or "")


@pytest.mark.parametrize(("made", "asked"), [((), 3), (RESULTS[:1], 2)])
def test_what_was_not_run_is_a_junit_error(made: tuple[object, ...], asked: int) -> None:
    root = ElementTree.fromstring(junit.text(campaign(None, made, asked)))  # type: ignore[arg-type]
    assert root.get("errors") == "1"


def test_a_hand_written_mutant_that_died_otherwise_is_a_failure() -> None:
    wrong = replace(RESULTS[0], as_expected=False, why="not killed by mask")
    root = ElementTree.fromstring(junit.text(campaign(None, (wrong,))))
    assert root.get("failures") == "1"


def test_annotations_name_file_and_line_survivors_first(tmp_path: Path) -> None:
    lines = github.text(campaign(tmp_path)).splitlines()
    assert [re.findall(r"title=(\w[\w-]*)", line)[0] for line in lines] == [
        "survived",
        "survived",
        "not-run",
    ]
    assert lines[0].startswith(f"::error file={PATH},line=4,endLine=4,title=survived%3A ")
    assert "100%25" in lines[0]
    assert "%0A+int line_4 = 5;" in lines[0]


def test_annotations_stay_within_ten_and_say_what_is_left_out() -> None:
    made = tuple(result(n, Outcome.SURVIVED) for n in range(1, 15))
    lines = github.text(campaign(None, made)).splitlines()
    assert len(lines) == 10
    assert "5 more" in lines[-1]


def test_a_campaign_that_lost_mutants_is_annotated() -> None:
    (line,) = github.text(campaign(None, RESULTS[:1], asked=4)).splitlines()
    assert "1 of 4 mutants were run" in line


def test_the_schemas_json_is_valid_and_names_every_mutant(tmp_path: Path) -> None:
    document = json.loads(elements.text(campaign(tmp_path)))
    jsonschema.validate(document, SCHEMA, cls=jsonschema.Draft7Validator)
    (file,) = document["files"].values()
    assert file["source"] == SOURCE
    told = {made["id"]: made["status"] for made in file["mutants"]}
    statuses = ["Killed", "Killed", "Timeout", "Survived", "Ignored", "CompileError", "Ignored"]
    assert list(told.values()) == [*statuses, "Pending", "Survived"]
    assert file["mutants"][0]["killedBy"] == [f"{STAGE}/block-keys"]
    tests = document["testFiles"][f"checks of {STAGE}"]["tests"]
    assert [test["name"] for test in tests] == ["block-keys", "untouched"]


def test_a_place_is_the_smallest_text_that_differs(tmp_path: Path) -> None:
    (place,) = facts.places(RESULTS[3], {PATH: SOURCE})
    line = SOURCE.split("\n")[place.line - 1]
    assert (line[place.column - 1 : place.end_column - 1], place.replacement) == ("4", "5")


@pytest.mark.parametrize(
    ("old", "new", "begin", "end", "text"),
    [
        (["a;", "b;"], ["a;", "b;", "c;"], (2, 1), (3, 1), "c;"),
        (["f(1, 1);"], ["f(1, 1, 1);"], (1, 7), (1, 8), ", 1"),
        (["x(y);"], [";"], (1, 1), (1, 5), ""),
        (["a(b,", "  c);"], ["a(d,", "  e);"], (1, 3), (2, 4), "d,\n  e"),
    ],
)
def test_places_of_insertions_deletions_and_several_lines(
    old: list[str], new: list[str], begin: tuple[int, int], end: tuple[int, int], text: str
) -> None:
    hunk = [f"-{line}" for line in old] + [f"+{line}" for line in new]
    patch = f"--- a/{PATH}\n+++ b/{PATH}\n@@ -1,{len(old)} +1,{len(new)} @@\n" + "\n".join(hunk)
    made = replace(RESULTS[0], mutant=replace(mutant(1), patch=f"{patch}\n"))
    (place,) = facts.places(made, {PATH: "\n".join(old) + "\n"})
    assert (place.line, place.column) == begin
    assert (place.end_line, place.end_column) == end
    assert place.replacement == text


def test_the_page_holds_all_it_shows_and_loads_nothing(tmp_path: Path) -> None:
    page = html.text(campaign(tmp_path))
    assert re.findall(r"""(?:src|href)=["']?(?!#)[^"' >]+|url\(|@import|https?://""", page) == []
    embedded = page.split('<script id="data" type="application/json">')[1].split("</script>")[0]
    data = json.loads(embedded)
    assert [made["id"] for made in data["mutants"][:2]] == [
        m.mutant.id for m in (RESULTS[3], RESULTS[8])
    ]
    assert data["mutants"][0]["why"] == campaigns.AWKWARD
    assert data["mutants"][0]["same"] == [RESULTS[8].mutant.id]
    assert data["sources"] == {PATH: SOURCE}
    assert page.count("</script>") == 2


def test_a_markdown_summary_is_cut_at_the_limit_and_says_so() -> None:
    rows = tuple(row(f"row {n}") for n in range(1000))
    page = Page(Cell("headline"), (Table("t", "title", (Column("c"),), rows), Table("u", "next")))
    whole = tables.markdown(page)
    assert tables.markdown(page, len(whole.encode())) == whole
    cut = tables.markdown(page, 4000)
    assert len(cut.encode()) <= 4000
    assert cut.startswith("**headline**\n\n### title\n\n| c |")
    assert cut.endswith(f"**Cut: the whole is {len(whole):,} bytes, 4,000 fit here.**\n")
    assert "### next" not in cut


def test_a_run_of_another_kind_is_refused(tmp_path: Path) -> None:
    gate = specimens.gate(tmp_path, specimens.verdict())
    for name in results.FORMATS:
        with pytest.raises(RunFileError, match="this format tells of mutants"):
            results.exported(gate, name)
