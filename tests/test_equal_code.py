"""Two sources are equal where a compiler makes the same code of both, and says so in time."""

from __future__ import annotations

from pathlib import Path

import pytest

from qsa_bench import equivalence
from qsa_bench.equivalence import Compilers

WRITES = 'while [ "$1" != -o ]; do shift; done; echo code > "$2"'
NEVER_ENDS = "exec sleep 60"


@pytest.mark.parametrize(("compiler", "equal"), [(WRITES, True), (NEVER_ENDS, False)])
def test_a_compiler_that_does_not_end_calls_nothing_equal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiler: str, equal: bool
) -> None:
    program = tmp_path / "g++"
    program.write_text(f"#!/bin/sh\n{compiler}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    if not equal:
        monkeypatch.setattr(equivalence, "_LIMIT_S", 0.2)
    assert Compilers(tmp_path).same_on_host(tmp_path, ["kernels/x.cu"]) == equal
