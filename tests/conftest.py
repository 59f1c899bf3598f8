"""Fixtures that several folders of tests share."""

from __future__ import annotations

import importlib.util
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


CLUSTER = Path(__file__).parent / "cluster"


def _is_left_out(config: pytest.Config) -> bool:
    """True where the cluster's tests can't run and nobody asked for them by name."""
    asked = any("cluster" in word for word in config.args)
    return importlib.util.find_spec("ray") is None and not asked


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave the cluster's tests out where ray, an extra of its own, is not installed."""
    return True if collection_path == CLUSTER and _is_left_out(config) else None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was left out, and how it is run."""
    if _is_left_out(terminalreporter.config):
        terminalreporter.write_line(
            "NOT RUN: tests/cluster needs ray: pip install 'qsa-bench[ray]', then "
            "python -m pytest tests/cluster",
            yellow=True,
        )
