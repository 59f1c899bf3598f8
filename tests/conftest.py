"""Fixtures that several folders of tests share."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Qsa = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def qsa_bench(tmp_path: Path) -> Qsa:
    """Return a function that runs the real command line in an empty folder."""
    # Said outright: pytest's import of readline puts COLUMNS into what a child would inherit.
    plain = {name: value for name, value in os.environ.items() if name != "COLUMNS"}

    def call(*words: str, **options: object) -> subprocess.CompletedProcess[str]:
        settings: dict[str, object] = {"cwd": tmp_path, "timeout": 120, "env": plain, **options}
        return subprocess.run(  # type: ignore[call-overload, no-any-return]
            [sys.executable, "-m", "qsa_bench.cli", *words],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            check=False,
            **settings,
        )

    return call
