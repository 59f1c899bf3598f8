"""A campaign over a Ray cluster of two nodes, one of which dies while it works.

Runs where ray is installed (`pip install 'qsa-bench[ray]'`): python -m pytest tests/cluster
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.specimen.fixtures import (  # noqa: F401 - fixtures of this module
    specimen_master,
    specimen_session_folder,
    specimen_tree,
)
from tests.specimen.trees import REPOSITORY, STAGE, Tree

CAMPAIGN = ("mutate", "--stage", STAGE, "--seeds", "1", "--auto", "--sample", "24")
LIMIT_S = 240.0


class Nodes:
    """Two nodes; the second keeps what it finds in a cache of its own."""

    def __init__(self, tree: Tree, cache: Path) -> None:
        self.cache = cache
        # A socket's path has 107 characters, which a test's own folder may pass.
        self._scratch = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
        environment = {
            **tree.environment,
            "RAY_TMPDIR": self._scratch,
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        self._process = subprocess.Popen(
            [sys.executable, str(REPOSITORY / "tests/cluster/nodes.py"), str(cache)],
            cwd=tree.root,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            self.address = self._answer()
        except BaseException:
            self.close()
            raise

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        assert line, "the cluster did not start"
        return line

    def kill_the_second(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("kill\n")
        self._process.stdin.flush()
        assert self._answer() == "killed"

    def close(self) -> None:
        try:
            self._process.communicate(timeout=60)
        finally:
            self._process.kill()
            self._process.wait()
            shutil.rmtree(self._scratch, ignore_errors=True)


@pytest.fixture(name="nodes")
def two_nodes(tree: Tree, tmp_path: Path) -> Iterator[Nodes]:
    nodes = Nodes(tree, tmp_path / "second-cache")
    yield nodes
    nodes.close()


def wait_until(true: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not true():
        assert process.poll() is None, "the campaign ended before its node could die"
        assert time.monotonic() < deadline
        time.sleep(0.2)


def found(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what became of each mutant, in order, whoever found it and however long it took."""
    differs = {"duration_ns", "reused"}
    return [{k: v for k, v in row.items() if k not in differs} for row in document["mutants"]]


@pytest.mark.timeout(600)
def test_a_campaign_outlives_a_node_and_finds_what_a_local_one_does(
    tree: Tree, nodes: Nodes
) -> None:
    command = tree.command(
        *CAMPAIGN, "--executor", "ray", "--address", nodes.address, "--format", "json"
    )
    spread = subprocess.Popen(
        command, cwd=tree.root, env=tree.environment, stdout=subprocess.PIPE, text=True
    )
    ran_there = nodes.cache / "qsa-bench/outcomes"
    try:
        wait_until(lambda: ran_there.is_dir() and any(ran_there.iterdir()), spread)
        nodes.kill_the_second()
        assert spread.poll() is None, "nothing was left to be done when the node died"
        printed, _ = spread.communicate(timeout=LIMIT_S)
    finally:
        spread.kill()
        spread.wait()
    document = json.loads(printed)
    assert document["done"] == document["asked"] == len(document["mutants"])
    code, local = tree.json(*CAMPAIGN, "--fresh")
    assert found(document) == found(local)
    assert document["kills"] == local["kills"]
    assert document["summary"] == local["summary"]
    assert spread.returncode == code
