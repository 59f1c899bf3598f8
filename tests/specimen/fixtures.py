"""Fixtures of tests that build and run: one cache and one tree a session, copies for each test."""

from __future__ import annotations

import fcntl
import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import qsa_bench
from qsa_bench import child, goldens, resources, reuse, stages
from qsa_bench.builder import Builder
from qsa_bench.stages.base import Stage
from tests.specimen import trees
from tests.specimen.trees import STAGE, Tree

_MODES = ("plain", "checked")


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Hold a lock that the processes of a session share."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="session", name="session_folder")
def specimen_session_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that all processes of a session share."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session", name="master")
def specimen_master(session_folder: Path) -> Tree:
    """The tree that every test's is a copy of; what it builds is there. Not to be changed."""
    tree = Tree(session_folder / "master", session_folder / "cache")
    with _alone(session_folder / "master.lock"):
        if not tree.root.exists():
            trees.grow(tree.root, tree.cache)
    # The runtime takes the longest: each process begins with another mode.
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:])
    builder = Builder(tree.builds)
    for index in range(len(_MODES)):
        mode = _MODES[(number + index) % len(_MODES)]
        with _alone(session_folder / f"{mode}.lock"):
            for kernel in trees.stage().kernels:
                assert builder.build(kernel, "host", root=tree.root, mode=mode).ok
    return tree


@pytest.fixture(name="tree")
def specimen_tree(master: Tree, tmp_path: Path) -> Tree:
    """A tree of the test's own, to break."""
    return trees.transplant(master, tmp_path / "tree")


@pytest.fixture(name="planted")
def specimen_planted(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tree]:
    """The test's tree, made the one that this process finds its stages, kernels and goldens in.

    For the commands' `run`; their children import the tree's package. Call `replant` after an edit
    of the stage's module.
    """
    package = tree.root / "qsa_bench"
    monkeypatch.chdir(tree.root)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tree.cache))
    monkeypatch.setattr(qsa_bench, "__file__", str(package / "__init__.py"))
    monkeypatch.setattr(goldens, "__file__", str(package / "goldens/__init__.py"))
    monkeypatch.setattr(child, "PACKAGE", package)
    monkeypatch.setattr(reuse, "PACKAGE", package)
    monkeypatch.setattr(resources, "checkout", lambda: tree.root)
    for parent in (stages, goldens):
        folder = package / parent.__name__.rpartition(".")[2]
        monkeypatch.setattr(parent, "__path__", [*parent.__path__, str(folder)])
    replant()
    yield tree
    monkeypatch.undo()
    replant()


def replant() -> None:
    """Forget what was imported of the specimen and which stages and goldens there are."""
    for parent in (stages, goldens):
        sys.modules.pop(f"{parent.__name__}.{STAGE}", None)
        vars(parent).pop(STAGE, None)
    importlib.invalidate_caches()
    stages.stage_names.cache_clear()
    stages.load_stage.cache_clear()
    goldens._kinds.cache_clear()
    reuse._gate_code.cache_clear()


@pytest.fixture(scope="session", name="stage")
def specimen_stage() -> Stage:
    """The specimen's stage, which no registry of this process knows."""
    return trees.stage()


@pytest.fixture(name="builder")
def specimen_builder(master: Tree) -> Builder:
    """A builder into the session's cache."""
    return Builder(master.builds)
