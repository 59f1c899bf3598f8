"""Two sources are equal where a compiler makes the same code of both; one that gives no answer says nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from qsa_bench import equal_code
from qsa_bench.equal_code import Compilers, UndecidedError
from qsa_bench.model import Entry, Kernel

SOURCE = "kernels/x.cu"
PARTS = {"small": {"SHAPE": 1}, "large": {"SHAPE": 2}}
KERNEL = Kernel("x", SOURCE, (Entry("x", (), "nothing"),), parts=PARTS)
# Quick code is a kernel a line of the source's file `quick`; machine code is the file `code.SHAPE`, and
# each compilation is a line of the file `asked`.
NVCC = """
echo "$PWD $*" >> "$0.asked"
for word; do
  case $word in -DSHAPE=*) shape=${word#-DSHAPE=};; -ptx) text=yes;; esac
done
while [ "$1" != -o ]; do shift; done
if [ "$text" ]; then
  while read -r name body; do printf '.entry %s(\\n)\\n{\\n%s\\n}\\n' "$name" "$body"; done < quick > "$2"
else
  cat code.$shape > "$2"
fi
"""


def stand_in(monkeypatch: pytest.MonkeyPatch, folder: Path, name: str, does: str) -> Path:
    """Put a program before the compiler of that name."""
    program = folder / name
    program.write_text(f"#!/bin/sh\n{does}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    return program


def tree(folder: Path, quick: str, **code: str) -> Path:
    """Return a tree that the stand-in for nvcc compiles; code by shape, `whole` without one."""
    folder.mkdir()
    (folder / "quick").write_text(quick)
    for shape, text in code.items():
        (folder / f"code.{shape.strip('_').replace('whole', '')}").write_text(text)
    return folder


def test_the_same_code_is_equal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, tmp_path, "g++", 'while [ "$1" != -o ]; do shift; done; echo code > "$2"')
    assert Compilers(tmp_path).same_on_host(tmp_path, [SOURCE])


def test_a_compiler_that_does_not_end_decides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(monkeypatch, tmp_path, "g++", "exec sleep 60")
    monkeypatch.setattr(equal_code, "_LIMIT_S", 0.2)
    with pytest.raises(UndecidedError, match=r"g\+\+ did not end within 0\.2 s on kernels/x\.cu"):
        Compilers(tmp_path).same_on_host(tmp_path, [SOURCE])


def compilations(program: Path) -> list[str]:
    """Return what the stand-in for nvcc was asked, in any order: folder, and quick, a shape or whole."""
    kinds = []
    for line in Path(f"{program}.asked").read_text().splitlines():
        folder, *words = line.split()
        shape = next((word for word in words if word.startswith("-DSHAPE")), "whole")
        kinds.append(f"{Path(folder).name} {'quick' if '-ptx' in words else shape}")
    return sorted(kinds)


def test_what_is_the_same_in_quick_code_is_compiled_no_further(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = stand_in(monkeypatch, tmp_path, "nvcc", NVCC)
    clean = tree(tmp_path / "clean", "small_kernel add\n")
    mutated = tree(tmp_path / "mutated", "small_kernel add\n")
    compilers = Compilers(clean, [KERNEL])
    assert compilers.same_on_device(mutated, [SOURCE])
    assert compilers.same_on_device(mutated, [SOURCE])
    assert compilations(program) == ["clean quick", "mutated quick", "mutated quick"]


@pytest.mark.parametrize(("code", "same"), [("1", True), ("2", False)])
def test_what_differs_in_quick_code_is_compiled_by_the_shapes_it_is_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, same: bool
) -> None:
    program = stand_in(monkeypatch, tmp_path, "nvcc", NVCC)
    clean = tree(tmp_path / "clean", "small_kernel add\nlarge_kernel add\n", _2="1")
    mutated = tree(tmp_path / "mutated", "small_kernel add\nlarge_kernel sub\n", _2=code)
    assert Compilers(clean, [KERNEL]).same_on_device(mutated, [SOURCE]) is same
    shapes = ["clean -DSHAPE=2", "mutated -DSHAPE=2"]
    assert compilations(program) == sorted(["clean quick", "mutated quick", *shapes])


@pytest.mark.parametrize(("code", "same"), [("1", True), ("2", False)])
@pytest.mark.parametrize("quick", ["other_kernel sub\n", ""])
def test_a_kernel_in_no_shape_and_an_nvcc_that_is_never_quick_call_for_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, same: bool, quick: str
) -> None:
    never = "case $* in *-ptx*) exit 1;; esac\n" if not quick else ""
    program = stand_in(monkeypatch, tmp_path, "nvcc", NVCC.replace("for word", f"{never}for word"))
    clean = tree(tmp_path / "clean", "other_kernel add\n", whole="1")
    mutated = tree(tmp_path / "mutated", quick, whole=code)
    assert Compilers(clean, [KERNEL]).same_on_device(mutated, [SOURCE]) is same
    whole = ["clean whole", "mutated whole"]
    assert compilations(program) == sorted(["clean quick", "mutated quick", *whole])


@pytest.mark.parametrize(("code", "same"), [("1", True), ("2", False)])
def test_quick_code_in_which_no_kernel_is_found_proves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, same: bool
) -> None:
    stand_in(monkeypatch, tmp_path, "nvcc", NVCC)
    clean = tree(tmp_path / "clean", "", whole="1")
    mutated = tree(tmp_path / "mutated", "", whole=code)
    assert Compilers(clean, [KERNEL]).same_on_device(mutated, [SOURCE]) is same
