"""Trees to break: the package, the kernels' common parts and the specimen, copied to a folder.

The specimen is a stage as a later one will be: kernels, a stage module, a golden kind, mutants. It
lies in `files/` as it would lie in the repository, and a tree is the repository with these files
added and nothing edited. Tests run the real command line in such a tree.
"""

from __future__ import annotations

import compileall
import functools
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qsa_bench import tensor_file
from qsa_bench.model import STREAM, Argument, Entry, Kernel, Role
from qsa_bench.stages.base import Stage

REPOSITORY = Path(__file__).resolve().parents[2]
FILES = Path(__file__).with_name("files")
STAGE = "specimen"
MUTATIONS = f"mutations/{STAGE}"
CONTROLS = ("controls/does-nothing", "controls/writes-nothing")
_GOLDEN_SHAPE = (2, 40)
PROBE = Kernel(
    "probe",
    "kernels/specimen/probe.cu",
    (
        Entry(
            "specimen_probe",
            (
                Argument("in", "u8", Role.INPUT, ("count",)),
                Argument("out", "u8", Role.OUTPUT, ("count",)),
                Argument("count", "i64", Role.SCALAR),
                Argument("deed", "i32", Role.SCALAR),
                Argument("threads", "i32", Role.SCALAR),
                STREAM,
            ),
        ),
    ),
)


@dataclass(frozen=True)
class Tree:
    """A tree that holds qsa_bench/, kernels/ and mutations/, and the cache it builds into."""

    root: Path
    cache: Path

    @property
    def scratch(self) -> Path:
        """Where its processes make temporary files: what they leave behind shows."""
        return self.root / "scratch"

    @property
    def builds(self) -> Path:
        """The folder of the cache that a builder takes."""
        return self.cache / "qsa-bench"

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a process that runs this tree's package."""
        inherited = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        return {
            **inherited,
            "PYTHONPATH": str(self.root),
            "XDG_CACHE_HOME": str(self.cache),
            "TMPDIR": str(self.scratch),
            "LC_ALL": "C.UTF-8",
        }

    def command(self, *words: str) -> list[str]:
        """Return the command line `qsa-bench WORDS` of this tree."""
        return [sys.executable, "-m", "qsa_bench.cli", *words]

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run `qsa-bench WORDS` in the tree's root."""
        return subprocess.run(
            self.command(*words),
            cwd=self.root,
            env=self.environment,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=240,
            check=False,
        )

    def json(self, *words: str) -> tuple[int, dict[str, Any]]:
        """Run a command with --format json; return its exit code and its document."""
        done = self.run(*words, "--format", "json")
        assert done.stdout, done.stderr
        document: dict[str, Any] = json.loads(done.stdout)
        return done.returncode, document

    def read(self, path: str) -> str:
        """Return a file's text."""
        return (self.root / path).read_text()

    def write(self, path: str, text: str) -> None:
        """Write a file, folders included. A new one: the old is another tree's as well."""
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        target.write_text(text)

    def edit(self, path: str, old: str, new: str) -> None:
        """Replace a text that stands exactly once."""
        text = self.read(path)
        assert text.count(old) == 1, f"{path}: {old!r} stands {text.count(old)} times"
        self.write(path, text.replace(old, new))

    def keep_mutants(self, *names: str) -> None:
        """Remove every mutant but the controls and those named."""
        for path in (self.root / MUTATIONS).glob("*.*"):
            if path.stem not in names:
                path.unlink()

    def runs(self) -> list[Path]:
        """Return the run folders, oldest first."""
        return sorted(path.parent for path in (self.root / "results").glob("*/run.json"))


def grow(root: Path, cache: Path) -> Tree:
    """Make a tree at `root`, which must not exist: the repository with the specimen's files."""
    ignored = shutil.ignore_patterns("__pycache__", "*.safetensors")
    shutil.copytree(REPOSITORY / "qsa_bench", root / "qsa_bench", ignore=ignored)
    shutil.copytree(REPOSITORY / "kernels", root / "kernels")
    shutil.copy2(REPOSITORY / "pyproject.toml", root)
    for golden in (REPOSITORY / "qsa_bench/goldens").glob("*.safetensors"):
        (root / "qsa_bench/goldens" / golden.name).symlink_to(golden)
    for path in FILES.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            target = root / path.relative_to(FILES)
            assert not target.exists(), f"{target} is the repository's"
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target)
    write_golden(root / "qsa_bench/goldens/specimen.safetensors")
    # Every process of every copy would compile them again.
    compileall.compile_dir(root / "qsa_bench", quiet=2)
    (root / "scratch").mkdir()
    return Tree(root, cache)


def transplant(tree: Tree, root: Path) -> Tree:
    """Copy a tree to `root`, which must not exist. Files are links: change them by Tree.write."""
    shutil.copytree(tree.root, root, symlinks=True, copy_function=os.link)
    return Tree(root, tree.cache)


@functools.cache
def stage() -> Stage:
    """Return the specimen's stage, loaded beside the registry."""
    path = FILES / "qsa_bench/stages/specimen.py"
    spec = importlib.util.spec_from_file_location("specimen_stage", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = module.STAGE
    assert isinstance(found, Stage)
    return found


def write_golden(path: Path) -> None:
    """Write a golden of the specimen's kind."""
    values = np.random.default_rng(7).standard_normal(_GOLDEN_SHAPE).astype(np.float32)
    state = np.zeros(_GOLDEN_SHAPE[1], np.float32)
    for step in values:
        state = np.float32(0.5) * state + step
    level = state / (np.float32(1) + np.abs(state))
    metadata = {
        "format_version": "1",
        "transformers_version": "none",
        "torch_version": "none",
        "platform": "none",
        "seed": "7",
    }
    dtypes = {"values": "f32", "level": "f32"}
    tensor_file.write(path, {"values": values, "level": level}, dtypes, metadata)
