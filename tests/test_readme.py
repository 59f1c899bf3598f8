"""The README says what is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from qsa_bench import stages
from qsa_bench.cli import app
from qsa_bench.exit_codes import ExitCode
from tests import readme_figures, specimens

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()


def test_the_table_of_exit_codes_is_the_programs() -> None:
    table = README.split("## Exit codes", 1)[1].split("## ", 1)[0]
    rows = re.findall(r"^\| (\d+) \| (.+) \|$", table, re.MULTILINE)
    assert rows == [(str(int(code)), code.sentence) for code in ExitCode]


def test_every_stage_has_its_row() -> None:
    table = README.split("## Stages", 1)[1].split("## ", 1)[0]
    named = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert sorted(named) == sorted(stages.stage_names())


def test_every_path_it_names_is_there() -> None:
    paths = re.findall(r"`((?:kernels|tests|qsa_bench|mutations)/[\w./-]*)`", README)
    assert "kernels/qsa/select.cu" in paths
    missing = [path for path in paths if not (ROOT / path).exists()]
    assert missing == []


@pytest.mark.parametrize(
    "command", sorted(set(re.findall(r"`qsa-bench ([a-z]+(?: (?:dump|verify))?)\b", README)))
)
def test_every_command_it_names_is_one(command: str) -> None:
    answer = CliRunner().invoke(app, [*command.split(), "--help"])
    assert answer.exit_code == 0, answer.output


def test_every_option_it_names_is_one() -> None:
    told = set(re.findall(r"--[a-z][a-z-]+", README))
    sources = "".join(path.read_text() for path in (ROOT / "qsa_bench").glob("cli*.py"))
    known = set(re.findall(r"--[a-z][a-z-]+", sources)) | {
        f"--{name.replace('_', '-')}" for name in re.findall(r"^    (\w+):", sources, re.MULTILINE)
    }
    assert told - known - {"--install-completion"} == set()


def test_every_figure_stands_in_a_table_that_cites_its_run() -> None:
    assert readme_figures.stray_figures(README) == []


def test_every_cited_figure_is_in_its_run() -> None:
    assert readme_figures.complaints(README, ROOT) == []


def cited(tmp_path: Path) -> str:
    """Publish a run made by hand and return a README that shows some of its table."""
    run = specimens.gate(tmp_path / "results/published", specimens.OFF_BY_A_BIT)
    assert run.folder is not None
    commit, date = run.run.commit[:7], run.run.started[:10]
    return (
        f"From `results/published/{run.folder.name}` (emulated sm_90, commit {commit}, {date}):\n\n"
        "| check | runs | worst margin |\n|---|---|---|\n| scores | 12 | 0.75 |\n\nNo more.\n"
    )


def test_a_cited_table_holds(tmp_path: Path) -> None:
    assert readme_figures.complaints(cited(tmp_path), tmp_path) == []


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("0.75", "0.76", "holds no 0.76"),
        ("| 12 |", "| 47110815 |", "holds no 47110815"),
        ("emulated sm_90", "emulated sm_80", "does not say emulated sm_90"),
        ("commit ", "commit 0", "does not say"),
        ("published/", "published/1", "is not there"),
    ],
)
def test_a_doctored_table_is_seen(tmp_path: Path, old: str, new: str, complaint: str) -> None:
    text = cited(tmp_path)
    assert old in text
    found = readme_figures.complaints(text.replace(old, new, 1), tmp_path)
    assert any(complaint in line for line in found), found


@pytest.mark.parametrize(
    "text",
    [
        "Select takes 2.21 us.",
        "| rows | time |\n|---|---|\n| 1 | 4.06 us |",
        "It reads 4.26 TB/s.",
        "It is 3 times as fast.",
    ],
)
def test_a_figure_that_cites_no_run_is_seen(text: str) -> None:
    assert len(readme_figures.stray_figures(f"Above.\n\n{text}\n\nBelow.")) == 1
