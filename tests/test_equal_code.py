"""Two sources are equal where a compiler makes the same code of both; one that gives no answer says nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from qsa_bench import equivalence
from qsa_bench.equivalence import Compilers, UndecidedError


def stand_in(monkeypatch: pytest.MonkeyPatch, folder: Path, does: str) -> None:
    """Put a program called g++ before the compiler."""
    program = folder / "g++"
    program.write_text(f"#!/bin/sh\n{does}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")


def test_the_same_code_is_equal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, tmp_path, 'while [ "$1" != -o ]; do shift; done; echo code > "$2"')
    assert Compilers(tmp_path).same_on_host(tmp_path, ["kernels/x.cu"])


def test_a_compiler_that_does_not_end_decides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(monkeypatch, tmp_path, "exec sleep 60")
    monkeypatch.setattr(equivalence, "_LIMIT_S", 0.2)
    with pytest.raises(UndecidedError, match=r"g\+\+ did not end within 0\.2 s on kernels/x\.cu"):
        Compilers(tmp_path).same_on_host(tmp_path, ["kernels/x.cu"])
