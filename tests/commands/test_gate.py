"""gate on trees of the specimen, through the real command line."""

from __future__ import annotations

import shlex
from pathlib import Path

import numpy as np
import pytest

from qsa_bench import parity, store, tensor_file
from qsa_bench.commands import gate, replay
from qsa_bench.errors import ManifestError, NothingSelectedError
from qsa_bench.exit_codes import ExitCode
from qsa_bench.model import Status
from qsa_bench.requests import GateRequest, NullProgress, ReplayRequest
from qsa_bench.store import StoredRun
from tests.specimen import trees
from tests.specimen.fixtures import (  # noqa: F401 - fixtures of this module
    specimen_master,
    specimen_planted,
    specimen_session_folder,
    specimen_tree,
)
from tests.specimen.trees import MUTATIONS, STAGE, Tree

RANK, SMOOTH = "kernels/specimen/rank.cu", "kernels/specimen/smooth.cu"
HEADER = "kernels/specimen/element.cuh"
STAGE_FILE = "qsa_bench/stages/specimen.py"
GATE = ("gate", "--stage", STAGE, "--seeds", "1", "--jobs", "1")


def run(
    stage: str = STAGE,
    case: str | None = None,
    save_failures: bool = True,
    golden: Path | None = None,
) -> StoredRun:
    """Gate a stage of the planted tree in this process."""
    request = GateRequest(
        (stage,),
        golden=golden,
        case_globs=() if case is None else (case,),
        seeds=0,
        jobs=1,
        save_failures=save_failures,
    )
    return gate.run(request, NullProgress())


def command_of(stored: StoredRun) -> str:
    """Return the one replay command of a run."""
    (command,) = stored.run.notes["replay_commands"]  # type: ignore[misc]
    return str(command)


def only_line(text: str) -> str:
    """Return the one line that a refusal is."""
    lines = text.splitlines()
    assert len(lines) == 1, text
    return lines[0]


def test_a_new_stage_is_its_files_and_no_edit_elsewhere(tree: Tree) -> None:
    # The tree is the repository with the specimen's files added: nothing of it was edited.
    added = {str(path.relative_to(trees.FILES)) for path in trees.FILES.rglob("*.*")}
    assert not [path for path in added if (trees.REPOSITORY / path).exists()]
    code, document = tree.json(*GATE)
    assert code == 0
    assert document["summary"]["failed_cases"] == 0
    assert document["asked"] == document["done"] == 9
    families = {verdict["family"] for verdict in document["verdicts"]}
    assert families == {"golden", "steps", "traps", "refusals"}
    # The pipeline's state is carried, its floats are held at a bound, its golden is of its kind.
    levels = [v for v in document["verdicts"] if v["check"] == "level"]
    assert all(0 <= v["margin"] <= 1 for v in levels)
    assert document["notes"]["coverage"] == {STAGE: {"elements": 40, "differing_bits": 0}}
    assert document["notes"]["golden"]["path"] == "specimen.safetensors"
    assert document["notes"]["blind_cases"] == {STAGE: []}
    assert tree.runs()[0].name == document["id"]
    listed = tree.run("list", "stages").stdout
    assert "a decaying sum and its ranks" in listed


def test_a_wrong_kernel_fails_the_gate_and_leaves_its_smallest_failing_input_to_replay(
    tree: Tree,
) -> None:
    tree.edit(SMOOTH, "const float sum = __fmaf_rn", "const float sum = 0.5f + __fmaf_rn")
    code, document = tree.json(*GATE)
    assert code == 3
    assert document["exit_code"] == 3
    assert document["summary"]["failed_cases"] == 5
    worst = next(v for v in document["verdicts"] if v["check"] == "golden-level")
    assert worst["status"] == "wrong"
    assert worst["margin"] > 1000
    commands = document["notes"]["replay_commands"]
    assert len(commands) == 4
    words = shlex.split(commands[2])
    assert words[:3] == ["qsa-bench", "replay", STAGE]
    saved = tensor_file.read(tree.root / words[3])
    # Of 33 elements one alone shows it.
    assert saved.tensors["values"].shape == (2, 1)
    assert document["folder"] in str(words[3])
    done = tree.run(*words[1:])
    assert done.returncode == 3
    assert "level" in done.stdout
    tree.edit(SMOOTH, "0.5f + __fmaf_rn", "__fmaf_rn")
    assert tree.run(*words[1:]).returncode == 0


def test_a_failure_that_one_order_of_threads_shows_is_reproduced_by_its_command(
    planted: Tree,
) -> None:
    # Thread 0 reads what thread 1 has yet to write, unless it comes last.
    planted.edit(RANK, "  __syncthreads();\n", "  if (threadIdx.x >= 64) __syncthreads();\n")
    stored = run(case="*3x64")
    assert stored.run.exit_code == 3
    path = Path(shlex.split(command_of(stored))[3])
    assert tensor_file.read(path).tensors["values"].shape == (3, 64)
    result = replay.run(ReplayRequest(STAGE, path), NullProgress())
    assert result.exit_code is ExitCode.GATE_FAILED


def test_a_failure_that_no_capture_shows_again_keeps_the_whole_input(planted: Tree) -> None:
    # All threads write one value to one place: a race to the checker alone.
    race = "  QSA_SHARED(float, spare, 1);\n  spare[0] = 1.0f;\n  int32_t below = 0;"
    planted.edit(RANK, "  int32_t below = 0;", race)
    stored = run(case="*3x64")
    assert stored.run.exit_code == 3
    assert {v.check for v in stored.verdicts if not v.passed} == {"races"}
    saved = tensor_file.read(Path(shlex.split(command_of(stored))[3]))
    assert saved.tensors["values"].shape == (3, 64)


def test_no_input_is_saved_where_none_is_wanted(planted: Tree) -> None:
    planted.edit(RANK, "? 1 : 0", "? 0 : 1")
    stored = run(case="*2x33", save_failures=False)
    assert stored.run.exit_code == 3
    assert stored.run.notes["replay_commands"] == []
    assert stored.folder is not None
    assert not (stored.folder / "failures").exists()


def test_cases_that_were_given_up_make_the_run_incomplete(
    planted: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in ("_CLEAN_TIME_S", "_LEAST_TIME_S"):
        monkeypatch.setattr(parity, limit, 0.2)
    monkeypatch.setattr(parity, "_TIME_FACTOR", 1.0)
    planted.edit("qsa_bench/specimen_surface.py", "    return 0\n", "    time.sleep(600)\n")
    planted.edit("qsa_bench/specimen_surface.py", "import ctypes\n", "import ctypes\nimport time\n")
    stored = run(save_failures=False)
    # Three cases ran out of time; the fourth that would have is given up, and all after it.
    assert stored.run.exit_code == 11
    assert (stored.run.done, stored.run.asked) == (3, 9)
    assert {v.status for v in stored.verdicts} >= {Status.TIMED_OUT, Status.NOT_RUN}


def test_a_kernel_that_does_not_compile_is_a_baseline_that_failed(tree: Tree) -> None:
    tree.edit(RANK, "int32_t below = 0;", "int32_t below = none_such;")
    done = tree.run(*GATE)
    assert done.returncode == 5
    assert "none_such" in only_line(done.stderr)
    assert "building rank for host (plain): it does not compile" in done.stderr
    (folder,) = tree.runs()
    stored = store.read_run(folder)
    assert (stored.run.exit_code, stored.complete) == (5, True)


def test_a_judge_that_accepts_everything_makes_a_blind_gate(tree: Tree) -> None:
    tree.edit(
        STAGE_FILE,
        '    values = built.array("values")\n    want = levels(values)\n',
        '    return\n    values = built.array("values")\n    want = levels(values)\n',
    )
    tree.edit(STAGE_FILE, "found = bounded(", 'found = Finding("golden-level", Status.PASS)\n')
    text = tree.read(STAGE_FILE).replace(
        'PASS)\n"golden-level", "level", want, got, np.full(want.shape, BOUND))', "PASS)"
    )
    tree.write(
        STAGE_FILE, text.replace("Finding, Kernel, Role\n", "Finding, Kernel, Role, Status\n")
    )
    code, document = tree.json(*GATE)
    assert code == 10
    assert document["summary"]["failed_cases"] == 0
    assert document["notes"]["blind_cases"][STAGE] == [
        "specimen/golden/case0",
        "specimen/steps/1x1",
        "specimen/steps/2x33",
        "specimen/steps/3x64",
        "specimen/steps/one-order",
    ]


def test_a_gate_without_its_control_proves_nothing(tree: Tree) -> None:
    (tree.root / MUTATIONS / "controls/writes-nothing.patch").unlink()
    (tree.root / MUTATIONS / "controls/writes-nothing.toml").unlink()
    done = tree.run(*GATE)
    assert done.returncode == 8
    assert "controls/writes-nothing.patch is missing" in only_line(done.stderr)


def test_a_mutant_that_a_change_made_stale_is_no_reason_not_to_gate(planted: Tree) -> None:
    planted.edit(RANK, "int32_t below = 0;", "int32_t below{0};")
    stored = run(case="*/1x1")
    assert stored.run.exit_code == 0
    planted.edit(RANK, "rank[element] = below;", "rank[element] = below + 0;")
    with pytest.raises(ManifestError, match="controls/writes-nothing: .*is not there"):
        run(case="*/1x1")


def test_a_selection_that_matches_nothing_is_no_success(tree: Tree) -> None:
    done = tree.run(*GATE, "--case", "*/golden/case1")
    assert done.returncode == 6
    assert "none matches */golden/case1" in only_line(done.stderr)
    assert tree.runs() == []


def test_a_stage_that_is_not_there_is_no_success(planted: Tree) -> None:
    with pytest.raises(NothingSelectedError, match="no such stage; choose from"):
        run(stage="specimens")


def write_golden(tree: Tree, name: str, level: np.ndarray) -> None:
    """Write the committed golden with other levels."""
    committed = tensor_file.read(tree.root / "qsa_bench/goldens/specimen.safetensors")
    tensors = {"values": committed.tensors["values"], "level": level}
    tensor_file.write(tree.root / name, tensors, dict(committed.dtypes), dict(committed.metadata))


def test_a_golden_that_breaks_its_layout_is_refused_by_name(tree: Tree) -> None:
    write_golden(tree, "wrong.safetensors", np.zeros((2, 2), np.float32))
    done = tree.run(*GATE, "--golden", "wrong.safetensors")
    assert done.returncode == 2
    assert "wrong.safetensors: level is not f32 with 1 axes" in only_line(done.stderr)


def test_a_golden_that_the_stage_does_not_read_selects_nothing(planted: Tree) -> None:
    golden = Path("qsa_bench/goldens/qsa.safetensors")
    with pytest.raises(NothingSelectedError, match="a qsa golden, which specimen does not read"):
        run(golden=golden)


def test_another_golden_of_the_kind_takes_the_committed_ones_place(planted: Tree) -> None:
    level = tensor_file.read(Path("qsa_bench/goldens/specimen.safetensors")).tensors["level"].copy()
    level[3] += 1
    write_golden(planted, "other.safetensors", level)
    stored = run(golden=Path("other.safetensors"), save_failures=False)
    assert stored.run.exit_code == 3
    (failed,) = [verdict for verdict in stored.verdicts if not verdict.passed]
    assert (failed.check, failed.evidence.first) == ("golden-level", "level[3]")
    assert failed.evidence.count == 1
