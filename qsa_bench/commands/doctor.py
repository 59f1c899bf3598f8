"""Looks at what this machine offers and says what to do about what is missing."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from qsa_bench import environment, resources
from qsa_bench.errors import QsaBenchError
from qsa_bench.requests import Diagnosis, DoctorRequest, Probe, Progress, State

_LEAST_PYTHON = (3, 11)
# What the host target needs to run; torch is needed for goldens and the cuda target.
_CORE = ("numpy", "pyarrow", "safetensors", "typer", "rich")
_TRIAL = "int main() { return __cplusplus >= 201703L ? 0 : 1; }\n"


def run(request: DoctorRequest, _progress: Progress) -> Diagnosis:
    """Return every probe, none of which raises: what can't be found out is missing."""
    on_gpu = request.target == "cuda"
    probes = (
        _python(),
        *_packages(on_gpu),
        _compiler(),
        _make(),
        _nvcc(on_gpu),
        _gpu(on_gpu),
        _machine(),
        _tree("kernels", "*.cu", "kernel source"),
        _tree("mutations", "*.toml", "manifest"),
        _goldens(),
        _cache(),
        _writable("results", request.results, "name a writable folder with -o"),
    )
    return Diagnosis(request.target, probes)


def _python() -> Probe:
    version = sys.version.split()[0]
    if sys.version_info < _LEAST_PYTHON:
        return Probe("python", State.MISSING, version, "install Python 3.11 or newer")
    return Probe("python", State.OK, f"{version}, {sys.executable}")


def _packages(on_gpu: bool) -> list[Probe]:
    probes = []
    for name in environment.PACKAGES:
        version = environment.package_version(name)
        needed = name in _CORE or (on_gpu and name == "torch")
        if version:
            probes.append(Probe(name, State.OK, version))
        elif needed:
            remedy = "install qsa-bench again with its dependencies (pip install qsa-bench)"
            probes.append(Probe(name, State.MISSING, "not installed", remedy))
        else:
            probes.append(Probe(name, State.ABSENT, "not installed", _PURPOSE.get(name, "")))
    return probes


_PURPOSE = {
    "transformers": "only `golden dump` needs it: pip install 'qsa-bench[reference]'",
    "torch": "`golden dump` and the cuda target need it",
}


def _compiler() -> Probe:
    """The host target compiles every kernel: g++ must be there and must work."""
    name = "g++"
    remedy = "install it (Debian: apt-get install g++)"
    version = environment.tool_version("g++")
    if not version:
        return Probe(name, State.MISSING, "not on the PATH", remedy)
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "trial.cpp"
        source.write_text(_TRIAL)
        command = ("g++", "-std=c++17", "-fPIC", "-shared", str(source), "-o", f"{source}.so")
        if environment.run_tool(*command) is None:
            return Probe(name, State.MISSING, f"{version}, but it compiles nothing", remedy)
    return Probe(name, State.OK, f"{version}, compiles C++17")


def _make() -> Probe:
    version = environment.tool_version("make")
    if version:
        return Probe("make", State.OK, version)
    return Probe("make", State.ABSENT, "not on the PATH", "only the repository's Makefile needs it")


def _nvcc(needed: bool) -> Probe:
    version = environment.tool_version("nvcc")
    if version:
        return Probe("nvcc", State.OK, version)
    state = State.MISSING if needed else State.ABSENT
    return Probe("nvcc", state, "not on the PATH", "the cuda target needs the CUDA toolkit 13")


def _gpu(needed: bool) -> Probe:
    found = environment.gpus()
    if found.names:
        detail = f"{', '.join(found.names)}; driver {found.driver}, CUDA {found.cuda}"
        return Probe("gpu", State.OK, detail)
    state = State.MISSING if needed else State.ABSENT
    return Probe("gpu", state, found.missing, "only the cuda target and times need one")


def _machine() -> Probe:
    line = environment.host_line()
    if os.uname().machine == "x86_64" and sys.platform == "linux":
        return Probe("machine", State.OK, line)
    return Probe("machine", State.MISSING, line, "the host target runs on x86_64 Linux only")


def _tree(folder: str, pattern: str, noun: str) -> Probe:
    remedy = "install qsa-bench again; its data is incomplete"
    try:
        path = resources.tree_root() / folder
    except QsaBenchError as error:
        return Probe(folder, State.MISSING, str(error), remedy)
    files = sum(1 for _ in path.rglob(pattern))
    if not files:
        return Probe(folder, State.MISSING, f"no {noun} in {path}", remedy)
    return Probe(folder, State.OK, f"{files} {noun}{'s' if files > 1 else ''} in {path}")


def _goldens() -> Probe:
    remedy = "install qsa-bench again, or name a golden with --golden"
    try:
        from qsa_bench import goldens

        paths = [goldens.committed(kind) for kind in goldens.kinds()]
    except (QsaBenchError, ImportError) as error:
        return Probe("goldens", State.MISSING, str(error), remedy)
    if not paths:
        return Probe("goldens", State.MISSING, "none", remedy)
    return Probe("goldens", State.OK, ", ".join(str(path) for path in paths))


def _cache() -> Probe:
    remedy = "set XDG_CACHE_HOME to a writable folder"
    try:
        return _writable("build cache", resources.cache_root(), remedy)
    except QsaBenchError as error:
        return Probe("build cache", State.MISSING, str(error), remedy)


def _writable(name: str, folder: Path, remedy: str) -> Probe:
    """Look for the nearest folder that exists: asking must not make any."""
    nearest = next(
        (path for path in (folder, *folder.absolute().parents) if path.exists()), Path("/")
    )
    if nearest.is_dir() and os.access(nearest, os.W_OK):
        return Probe(name, State.OK, f"{folder} is writable")
    return Probe(name, State.MISSING, f"{folder} is not writable", remedy)
