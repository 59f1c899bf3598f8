"""The wheel works outside the repository; the Makefile and CI say plainly what they lack."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

import qsa_bench

ROOT = Path(qsa_bench.__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PINS = dict(
    line.split("==")
    for line in (ROOT / "constraints.txt").read_text().splitlines()
    if line and not line.startswith("#")
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from a copy of what the repository holds."""
    copy = tmp_path_factory.mktemp("tree")
    for name in ("qsa_bench", "kernels", "mutations"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    made = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--wheel-dir", str(made), str(copy)], check=True, timeout=240)
    (found,) = made.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel in a folder of its own."""
    site = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile"]
    subprocess.run([*pip, "--target", str(site), str(wheel)], check=True, timeout=240)
    return site


def test_the_wheel_holds_kernels_mutations_goldens_and_the_license(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for folder in ("kernels", "mutations"):
        for path in (ROOT / folder).rglob("*"):
            if path.is_file():
                assert f"qsa_bench/_data/{path.relative_to(ROOT)}" in names
    for path in (ROOT / "qsa_bench").rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            assert str(path.relative_to(ROOT)) in names
    assert any(name.endswith("/qsa.safetensors") for name in names)
    assert "qsa_bench/py.typed" in names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    tops = {name.partition("/")[0] for name in names}
    assert tops == {"qsa_bench", f"qsa_bench-{qsa_bench.__version__}.dist-info"}


def _outside(installed: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Call the installed program where nothing of the repository is near."""
    return subprocess.run(
        [sys.executable, "-P", "-m", "qsa_bench.cli", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_a_wheel_finds_its_data_outside_the_repository(installed: Path, tmp_path: Path) -> None:
    done = _outside(installed, tmp_path, "doctor", "--format", "json")
    found = {probe["name"]: probe["found"] for probe in json.loads(done.stdout)["probes"]}
    assert (done.returncode, done.stderr) == (0, "")
    for name in ("kernels", "mutations"):
        assert found[name].endswith(f"in {installed}/qsa_bench/_data/{name}")
    assert str(installed) in found["goldens"]


def test_a_wheel_gates_outside_the_repository(installed: Path, tmp_path: Path) -> None:
    words = ("gate", "--stage", "qsa_select", "--case", "*/golden/*", "--seeds", "0")
    done = _outside(installed, tmp_path, *words, "--format", "json")
    document = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
    # Outside a repository there is no commit to claim.
    assert document["commit"] == f"v{qsa_bench.__version__}"
    assert not document["dirty"]


def test_the_license_is_apache_2_and_names_its_holder() -> None:
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License\n                           Version 2.0, January 2004" in text
    assert re.search(r"Copyright \d{4} The qsa-bench authors", text)
    assert len(text.splitlines()) > 190
    assert PROJECT["license"] == "Apache-2.0"


def test_what_the_package_needs_is_pinned_for_the_repository_alone() -> None:
    wanted = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["test"]]
    names = [re.split(r"[<>=\[ ]", entry, maxsplit=1)[0] for entry in wanted]
    assert [name for name in names if name not in PINS] == []
    assert PINS["torch"] == "2.13.0"
    assert not [entry for entry in wanted if "==" in entry]
    assert PROJECT["optional-dependencies"]["reference"] == ["transformers==5.16.1"]


def _make(
    folder: Path, *words: str, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run make in a folder that holds the Makefile and nothing else."""
    shutil.copy(ROOT / "Makefile", folder)
    shutil.copy(ROOT / "pyproject.toml", folder)
    shutil.copy(ROOT / "constraints.txt", folder)
    program = shutil.which("make")
    assert program is not None
    return subprocess.run(
        [program, "--no-print-directory", *words],
        cwd=folder,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_make_says_that_python_is_missing(tmp_path: Path) -> None:
    done = _make(tmp_path, "demo", "PYTHON=no-such-python")
    assert done.returncode == 2
    assert done.stdout == (
        "make: no Python 3.11 or newer on the PATH (Debian: apt-get install python3 python3-venv)\n"
    )


def test_make_says_that_venv_is_missing(tmp_path: Path) -> None:
    fake = tmp_path / "python-without-venv"
    fake.write_text('#!/bin/sh\ncase "$2" in *venv*) exit 1;; esac\n')
    fake.chmod(0o755)
    done = _make(tmp_path, "demo", f"PYTHON={fake}")
    assert done.returncode == 2
    assert done.stdout == (
        f"make: {fake} has no venv module (Debian: apt-get install python3-venv)\n"
    )


def test_make_says_that_the_compiler_is_missing(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    done = _make(tmp_path, "demo", environment={"PATH": str(tmp_path / "bin")})
    assert done.returncode == 2
    assert done.stdout == "make: g++ is not on the PATH (Debian: apt-get install g++)\n"


def _fake_python(folder: Path, body: str) -> None:
    python = folder / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\n{body}\n")
    python.chmod(0o755)


def test_make_takes_pip_from_the_wheel_of_ensurepip(tmp_path: Path) -> None:
    python = Path(sys.base_prefix) / "bin" / "python3"
    assert _make(tmp_path, ".venv/bin/python", f"PYTHON={python}").returncode == 0
    pip = tmp_path / ".venv" / "pip"
    assert sorted(path.name.partition("-")[0] for path in pip.iterdir()) == ["pip", "pip"]
    done = subprocess.run(
        [tmp_path / ".venv/bin/python", "-m", "pip", "--version"],
        env={**os.environ, "PYTHONPATH": str(pip)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert str(pip) in done.stdout


def test_make_lets_ensurepip_install_pip_where_there_is_no_wheel(tmp_path: Path) -> None:
    fake = tmp_path / "python-without-wheel"
    fake.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n! echo "$2" | grep -q unpack\n')
    fake.chmod(0o755)
    assert _make(tmp_path, ".venv/bin/python", f"PYTHON={fake}").returncode == 0
    calls = (tmp_path / "calls").read_text().splitlines()
    assert [call for call in calls if call.startswith("-m venv")] == [
        "-m venv --without-pip .venv",
        "-m venv .venv",
    ]


def _editable(folder: Path) -> list[str]:
    """Return what was installed in place, in order, as the fake Python noted it."""
    calls = [c for c in (folder / "calls").read_text().splitlines() if " install " in c]
    assert all("--constraint constraints.txt" in call for call in calls)
    return [call.rpartition(" --editable ")[2] for call in calls if " --editable " in call]


def test_make_installs_again_only_when_what_is_wanted_changed(tmp_path: Path) -> None:
    _fake_python(tmp_path, 'echo "$@" >> calls')
    _make(tmp_path, ".venv/.installed")
    subprocess.run(["make", "setup"], cwd=tmp_path, capture_output=True, check=True)
    assert _editable(tmp_path) == [".", ".[test]"]
    for target in ("setup", ".venv/.installed"):
        again = subprocess.run(
            ["make", target], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        assert re.search("Nothing to be done|is up to date", again.stdout)
    os.utime(tmp_path / "constraints.txt", (2**31, 2**31))
    subprocess.run(["make", "setup"], cwd=tmp_path, capture_output=True, check=True)
    assert _editable(tmp_path) == [".", ".[test]", ".", ".[test]"]


def test_make_installs_what_the_lists_leave_out(tmp_path: Path) -> None:
    _fake_python(tmp_path, 'echo "$@" >> calls; case "$*" in *"pip check"*) exit 1;; esac')
    assert _make(tmp_path, ".venv/.installed").returncode == 0
    assert _editable(tmp_path) == [".", ".[auto]"]
    last = (tmp_path / "calls").read_text().splitlines()[-1]
    assert "--editable ." in last
    assert "--no-deps" not in last


@pytest.mark.parametrize("what", ["--no-deps torch", "numpy pandas", "--editable ."])
def test_an_install_that_fails_is_not_taken_for_done(tmp_path: Path, what: str) -> None:
    _fake_python(tmp_path, f'case "$*" in *"{what}"*) echo no such package >&2; exit 1;; esac')
    done = _make(tmp_path, "demo")
    assert done.returncode == 2
    assert "no such package" in done.stderr
    assert not (tmp_path / ".venv" / ".installed").exists()


def test_ci_runs_what_a_newcomer_runs() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    assert script.startswith("#!/usr/bin/env bash\n")
    assert "set -euo pipefail" in script
    places = [script.index(f"\nmake {target}\n") for target in ("lint", "test", "demo")]
    assert places == sorted(places)
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    subprocess.run(["bash", "-n", ROOT / ".ci" / "run"], check=True)
