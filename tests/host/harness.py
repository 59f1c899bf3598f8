"""Builds the tiny kernels of this folder with the host target's commands, and runs them in child processes."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qsa_bench.targets import host

ROOT = Path(__file__).resolve().parents[2]
KERNELS = ROOT / "kernels"
HERE = Path(__file__).resolve().parent

FIFO, LIFO, SEEDED = 0, 1, 2
READ_ONLY, INITIALISED = 1, 2
INPUT = READ_ONLY | INITIALISED
CRASH_EXIT_CODE = 86

#: A child of this folder ends within a second; a runtime that hangs must fail, not hang the suite.
CHILD_LIMIT_S = 60.0


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stderr}"
    assert done.stderr == "", f"warnings from {' '.join(command)}\n{done.stderr}"


def _compile(source: Path, mode: str, cache: Path) -> Path:
    """The object of ``source``; compiled unless an equal one is in the cache. Safe among several processes."""
    digest = hashlib.sha256(source.read_bytes())
    # The runtime is one source that includes the others.
    patterns = ("*.h", "*.cuh", "*.cpp") if source.suffix == ".cpp" else ("*.h", "*.cuh")
    for pattern in patterns:
        for header in sorted(KERNELS.glob(f"*/{pattern}")):
            digest.update(header.read_bytes())
    digest.update(repr(host.compile_command(source, Path(), KERNELS, mode, {})).encode())
    made = cache / f"{source.stem}-{mode}-{digest.hexdigest()[:16]}.o"
    if not made.exists():
        scratch = made.with_suffix(f".{os.getpid()}")
        _run(host.compile_command(source, scratch, KERNELS, mode, {}))
        scratch.rename(made)
    return made


@dataclass(frozen=True)
class Buffer:
    """A named argument. ``flags`` None: not registered. ``offset``: bytes off a 256-byte boundary."""

    name: str
    array: np.ndarray[Any, Any]
    flags: int | None = INITIALISED
    offset: int = 0


@dataclass(frozen=True)
class View:
    """A second registration, of ``size`` bytes from ``start`` of buffer number ``of``."""

    name: str
    of: int
    start: int
    size: int
    flags: int = INITIALISED


@dataclass(frozen=True)
class Result:
    """What one call of an entry left behind."""

    library: Path
    status: int
    findings: list[dict[str, Any]]
    fuel: int
    arrays: dict[str, np.ndarray[Any, Any]]
    after: dict[str, bytes]
    mode: int

    def kinds(self) -> list[str]:
        return sorted({finding["kind"] for finding in self.findings})

    def only(self) -> dict[str, Any]:
        assert len(self.findings) == 1, self.findings
        return self.findings[0]

    def line(self, finding: Mapping[str, Any]) -> tuple[str, int]:
        """File name and line of a finding, from the collective's place or the address of the code."""
        return place_of(self.library, finding)


def place_of(library: Path, finding: Mapping[str, Any]) -> tuple[str, int]:
    if "line" in finding:
        return Path(finding["file"]).name, int(finding["line"])
    command = host.locate_command(library, finding["address"])
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    place = host.located(text)
    assert place is not None, text
    return Path(place[0]).name, place[1]


def marked(file: str, marker: str) -> tuple[str, int]:
    """The file name and line of the marker ``@marker`` in a kernel file of this folder."""
    lines = (HERE / "kernels" / file).read_text().splitlines()
    hits = [number for number, line in enumerate(lines, 1) if line.endswith(f"// @{marker}")]
    assert len(hits) == 1, (file, marker, hits)
    return file, hits[0]


@dataclass(frozen=True)
class Crash:
    """How a child that faulted ended."""

    exit_code: int
    lines: list[str]

    def finding(self) -> dict[str, Any]:
        """The crash line's object; exactly one."""
        mark = "QSA_HOST_CRASH "
        crashes = [line for line in self.lines if line.startswith(mark)]
        assert len(crashes) == 1, self.lines
        found: dict[str, Any] = json.loads(crashes[0][len(mark) :])
        return found

    def earlier(self) -> list[dict[str, Any]]:
        mark = "QSA_HOST_FINDING "
        return [json.loads(line[len(mark) :]) for line in self.lines if line.startswith(mark)]


@dataclass(frozen=True)
class Library:
    """A kernel file of this folder, built in one mode."""

    path: Path

    def _child(
        self,
        entry: str,
        buffers: Sequence[Buffer],
        scalars: Sequence[int],
        runs: Sequence[Mapping[str, int]],
        views: Sequence[View] = (),
    ) -> subprocess.CompletedProcess[bytes]:
        job = {
            "library": str(self.path),
            "entry": entry,
            "buffers": [(b.name, b.array.tobytes(), b.flags, b.offset) for b in buffers],
            "scalars": list(scalars),
            "runs": [_options(**run) for run in runs],
            "views": [(v.of, v.start, v.size, v.flags, v.name) for v in views],
        }
        return subprocess.run(
            [sys.executable, "-S", "-E", str(HERE / "child.py")],
            input=pickle.dumps(job),
            capture_output=True,
            timeout=CHILD_LIMIT_S,
            check=False,
        )

    def runs(
        self,
        entry: str,
        buffers: Sequence[Buffer],
        scalars: Sequence[int] = (),
        runs: Sequence[Mapping[str, int]] = ({},),
        views: Sequence[View] = (),
    ) -> list[Result]:
        """Calls the entry once for every item of ``runs`` (fields of qsa_host_options), in one process."""
        done = self._child(entry, buffers, scalars, runs, views)
        assert done.returncode == 0, (done.returncode, done.stderr.decode())
        results = []
        for raw in pickle.loads(done.stdout)["results"]:
            arrays = {
                b.name: np.frombuffer(content, b.array.dtype).reshape(b.array.shape)
                for b, content in zip(buffers, raw["buffers"], strict=True)
            }
            after = {b.name: tail for b, tail in zip(buffers, raw["after"], strict=True)}
            results.append(
                Result(
                    self.path,
                    raw["status"],
                    raw["findings"],
                    raw["fuel"],
                    arrays,
                    after,
                    raw["mode"],
                )
            )
        return results

    def run(
        self, entry: str, buffers: Sequence[Buffer], scalars: Sequence[int] = (), **options: int
    ) -> Result:
        """Calls the entry once."""
        return self.runs(entry, buffers, scalars, [options])[0]

    def crash(
        self, entry: str, buffers: Sequence[Buffer], scalars: Sequence[int] = (), **options: int
    ) -> Crash:
        """Calls an entry that is expected to fault."""
        done = self._child(entry, buffers, scalars, [options])
        return Crash(done.returncode, done.stderr.decode().splitlines())


def _options(
    schedule: int = FIFO,
    compute_capability: int = 0,
    seed: int = 0,
    fuel: int = 0,
    multiprocessors: int = 0,
) -> dict[str, int]:
    return {
        "schedule": schedule,
        "compute_capability": compute_capability,
        "seed": seed,
        "fuel": fuel,
        "multiprocessors": multiprocessors,
        "reserved": 0,
    }


class Builder:
    """Builds kernel files of this folder, each once a mode."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self._built: dict[tuple[str, str], Library] = {}

    def __call__(self, file: str, mode: str) -> Library:
        if (file, mode) not in self._built:
            sources = [HERE / "kernels" / file, *host.runtime_sources(KERNELS)]
            objects = [_compile(source, mode, self._cache) for source in sources]
            library = self._cache / f"{objects[0].stem}.{os.getpid()}.so"
            _run(host.link_command(objects, library))
            self._built[file, mode] = Library(library)
        return self._built[file, mode]
