"""Automatic mutants of the specimen, through the real command line."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from datetime import date
from typing import Any

from qsa_bench import equivalence
from qsa_bench.equivalence import Argument
from qsa_bench.model import Expect, Mutant, MutantResult, Outcome
from qsa_bench.trials import refuted
from tests.specimen.fixtures import (  # noqa: F401 - fixtures of this module
    specimen_master,
    specimen_session_folder,
    specimen_tree,
)
from tests.specimen.trees import STAGE, Tree

BARE = ("mutate", "--stage", STAGE, "--seeds", "1", "--jobs", "2", "--auto")
AUTO = (*BARE, "--id", "*/auto/*")
RANK = "kernels/specimen/rank.cu"


def rows(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Return mutants without what differs from run to run."""
    differs = {"duration_ns", "reused"}
    return [{k: v for k, v in row.items() if k not in differs} for row in document["mutants"]]


def test_a_barriers_mutants_die_by_the_checker_and_in_some_orders_of_threads(tree: Tree) -> None:
    code, document = tree.json(*AUTO, "--operator", "barrier")
    assert code == 0
    assert len(document["mutants"]) == 2  # gone, or a warp's
    for mutant in document["mutants"]:
        assert "races" in mutant["killed_by"]
        assert mutant["orders"] == 20
        assert 1 <= mutant["orders_killed"] <= 20


def test_a_campaign_that_is_given_again_runs_nothing_and_tells_the_same(tree: Tree) -> None:
    words = (*AUTO, "--sample", "6", "--seed", "1")
    code, first = tree.json(*words)
    again_code, again = tree.json(*words)
    assert (code, rows(first)) == (again_code, rows(again))
    assert all(mutant["reused"] for mutant in again["mutants"])
    assert again["notes"]["baseline"][STAGE]["reused"]
    assert again["kills"] == first["kills"]
    assert again["verdicts"] == first["verdicts"]


def test_a_campaign_that_ran_out_of_time_is_incomplete_and_goes_on(tree: Tree) -> None:
    words = (*AUTO, "--operator", "min-max", "--operator", "barrier", "--operator", "ceil*")
    code, cut = tree.json(*words, "--max-time", "0.001", "--fresh")
    assert code == 11
    assert (cut["asked"], cut["done"], cut["summary"]["score"]["not_run"]) == (3, 0, 3)
    code, whole = tree.json(*words)
    assert (code, whole["done"]) == (0, 3)


def test_shards_together_are_the_campaign(tree: Tree) -> None:
    words = (*AUTO, "--operator", "relational")
    code, whole = tree.json(*words)
    for shard in (1, 2):
        assert tree.run(*words, "--shard", f"{shard}/2", "-o", "shards").returncode in (0, code)
    folders = sorted(str(path) for path in (tree.root / "shards").iterdir())
    merged_code, merged = tree.json("merge", *folders)
    assert merged_code == code
    assert sorted(rows(merged), key=json.dumps) == sorted(rows(whole), key=json.dumps)
    assert merged["summary"] == whole["summary"]
    lost = tree.run("merge", folders[0])
    assert lost.returncode == 11
    assert "2/2 missing" in lost.stderr


def test_one_that_does_not_build_is_unviable_and_one_of_the_same_code_equivalent(
    tree: Tree,
) -> None:
    tree.keep_mutants()
    # Two branches that do the same: the compiler drops the condition.
    head = "  if (level == nullptr || rank == nullptr) {"
    tree.edit(RANK, head, f"  const int spare = count > 5 ? 1 : 1;\n  (void)spare;\n{head}")
    words = ("--operator", "boundary", "--operator", "relational", "--id", "*/specimen_rank/*")
    _, document = tree.json(*BARE, *words)
    spare = [m for m in document["mutants"] if "+  const int spare" in m["patch"]]
    assert {m["operator"]: m["outcome"] for m in spare} == {
        "boundary": "equivalent",
        "relational": "equivalent",
    }
    text = tree.read("kernels/specimen/element.cuh")
    tree.write(
        "kernels/specimen/element.cuh",
        text.replace(
            "kMostElements = 64;", "kMostElements = 64;\nstatic_assert(kMostElements % 2 == 0);"
        ),
    )
    _, document = tree.json(*BARE, "--operator", "constant", "--id", "*/file/*")
    assert "unviable" in {m["outcome"] for m in document["mutants"]}


def with_a_survivor(tree: Tree) -> None:
    """Put an expression into the kernel whose arithmetic mutants no case tells from it."""
    tree.keep_mutants()
    most = "count > specimen::kMostElements)"
    tree.edit(RANK, most, "count > specimen::kMostElements + (count / 130))")


def test_a_survivor_that_no_compiler_decides_in_time_is_no_equivalent_and_not_done(
    tree: Tree,
) -> None:
    with_a_survivor(tree)
    tree.edit("qsa_bench/equal_code.py", "_LIMIT_S = 300.0", "_LIMIT_S = 0.001")
    words = (*AUTO, "--operator", "arithmetic", "--id", "*/specimen_rank/*")
    code, document = tree.json(*words)
    assert code == 11
    undecided = [m for m in document["mutants"] if m["outcome"] == "not-run"]
    assert undecided
    assert all("did not end within 0.001 s" in mutant["why"] for mutant in undecided)
    assert {"equivalent", "gpu-only"}.isdisjoint(m["outcome"] for m in document["mutants"])
    _, again = tree.json(*words)
    assert not any(m["reused"] for m in again["mutants"] if m["outcome"] == "not-run")


def test_a_survivor_is_exit_4_until_it_is_argued_for_and_again_when_the_code_changes(
    tree: Tree,
) -> None:
    with_a_survivor(tree)
    words = (*BARE, "--operator", "arithmetic", "--id", "*/specimen_rank/*")
    code, document = tree.json(*words)
    survivors = [m for m in document["mutants"] if m["outcome"] == "survived"]
    assert code == 4
    assert survivors
    from qsa_bench import automatic
    from tests.specimen import trees

    found = automatic.derive(tree.root, STAGE, trees.stage().kernels).mutants
    named = {mutant.id: mutant for mutant in found}
    lines = "".join(
        f'[[equivalent]]\nid = "{m["id"]}"\nreason = "no count is 130"\ndate = 2026-01-31\n'
        f'context = "{equivalence.context_of(named[m["id"]], tree.root)}"\n'
        'inputs = 100000\nequal = "bits"\n'
        for m in survivors
    )
    tree.write(f"mutations/{STAGE}/equivalent.toml", lines)
    code, document = tree.json(*words)
    assert code == 0
    assert {m["why"] for m in document["mutants"] if m["outcome"] == "equivalent"} == {
        "argued 2026-01-31: no count is 130"
    }
    # What is equal in the emulation alone is a device's to tell.
    tree.write(
        f"mutations/{STAGE}/equivalent.toml", lines.replace("equal =", 'only = "host"\nequal =')
    )
    code, document = tree.json(*words)
    assert code == 0
    assert {m["id"] for m in document["mutants"] if m["outcome"] == "gpu-only"} == {
        m["id"] for m in survivors
    }
    tree.edit(RANK, "    return QSA_NULL_POINTER;", "    return QSA_NULL_POINTER + 0;")
    code, document = tree.json(*words)
    assert code == 4
    stale = [m["why"] for m in document["mutants"] if m["outcome"] == "survived"]
    assert any("its argument of 2026-01-31 is stale" in why for why in stale)


def test_an_argument_without_a_reason_or_enough_inputs_is_refused(tree: Tree) -> None:
    head = (
        f'[[equivalent]]\nid = "{STAGE}/auto/x"\ncontext = "0"\ndate = 2026-01-31\nequal = "bits"\n'
    )
    for rest in ('reason = ""\ninputs = 100000\n', 'reason = "so"\ninputs = 99999\n'):
        tree.write(f"mutations/{STAGE}/equivalent.toml", head + rest)
        done = tree.run(*AUTO, "--operator", "barrier")
        assert done.returncode == 8
        assert "needs a reason and 100,000 inputs of evidence" in done.stderr


def test_an_argument_for_a_target_that_has_none_is_refused(tree: Tree) -> None:
    line = (
        f'[[equivalent]]\nid = "{STAGE}/auto/x"\ncontext = "0"\ndate = 2026-01-31\n'
        'equal = "bits"\nreason = "so"\ninputs = 100000\nonly = "cuda"\n'
    )
    tree.write(f"mutations/{STAGE}/equivalent.toml", line)
    done = tree.run(*AUTO, "--operator", "barrier")
    assert done.returncode == 8
    assert "only is 'cuda', not host" in done.stderr


def test_a_device_may_tell_what_is_argued_for_the_host_alone() -> None:
    mutant = Mutant("s/auto/x", "s", "it is seen", "", Expect.KILLED, "", operator="index")
    killed = MutantResult(mutant, "cuda", Outcome.KILLED, True)
    for only, expected in (("host", True), ("", False)):
        argument = Argument("s/auto/x", "0", "so", date(2026, 1, 31), 100_000, "bits", only)
        assert refuted(killed, {"s/auto/x": argument}).as_expected is expected
    held = Argument("s/auto/x", "0", "so", date(2026, 1, 31), 100_000, "bits", "host")
    assert not refuted(replace(killed, target="host"), {"s/auto/x": held}).as_expected


def test_an_argument_for_a_mutant_that_is_no_more_is_refused(tree: Tree) -> None:
    line = (
        f'[[equivalent]]\nid = "{STAGE}/auto/x"\ncontext = "0"\ndate = 2026-01-31\n'
        'equal = "bits"\nreason = "so"\ninputs = 100000\n'
    )
    tree.write(f"mutations/{STAGE}/equivalent.toml", line)
    done = tree.run(*AUTO, "--operator", "barrier")
    assert done.returncode == 8
    assert f"no operator makes {STAGE}/auto/x any more" in done.stderr


def test_list_and_show_run_nothing(tree: Tree) -> None:
    code, listed = tree.json(*AUTO, "--list")
    assert code == 0
    assert len(listed["mutants"]) > 60
    name = listed["mutants"][0]["mutant"]
    begun = time.monotonic()
    shown = tree.run("mutate", "--stage", STAGE, "--show", name)
    assert shown.returncode == 0
    assert time.monotonic() - begun < 60
    assert f"{name}\n" in shown.stdout
    assert "\n--- a/kernels/specimen/" in shown.stdout
    assert tree.runs() == []
    assert tree.run(*AUTO, "--show", "none/such").returncode == 6


def test_builds_that_are_shared_change_no_result(tree: Tree) -> None:
    some = ("relational", "boundary", "early-return", "statement-deleted")
    words = [*AUTO, "--fresh", *(word for name in some for word in ("--operator", name))]
    code, shared = tree.json(*words)
    separate_code, separate = tree.json(*words, "--separate-builds")
    assert separate_code == code
    killed = [mutant for mutant in separate["mutants"] if mutant["outcome"] == "killed"]
    assert all(mutant["code"] for mutant in killed)
    # Whose end a shared build may tell has no code of its own to be known by.
    known = {mutant["outcome"] for mutant in rows(shared) if mutant["code"]}
    assert known <= {"survived", "equivalent", "gpu-only"}

    def told(document: dict[str, Any]) -> list[dict[str, Any]]:
        return [{k: v for k, v in row.items() if k != "code"} for row in rows(document)]

    for one, other in zip(told(shared), told(separate), strict=True):
        assert one == other
    assert shared["kills"] == separate["kills"]
    from_shared = {b["mutant"] for b in shared["builds"] if "-w" in b["flags"]}
    assert len(from_shared) > 30
    assert not any("-w" in build["flags"] for build in separate["builds"])


def test_up_to_the_first_kill_the_same_mutants_die_and_no_check_is_called_silent(
    tree: Tree,
) -> None:
    some = ("relational", "boundary", "constant", "statement-deleted", "early-return", "barrier")
    words = [*AUTO, *(word for name in some for word in ("--operator", name))]
    code, whole = tree.json(*words)
    first_code, first = tree.json(*words, "--first-kill")
    assert first_code == code

    def dead(document: dict[str, Any]) -> dict[str, bool]:
        killed = {m["id"]: m["outcome"].startswith("killed") for m in document["mutants"]}
        assert 0 < sum(killed.values()) < len(killed)
        return killed

    assert dead(first) == dead(whole)
    stopped = {m["id"]: m for m in first["mutants"] if "stopped at its first kill" in m["why"]}
    races = {m["id"] for m in first["mutants"] if m["race"]}
    assert len(stopped) > 40
    assert not races & set(stopped)
    cells = [cell for cell in first["kills"] if cell["mutant"] in stopped]
    assert all(cell["failed"] == cell["cases"] == 1 for cell in cells)
    assert {cell["mutant"] for cell in cells} == set(stopped)
    for mutant in stopped.values():
        named = mutant["why"].rpartition(", by ")[2]
        assert named in {cell["first_case"] for cell in cells if cell["mutant"] == mutant["id"]}
    # Given again, nothing is run; without the option what was kept of it is too little.
    _, again = tree.json(*words, "--first-kill")
    assert all(mutant["reused"] for mutant in again["mutants"])
    assert again["kills"] == first["kills"]


def test_up_to_the_first_kill_is_for_automatic_mutants_on_the_cpu(tree: Tree) -> None:
    done = tree.run("mutate", "--stage", STAGE, "--first-kill")
    assert done.returncode == 2
    assert "--first-kill goes with --auto" in done.stderr
