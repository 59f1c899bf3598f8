"""Imports point one way, and heavy packages are loaded by one part each."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import qsa_bench

PACKAGE = Path(qsa_bench.__file__).parent
ROOT = PACKAGE.parent

# Who may import what, anywhere in a file: a package belongs to one part.
OWNERS = {
    "rich": ("qsa_bench.console",),
    "typer": (
        "qsa_bench.cli",
        "qsa_bench.cli_mutation",
        "qsa_bench.cli_options",
        "qsa_bench.cli_timing",
    ),
    "tree_sitter": ("qsa_bench.operators",),
    "tree_sitter_cuda": ("qsa_bench.operators.syntax",),
    "pandas": ("qsa_bench.store",),
    "pyarrow": ("qsa_bench.store",),
    "torch": (
        "qsa_bench.engine.qsa_torch",
        "qsa_bench.goldens",
        "qsa_bench.peers.select",
        "qsa_bench.peers.attention",
        "qsa_bench.timer_worker",
        "qsa_bench.timers.clocks",
        "qsa_bench.timers.session",
    ),
    "ray": ("qsa_bench.ray_executor",),
    "matplotlib": ("qsa_bench.plots",),
    "transformers": ("qsa_bench.goldens",),
    "pynvml": ("qsa_bench.environment", "qsa_bench.telemetry", "qsa_bench.targets.cuda"),
}

# From the top down; a part imports parts further down and its own.
LAYERS = (
    ("cli",),
    ("cli_timing", "cli_mutation"),
    ("cli_options",),
    ("commands",),
    ("console", "results"),
    ("reports",),
    ("pages", "documents"),
    ("gate_tables", "mutation_tables", "strength_tables", "sweep_tables", "compare_tables"),
    ("sweep_rates",),
    ("campaign_numbers",),
    ("tables",),
    ("store",),
)


def _modules() -> dict[str, Path]:
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = _modules()


def _imported(path: Path) -> set[str]:
    """Return the full names that a file imports, wherever in it, but not for typing alone."""
    tree = ast.parse(path.read_text())
    typing_only = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    names: set[str] = set()
    for node in ast.walk(tree):
        if node in typing_only:
            continue
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            assert node.module is not None
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return {name for name in names if not name.startswith("qsa_bench.") or _module_of(name)}


def _module_of(name: str) -> str:
    """Return the module of ours that a dotted name lies in, "" if it is a name of the package."""
    while name and name not in MODULES:
        name = name.rpartition(".")[0]
    return "" if name == "qsa_bench" else name


def _is_in(module: str, parts: tuple[str, ...]) -> bool:
    return any(module == part or module.startswith(f"{part}.") for part in parts)


def _ours(path: Path) -> set[str]:
    return {
        found
        for name in _imported(path)
        if name.startswith("qsa_bench") and (found := _module_of(name))
    }


@pytest.mark.parametrize("owned", OWNERS)
def test_a_heavy_package_is_imported_by_its_owner_alone(owned: str) -> None:
    importers = {
        module
        for module, path in MODULES.items()
        if any(name.partition(".")[0] == owned for name in _imported(path))
    }
    assert {m for m in importers if not _is_in(m, OWNERS[owned])} == set()


def test_imports_point_down() -> None:
    wrong = []
    for place, layer in enumerate(LAYERS):
        above = tuple(f"qsa_bench.{part}" for upper in LAYERS[:place] for part in upper)
        own = tuple(f"qsa_bench.{part}" for part in layer)
        for module, path in MODULES.items():
            if _is_in(module, own):
                wrong += [(module, up) for up in _ours(path) if _is_in(up, above)]
    assert wrong == []


def test_what_shows_results_is_known_to_the_command_line_alone() -> None:
    first = LAYERS.index(("console", "results"))
    last = LAYERS.index(("tables",))
    shown = tuple(f"qsa_bench.{part}" for layer in LAYERS[first : last + 1] for part in layer)
    wrong = {
        (module, name)
        for module, path in MODULES.items()
        if not _is_in(module, (*shown, "qsa_bench.cli"))
        for name in _ours(path)
        if _is_in(name, shown)
    }
    assert wrong == set()


def test_commands_never_import_each_other_and_nobody_imports_them() -> None:
    wrong = {
        (module, name)
        for module, path in MODULES.items()
        for name in _ours(path)
        if name.startswith("qsa_bench.commands.")
    }
    assert wrong == set()


def test_stages_know_nothing_of_how_they_are_run() -> None:
    machinery = ("builder", "runner", "worker", "parity", "mutants", "store", "targets")
    wrong = {
        (module, name)
        for module, path in MODULES.items()
        if module.startswith("qsa_bench.stages")
        for name in _ours(path)
        if _is_in(name, tuple(f"qsa_bench.{part}" for part in machinery))
    }
    assert wrong == set()


def test_records_need_the_standard_library_alone() -> None:
    for module in ("model", "errors", "exit_codes", "requests", "defaults", "tables"):
        for name in _imported(MODULES[f"qsa_bench.{module}"]):
            top = name.partition(".")[0]
            assert top in sys.stdlib_module_names or top == "qsa_bench", (module, name)


def test_every_file_is_short_enough_to_read() -> None:
    long = {
        str(path.relative_to(ROOT)): lines
        for folder in ("qsa_bench", "kernels", "tests")
        for pattern in ("*.py", "*.cu", "*.cuh", "*.cpp", "*.h")
        for path in (ROOT / folder).rglob(pattern)
        if (lines := len(path.read_text().splitlines())) > 500
    }
    assert long == {}


def _loaded(code: str) -> set[str]:
    """Return the packages that a fresh interpreter has loaded after some code."""
    script = f"{code}\nimport json, sys\nsys.stderr.write(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    return {name.partition(".")[0] for name in json.loads(done.stderr)}


HEAVY = {
    "tree_sitter",
    "torch",
    "transformers",
    "pandas",
    "pyarrow",
    "numpy",
    "rich",
    "pynvml",
    "pydantic",
}


def test_help_loads_nothing_heavy() -> None:
    code = "from qsa_bench.cli import main\nmain(['--help'])"
    assert _loaded(code) & HEAVY == set()


def test_a_commands_help_loads_what_reads_flags_and_nothing_more() -> None:
    code = "from qsa_bench.cli import main\nmain(['gate', '--help'])"
    assert _loaded(code) & HEAVY <= {"pydantic"}


def test_the_host_worker_loads_numpy_and_nothing_else_heavy() -> None:
    loaded = _loaded("import qsa_bench.worker")
    assert loaded & (HEAVY | {"typer", "subprocess", "asyncio"}) <= {"numpy", "subprocess"}


def test_a_gate_loads_no_torch() -> None:
    code = "import qsa_bench.commands.gate, qsa_bench.commands.mutate, qsa_bench.commands.replay"
    assert _loaded(code) & {"torch", "transformers", "pandas", "rich", "typer"} == set()
