"""gate and mutate on a device that loses contexts, on a made-up one that can be broken."""

from __future__ import annotations

from pathlib import Path

import pytest

from qsa_bench import results, store
from qsa_bench.campaign_requests import MutateRequest
from qsa_bench.commands import gate, mutate
from qsa_bench.exit_codes import ExitCode
from qsa_bench.model import Outcome, Status, Verdict
from qsa_bench.parity import MOST_CONTEXTS
from qsa_bench.requests import GateRequest, NullProgress
from qsa_bench.store import StoredRun
from tests.fake_device import FakeGpu, plant, plant_sanitizer
from tests.specimen.fixtures import (  # noqa: F401 - fixtures of this module
    replant,
    specimen_master,
    specimen_planted,
    specimen_session_folder,
    specimen_tree,
)
from tests.specimen.trees import STAGE, Tree

TRAP = f"{STAGE}/traps/infinity"


@pytest.fixture(name="gpu")
def fake_gpu(planted: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    return plant(planted, tmp_path / "gpu", monkeypatch)


@pytest.fixture
def tools(gpu: FakeGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    plant_sanitizer(tmp_path / "bin", monkeypatch)
    return gpu


def run(**fields: object) -> StoredRun:
    request = GateRequest((STAGE,), target="cuda", jobs=2, seeds=1, **fields)  # type: ignore[arg-type]
    return gate.run(request, NullProgress())


def of(stored: StoredRun, check: str, phase: str = "") -> dict[str, Verdict]:
    return {v.case: v for v in stored.verdicts if v.check == check and v.phase == phase}


def test_the_traps_come_last_each_in_a_process_of_its_own(gpu: FakeGpu) -> None:
    stored = run(save_failures=False)
    assert stored.run.exit_code == ExitCode.OK
    did = gpu.log()
    cases = [(pid, what.split()[1]) for pid, what in did if what.startswith("case")]
    first = [what for _, what in cases].index("trap")
    trap = cases[first][0]
    # Nine cases, one of which traps: before it all others, after it the gate again and the control.
    assert first == 8
    assert [pid for pid, _ in cases].count(trap) == 1
    # The next thing that anyone did was to ask the device whether it still answers.
    place = did.index((trap, "case trap"))
    assert did[place + 1][1] == "open"
    assert did[place + 1][0] != trap
    assert of(stored, "device") == {TRAP: of(stored, "device")[TRAP]}
    assert of(stored, "device")[TRAP].status is Status.PASS


def test_no_more_contexts_are_made_than_the_device_makes_side_by_side(gpu: FakeGpu) -> None:
    request = GateRequest((STAGE,), target="cuda", jobs=9)
    stored = gate.run(request, NullProgress())
    assert stored.run.exit_code == ExitCode.OK
    did = gpu.log()
    ordinary = {pid for pid, what in did[: did.index((_trap(did), "case trap"))] if "case" in what}
    assert len(ordinary) == MOST_CONTEXTS


def test_a_context_goes_on_with_the_gate_of_the_same_build(gpu: FakeGpu) -> None:
    run()
    did = gpu.log()
    opened = [pid for pid, what in did if what == "open"]
    # Two for the gate, one for the trap, one that asks after it and goes on as the other of the
    # first two does; and one for the control, which is another build.
    assert len(opened) == len(set(opened)) == 5


def _trap(did: list[tuple[int, str]]) -> int:
    return next(pid for pid, what in did if what == "case trap")


def test_the_gate_is_run_again_after_the_traps(gpu: FakeGpu) -> None:
    stored = run()
    ordinary = set(of(stored, "fences")) - {TRAP}
    assert len(ordinary) == 8
    assert set(of(stored, "fences", "after traps")) == ordinary
    assert all(v.passed for v in stored.verdicts)
    assert "after traps" in results.markdown(stored)


def test_a_device_that_a_trap_takes_is_told_by_all_that_comes_later(gpu: FakeGpu) -> None:
    gpu.does("fragile")
    stored = run()
    # The trap itself came as it should; what it did to the device is no fault of the case's output.
    assert of(stored, "traps")[TRAP].status is Status.PASS
    assert of(stored, "device")[TRAP].status is Status.DEVICE_LOST
    assert "no device is left" in of(stored, "device")[TRAP].evidence.note
    later = [v for v in stored.verdicts if v.phase == "after traps"]
    assert {(v.check, v.status) for v in later} == {("device", Status.DEVICE_LOST)}
    assert len({v.case for v in later}) == 8
    assert stored.run.exit_code == ExitCode.INCOMPLETE
    assert stored.run.done == 0
    assert stored.run.asked == 9
    assert store.read_run(stored.folder).verdicts == stored.verdicts  # type: ignore[arg-type]
    assert "device-lost: device" in results.markdown(stored)


def test_a_device_that_is_gone_from_the_start_passes_nothing(gpu: FakeGpu) -> None:
    gpu.does("dead")
    stored = run()
    assert {v.status for v in stored.verdicts} == {Status.DEVICE_LOST}
    assert (stored.run.exit_code, stored.run.done) == (ExitCode.INCOMPLETE, 0)


TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
SMALL = {f"{STAGE}/steps/{label}" for label in ("1x1", "2x33", "3x64")}


def test_each_tool_says_of_each_small_case_that_it_ran(tools: FakeGpu) -> None:
    stored = run(sanitizers=TOOLS)
    assert stored.run.exit_code == ExitCode.OK
    for tool in TOOLS:
        assert {case: v.status for case, v in of(stored, tool).items()} == dict.fromkeys(
            SMALL, Status.PASS
        )


def test_what_a_tool_reports_fails_the_case_it_was_on(tools: FakeGpu) -> None:
    tools.does("faulty", f"{STAGE}/steps/2x33")
    stored = run(sanitizers=("racecheck",), save_failures=False)
    assert stored.run.exit_code == ExitCode.GATE_FAILED
    found = of(stored, "racecheck")
    assert {case for case, v in found.items() if v.status is Status.WRONG} == {
        f"{STAGE}/steps/2x33"
    }
    assert found[f"{STAGE}/steps/2x33"].evidence.note == (
        "Invalid made-up access of size 4 bytes at kernel+0x10 in made.cu:7"
    )


@pytest.mark.parametrize(
    ("does", "note"),
    [
        ("blind", "memcheck reports nothing on a kernel with the fault it looks for"),
        ("silent", "memcheck came to no summary"),
    ],
)
def test_a_tool_that_proves_nothing_is_unavailable(tools: FakeGpu, does: str, note: str) -> None:
    tools.does(does)
    stored = run(sanitizers=("memcheck",))
    found = of(stored, "memcheck")
    assert {v.status for v in found.values()} == {Status.UNAVAILABLE}
    assert all(v.evidence.note.startswith(note) for v in found.values())
    assert stored.run.exit_code == ExitCode.INCOMPLETE
    assert "unavailable: memcheck" in results.markdown(stored)


def test_a_tool_that_is_not_installed_is_unavailable(gpu: FakeGpu) -> None:
    stored = run(sanitizers=("memcheck",))
    found = of(stored, "memcheck")
    assert set(found) == SMALL
    assert {v.evidence.note for v in found.values()} == {"compute-sanitizer is not on the PATH"}
    assert stored.run.exit_code == ExitCode.INCOMPLETE
    # The cases a tool was not there for were not done; the others were.
    assert (stored.run.asked, stored.run.done) == (9, 6)


def test_the_emulation_is_held_to_the_device_under_every_order(gpu: FakeGpu) -> None:
    stored = run(against_host=True)
    assert stored.run.exit_code == ExitCode.OK
    found = of(stored, "emulation")
    assert set(found) == set(of(stored, "fences"))
    # Three orders where a case has them all, one where it asks for one; traps give no output.
    numbers = {case.rpartition("/")[2]: v.evidence.numbers for case, v in found.items()}
    assert numbers["2x33"] == {"comparisons": 3, "equal": 3, "endings": 0}
    assert numbers["infinity"] == {"comparisons": 0, "equal": 0, "endings": 3}
    assert numbers["no-element"] == {"comparisons": 0, "equal": 0, "endings": 1}
    page = results.markdown(stored)
    assert "the emulation against the device" in page
    assert "| specimen | 9 | 13 | 13 | 0 | 6 |" in page


def test_a_value_that_differs_on_the_device_is_held_at_its_checks_bound(gpu: FakeGpu) -> None:
    gpu.does("skewed")
    stored = run(against_host=True, save_failures=False)
    found = of(stored, "emulation")
    apart = {case.rpartition("/")[2]: v for case, v in found.items() if v.evidence.margin}
    assert set(apart) == {"case0", "1x1", "2x33", "3x64", "one-order"}
    assert all(v.passed and 0 < v.evidence.margin < 1 for v in apart.values())
    assert apart["2x33"].evidence.numbers["equal"] == 0
    assert apart["2x33"].evidence.where == "level[0]"
    assert stored.run.exit_code == ExitCode.OK


def test_a_byte_that_no_bound_holds_has_to_be_the_devices(gpu: FakeGpu) -> None:
    gpu.does("bent")
    stored = run(against_host=True, save_failures=False)
    found = of(stored, "emulation")
    wrong = {case.rpartition("/")[2]: v for case, v in found.items() if not v.passed}
    assert set(wrong) == {"case0", "1x1", "2x33", "3x64", "one-order"}
    assert wrong["2x33"].evidence.count == 3
    assert wrong["2x33"].evidence.note.startswith("rank fails on the device")
    assert stored.run.exit_code == ExitCode.GATE_FAILED


def campaign(*globs: str, **fields: object) -> StoredRun:
    request = MutateRequest((STAGE,), target="cuda", id_globs=globs, jobs=2, **fields)  # type: ignore[arg-type]
    return mutate.run(request, NullProgress())


@pytest.fixture
def rare_race(planted: Tree) -> None:
    """Make the mutant of a race one that shows nothing by itself."""
    name = "mutations/specimen/drops-the-barrier"
    planted.edit(f"{name}.toml", '"rank", "races"', '"races"')
    planted.write(f"{name}.patch", planted.read("mutations/specimen/controls/does-nothing.patch"))


def test_a_race_is_run_often_and_told_as_a_share(gpu: FakeGpu, rare_race: None) -> None:
    gpu.does("flaky")
    stored = campaign(f"{STAGE}/drops-the-barrier")
    (race,) = stored.mutants
    assert (race.outcome, race.as_expected) == (Outcome.KILLED, True)
    # Runs 2, 5, ... 56: those that the made-up device spoils.
    assert (race.race_hits, race.race_runs) == (19, 59)
    (cell,) = [kill for kill in stored.kills if kill.check == "repeats"]
    assert (cell.failed, cell.cases) == (19, 59)
    page = results.markdown(stored)
    assert "| drops-the-barrier | 19 of 59 | 21% to 46% | 3 |" in page


def test_what_only_the_emulation_sees_is_no_survivor_on_a_device(
    gpu: FakeGpu, rare_race: None
) -> None:
    stored = campaign(f"{STAGE}/drops-the-barrier")
    (race,) = stored.mutants
    assert (race.outcome, race.as_expected) == (Outcome.HOST_ONLY, True)
    assert (race.race_hits, race.race_runs) == (0, 59)
    assert stored.run.exit_code == ExitCode.OK
    assert stored.run.notes["score"]["host_only"] == 1  # type: ignore[index]


RANK = "kernels/specimen/rank.cu"
FEWER = """#else
  int32_t fewer = 0;
  for (int32_t other = 0; other < count; ++other) {
    fewer += levels[other] < levels[element] ? 1 : 0;
  }
  rank[element] = fewer;
#endif
"""


@pytest.mark.parametrize("left_out", [True, False])
def test_a_mutant_of_what_a_short_build_leaves_out_is_built_whole(
    planted: Tree, gpu: FakeGpu, left_out: bool
) -> None:
    planted.edit(
        "qsa_bench/stages/specimen.py",
        '    "kernels/specimen/rank.cu",\n    (',
        '    "kernels/specimen/rank.cu",\n    short={"cuda": {"SPECIMEN_FEW": 1}},\n    entries=(',
    )
    if left_out:
        # What the other mutants' patches stand on changes with it.
        planted.keep_mutants("counts-equals")
        for path in (planted.root / "mutations/specimen/controls").glob("does-nothing.*"):
            path.unlink()
        planted.edit(RANK, "  int32_t below = 0;\n", "#ifndef SPECIMEN_FEW\n  int32_t below = 0;\n")
        written = "  rank[element] = below;\n"
        planted.edit(RANK, written, written + FEWER)
    replant()
    stored = campaign(f"{STAGE}/counts-equals")
    (found,) = stored.mutants
    assert (found.outcome, found.as_expected) == (Outcome.KILLED, True), found.why
    (clean,) = [b for b in stored.builds if b.kernel == "rank" and b.mutant is None]
    (mutant,) = [b for b in stored.builds if b.kernel == "rank" and b.mutant is not None]
    assert "-DSPECIMEN_FEW=1" in clean.flags
    assert ("-DSPECIMEN_FEW=1" in mutant.flags) is not left_out


def test_a_lost_device_kills_no_mutant(gpu: FakeGpu) -> None:
    # The baseline's own trap takes the device: nothing can be said of any mutant.
    gpu.does("fragile")
    stored = campaign(f"{STAGE}/counts-equals")
    assert stored.mutants == ()
    assert stored.run.exit_code == ExitCode.BASELINE_FAILED
