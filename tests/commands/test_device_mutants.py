"""mutate on a device, where every case that takes its context is dear, on a made-up one."""

from __future__ import annotations

from pathlib import Path

import pytest

from qsa_bench import baseline, parity, resources, results, runner, trap_search
from qsa_bench.builder import Builder
from qsa_bench.campaign_requests import MutateRequest
from qsa_bench.commands import mutate
from qsa_bench.exit_codes import ExitCode
from qsa_bench.model import Outcome
from qsa_bench.parity import Limits, Workload
from qsa_bench.requests import NullProgress
from qsa_bench.stages import load_stage
from qsa_bench.store import StoredRun
from tests.fake_device import FakeGpu, plant
from tests.specimen.fixtures import (  # noqa: F401 - fixtures of this module
    specimen_master,
    specimen_planted,
    specimen_session_folder,
    specimen_tree,
)
from tests.specimen.trees import STAGE, Tree

MUTATIONS = f"mutations/{STAGE}"
TRAP = f"{STAGE}/traps/infinity"


@pytest.fixture(name="gpu")
def fake_gpu(planted: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    return plant(planted, tmp_path / "gpu", monkeypatch)


def campaign(*names: str) -> StoredRun:
    globs = tuple(f"{STAGE}/{name}" for name in names)
    return mutate.run(
        MutateRequest((STAGE,), target="cuda", id_globs=globs, jobs=1), NullProgress()
    )


def traps(gpu: FakeGpu) -> int:
    return [what for _, what in gpu.log()].count("case trap")


@pytest.mark.parametrize(
    ("name", "met"), [("counts-equals", 0), ("controls/does-nothing", 1), ("lets-infinity-pass", 2)]
)
def test_a_mutant_meets_traps_where_it_may_live_or_where_they_are_to_kill_it(
    gpu: FakeGpu, name: str, met: int
) -> None:
    stored = campaign(name)
    (result,) = stored.mutants
    assert result.as_expected, result.why
    # One more is the unmutated kernel's; the last one's second is that kernel's again, to compare.
    assert traps(gpu) == 1 + met
    said = [kill for kill in stored.kills if kill.check == "traps"]
    assert [kill.cases for kill in said] == ([1] if met else [])


def test_a_trap_that_the_unmutated_kernel_misses_too_shows_nothing_of_a_mutant(
    gpu: FakeGpu, planted: Tree
) -> None:
    stage = load_stage(STAGE)
    (mutant,) = (m for m in baseline.read_mutants(stage) if m.id == f"{STAGE}/lets-infinity-pass")
    builder = Builder(resources.cache_root())
    clean = baseline.build_or_raise(builder, stage, "cuda")
    planted.edit("kernels/specimen/smooth.cu", "!isfinite(value)", "isnan(value)")
    missing = baseline.build_or_raise(builder, stage, "cuda")
    with Workload(stage, stage.cases(None), "cuda", 0) as workload:

        def kills(made: object, unmutated: object) -> list[str]:
            seen = trap_search.search(mutant, made, unmutated, workload, Limits())  # type: ignore[arg-type]
            return [v.case for v in seen.verdicts if v.check == "traps" and not v.passed]

        assert kills(missing, clean) == [TRAP]
        assert kills(missing, missing) == []


def test_a_mutants_case_has_less_time_on_a_device_than_in_the_emulation(
    gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parity, "_TIME_FACTOR", 0.0)
    stage = load_stage(STAGE)
    found = {}
    for target in ("host", "cuda"):
        builds = baseline.build_or_raise(Builder(resources.cache_root()), stage, target)
        with Workload(stage, stage.cases(None), target, 0) as workload:
            (found[target],) = set(workload.gate(builds).limits.seconds.values())
    assert 1.0 <= found["cuda"] < found["host"]


def test_the_search_begins_with_the_mutants_clause_and_ends_with_the_first_that_tells() -> None:
    stage = load_stage("qsa_select")
    (mutant,) = (m for m in baseline.read_mutants(stage) if m.id.endswith("/nan-passes-for-finite"))
    cases = [case for case in stage.cases(None) if case.family == "trap"]
    with Workload(stage, cases, "cuda", 0) as workload:
        ordered = trap_search._ordered(mutant, workload)
        own = [case for case in cases if mutant.clause in case.clauses]
        assert 0 < len(own) < len(cases) == len(ordered)
        assert ordered[: len(own)] == own[::-1]


ORDER = "  int32_t below = 0;\n"
WRONG = """-  int32_t below = 0;
+  int32_t below = count == 33 ? 1 : 0;
+  if (count == 40) {
+    QSA_TRAP("the golden's size");
+  }
"""


def _patched(planted: Tree) -> None:
    """Let the mutant of a comparison lose the device in the first case and be wrong in a later one."""
    name = f"{MUTATIONS}/counts-equals"
    lines = planted.read("kernels/specimen/rank.cu").splitlines()
    at = lines.index(ORDER.rstrip("\n"))
    patch = [
        "--- a/kernels/specimen/rank.cu",
        "+++ b/kernels/specimen/rank.cu",
        f"@@ -{at},3 +{at},6 @@",
        f" {lines[at - 1]}",
        WRONG.rstrip("\n"),
        f" {lines[at + 1]}",
    ]
    planted.write(f"{name}.patch", "\n".join(patch) + "\n")


def test_cases_that_a_gate_gave_up_are_run_where_a_manifest_says_more_than_was_seen(
    gpu: FakeGpu, planted: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    _patched(planted)
    monkeypatch.setattr(runner, "_MOST_LOSSES", 1)
    stored = campaign("counts-equals")
    (result,) = stored.mutants
    assert result.outcome is Outcome.KILLED
    assert result.as_expected, result.why
    assert set(result.killed_by) >= {"no-trap", "rank"}
    assert stored.run.exit_code == ExitCode.OK


def test_a_race_says_in_how_many_of_the_cases_its_share_was_counted(
    gpu: FakeGpu, planted: Tree
) -> None:
    # In the gate, where the device is told of nothing else, one case loses the device each time.
    rank = "kernels/specimen/rank.cu"
    name = f"{MUTATIONS}/drops-the-barrier"
    lines = planted.read(rank).splitlines()
    at = lines.index(ORDER.rstrip("\n"))
    patch = [
        f"--- a/{rank}",
        f"+++ b/{rank}",
        f"@@ -{at},2 +{at},5 @@",
        f" {lines[at - 1]}",
        f" {lines[at]}",
        "+  if (count == 33) {",
        '+    QSA_TRAP("one size");',
        "+  }",
    ]
    planted.write(f"{name}.patch", "\n".join(patch) + "\n")
    planted.edit(f"{name}.toml", '"rank", "races"', '"races"')
    stored = campaign("drops-the-barrier")
    (race,) = stored.mutants
    assert (race.outcome, race.as_expected) == (Outcome.KILLED, True)
    assert (race.race_hits, race.race_runs) == (0, 59)
    assert (race.race_cases, race.race_left_out) == (2, 1)
    page = results.markdown(stored)
    assert "| drops-the-barrier | 0 of 59 | 0% to 6% | 2 of 3 |" in page
    assert "hung or lost the device" in page


def test_a_mutant_of_what_a_short_build_leaves_out_is_asked_in_a_whole_one(
    gpu: FakeGpu, planted: Tree
) -> None:
    planted.keep_mutants()
    stage = "qsa_bench/stages/specimen.py"
    rank = planted.read(stage).partition("RANK = Kernel(")[2].partition("\n)\n")[0]
    planted.edit(stage, rank, f'{rank}\n    short={{"cuda": {{"SHORT": 1}}}},')
    bound = "  if (count < 1 || count > specimen::kMostElements) {"
    again = "  if (count > specimen::kMostElements) {\n    return QSA_BAD_EXTENT;\n  }"
    planted.edit("kernels/specimen/rank.cu", bound, f"#ifndef SHORT\n{again}\n#endif\n{bound}")
    asked = MutateRequest(
        (STAGE,), "cuda", auto=True, operators=("relational",), id_globs=("*_rank/*",)
    )
    stored = mutate.run(asked, NullProgress())
    (hidden,) = (result for result in stored.mutants if "-  if (count >" in result.mutant.patch)
    assert (hidden.outcome, hidden.as_expected) == (Outcome.KILLED, True)
    short = [
        build
        for build in stored.builds
        if build.mutant == hidden.mutant.id and "-DSHORT=1" in build.flags
    ]
    whole = [
        build
        for build in stored.builds
        if build.mutant == hidden.mutant.id and "-DSHORT=1" not in build.flags
    ]
    assert short
    assert whole
