"""Campaigns on two targets side by side: neither stands in for the other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from qsa_bench import results, side_by_side
from qsa_bench.errors import NotComparableError, UsageError
from qsa_bench.model import MutantResult, Outcome
from qsa_bench.sensitivity import Alarms
from qsa_bench.store import RunWriter, StoredRun
from tests.reports import campaigns
from tests.reports.campaigns import result


def run_of(target: str, *made: MutantResult) -> StoredRun:
    """Return a campaign of these results as if it had been on a target."""
    run = campaigns.campaign(None, tuple(replace(r, target=target) for r in made))
    return replace(run, run=replace(run.run, target=target, id=f"on-{target}"))


HOST = run_of(
    "host",
    result(1, Outcome.KILLED),
    result(2, Outcome.KILLED),
    result(3, Outcome.GPU_ONLY),
    result(4, Outcome.SURVIVED),
    result(5, Outcome.EQUIVALENT),
    result(6, Outcome.EQUIVALENT),
    result(7, Outcome.UNVIABLE),
)
CUDA = run_of(
    "cuda",
    result(1, Outcome.KILLED),
    result(2, Outcome.HOST_ONLY),
    result(3, Outcome.KILLED_BY_CRASH),
    result(5, Outcome.KILLED),
    result(6, Outcome.EQUIVALENT),
    result(8, Outcome.NOT_RUN),
)


def test_each_target_is_held_to_all_that_exists_and_nothing_is_merged() -> None:
    host, cuda = side_by_side.beside(HOST, [CUDA]).scores
    # Equal on both, or building on neither, is no mutant; 5 exists for the GPU, 8 for whoever runs it.
    assert host.exists == cuda.exists == 6
    assert (host.killed, host.alone, host.survived, host.unseen, host.not_run) == (2, 1, 1, 2, 1)
    assert (cuda.killed, cuda.alone, cuda.survived, cuda.unseen, cuda.not_run) == (3, 2, 0, 1, 2)
    for score in (host, cuda):
        assert score.killed + score.survived + score.unseen + score.not_run == score.exists


def test_a_target_without_a_run_is_said_to_have_none() -> None:
    sides = side_by_side.beside(HOST, [audit()])
    host, cuda = sides.scores
    assert (host.exists, host.killed) == (4, 2)
    assert (cuda.run, cuda.share, cuda.not_run) == (None, None, 4)
    text = results.markdown(sides)
    assert "2 of 4 (50.0%)" in text
    assert "no run given (4 exist)" in text
    assert "1 of 40" in text
    assert "0.06% to 13.16%" in text


def audit() -> StoredRun:
    """Return an audit with one false alarm."""
    writer = RunWriter.create(None, "strength", ("qsa-bench", "strength"), "host", "emulated")
    writer.add_alarms([Alarms("qsa_pool", "host", "-O2", "optimisation", "generated", 40, 1, "x")])
    return writer.finish(1, 1, 3)


def test_the_document_holds_both_scores_and_the_alarms() -> None:
    document = results.document(side_by_side.beside(HOST, [CUDA, audit()]))
    assert [row["target"] for row in document["targets"]] == ["host", "cuda"]
    assert document["targets"][1]["share"] == pytest.approx(0.5)
    assert document["beside"]["alarms"][0]["alarms"] == 1


def test_runs_that_do_not_go_together_are_refused() -> None:
    with pytest.raises(NotComparableError, match="both are campaigns on host"):
        side_by_side.beside(HOST, [replace(HOST)])
    with pytest.raises(NotComparableError, match="no mutant in common"):
        side_by_side.beside(HOST, [run_of("cuda", result(20, Outcome.KILLED))])
    gate = RunWriter.create(None, "gate", (), "host", "emulated").finish(0, 0, 0)
    with pytest.raises(NotComparableError, match="neither mutants nor false alarms"):
        side_by_side.beside(HOST, [gate])
    with pytest.raises(UsageError, match="one campaign alone"):
        results.exported(side_by_side.beside(HOST, [CUDA]), "junit")


def test_campaigns_of_other_commits_and_unfinished_ones_are_named() -> None:
    other = replace(CUDA, run=replace(CUDA.run, commit="f" * 40, done=3))
    notes = side_by_side.beside(HOST, [other]).notes
    assert any("different commits" in note and "cuda fffffff" in note for note in notes)
    assert any("3 of 6 mutants were run" in note for note in notes)


def test_an_audit_reads_back_as_it_was_written(tmp_path: Path) -> None:
    writer = RunWriter.create(tmp_path, "strength", ("q",), "host", "emulated")
    writer.add_alarms(audit().alarms)
    run = writer.finish(1, 1, 3)
    assert run.alarms == audit().alarms
