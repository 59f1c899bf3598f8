"""A machine that says no and users who slip: one line, the right exit code, nothing lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from qsa_bench import build_cache, process, resources, tensor_file
from qsa_bench.captured import Captured
from qsa_bench.errors import EnvironmentMissingError, ReplayError, RunFileError, UsageError
from qsa_bench.store.reader import read_run
from tests.conftest import Qsa

ELF = b"\x7fELF and so on"


@pytest.fixture(name="capture")
def captured_file(tmp_path: Path) -> Path:
    """A captured file of one row that select takes."""
    path = tmp_path / "captured.safetensors"
    tensors = {"scores": np.ones(3, np.float32), "rows": np.array([11], np.int32)}
    metadata = {"tokens": "12", "score_cols": "3", "budget": "4"}
    tensor_file.write(path, tensors, {"scores": "f32", "rows": "i32"}, metadata)
    return path


def test_a_kept_file_that_was_cut_short_is_not_whole(tmp_path: Path) -> None:
    made, kept = tmp_path / "made.o", tmp_path / "kept.o"
    made.write_bytes(ELF)
    assert build_cache.fault(made) == ""
    build_cache.keep(made, kept)
    assert build_cache.is_whole(kept)
    kept.write_bytes(ELF[:-1])
    assert not build_cache.is_whole(kept)


@pytest.mark.parametrize("content", [b"", b"int main() {}"])
def test_success_without_an_object_is_a_fault(tmp_path: Path, content: bytes) -> None:
    made = tmp_path / "made.o"
    made.write_bytes(content)
    assert build_cache.fault(made) == "it reported success, but what it wrote is no ELF file"


def test_a_damaged_cache_is_made_anew(qsa_bench: Qsa, tmp_path: Path, capture: Path) -> None:
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    for suffix in (".so", ".o"):
        assert qsa_bench("replay", "qsa_select", str(capture), env=environment).returncode == 0
        files = [path for path in (tmp_path / "cache").rglob(f"*{suffix}") if path.is_file()]
        assert files
        for path in files:
            path.write_bytes(path.read_bytes()[:5000])
        if suffix == ".o":
            for path in (tmp_path / "cache").rglob("*.so"):
                path.unlink()
    done = qsa_bench("replay", "qsa_select", str(capture), env=environment)
    assert done.returncode == 0, done.stderr


def test_a_compiler_that_writes_nothing_is_named(
    qsa_bench: Qsa, tmp_path: Path, capture: Path
) -> None:
    fake = tmp_path / "bin/g++"
    fake.parent.mkdir()
    script = '#!/bin/sh\n[ "$1" = --version ] && echo "g++ 12" && exit\n'
    fake.write_text(script + 'while [ "$1" != -o ]; do shift; done\n: > "$2"\n')
    fake.chmod(0o755)
    environment = {
        **os.environ,
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "PATH": f"{fake.parent}{os.pathsep}{os.environ['PATH']}",
    }
    done = qsa_bench("replay", "qsa_select", str(capture), env=environment)
    assert done.returncode in (5, 7)
    assert "no ELF file" in done.stderr


def test_without_a_home_the_cache_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(EnvironmentMissingError, match="set XDG_CACHE_HOME"):
        resources.cache_root()


def test_a_cache_that_is_a_file_is_exit_7(qsa_bench: Qsa, tmp_path: Path, capture: Path) -> None:
    (tmp_path / "file").write_text("")
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "file")}
    done = qsa_bench("replay", "qsa_select", str(capture), env=environment)
    assert done.returncode == 7
    assert "making the build cache" in done.stderr


def test_a_full_disk_under_stdout_is_one_line(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "qsa_bench.cli", "list", "mutants"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 7
    assert done.stderr.count("\n") == 1
    assert "No space left on device" in done.stderr


def test_a_refusal_says_what_to_do() -> None:
    assert "-o, XDG_CACHE_HOME" in process.refusal(OSError(28, "No space left", "out"))
    assert process.refusal(OSError(2, "No such file", "x")) == ""


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_closed_stream_changes_no_exit_code(stream: str) -> None:
    number = {"stdout": 1, "stderr": 2}[stream]
    command = f'"{sys.executable}" -m qsa_bench.cli report there-is-none {number}>&-'
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr


def test_sigterm_ends_a_run_as_an_interrupt_does(qsa_bench: Qsa, tmp_path: Path) -> None:
    scratch, results = tmp_path / "scratch", tmp_path / "results"
    scratch.mkdir()
    words = ["gate", "--stage", "qsa_select", "-o", str(results)]
    with subprocess.Popen(
        [sys.executable, "-m", "qsa_bench.cli", *words],
        env={**os.environ, "TMPDIR": str(scratch)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        deadline = time.monotonic() + 60
        while not any(scratch.glob("qsa-bench-*")) and time.monotonic() < deadline:
            time.sleep(0.02)
        child.send_signal(signal.SIGTERM)
        _, said = child.communicate(timeout=60)
    assert child.returncode == 130, said
    assert list(scratch.glob("qsa-bench-*")) == []


def test_replay_overwrites_no_device_no_folder_and_not_its_input(
    qsa_bench: Qsa, tmp_path: Path, capture: Path
) -> None:
    before = capture.read_bytes()
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for output in (pipe, tmp_path, capture):
        words = ("replay", "qsa_select", str(capture), "-o", str(output), "--force")
        done = qsa_bench(*words)
        assert done.returncode == 2, output
        assert done.stderr.startswith(f"qsa-bench: writing {output}: it is ")
    assert pipe.is_fifo()
    assert capture.read_bytes() == before


def test_a_link_is_followed_and_a_dangling_one_needs_force(
    qsa_bench: Qsa, tmp_path: Path, capture: Path
) -> None:
    link, target = tmp_path / "link", tmp_path / "target"
    link.symlink_to(target)
    words = ("replay", "qsa_select", str(capture), "-o", str(link))
    assert qsa_bench(*words).returncode == 2
    assert qsa_bench(*words, "--force").returncode == 0
    assert link.is_symlink()
    assert "mask" in tensor_file.read(target).tensors


def test_replay_takes_one_mutant_by_its_whole_name(qsa_bench: Qsa, capture: Path) -> None:
    done = qsa_bench("replay", "qsa_select", str(capture), "--mutant", "qsa_select/*")
    assert done.returncode == 6
    assert "there is none of this id" in done.stderr


@pytest.mark.parametrize(
    "shape", ["[0,1000000000000000000000000000000]", "[" + ",".join(["1"] * 65) + "]"]
)
def test_a_shape_that_no_array_has_is_refused(tmp_path: Path, shape: str) -> None:
    size = 0 if shape.startswith("[0") else 4
    header = f'{{"x":{{"dtype":"F32","shape":{shape},"data_offsets":[0,{size}]}}}}'.encode()
    path = tmp_path / "odd.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(size))
    with pytest.raises(UsageError, match="lacks a dtype, shape or data_offsets"):
        tensor_file.read(path)


def _captured(metadata: dict[str, str], dtype: str = "i64", value: int = 4) -> Captured:
    return Captured("c", {"budget": np.array([value])}, {"budget": dtype}, metadata)


def test_a_scalar_given_twice_must_agree() -> None:
    assert _captured({"budget": "4"}).scalar("budget") == 4
    with pytest.raises(ReplayError, match="is 8 in the metadata and 4 as a tensor"):
        _captured({"budget": "8"}).scalar("budget")


@pytest.mark.parametrize("text", ["2_048", "\u0664", "1e3", "", "9" * 5000])
def test_a_number_in_the_metadata_has_ascii_digits_alone(text: str) -> None:
    with pytest.raises(ReplayError, match="not a whole number") as refused:
        _captured({"budget": text}).scalar("budget")
    assert len(str(refused.value)) < 120


def test_bits_of_a_float_are_no_integer() -> None:
    with pytest.raises(ReplayError, match="bf16 tensor"):
        _captured({}, dtype="bf16").scalar("budget")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("files", "[]"),
        ("files", '{"verdicts": "many"}'),
        ("notes", "null"),
        ("seconds", '"abc"'),
        ("seconds", "NaN"),
        ("versions", '"x"'),
        ("exit_code", '"zero"'),
        ("asked", "true"),
        ("done", "null"),
        ("schema_version", "0"),
    ],
)
def test_a_run_file_whose_field_makes_no_sense_is_refused(
    tmp_path: Path, field: str, value: str
) -> None:
    fields = {
        "schema_version": "1",
        **dict.fromkeys(("id", "command", "started", "commit", "host", "target", "device"), '"x"'),
        "status": '"finished"',
        "argv": "[]",
        "dirty": "false",
        **dict.fromkeys(("versions", "files", "notes"), "{}"),
        **dict.fromkeys(("asked", "done", "exit_code", "seconds"), "0"),
        field: value,
    }
    text = ", ".join(f'"{name}": {content}' for name, content in fields.items())
    (tmp_path / "run.json").write_text(f"{{{text}}}")
    with pytest.raises(RunFileError):
        read_run(tmp_path)
