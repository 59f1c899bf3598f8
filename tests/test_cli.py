"""The command line as a person or a CI meets it: the real program in a child, where it can be."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import pytest

import qsa_bench as package
from qsa_bench import checks, cli, cli_options, console, errors, requests, results, store
from qsa_bench.exit_codes import ExitCode
from qsa_bench.model import SCHEMA_VERSION, TARGETS
from qsa_bench.stages import stage_names
from tests import specimens

Qsa = Callable[..., "subprocess.CompletedProcess[str]"]

COMMANDS = ("doctor", "list", "build", "gate", "mutate", "report", "replay", "golden")


def _one_line(text: str) -> str:
    assert text.startswith("qsa-bench: ")
    assert text.count("\n") == 1
    return text


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Go to an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_help_names_every_command_and_every_exit_code(qsa_bench: Qsa) -> None:
    done = qsa_bench("--help")
    assert done.returncode == 0
    for command in COMMANDS:
        assert re.search(rf"^  {command} +[A-Z].*\.$", done.stdout, re.MULTILINE), command
    for code in ExitCode:
        assert re.search(rf"^ +{int(code)}  {code.sentence}$", done.stdout, re.MULTILINE)


def test_no_command_at_all_is_answered_with_the_help(qsa_bench: Qsa) -> None:
    for words in ((), ("golden",)):
        done = qsa_bench(*words)
        assert done.returncode == ExitCode.USAGE
        assert done.stdout == ""
        assert done.stderr.startswith("Usage: qsa-bench ")


def test_the_version_is_the_packages(qsa_bench: Qsa) -> None:
    assert qsa_bench("--version").stdout == f"qsa-bench {package.__version__}\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("frobnicate",), "No such command 'frobnicate'; see `qsa-bench --help`"),
        (("gate", "--frob"), "No such option.*see `qsa-bench gate --help`"),
        (("gate", "--target", "gpu"), "'--target'.*'gpu' is not one of 'host', 'cuda'; see"),
        (("gate", "--jobs", "0"), "--jobs 0: at least one worker is needed"),
        (("gate", "--seeds", "-1"), "--seeds -1: a number of schedules can't be negative"),
        (("build", "--arch", "90"), "--arch and --all-architectures go with --target cuda"),
        (("build", "--target", "cuda", "--mode", "plain"), "--mode goes with --target host"),
        (("list", "everything"), "'everything' is not one of 'stages', 'kernels'"),
        (("replay", "qsa_select"), "Missing .*INPUTS"),
        (("report",), "results holds no run folder"),
        (("report", "nowhere"), "reading run nowhere: there is no such folder"),
        (("golden", "verify", "nowhere.safetensors"), "nowhere.safetensors"),
        (("golden", "verify", "--kind", "nothing"), "no golden of kind 'nothing'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_wrong_command_line_is_one_line_and_exit_2(
    here: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    assert cli.main(words) == ExitCode.USAGE
    done = capsys.readouterr()
    assert done.out == ""
    assert re.search(said, _one_line(done.err))


def test_a_stage_that_is_not_there_is_said_with_those_that_are(qsa_bench: Qsa) -> None:
    done = qsa_bench("gate", "--stage", "qsa_selct")
    assert done.returncode == ExitCode.NOTHING_SELECTED
    assert "choose from " in _one_line(done.stderr)
    assert "qsa_select" in done.stderr


def test_the_words_of_the_help_are_those_of_the_program() -> None:
    assert get_args(cli_options.TargetName) == TARGETS
    assert get_args(cli_options.ModeName) == requests.BUILD_MODES
    assert get_args(cli_options.ListName) == requests.LISTS
    assert tuple(checks.SANITIZERS) == requests.SANITIZERS
    assert cli.PROGRAM == console.PROGRAM


@pytest.mark.parametrize("what", requests.LISTS)
def test_every_list_there_is_can_be_made(
    here: Path, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    specimens.gate(here / "results", specimens.verdict())
    assert cli.main(["list", what, "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema_version"] == SCHEMA_VERSION
    assert document[what.replace("-", "_")]


def test_cases_say_how_many_orders_they_are_run_under_and_whether_checked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["list", "cases", "--stage", "qsa_select", "--format", "json"]) == 0
    listed = json.loads(capsys.readouterr().out)["cases"]
    assert {row["orders"] for row in listed} == {"every", "few", "one"}
    assert {row["checker"] for row in listed} == {"yes", "no"}
    assert {row["reserve"] for row in listed} == {"yes", "no"}
    assert all(all(row.values()) for row in listed)


def test_a_list_of_nothing_exits_6(qsa_bench: Qsa) -> None:
    done = qsa_bench("list", "runs")
    assert done.returncode == ExitCode.NOTHING_SELECTED
    assert done.stdout.endswith("0 runs\n")


@pytest.fixture
def run(tmp_path: Path) -> store.StoredRun:
    """Return a mutation run in the folder where the command line is called."""
    return specimens.campaign(
        tmp_path / "results",
        specimens.killed("drop-the-tail", 201),
        specimens.SURVIVOR,
        exit_code=4,
    )


def test_a_report_prints_the_runs_tables_from_its_files(
    qsa_bench: Qsa,
    run: store.StoredRun,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:

    assert run.folder is not None
    monkeypatch.delenv("COLUMNS", raising=False)
    console.show(results.page(run))
    printed = capsys.readouterr().out.replace(f"{tmp_path}/", "")
    # A report that could be read is a success, whatever it tells.
    for name in ("latest", run.folder.name, f"results/{run.folder.name}"):
        done = qsa_bench("report", name)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == printed


def test_a_report_as_json_is_one_object(qsa_bench: Qsa, run: store.StoredRun) -> None:
    document = json.loads(qsa_bench("report", "--format", "json").stdout)
    assert document["schema_version"] == SCHEMA_VERSION
    assert document["id"] == run.run.id
    assert [mutant["id"] for mutant in document["mutants"]] == [
        "qsa_select/drop-the-tail",
        "qsa_select/skips-a-digit",
    ]


def test_a_report_as_markdown_is_markdown(qsa_bench: Qsa, run: store.StoredRun) -> None:
    printed = qsa_bench("report", "--format", "markdown").stdout
    assert printed.startswith("**mutate FAILED (exit 4: ")
    assert "| control | differing bits | what it proved |\n| --- | ---: | --- |\n" in printed


def test_a_run_cut_short_is_one_line_and_exit_2(qsa_bench: Qsa, run: store.StoredRun) -> None:
    assert run.folder is not None
    path = run.folder / "kills.parquet"
    path.write_bytes(path.read_bytes()[:100])
    done = qsa_bench("report")
    assert done.returncode == ExitCode.USAGE
    assert "kills.parquet: it is no Parquet file, or cut short" in _one_line(done.stderr)
    assert done.stdout == ""


def test_a_reader_that_leaves_is_no_error(run: store.StoredRun, tmp_path: Path) -> None:
    nothing = ["list", "runs", "--results", "nowhere"]
    for words, codes in (
        (["report"], (0,)),
        (["report", "--format", "json"], (0,)),
        (nothing, (ExitCode.NOTHING_SELECTED,)),
        (["--help"], (0, 1)),
    ):
        reading, writing = os.pipe()
        os.close(reading)
        child = subprocess.run(
            [sys.executable, "-m", "qsa_bench.cli", *words],
            cwd=tmp_path,
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        os.close(writing)
        assert child.stderr == "", words
        assert child.returncode in codes, words


def _on_a_terminal(words: Sequence[str], cwd: Path, **settings: str) -> str:
    """Run a program on a terminal of 90 columns; return what it wrote to it."""
    inside, outside = pty.openpty()
    environment = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "COLUMNS")}
    child = subprocess.Popen(
        words,
        cwd=cwd,
        stdin=outside,
        stdout=outside,
        stderr=outside,
        env={**environment, "TERM": "xterm", "COLUMNS": "90", **settings},
    )
    os.close(outside)
    written = b""
    while True:
        try:
            piece = os.read(inside, 65536)
        except OSError:
            break
        if not piece:
            break
        written += piece
    os.close(inside)
    assert child.wait() == 0
    return written.decode()


def test_colour_is_for_a_terminal_that_wants_it(run: store.StoredRun, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "qsa_bench.cli", "report"]
    red = "\x1b[1;31m"
    assert f"{red}skips-a-digit" in _on_a_terminal(words, tmp_path)
    assert "\x1b[31m" not in (plain := _on_a_terminal(words, tmp_path, NO_COLOR="1"))
    assert red not in plain
    assert "skips-a-digit" in plain
    piped = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "\x1b" not in piped.stdout


PROGRESS = """
import sys
from qsa_bench import console
bar = console.progress(quiet=False)
bar.start("gating", 2)
bar.advance("case one")
bar.advance("case two")
bar.finish()
print("the answer")
"""


def test_progress_is_for_a_terminal_and_leaves_nothing_behind(tmp_path: Path) -> None:
    words = [sys.executable, "-c", PROGRESS]
    seen = _on_a_terminal(words, tmp_path)
    assert "gating" in seen
    assert "2/2" in seen
    # The bar's last line is cleared before the answer is written over it.
    assert re.search(r"\x1b\[2K\s*(\x1b\[\?25h)?(\x1b\[1A\x1b\[2K)*the answer", seen), repr(seen)
    piped = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert (piped.stdout, piped.stderr) == ("the answer\n", "")


def test_the_shell_is_told_the_stages(qsa_bench: Qsa) -> None:
    words = "qsa-bench gate --stage qsa_se"
    settings = {"_QSA_BENCH_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": "3"}
    done = qsa_bench(env={**os.environ, **settings})
    assert "qsa_select" in done.stdout.split()
    assert cli_options.complete_stage("") == list(stage_names())
    # The program's own name decides the variable that the shell sets.
    shown = qsa_bench("--show-completion", "bash")
    assert "_QSA_BENCH_COMPLETE" in shown.stdout


def test_a_doctor_without_a_compiler_exits_7_and_says_what_to_do(
    qsa_bench: Qsa, tmp_path: Path
) -> None:
    (tmp_path / "bin").mkdir()
    done = qsa_bench("doctor", env={**os.environ, "PATH": str(tmp_path / "bin")})
    assert done.returncode == ExitCode.ENVIRONMENT_MISSING
    assert re.search(r"^g\+\+ +MISSING +not on the PATH$", done.stdout, re.MULTILINE)
    assert "g++: install it (Debian: apt-get install g++)\n" in done.stdout
    assert re.search(r"^nvcc +absent ", done.stdout, re.MULTILINE)


def test_a_compiler_that_compiles_nothing_is_missing(qsa_bench: Qsa, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    fake = tmp_path / "bin" / "g++"
    fake.write_text('#!/bin/sh\n[ "$1" = --version ] && echo "g++ 1.0" || exit 1\n')
    fake.chmod(0o755)
    done = qsa_bench("doctor", "--format", "json", env={**os.environ, "PATH": str(fake.parent)})
    document = json.loads(done.stdout)
    probes = {probe["name"]: probe for probe in document["probes"]}
    assert probes["g++"]["state"] == "missing"
    assert probes["g++"]["found"] == "g++ 1.0, but it compiles nothing"
    assert done.returncode == document["exit_code"] == ExitCode.ENVIRONMENT_MISSING


def test_the_cuda_target_needs_what_the_host_target_does_not(
    qsa_bench: Qsa, tmp_path: Path
) -> None:
    (tmp_path / "bin").mkdir()
    compiler = shutil.which("g++")
    assert compiler is not None
    (tmp_path / "bin" / "g++").symlink_to(compiler)
    path = f"{tmp_path / 'bin'}:/usr/bin"
    if shutil.which("nvcc", path=path):
        path = str(tmp_path / "bin")
    states = {}
    for target in TARGETS:
        settings = {**os.environ, "PATH": path}
        done = qsa_bench("doctor", "--target", target, "--format", "json", env=settings)
        probes = json.loads(done.stdout)["probes"]
        states[target] = {probe["name"]: probe["state"] for probe in probes}
    assert states["host"]["nvcc"] == "absent"
    assert states["cuda"]["nvcc"] == "missing"


def test_a_doctor_makes_no_folder(qsa_bench: Qsa, tmp_path: Path) -> None:
    before = set(tmp_path.rglob("*"))
    qsa_bench("doctor", env={**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")})
    assert set(tmp_path.rglob("*")) == before


def _command(monkeypatch: pytest.MonkeyPatch, run: Callable[..., object]) -> None:
    """Put a command of our own in place of `doctor`."""
    monkeypatch.setitem(sys.modules, "qsa_bench.commands.doctor", SimpleNamespace(run=run))


def _raises(error: BaseException) -> Callable[..., object]:
    def run(_request: object, _progress: object) -> object:
        raise error

    return run


@pytest.mark.parametrize(
    "kind",
    [
        errors.UsageError,
        errors.GoldenError,
        errors.ReplayError,
        errors.RunFileError,
        errors.NothingSelectedError,
        errors.EnvironmentMissingError,
        errors.BuildError,
        errors.ManifestError,
    ],
)
def test_an_error_of_the_users_is_one_line_and_its_own_code(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    kind: type[errors.QsaBenchError],
) -> None:
    _command(monkeypatch, _raises(kind("doing this:\n  found that")))
    assert cli.main(["doctor"]) == kind.exit_code != 0
    assert capsys.readouterr() == ("", "qsa-bench: doing this: found that\n")


def test_an_interrupt_exits_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _command(monkeypatch, _raises(KeyboardInterrupt()))
    assert cli.main(["doctor"]) == 130
    assert _one_line(capsys.readouterr().err).startswith("qsa-bench: interrupted")


def test_anything_else_is_our_bug_with_its_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _command(monkeypatch, _raises(ZeroDivisionError("a slip")))
    assert cli.main(["doctor"]) == 1
    said = capsys.readouterr().err
    assert "ZeroDivisionError: a slip" in said
    assert said.splitlines()[-1].startswith("qsa-bench: this is a bug in qsa-bench")


@pytest.mark.parametrize("code", [0, 3, 4, 10, 11])
def test_a_runs_exit_code_is_the_programs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], code: int
) -> None:
    _command(monkeypatch, lambda *_: specimens.gate(None, exit_code=code))
    assert cli.main(["doctor", "--quiet"]) == code
    assert capsys.readouterr().out.startswith("gate ok" if code == 0 else "gate FAILED")


def test_a_request_holds_what_was_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[requests.GateRequest] = []

    def run(request: requests.GateRequest, _progress: object) -> store.StoredRun:
        asked.append(request)
        return specimens.gate(None)

    monkeypatch.setitem(sys.modules, "qsa_bench.commands.gate", SimpleNamespace(run=run))
    words = "gate --stage a --stage b --case x/* --golden g -j 3 -o out --seeds 4 -q".split()
    assert cli.main([*words, "--no-save-failures"]) == 0
    assert asked == [
        requests.GateRequest(
            stages=("a", "b"),
            case_globs=("x/*",),
            golden=Path("g"),
            jobs=3,
            results=Path("out"),
            seeds=4,
            save_failures=False,
            argv=("qsa-bench", *words, "--no-save-failures"),
        )
    ]
