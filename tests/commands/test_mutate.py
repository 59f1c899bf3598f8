"""mutate on trees of the specimen, through the real command line."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from qsa_bench import store
from qsa_bench.campaign_requests import MutateRequest
from qsa_bench.commands import mutate
from qsa_bench.errors import BuildError, ManifestError, NothingSelectedError
from qsa_bench.model import Outcome
from qsa_bench.requests import NullProgress
from qsa_bench.store import StoredRun
from tests.specimen import trees
from tests.specimen.fixtures import (  # noqa: F401 - fixtures of this module
    replant,
    specimen_master,
    specimen_planted,
    specimen_session_folder,
    specimen_tree,
)
from tests.specimen.trees import MUTATIONS, STAGE, Tree

RANK, SMOOTH = "kernels/specimen/rank.cu", "kernels/specimen/smooth.cu"
SURFACE = "qsa_bench/specimen_surface.py"
MUTATE = ("mutate", "--stage", STAGE, "--seeds", "1", "--jobs", "1")
OUTCOMES = {
    "accepts-no-element": "killed",
    "controls/does-nothing": "survived",
    "controls/writes-nothing": "killed",
    "counts-a-step-twice": "killed",
    "counts-equals": "killed",
    "divides-by-zero": "killed-by-crash",
    "doubles-the-size": "killed",
    "drops-the-barrier": "killed",
    "forgets-the-decay": "killed",
    "lets-infinity-pass": "killed",
    "never-ends": "killed-by-timeout",
    "turns-a-comparison": "equivalent",
    "writes-its-input": "killed",
    "writes-past-the-end": "killed",
}


@dataclass(frozen=True)
class Campaign:
    """All mutants of the specimen, run once."""

    tree: Tree
    code: int
    document: dict[str, Any]

    @property
    def mutants(self) -> dict[str, dict[str, Any]]:
        return {m["id"].removeprefix(f"{STAGE}/"): m for m in self.document["mutants"]}

    def cell(self, mutant: str, check: str) -> dict[str, Any]:
        (kill,) = [
            kill
            for kill in self.document["kills"]
            if (kill["mutant"], kill["check"]) == (f"{STAGE}/{mutant}", check)
        ]
        return kill  # type: ignore[no-any-return]


@pytest.fixture(scope="module", name="campaign")
def whole_campaign(master: Tree, tmp_path_factory: pytest.TempPathFactory) -> Campaign:
    tree = trees.transplant(master, tmp_path_factory.mktemp("campaign") / "tree")
    code, document = tree.json(*MUTATE[:-1], "3")
    return Campaign(tree, code, document)


def results(document: dict[str, Any], table: str) -> list[dict[str, Any]]:
    """Return a table's rows in an order of their own, without what differs from run to run."""
    differs = {"duration_ns", "cached", "log", "reused"}
    rows = [{k: v for k, v in row.items() if k not in differs} for row in document[table]]
    return sorted(rows, key=lambda row: json.dumps(row, sort_keys=True))


def test_every_mutant_ends_as_its_manifest_says(campaign: Campaign) -> None:
    assert {name: m["outcome"] for name, m in campaign.mutants.items()} == OUTCOMES
    assert [name for name, m in campaign.mutants.items() if not m["as_expected"]] == []
    assert campaign.code == campaign.document["exit_code"] == 0
    assert campaign.document["asked"] == campaign.document["done"] == len(OUTCOMES)


def test_a_mutant_of_python_code_is_run_though_the_command_starts_in_the_checkout(
    campaign: Campaign,
) -> None:
    # Its patch changes a copy; the package in the working directory is the production one.
    assert campaign.mutants["counts-a-step-twice"]["killed_by"] == ["steps"]


def test_a_mutant_of_a_shared_header_is_a_mutant_of_both_kernels(campaign: Campaign) -> None:
    builds = [b for b in campaign.document["builds"] if b["mutant"] == f"{STAGE}/doubles-the-size"]
    clean = {b["digest"] for b in campaign.document["builds"] if b["mutant"] is None}
    assert len(builds) == 4
    assert {b["kernel"] for b in builds if b["digest"] not in clean} == {"smooth", "rank"}


def test_a_crash_and_a_loop_without_end_are_named_and_harm_no_other(campaign: Campaign) -> None:
    assert campaign.mutants["divides-by-zero"]["killed_by"] == ["no-crash"]
    assert campaign.mutants["never-ends"]["killed_by"] == ["terminates"]
    # Every check of the cases that they leave alone had its say.
    assert campaign.cell("divides-by-zero", "refuses")["failed"] == 0
    assert campaign.cell("never-ends", "traps")["failed"] == 0


def test_every_check_has_its_say_though_another_has_killed_the_mutant(campaign: Campaign) -> None:
    barrier = campaign.mutants["drops-the-barrier"]
    assert {"rank", "races", "schedules-agree"} <= set(barrier["killed_by"])
    assert campaign.cell("drops-the-barrier", "level")["failed"] == 0
    past = campaign.mutants["writes-past-the-end"]
    assert {"fences", "bounds"} <= set(past["killed_by"])


def test_a_float_mutant_has_its_worst_error_over_its_bound_and_the_place(
    campaign: Campaign,
) -> None:
    decay = campaign.mutants["forgets-the-decay"]
    assert decay["margin"] > 1000
    assert decay["worst_error"] > 0
    assert decay["where"].startswith("level[")
    assert decay["differing_bits"] == 40
    assert campaign.mutants["controls/does-nothing"]["differing_bits"] == 0


def test_the_score_leaves_out_controls_and_the_equivalent_and_shows_every_count(
    campaign: Campaign,
) -> None:
    assert campaign.document["summary"]["score"] == {
        "killed": 9,
        "expected_crash": 1,
        "expected_timeout": 1,
        "all": 12,
        "equivalent": 1,
        "unviable": 0,
        "gpu_only": 0,
        "survived": 0,
        "not_run": 0,
    }


def test_checks_that_kill_nothing_and_clauses_that_nothing_breaks_are_listed(
    campaign: Campaign,
) -> None:
    notes = campaign.document["notes"]
    unneeded = [f"specimen: {c}" for c in ("accepts", "no-trap", "collectives", "launch-limits")]
    assert notes["unneeded_checks"] == unneeded
    assert notes["unbroken_clauses"] == []


def test_the_baseline_and_its_time_are_recorded(campaign: Campaign) -> None:
    notes = campaign.document["notes"]
    assert notes["baseline"] == {STAGE: {"failures": 0, "wavering": []}}
    assert set(notes["timing"][STAGE]) == {
        "baseline_seconds",
        "mutant_seconds",
        "compile_seconds",
        "mutants_a_minute",
        "reused_mutants",
        "worker_seconds",
    }


def test_the_run_folder_holds_what_the_command_told(campaign: Campaign) -> None:
    (folder,) = campaign.tree.runs()
    stored = store.read_run(folder)
    assert stored.complete
    told = {m.mutant.id: str(m.outcome) for m in stored.mutants}
    assert told == {m["id"]: m["outcome"] for m in campaign.document["mutants"]}
    assert len(stored.kills) == len(campaign.document["kills"])


def test_nothing_is_left_in_the_folder_for_temporary_files(campaign: Campaign) -> None:
    assert list(campaign.tree.scratch.iterdir()) == []


def test_the_number_of_workers_changes_no_result(campaign: Campaign) -> None:
    code, alone = campaign.tree.json(*MUTATE, "--fresh")
    assert code == campaign.code
    for table in ("mutants", "kills", "verdicts", "builds"):
        assert results(alone, table) == results(campaign.document, table)
    assert alone["summary"] == campaign.document["summary"]


def test_what_nothing_could_have_changed_is_reused_and_says_so(campaign: Campaign) -> None:
    code, again = campaign.tree.json(*MUTATE)
    assert code == campaign.code
    assert not any(m["reused"] for m in campaign.document["mutants"])
    # Machine code says nothing of a mutant of Python code.
    assert [m["id"] for m in again["mutants"] if not m["reused"]] == [
        f"{STAGE}/counts-a-step-twice"
    ]
    assert again["notes"]["baseline"][STAGE]["reused"]
    for table in ("mutants", "kills"):
        assert results(again, table) == results(campaign.document, table)


def test_a_part_of_the_mutants_says_nothing_of_what_all_of_them_leave_out(planted: Tree) -> None:
    stored = run("counts-eq*", f"{STAGE}/accepts-*")
    assert stored.run.exit_code == 0
    assert [result.mutant.id for result in stored.mutants] == [
        f"{STAGE}/accepts-no-element",
        f"{STAGE}/counts-equals",
    ]
    assert "unneeded_checks" not in stored.run.notes


def test_a_manifest_that_expects_the_wrong_thing_is_a_mismatch_both_ways(tree: Tree) -> None:
    tree.keep_mutants("counts-equals", "forgets-the-decay", "accepts-no-element")
    survives = 'expect = "survives"\nwhy_survives = "nobody looks"\n'
    manifest = tree.read(f"{MUTATIONS}/accepts-no-element.toml")
    head = manifest[: manifest.index("expect")]
    tree.write(f"{MUTATIONS}/accepts-no-element.toml", head + survives)
    tree.edit(f"{MUTATIONS}/counts-equals.toml", '["rank"]', '["rank", "steps"]')
    tree.edit(f"{MUTATIONS}/forgets-the-decay.toml", "differing_bits = 40", "differing_bits = 41")
    manifest = tree.read(f"{MUTATIONS}/controls/does-nothing.toml")
    head = manifest[: manifest.index("expect")]
    killed = 'expect = "killed"\nkilled_by = ["rank"]\n'
    tree.write(f"{MUTATIONS}/controls/does-nothing.toml", head + killed)
    code, document = tree.json(*MUTATE)
    assert code == 4
    whys = {m["id"].removeprefix(f"{STAGE}/"): m["why"] for m in document["mutants"]}
    assert whys == {
        "accepts-no-element": "expected survives, it was killed",
        "controls/does-nothing": "expected killed, it survived; "
        "not killed by rank, as its manifest says",
        "controls/writes-nothing": "",
        "counts-equals": "not killed by steps, as its manifest says",
        "forgets-the-decay": "40 bits differ, not 41",
    }


def test_a_mutant_that_does_not_build_is_unviable_and_a_mismatch(planted: Tree) -> None:
    planted.keep_mutants("counts-equals")
    planted.edit(f"{MUTATIONS}/counts-equals.patch", "levels[other] <=", "none_such[other] <=")
    stored = run("counts-equals")
    assert stored.run.exit_code == 4
    (result,) = stored.mutants
    assert result.outcome is Outcome.UNVIABLE
    assert "none_such" in result.why
    assert stored.folder is not None
    (log,) = (stored.folder / "logs").iterdir()
    assert "none_such" in log.read_text()


def run(*globs: str) -> StoredRun:
    """Run mutants of the planted tree in this process."""
    request = MutateRequest((STAGE,), id_globs=globs, seeds=1, jobs=2)
    return mutate.run(request, NullProgress())


def test_a_mutant_meets_what_is_in_reserve_only_where_the_rest_leaves_it_alive(
    planted: Tree,
) -> None:
    planted.edit(
        "qsa_bench/stages/specimen.py",
        "built, checked=True)",
        "built, checked=True, reserve=count > 1)",
    )
    replant()
    # The second is seen by the checker alone, in a case of more than one element.
    names = ("counts-equals", "drops-the-barrier", "controls/does-nothing")
    stored = run(*names)
    assert stored.run.exit_code == 0
    met = {kill.mutant: kill.cases for kill in stored.kills if kill.check == "rank"}
    killed, late, alive = (met[f"{STAGE}/{name}"] for name in names)
    assert (killed, late, alive) == (3, 5, 5)


def refused(tree: Tree, code: int, *words: str) -> str:
    """Run a command that refuses; return its one line."""
    done = tree.run(*MUTATE, *words)
    assert done.returncode == code, done.stderr
    (line,) = done.stderr.splitlines()
    return line


def test_manifests_and_patches_that_are_invalid_or_stale_are_all_told_before_anything_runs(
    tree: Tree,
) -> None:
    tree.keep_mutants("counts-equals", "drops-the-barrier", "never-ends", "lets-infinity-pass")
    tree.edit(f"{MUTATIONS}/counts-equals.toml", "killed_by", "kiled_by")
    tree.edit(f"{MUTATIONS}/drops-the-barrier.patch", "-  __syncthreads();", "-  __syncwarp();")
    tree.edit(RANK, "int32_t below = 0;", "int32_t below = 0;  // none yet")
    patch = tree.read(f"{MUTATIONS}/lets-infinity-pass.patch")
    tree.write(
        f"{MUTATIONS}/lets-infinity-pass.patch", patch.replace("+  if (isnan", "+  if (!isfinite")
    )
    line = refused(tree, 8)
    for name, complaint in (
        ("counts-equals", "unknown keys kiled_by"),
        ("drops-the-barrier", "the old text of hunk 1 is not there"),
        ("never-ends", "the old text of hunk 1 is not there"),
        ("lets-infinity-pass", "the patch changes nothing"),
    ):
        assert f"{STAGE}/{name}: " in line
        assert complaint in line
    assert "5 invalid or stale" in line  # these, and a control
    assert tree.runs() == []


def test_a_patch_whose_old_text_stands_twice_is_refused(planted: Tree) -> None:
    planted.keep_mutants("counts-equals")
    planted.write(RANK, 2 * planted.read(RANK))
    with pytest.raises(ManifestError, match=r"stands 2 times \(lines "):
        run()


def test_a_mutant_whose_machine_code_is_the_kernels_proves_nothing(tree: Tree) -> None:
    tree.keep_mutants("turns-a-comparison")
    path = f"{MUTATIONS}/turns-a-comparison.toml"
    tree.edit(path, "equivalent = true\n", "")
    line = refused(tree, 8, "--id", "turns-a-comparison")
    assert f"building {STAGE}/turns-a-comparison: its object code is the production" in line
    (folder,) = tree.runs()
    assert store.read_run(folder).run.exit_code == 8


def test_a_glob_that_matches_no_mutant_is_no_success(tree: Tree) -> None:
    assert "none of 14 matches drops-everything" in refused(tree, 6, "--id", "drops-everything")
    assert tree.runs() == []


def test_a_stage_without_mutants_is_no_success(planted: Tree) -> None:
    shutil.rmtree(planted.root / MUTATIONS)
    with pytest.raises(NothingSelectedError, match="none of 0 matches anything"):
        run()
    assert planted.runs() == []


def test_mutants_without_the_control_that_writes_nothing_are_refused(planted: Tree) -> None:
    planted.keep_mutants("counts-equals")
    for suffix in ("toml", "patch"):
        (planted.root / MUTATIONS / f"controls/writes-nothing.{suffix}").unlink()
    with pytest.raises(ManifestError, match=r"controls/writes-nothing\.patch is missing"):
        run()


def test_a_baseline_that_does_not_compile_runs_no_mutant(planted: Tree) -> None:
    planted.keep_mutants("counts-equals")
    planted.edit(SMOOTH, "const float value = values[element];", "const float value = none_such;")
    with pytest.raises(BuildError, match="none_such"):
        run()
    (folder,) = planted.runs()
    assert store.read_run(folder).run.exit_code == 5


def test_a_baseline_that_fails_its_gate_runs_no_mutant(planted: Tree) -> None:
    planted.keep_mutants("counts-equals")
    planted.edit(SURFACE, "steps.value += 1", "steps.value += 3")
    stored = run()
    assert stored.run.exit_code == 5
    assert stored.mutants == ()
    assert stored.run.notes["baseline"] == {STAGE: {"failures": 10, "wavering": []}}
    assert {v.check for v in stored.verdicts if not v.passed} == {"steps"}


def test_a_baseline_that_wavers_from_process_to_process_runs_no_mutant(tree: Tree) -> None:
    # What the gate does not look at wavers too: the judge is told to accept any count of steps.
    tree.keep_mutants("counts-equals")
    tree.edit(SURFACE, "steps.value += 1", "steps.value = os.getpid()")
    tree.edit(SURFACE, "import ctypes\n", "import ctypes\nimport os\n")
    tree.edit(
        "qsa_bench/stages/specimen.py", "np.array([len(values)], np.int32)", 'outputs["steps"]'
    )
    code, document = tree.json(*MUTATE)
    assert code == 5
    assert document["notes"]["baseline"][STAGE] == {
        "failures": 0,
        "wavering": [
            f"{STAGE}/golden/case0",
            f"{STAGE}/steps/1x1",
            f"{STAGE}/steps/2x33",
            f"{STAGE}/steps/3x64",
            f"{STAGE}/steps/one-order",
        ],
    }
    assert document["mutants"] == []


def test_a_blind_gate_runs_no_mutant(planted: Tree) -> None:
    planted.keep_mutants("counts-equals")
    # Case by case: one that looks at nothing is enough.
    planted.edit(
        "qsa_bench/stages/specimen.py",
        'yield _case("steps", "one-order", every,',
        'yield _case("steps", "one-order", every, judge=no_judge, built=',
    )
    replant()
    stored = run()
    assert stored.run.exit_code == 10
    assert stored.run.notes["blind_cases"] == {STAGE: [f"{STAGE}/steps/one-order"]}
    assert stored.mutants == ()


def test_a_command_line_that_makes_no_sense_is_refused(tree: Tree) -> None:
    assert "nowhere: cannot be read" in refused(tree, 2, "--golden", "nowhere")


def in_session(leader: int) -> list[int]:
    """Return the processes of a session, zombies left out."""

    def states() -> Iterator[tuple[int, str, int]]:
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = path.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            yield int(path.parent.name), fields[0], int(fields[3])

    return [pid for pid, state, session in states() if session == leader and state not in "ZX"]


def interrupt(tree: Tree, words: tuple[str, ...], begun: str) -> tuple[int, str]:
    """Press Ctrl-C in a command once a temporary file named like `begun` exists."""
    with subprocess.Popen(
        tree.command(*words),
        cwd=tree.root,
        env=tree.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            deadline = time.monotonic() + 120
            while not list(tree.scratch.glob(begun)):
                assert process.poll() is None, process.stderr
                assert time.monotonic() < deadline, f"no {begun} appeared"
                time.sleep(0.01)
            # As a terminal does: to every process of the foreground group.
            os.killpg(process.pid, signal.SIGINT)
            _, errors = process.communicate(timeout=120)
            assert in_session(process.pid) == []
            return process.returncode, errors
        finally:
            process.kill()


def test_an_interrupted_campaign_says_so_and_its_folder_is_readable(tree: Tree) -> None:
    code, errors = interrupt(tree, (*MUTATE, "--fresh"), "qsa-bench-mutant-*")
    assert code == 130, errors
    assert "Traceback" not in errors
    (folder,) = tree.runs()
    stored = store.read_run(folder)
    assert stored.run.exit_code == 130
    assert stored.run.asked == len(OUTCOMES)
    assert stored.run.done == len(stored.mutants) < len(OUTCOMES)
    # What the interrupt cut short is not taken for a crash or a survivor.
    assert all(result.as_expected for result in stored.mutants)
    assert tree.run("report", "latest").returncode == 0
    assert list(tree.scratch.iterdir()) == []


def test_an_interrupted_gate_says_so_and_its_folder_is_readable(tree: Tree) -> None:
    # A case that would take minutes is ended with the rest.
    tree.edit(SURFACE, "    return 0\n", "    time.sleep(600)\n    return 0\n")
    tree.edit(SURFACE, "import ctypes\n", "import ctypes\nimport time\n")
    code, errors = interrupt(tree, ("gate", "--stage", STAGE), "qsa-bench-*/out-*")
    assert code == 130, errors
    assert "Traceback" not in errors
    (folder,) = tree.runs()
    assert store.read_run(folder).run.exit_code == 130
    assert list(tree.scratch.iterdir()) == []
