"""One run of a compiler: its command, its say, and whether the machine failed rather than the source."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from qsa_bench import build_cache
from qsa_bench.errors import EnvironmentMissingError

# nvcc needs most; a g++ build takes under 2 s. A compiler that hangs is a failed build.
_LIMIT_S = 600.0
# What the programs of a gate, the copies of mutants and the compilers' own files take, with room.
_LEAST_SCRATCH_BYTES = 64 << 20
# g++: fatal error: cannot execute 'as': ...; collect2: fatal error: cannot find 'ld'
_MISSING_PART = re.compile(r"fatal error: cannot (?:execute|find) \W([\w.+-]+)")
_PARTS = {"cc1plus": "g++"}
_FULL = re.compile(r"No space left on device|Disk quota exceeded|[Cc]annot create temporary file")


def require_scratch() -> None:
    """Make sure that there is room for scratch files; EnvironmentMissingError where there is none.

    Compilers take TMPDIR at its word, while Python would go elsewhere without saying so.
    """
    folder = os.environ.get("TMPDIR", "")
    doing = "looking for room for scratch files"
    try:
        folder = folder or tempfile.gettempdir()
        with tempfile.TemporaryFile(dir=folder):
            free = shutil.disk_usage(folder).free
    except OSError as error:
        raise EnvironmentMissingError(
            f"{doing}: {folder or 'no temporary folder'} can't be written to ({error.strerror}); "
            "set TMPDIR to a folder with room"
        ) from None
    if free < _LEAST_SCRATCH_BYTES:
        raise EnvironmentMissingError(
            f"{doing}: {folder} has {free >> 20} MiB left, "
            f"{_LEAST_SCRATCH_BYTES >> 20} MiB are needed; free some, or set TMPDIR elsewhere"
        )


def execute(command: Sequence[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a compiler or linker and return how it ended.

    EnvironmentMissingError when it ended for want of a part of its own or of disk space.
    """
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=_LIMIT_S,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(
            command, 124, "", f"the compiler ran past {_LIMIT_S:.0f} s and was stopped"
        )
    if done.returncode != 0:
        _blame_machine(done.stderr, command[0])
    return done


def _blame_machine(said: str, program: str) -> None:
    part = _MISSING_PART.search(said)
    if part is not None:
        package = _PARTS.get(part[1], "binutils")
        raise EnvironmentMissingError(
            f"building kernels: {program} found no {part[1]} on the PATH; install it "
            f"(Debian: apt-get install {package})"
        )
    full = next((line for line in said.splitlines() if _FULL.search(line)), None)
    if full is not None:
        raise EnvironmentMissingError(
            f"building kernels: {program} can't write its files ({full.strip()}); free some space, "
            "or set TMPDIR and XDG_CACHE_HOME to folders with room"
        )


def failure(done: subprocess.CompletedProcess[str], command: Sequence[str], made: Path) -> str:
    """Return the compiler's say when it made nothing that can be used, else ""."""
    if done.returncode != 0:
        return _shorten(done, command)
    fault = build_cache.fault(made)
    return f"{_shorten(done, command)}{fault}\n" if fault else ""


def _shorten(done: subprocess.CompletedProcess[str], command: Sequence[str]) -> str:
    """Return the compiler's say, first errors first, cut to what a person reads."""
    text = (done.stderr or "") + (done.stdout or "")
    head = "\n".join(text.strip().splitlines()[:60])
    return f"{' '.join(command)}\nexit {done.returncode}\n{head}\n"
