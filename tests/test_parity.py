"""A workload turns builds into verdicts: every case, every check, the same each time."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from qsa_bench import baseline, parity
from qsa_bench.builder import Builder
from qsa_bench.model import Finding, Role, Status, Verdict
from qsa_bench.parity import (
    CHECKED,
    FIRST_ORDER,
    FIRST_ORDERS,
    PLAIN,
    Limits,
    Seen,
    StageBuilds,
    Workload,
)
from qsa_bench.program import Program
from qsa_bench.runner import HOST
from qsa_bench.stages import load_stage
from qsa_bench.stages.base import Case, Outputs, Stage
from tests.specimen.fixtures import (  # noqa: F401 - fixtures of this module
    specimen_builder,
    specimen_master,
    specimen_session_folder,
    specimen_stage,
    specimen_tree,
)
from tests.specimen.trees import Tree

RANK = "kernels/specimen/rank.cu"
RAN = {"no-trap", "collectives", "terminates", "launch-limits"}
MEMORY = {"fences", "inputs-unchanged", "no-crash"}
OWN = {"level", "rank", "steps", "schedules-agree"}
CHECKERS = {"races", "bounds", "uninitialised"}


class Gate:
    """Gates the specimen's cases on the builds of a tree."""

    def __init__(self, builder: Builder, tree: Tree, stage: Stage) -> None:
        self.builder = builder
        self.tree = tree
        self.stage = stage

    def builds(self, *modes: str) -> StageBuilds:
        kernels = self.stage.kernels
        return parity.build_stage(
            self.builder, kernels, "host", self.tree.root, modes or (PLAIN, CHECKED)
        )

    def cases(self, *labels: str) -> list[Case]:
        return [c for c in self.stage.cases(None) if not labels or c.label in labels]

    def workload(self, cases: Sequence[Case], seeds: int = 1) -> Workload:
        return Workload(self.stage, cases, "host", seeds)

    def run(self, *labels: str, seeds: int = 1, modes: Sequence[str] = (PLAIN, CHECKED)) -> Seen:
        with self.workload(self.cases(*labels), seeds) as workload:
            return workload.gate(self.builds(*modes), python_path=(self.tree.root,))


@pytest.fixture(name="gate")
def specimen_gate(builder: Builder, master: Tree, stage: Stage) -> Gate:
    return Gate(builder, master, stage)


def checks(verdicts: Sequence[Verdict]) -> set[str]:
    return {verdict.check for verdict in verdicts}


def failed(verdicts: Sequence[Verdict]) -> set[str]:
    return {verdict.check for verdict in verdicts if not verdict.passed}


def test_every_case_of_a_right_kernel_passes_every_check_that_applies(gate: Gate) -> None:
    seen = gate.run()
    assert seen.failures == []
    by_label: dict[str, list[Verdict]] = {}
    for verdict in seen.verdicts:
        by_label.setdefault(verdict.case.rpartition("/")[2], []).append(verdict)
    assert set(by_label) == {case.label for case in gate.cases()}
    assert checks(by_label["2x33"]) == RAN | MEMORY | OWN | CHECKERS | {"accepts"}
    assert checks(by_label["one-order"]) == (RAN | MEMORY | OWN | {"accepts"}) - {"schedules-agree"}
    assert checks(by_label["infinity"]) == MEMORY | {"traps"}
    assert checks(by_label["no-element"]) == MEMORY | {"refuses"}


def test_a_case_runs_under_as_many_orders_as_it_asks_for(gate: Gate) -> None:
    seen = gate.run("2x33", "one-order", seeds=2)
    runs = {
        (v.case.rpartition("/")[2], v.check): v.runs
        for v in seen.verdicts
        if v.check in ("level", "races")
    }
    assert runs == {("2x33", "level"): 4, ("2x33", "races"): 1, ("one-order", "level"): 1}


@pytest.mark.parametrize("orders", [FIRST_ORDER, FIRST_ORDERS])
def test_a_mutant_first_meets_few_orders_and_no_case_in_reserve(gate: Gate, orders: int) -> None:
    cases = [replace(case, reserve=case.label == "3x64") for case in gate.cases("2x33", "3x64")]
    with gate.workload(cases, seeds=2) as workload:
        seen = workload.gate(gate.builds(), None, (gate.tree.root,), first=orders)
    assert {verdict.case for verdict in seen.verdicts} == {cases[0].id}
    runs = {verdict.check: verdict.runs for verdict in seen.verdicts}
    assert (runs["level"], runs["races"]) == (orders, 1)
    # One order agrees with no other.
    assert ("schedules-agree" in runs) == (orders > 1)
    # Of six in a family the checker takes the two largest.
    alike = gate.cases("2x33")[0]
    many = [replace(alike, label=f"copy-{n}") for n in range(5)] + gate.cases("3x64")
    with gate.workload(many) as workload:
        jobs = workload.jobs(CHECKED, Limits(), many, first=orders)
    assert [job.case.rpartition("/")[2] for job in jobs] == ["copy-0", "3x64"]
    # A device has its own orders, and no time to lose by a second gate.
    with Workload(gate.stage, cases, "cuda", 2) as device:
        jobs = device.jobs(PLAIN, Limits(), cases, first=orders)
    assert [len(job.schedules) for job in jobs] == [2, 2]


def test_a_case_too_large_for_the_checker_is_not_given_to_it(gate: Gate) -> None:
    seen = gate.run("one-order", modes=(PLAIN, CHECKED))
    assert checks(seen.verdicts).isdisjoint(CHECKERS)


def test_a_verdict_names_its_build_stage_family_and_evidence(gate: Gate) -> None:
    seen = gate.run("3x64")
    (level,) = [v for v in seen.verdicts if v.check == "level"]
    assert (level.stage, level.family, level.case) == ("specimen", "steps", "specimen/steps/3x64")
    assert level.build == gate.builds().digest
    assert (level.evidence.total, level.evidence.count) == (64, 0)
    assert level.evidence.margin is not None
    assert 0 < level.evidence.margin <= 1


def test_carried_state_starts_anew_in_every_run(gate: Gate) -> None:
    # Were it carried from one order of threads to the next, their outputs would differ.
    seen = gate.run("3x64", seeds=3, modes=(PLAIN,))
    (digests,) = seen.digests.values()
    assert len(digests) == 5
    assert len(set(digests)) == 1


def test_a_gate_repeated_sees_the_same(gate: Gate) -> None:
    first, second = gate.run(), gate.run()
    assert first.verdicts == second.verdicts
    assert first.digests == second.digests
    assert first.limits.fuel == second.limits.fuel


def test_the_number_of_workers_changes_no_verdict(gate: Gate) -> None:
    seen = []
    for jobs in (1, 3):
        with gate.workload(_with_surface(gate)) as workload:
            seen.append(baseline.gate_in_parallel(workload, gate.builds(), jobs))
    assert seen[0].verdicts == seen[1].verdicts
    assert seen[0].digests == seen[1].digests
    assert seen[0].limits.fuel == seen[1].limits.fuel


def _with_surface(gate: Gate) -> list[Case]:
    """Return the cases whose Python is in the package of this process: none but C entries."""

    def without_python(case: Case) -> Case:
        built = case.build()
        calls = tuple(call for call in built.calls if call.python is None)
        return replace(case, build=lambda: replace(built, calls=calls))

    return [without_python(case) for case in gate.cases()]


def test_limits_are_a_multiple_of_what_the_clean_kernel_used(gate: Gate) -> None:
    seen = gate.run("3x64")
    fuel = seen.limits.fuel[PLAIN, "specimen/steps/3x64"]
    with gate.workload(gate.cases("3x64")) as workload:
        tight = Limits(fuel={(PLAIN, "specimen/steps/3x64"): 100})
        again = workload.gate(gate.builds(), tight, (gate.tree.root,), modes=(PLAIN,))
    assert fuel >= 200_000
    assert failed(again.verdicts) == {"terminates"}
    assert not again.by_clock


def test_what_the_clock_ended_is_told_apart_from_what_fuel_did(gate: Gate) -> None:
    with gate.workload(gate.cases("3x64")) as workload:
        no_time = Limits(seconds={(PLAIN, "specimen/steps/3x64"): 0.0})
        seen = workload.gate(gate.builds(), no_time, (gate.tree.root,), modes=(PLAIN,))
    assert failed(seen.verdicts) == {"terminates"}
    assert seen.by_clock


def test_an_output_judged_once_is_not_judged_again(gate: Gate) -> None:
    judged: list[Program] = []

    def judge(built: Program, _outputs: Outputs) -> list[Finding]:
        judged.append(built)
        return [Finding("level", Status.PASS)]

    cases = [replace(case, judge=judge) for case in gate.cases("3x64")]
    with gate.workload(cases) as workload:
        for _ in range(2):
            seen = workload.gate(gate.builds(), python_path=(gate.tree.root,), modes=(PLAIN,))
            assert "level" in checks(seen.verdicts)
    assert len(judged) == 1


def test_two_cases_of_one_name_are_refused(gate: Gate) -> None:
    cases = gate.cases("3x64")
    with pytest.raises(ValueError, match="specimen/steps/3x64 stands twice"):
        gate.workload([*cases, *cases])


def test_a_case_of_another_target_is_left_out(gate: Gate) -> None:
    cases = [replace(case, targets=("cuda",)) for case in gate.cases("3x64")]
    with gate.workload([*cases, *gate.cases("1x1")]) as workload:
        assert [case.label for case in workload.cases] == ["1x1"]


def test_a_workload_leaves_no_file_behind(
    gate: Gate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parity.tempfile, "tempdir", str(tmp_path))
    gate.run("1x1")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ZeroDivisionError):
        gate.workload([replace(gate.cases("1x1")[0], build=lambda: Program((), (1 / 0,)))])  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_kernel_fails_the_cases_and_checks_that_see_it(
    builder: Builder, tree: Tree, stage: Stage
) -> None:
    tree.edit(RANK, "levels[other] < levels[element]", "levels[other] > levels[element]")
    seen = Gate(builder, tree, stage).run()
    assert failed(seen.verdicts) == {"rank"}
    assert {v.case.rpartition("/")[2] for v in seen.failures} == {"2x33", "3x64", "one-order"}


def test_a_missing_barrier_shows_in_values_in_orders_and_as_a_race(
    builder: Builder, tree: Tree, stage: Stage
) -> None:
    tree.edit(RANK, "  __syncthreads();\n", "")
    seen = Gate(builder, tree, stage).run("3x64")
    assert failed(seen.verdicts) >= {"rank", "schedules-agree", "races"}
    (race,) = [v for v in seen.failures if v.check == "races"]
    assert "thread" in race.evidence.where


def test_a_race_that_no_order_shows_is_seen_by_the_checker(
    builder: Builder, tree: Tree, stage: Stage
) -> None:
    tree.edit(RANK, "  rank[element] = below;\n", "  rank[element] = below;\n  levels[0] = 0.0f;\n")
    seen = Gate(builder, tree, stage).run("3x64")
    assert "races" in failed(seen.verdicts)


def test_one_element_past_the_end_is_seen_by_fences_and_checker_beside_the_crash(
    builder: Builder, tree: Tree, stage: Stage
) -> None:
    tree.edit(RANK, "  rank[element] = below;\n", "  rank[element] = rank[count] = below;\n")
    seen = Gate(builder, tree, stage).run("3x64")
    assert failed(seen.verdicts) >= {"fences", "bounds", "no-crash"}


def test_an_input_written_with_the_value_it_had_is_seen_by_the_checker_alone(
    builder: Builder, tree: Tree, stage: Stage
) -> None:
    tree.edit(
        RANK,
        "  rank[element] = below;\n",
        "  rank[element] = below;\n  const_cast<float*>(level)[element] = levels[element];\n",
    )
    # Between two kernels of a pipeline the levels are an output: here they are an input.
    alone = replace(Gate(builder, tree, stage).cases("3x64")[0])
    built = alone.build()
    level = built.array("values")[0].copy()
    buffers = (
        replace(built.buffer("level"), role=Role.INPUT, data=level),
        built.buffer("rank"),
    )
    only = replace(alone, build=lambda: Program(buffers, built.calls[-1:]), judge=lambda *_: ())
    gate = Gate(builder, tree, stage)
    with gate.workload([only]) as workload:
        plain = workload.gate(gate.builds(), modes=(PLAIN,))
        checked = workload.gate(gate.builds(), modes=(CHECKED,))
    assert failed(plain.verdicts) == set()
    assert failed(checked.verdicts) >= {"inputs-unchanged"}


def test_a_stopped_workload_runs_nothing_more(gate: Gate) -> None:
    with gate.workload(gate.cases()) as workload:
        workload.stopped.set()
        seen = workload.gate(gate.builds(), python_path=(gate.tree.root,))
    assert {verdict.status for verdict in seen.verdicts} == {Status.NOT_RUN}


def test_a_failure_in_one_thread_stops_the_others(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> list[Finding]:
        raise RuntimeError("the judge is broken")

    cases = [replace(case, judge=broken) for case in _with_surface(gate)]
    with gate.workload(cases) as workload:
        with pytest.raises(RuntimeError, match="the judge is broken"):
            baseline.gate_in_parallel(workload, gate.builds(PLAIN), 2)
        assert workload.stopped.is_set()


def test_an_interrupt_that_wakes_nobody_is_noticed_while_threads_work() -> None:
    # interrupt_main does what a signal does that comes just before a wait for a lock begins.
    over = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(over.wait, 60)
        try:
            with pytest.raises(KeyboardInterrupt):
                threading.Timer(0.1, _thread.interrupt_main).start()
                list(baseline.as_they_end([future]))
            assert not future.done()
        finally:
            over.set()


def test_gates_in_several_threads_do_not_disturb_one_another(gate: Gate) -> None:
    with gate.workload(gate.cases("2x33", "3x64")) as workload:
        builds = gate.builds(PLAIN)
        with ThreadPoolExecutor(2) as pool:
            seen = list(
                pool.map(lambda _: workload.gate(builds, None, (gate.tree.root,)), range(2))
            )
    assert seen[0].verdicts == seen[1].verdicts
    assert seen[0].failures == []


def test_a_mutant_on_a_device_meets_one_trap_a_clause() -> None:
    stage = load_stage("qsa_select")
    cases = [case for case in stage.cases(None) if case.family in ("trap", "padding")]
    with Workload(stage, cases, "cuda", 0) as device, Workload(stage, cases, HOST, 0) as host:
        assert host.brief == host.cases
        traps = [case for case in device.brief if case in device.trapping]
        clauses = {case.clauses for case in device.trapping}
        assert len(device.trapping) > len(clauses) > 1
        assert sorted(case.clauses for case in traps) == sorted(clauses)
        assert [case for case in device.brief if case not in traps] == device.ordinary
