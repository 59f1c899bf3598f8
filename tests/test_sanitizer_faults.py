"""The kernel with faults has them: what compute-sanitizer must see, the emulation's checker sees."""

from __future__ import annotations

from pathlib import Path

import pytest

from qsa_bench import judge, program, resources, sanitizer
from qsa_bench.builder import Builder
from qsa_bench.child import Ending
from qsa_bench.runner import Job, Observation, Schedule, observe


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    built = Builder(tmp_path_factory.mktemp("cache")).build(
        sanitizer.FAULTS, "host", root=resources.tree_root(), mode="checked"
    )
    assert built.library is not None, built.log
    return built.library


def run(library: str, folder: Path, fault: int) -> Observation:
    path = folder / "faulty.safetensors"
    program.write(path, sanitizer.faulty(fault), (sanitizer.FAULTS,))
    job = Job("faulty", "0", path, (Schedule("fifo"),))
    (seen,) = observe("host", {sanitizer.FAULTS.name: library}, [job], folder)
    assert seen.ending is Ending.RAN
    return seen


@pytest.mark.parametrize(
    ("tool", "kind"),
    [("memcheck", "bounds"), ("racecheck", "race"), ("initcheck", "uninitialised")],
)
def test_each_fault_is_one_of_its_kind(library: str, tmp_path: Path, tool: str, kind: str) -> None:
    seen = run(library, tmp_path, sanitizer.FAULT_OF[tool])
    assert {finding["kind"] for finding in seen.runs[0].findings} == {kind}


def test_the_fault_of_a_barrier_is_a_misused_collective(library: str, tmp_path: Path) -> None:
    seen = run(library, tmp_path, sanitizer.FAULT_OF["synccheck"])
    assert seen.runs[0].statuses == (judge.HOST_DIVERGED,)


def test_without_a_fault_nothing_is_found(library: str, tmp_path: Path) -> None:
    seen = run(library, tmp_path, 0)
    assert (seen.runs[0].statuses, seen.runs[0].findings) == ((0,), ())


def test_every_tool_has_a_fault_to_see() -> None:
    assert set(sanitizer.FAULT_OF) == set(sanitizer.TOOLS)
