"""What a compiler fails for is told apart: the source, or the machine."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from qsa_bench import compiling
from qsa_bench.builder import Builder
from qsa_bench.errors import EnvironmentMissingError
from qsa_bench.exit_codes import ExitCode

SOURCE = "int main() {}\n"


@pytest.fixture(name="source")
def source_file(tmp_path: Path) -> Path:
    path = tmp_path / "a.cpp"
    path.write_text(SOURCE)
    return path


def test_a_compiler_without_its_assembler_is_the_machines_fault(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = shutil.which("g++")
    assert compiler is not None
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/g++").symlink_to(compiler)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(EnvironmentMissingError, match=r"g\+\+ found no as .*binutils") as told:
        compiling.execute(["g++", "-c", str(source), "-o", str(tmp_path / "a.o")], tmp_path)
    assert told.value.exit_code is ExitCode.ENVIRONMENT_MISSING
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("g++: fatal error: cannot execute \u2018cc1plus\u2019: execvp", "no cc1plus.*install g++"),
        ("collect2: fatal error: cannot find 'ld'", "no ld .*install binutils"),
        ("a.s: fatal error: can't write 9 bytes: No space left on device", "free some space"),
        ("Cannot create temporary file in /full/: No space left on device", "set TMPDIR"),
    ],
)
def test_what_the_machine_lacks_is_no_fault_of_the_source(
    said: str, told: str, tmp_path: Path
) -> None:
    words = ["sh", "-c", 'echo "$0" >&2; exit 1', said]
    with pytest.raises(EnvironmentMissingError, match=told.replace("+", r"\+")):
        compiling.execute(words, tmp_path)


def test_a_source_with_an_error_is_the_sources_fault(source: Path, tmp_path: Path) -> None:
    source.write_text("#error cannot execute this plan\n")
    words = ["g++", "-c", str(source), "-o", str(tmp_path / "a.o")]
    done = compiling.execute(words, tmp_path)
    assert "cannot execute this plan" in compiling.failure(done, words, tmp_path / "a.o")


def test_scratch_without_room_is_told_before_anything_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    Builder(tmp_path / "cache")
    monkeypatch.setattr(compiling, "_LEAST_SCRATCH_BYTES", 1 << 60)
    with pytest.raises(EnvironmentMissingError, match=f"{tmp_path} has .* MiB left.*TMPDIR") as it:
        Builder(tmp_path / "cache")
    assert "\n" not in str(it.value)


def test_scratch_that_is_no_folder_is_told_before_anything_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "gone"))
    with pytest.raises(EnvironmentMissingError, match="gone can't be written to"):
        Builder(tmp_path / "cache")
