"""Races run often, on a made-up device that loses its context, or hangs, in the runs it is told to."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from qsa_bench import baseline, repeats, resources
from qsa_bench.builder import Builder
from qsa_bench.parity import PLAIN, Limits, StageBuilds, Workload
from qsa_bench.repeats import RUNS, Repeats
from qsa_bench.stages import load_stage
from tests.fake_device import FakeGpu, plant
from tests.specimen.fixtures import (  # noqa: F401 - fixtures of this module
    specimen_master,
    specimen_planted,
    specimen_session_folder,
    specimen_tree,
)
from tests.specimen.trees import STAGE, Tree

# The specimen's cases that are run often, by their elements.
ELEMENTS = (1, 33, 64)
LABELS = {1: "1x1", 33: "2x33", 64: "3x64"}


@dataclass(frozen=True)
class Bench:
    """The specimen's cases on the made-up device."""

    gpu: FakeGpu
    workload: Workload
    builds: StageBuilds

    def repeat(self, dear: Collection[str] = (), limit_s: float = 60.0) -> Repeats:
        limits = Limits({}, {(PLAIN, case.id): limit_s for case in self.workload.cases})
        return repeats.repeat(self.workload, self.builds, limits, dear)

    def contexts(self) -> int:
        return sum(what == "open" for _, what in self.gpu.log())


@pytest.fixture(name="bench")
def specimen_bench(
    planted: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Bench]:
    gpu = plant(planted, tmp_path / "gpu", monkeypatch)
    stage = load_stage(STAGE)
    builds = baseline.build_or_raise(Builder(resources.cache_root()), stage, "cuda")
    with Workload(stage, stage.cases(None), "cuda", 0) as workload:
        yield Bench(gpu, workload, builds)


def case(elements: int) -> str:
    return f"{STAGE}/steps/{LABELS[elements]}"


def every(run: int) -> str:
    return " ".join(f"{elements}:{run}" for elements in ELEMENTS)


def test_a_case_that_loses_the_device_is_left_out_of_later_runs_and_every_run_is_known(
    bench: Bench,
) -> None:
    bench.gpu.does("losing", "64:5")
    found = bench.repeat()
    assert found == Repeats(1, RUNS, 2, 1, f"{case(64)}: no-crash")
    assert bench.contexts() == 2


def test_a_case_that_hangs_is_left_out_of_later_runs_and_every_run_is_known(bench: Bench) -> None:
    bench.gpu.does("hanging", "64:5")
    assert bench.repeat(limit_s=2.0) == Repeats(1, RUNS, 2, 1, f"{case(64)}: timed-out")


def test_a_case_known_to_lose_the_device_is_not_run_again(bench: Bench) -> None:
    bench.gpu.does("losing", "64:0")
    assert bench.repeat(dear={case(64)}) == Repeats(0, RUNS, 2, 1)
    assert bench.contexts() == 1


def test_cases_known_to_lose_the_device_are_run_where_nothing_else_is(bench: Bench) -> None:
    bench.gpu.does("losing", every(0))
    found = bench.repeat(dear={case(elements) for elements in ELEMENTS})
    # Three rounds, in each of which each case loses the run it is at.
    assert (found.hits, found.runs) == (3, 3)
    assert (found.cases, found.left_out) == (0, 3)


def test_a_case_that_waited_while_others_lost_the_device_has_its_turn(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repeats, "_MOST_LOSSES", 1)
    bench.gpu.does("losing", "64:0 33:0")
    # One context a round; the largest come first.
    found = bench.repeat()
    assert (found.runs, found.cases, found.left_out) == (RUNS, 1, 2)


def test_cases_that_all_hang_are_not_gone_on_with(bench: Bench) -> None:
    bench.gpu.does("hanging", every(0))
    found = bench.repeat(limit_s=1.0)
    assert (found.hits, found.runs, found.cases) == (1, 1, 0)
    assert [what for _, what in bench.gpu.log()].count("hangs") == 3


def test_a_stage_without_such_cases_has_no_run(bench: Bench) -> None:
    stage = bench.workload.stage
    cases = [replace(case, checked=False) for case in stage.cases(None)]
    with Workload(stage, cases, "cuda", 0) as workload:
        assert repeats.repeat(workload, bench.builds, Limits()) == Repeats(0, 0, 0, 0)
