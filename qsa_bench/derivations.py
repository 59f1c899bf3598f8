"""Automatic mutants kept by content: deriving those of a large kernel takes seconds.

What is kept hangs on every byte that decides it: the kernels' sources and headers, the operators,
the compiler that says which lines are live.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from qsa_bench import automatic, resources
from qsa_bench.automatic import Derived
from qsa_bench.builder import Sources, compiler_version
from qsa_bench.model import Expect, Kernel, Mutant
from qsa_bench.targets import host

_OURS = ("automatic.py", "derivations.py", "model.py", "operators/*.py")
_GRAMMAR = ("tree-sitter", "tree-sitter-cuda")


def derive(root: Path, stage: str, kernels: Sequence[Kernel], kept_in: Path) -> Derived:
    """Return what `automatic.derive` does, from the folder `kept_in` where it is known there."""
    path = kept_in / f"{_key(root, stage, kernels)}.json"
    try:
        kept = json.loads(path.read_text())
        return Derived(tuple(_mutant(row) for row in kept["mutants"]), tuple(kept["unparsed"]))
    except (OSError, ValueError, KeyError, TypeError):
        pass  # not there, or not written whole
    derived = automatic.derive(root, stage, kernels)
    rows = [asdict(mutant) for mutant in derived.mutants]
    made = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        kept_in.mkdir(parents=True, exist_ok=True)
        made.write_text(json.dumps({"mutants": rows, "unparsed": list(derived.unparsed)}))
        os.replace(made, path)
    except OSError:
        # A full disk, or no folder, costs the next run its seconds and no more.
        with suppress(OSError):
            made.unlink()
    return derived


def _mutant(row: dict[str, Any]) -> Mutant:
    lists = {name: tuple(value) for name, value in row.items() if isinstance(value, list)}
    return Mutant(**{**row, **lists, "expect": Expect(row["expect"])})


def _key(root: Path, stage: str, kernels: Sequence[Kernel]) -> str:
    digest = hashlib.sha256()

    def add(part: bytes) -> None:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)

    add(stage.encode())
    for name in _GRAMMAR:
        try:
            add(version(name).encode())
        except PackageNotFoundError:
            add(b"")
    add(" ".join(compiler_version(host.COMPILER)).encode())
    for pattern in _OURS:
        for path in sorted(resources.PACKAGE.glob(pattern)):
            add(path.read_bytes())
    sources = Sources(root)
    for kernel in kernels:
        add(f"{kernel.name} {kernel.source}".encode())
        command = host.preprocess_command(Path(kernel.source), Path("kernels"), "plain")
        add(" ".join(command).encode())
        for part in sources.bytes_of(sources.root / kernel.source):
            add(part)
    return digest.hexdigest()[:40]
