"""The public C header is what the kernels are, and an engine that has nothing else can call them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from qsa_bench import resources, stages
from qsa_bench.builder import Builder
from qsa_bench.model import Kernel
from tests.test_stage_contracts import c_entries, c_spelling

ROOT = resources.tree_root()
INCLUDE = ROOT / "kernels" / "include"
CALLER = Path(__file__).parent / "engine_caller" / "select_one_row.cpp"
STRICT = ("-Wall", "-Wextra", "-Wpedantic", "-Werror")


def declared() -> dict[str, tuple[str, list[tuple[str, str]]]]:
    """Return the header's entries as a source's are read: a declaration is one without a body."""
    text = (INCLUDE / "qsa.h").read_text()
    return c_entries(re.sub(r"^(int32_t qsa_\w+\([^;]*\));", r'extern "C" \1 {', text, flags=re.M))


def kernels() -> list[Kernel]:
    """Return the kernels whose entries the header declares."""
    loaded = [stages.load_stage(name) for name in stages.stage_names()]
    found = {kernel.name: kernel for stage in loaded for kernel in stage.kernels}
    return [kernel for kernel in found.values() if kernel.source.startswith("kernels/qsa/")]


def test_the_header_declares_every_entry_argument_by_argument_and_no_other() -> None:
    entries = {entry.symbol: entry for kernel in kernels() for entry in kernel.entries}
    found = declared()
    assert set(found) == set(entries)
    for symbol, entry in entries.items():
        assert found[symbol] == ("int32_t", c_spelling(entry)), symbol


def test_every_kernel_compiles_against_the_header() -> None:
    for kernel in kernels():
        included = {path.name for path in _includes(ROOT / kernel.source)}
        assert "qsa.h" in included, kernel.source


def _includes(source: Path) -> set[Path]:
    seen: set[Path] = set()
    waiting = [source]
    while waiting:
        path = waiting.pop()
        if path not in seen and path.exists():
            seen.add(path)
            names = re.findall(r'^\s*#include "([^"]+)"', path.read_text(), re.M)
            waiting.extend(ROOT / "kernels" / name for name in names)
    return seen


def test_every_argument_is_described() -> None:
    text = (INCLUDE / "qsa.h").read_text()
    parts = re.split(r"^int32_t (qsa_\w+)\(", text, flags=re.M)
    # What stands between the blank line before a declaration and its name.
    told = {
        name: before.rsplit("\n\n", 1)[-1]
        for name, before in zip(parts[1::2], parts[::2], strict=False)
    }
    told["qsa_select_ids"] += told["qsa_select"]
    for body in ("mma", "scalar"):
        told[f"qsa_score_{body}"] = told["qsa_score"]
    for kernel in kernels():
        for entry in kernel.entries:
            for argument in entry.arguments:
                found = re.search(rf"\b{argument.name}\b", told[entry.symbol])
                assert found, (entry.symbol, argument.name)


@pytest.mark.parametrize(("compiler", "standard"), [("gcc", "c99"), ("g++", "c++11")])
def test_the_header_stands_alone(tmp_path: Path, compiler: str, standard: str) -> None:
    language = "c" if compiler == "gcc" else "c++"
    source = tmp_path / "alone.txt"
    source.write_text('#include "qsa.h"\n#include "qsa.h"\nint status = QSA_OK;\n')
    copied = tmp_path / "qsa.h"
    copied.write_text((INCLUDE / "qsa.h").read_text())
    words = [compiler, f"-std={standard}", *STRICT, "-x", language, "-fsyntax-only", str(source)]
    subprocess.run(words, check=True, timeout=60)


def test_an_engine_selects_with_the_header_and_the_library_alone(tmp_path: Path) -> None:
    (kernel,) = [kernel for kernel in kernels() if kernel.name == "qsa_select"]
    build = Builder(tmp_path / "cache").build(kernel, "host", root=ROOT)
    assert build.library is not None, build.log
    caller = tmp_path / "caller"
    words = ["g++", "-std=c++17", "-O1", *STRICT, f"-I{INCLUDE}", str(CALLER), build.library]
    subprocess.run([*words, "-o", str(caller)], check=True, timeout=120)
    done = subprocess.run([str(caller)], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "2050 of 4002 tokens selected\n"), done.stderr
