"""The README says what is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from qsa_bench import stages
from qsa_bench.cli import app
from qsa_bench.exit_codes import ExitCode

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
