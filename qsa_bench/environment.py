"""What this machine and this tree are, as a run records it and the doctor shows it.

Nothing here imports what it describes: versions come from package metadata, so that asking costs
milliseconds. A machine is described by what matters to a result, never by its name.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import qsa_bench
from qsa_bench import resources

# Distributions whose versions may change a result.
PACKAGES = (
    "torch",
    "numpy",
    "pandas",
    "pyarrow",
    "safetensors",
    "nvidia-ml-py",
    "typer",
    "rich",
    "transformers",
)

# What changes a result when it is edited; a stray output file does not make a tree dirty.
_TRACKED = ("qsa_bench", "kernels", "mutations", "pyproject.toml", "constraints.txt")
_LIMIT_S = 20.0


@dataclass(frozen=True)
class Commit:
    """The tree's commit in full, or "v" and the package's version where none is known.

    A tree from `git archive` names the commit it was made from; whether it was edited since, nothing
    there tells, and it counts as clean.
    """

    name: str
    dirty: bool

    @property
    def short(self) -> str:
        """Seven digits of the commit, or the version as it is."""
        return self.name if self.name.startswith("v") else self.name[:7]


@dataclass(frozen=True)
class Gpus:
    """NVIDIA devices as NVML sees them, or why there are none."""

    names: tuple[str, ...] = ()
    driver: str = ""
    cuda: str = ""
    missing: str = ""


def package_version(name: str) -> str:
    """Return an installed distribution's version, "" when it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def versions() -> dict[str, str]:
    """Return the versions of qsa-bench, Python and the installed ones of PACKAGES."""
    found = {"qsa-bench": qsa_bench.__version__, "python": platform.python_version()}
    found.update({name: version for name in PACKAGES if (version := package_version(name))})
    return found


def cores() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0))


def host_line() -> str:
    """Return architecture, processor model and cores: "x86_64, EPYC 9654, 2 cores"."""
    model = ""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            model = next(
                (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")),
                "",
            )
    except OSError:
        pass
    count = cores()
    parts = (platform.machine(), model, f"{count} core{'' if count == 1 else 's'}")
    return ", ".join(part for part in parts if part)


def run_tool(*command: str, cwd: Path | None = None) -> str | None:
    """Return a tool's output, None when it is missing, fails or does not answer."""
    path = shutil.which(command[0])
    if path is None:
        return None
    try:
        answer = subprocess.run(
            [path, *command[1:]],
            cwd=cwd,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LIMIT_S,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout if answer.returncode == 0 else None


def tool_version(program: str) -> str:
    """Return the line of `program --version` that names the version, "" when it is missing."""
    answer = run_tool(program, "--version")
    lines = (answer or "").strip().splitlines()
    return next((line for line in lines if "release" in line), lines[0] if lines else "").strip()


def commit() -> Commit:
    """Return the commit of the checkout or the archive that the package comes from."""
    version = Commit(f"v{qsa_bench.__version__}", dirty=False)
    root = resources.checkout()
    # A package installed in a folder of some other repository must not claim its commit.
    if root is None or not (root / ".git").exists():
        archived = resources.archived_commit()
        return Commit(archived, dirty=False) if archived else version
    git = ("git", "--no-optional-locks")
    head = run_tool(*git, "rev-parse", "--verify", "HEAD", cwd=root)
    if head is None:
        return version
    changed = run_tool(*git, "status", "--porcelain", "--", *_TRACKED, cwd=root)
    return Commit(head.strip(), dirty=bool(changed) or changed is None)


def gpus() -> Gpus:
    """Ask NVML for devices, driver and the CUDA version it serves. Takes about 30 ms."""
    try:
        import pynvml
    except ImportError:
        return Gpus(missing="the package nvidia-ml-py is not installed")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return Gpus(missing=f"NVML says: {error}")
    try:
        handles = [
            pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())
        ]
        cuda = int(pynvml.nvmlSystemGetCudaDriverVersion())
        names = tuple(_text(pynvml.nvmlDeviceGetName(handle)) for handle in handles)
        return Gpus(
            names=names,
            driver=_text(pynvml.nvmlSystemGetDriverVersion()),
            cuda=f"{cuda // 1000}.{cuda % 1000 // 10}",
            missing="" if names else "NVML finds no device",
        )
    except pynvml.NVMLError as error:
        return Gpus(missing=f"NVML says: {error}")
    finally:
        pynvml.nvmlShutdown()


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
