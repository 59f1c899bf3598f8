"""replay on trees of the specimen: through the real command line, and refusals through `run`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from qsa_bench import tensor_file
from qsa_bench.commands import replay
from qsa_bench.errors import BuildError, NothingSelectedError, QsaBenchError, UsageError
from qsa_bench.exit_codes import ExitCode
from qsa_bench.model import Status
from qsa_bench.requests import NullProgress, ReplayRequest, ReplayResult
from qsa_bench.tensor_file import TensorFile
from tests.specimen.fixtures import (  # noqa: F401 - fixtures of this module
    specimen_master,
    specimen_planted,
    specimen_session_folder,
    specimen_tree,
)
from tests.specimen.trees import STAGE, Tree

VALUES = np.array([[1.0, -2.0, 0.5], [0.25, 4.0, -1.0]], np.float32)
RANK = "kernels/specimen/rank.cu"
INPUT, OUTPUT = "in.safetensors", "out.safetensors"


def capture(tree: Tree, values: np.ndarray = VALUES, name: str = "values") -> str:
    """Write a captured file into the tree; return its name."""
    dtype = {"float32": "f32", "int32": "i32"}[str(values.dtype)]
    tensor_file.write(tree.root / INPUT, {name: values}, {name: dtype}, {})
    return INPUT


def outputs(tree: Tree) -> TensorFile:
    return tensor_file.read(tree.root / OUTPUT)


def run(kernel: str = STAGE, mutant: str | None = None, output: str = OUTPUT) -> ReplayResult:
    """Replay the captured file of the planted tree."""
    request = ReplayRequest(kernel, Path(INPUT), mutant, Path(output))
    return replay.run(request, NullProgress())


def refused(kind: type[QsaBenchError], **words: str) -> str:
    """Return the one line of a replay that is refused and leaves no output."""
    with pytest.raises(kind) as caught:
        run(**words)
    assert not Path(OUTPUT).exists()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_kernel_that_equals_the_oracle_exits_0_and_leaves_its_outputs(tree: Tree) -> None:
    capture(tree)
    before = {path.name for path in tree.root.iterdir()}
    done = tree.run("replay", STAGE, INPUT, "-o", OUTPUT)
    assert (done.returncode, done.stderr) == (0, "")
    written = outputs(tree)
    assert dict(written.dtypes) == {"state": "f32", "level": "f32", "steps": "i32", "rank": "i32"}
    assert written.tensors["state"].tolist() == [0.75, 3.0, -0.75]
    assert written.tensors["level"].tolist() == pytest.approx([0.75 / 1.75, 0.75, -0.75 / 1.75])
    assert written.tensors["rank"].tolist() == [1, 2, 0]
    assert written.tensors["steps"].tolist() == [2]
    # Nothing else is made: no run folder, no half-written file.
    assert {path.name for path in tree.root.iterdir()} - before == {OUTPUT}


def test_an_output_that_exists_is_overwritten_only_when_told_to(tree: Tree) -> None:
    words = ("replay", STAGE, capture(tree), "-o", OUTPUT)
    tree.write(OUTPUT, "mine")
    done = tree.run(*words)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "qsa-bench: writing out.safetensors: it exists already; give another name or --force"
    ]
    assert tree.read(OUTPUT) == "mine"
    assert tree.run(*words, "--force").returncode == 0
    assert outputs(tree).tensors["rank"].tolist() == [1, 2, 0]


def test_a_mutant_that_differs_exits_3_and_names_check_and_place(tree: Tree) -> None:
    words = ("replay", STAGE, capture(tree), "--mutant", "counts-equals", "-o", OUTPUT)
    done = tree.run(*words)
    assert done.returncode == 3
    shown = " ".join(done.stdout.split())
    assert "rank wrong 3 of 3 elements differ, first at rank[0], want 1, got 2" in shown
    assert "(mutant counts-equals)" in shown
    assert outputs(tree).tensors["rank"].tolist() == [2, 3, 1]


def test_a_trap_exits_3_with_reason_and_place_though_the_contract_demands_it(tree: Tree) -> None:
    values = VALUES.copy()
    values[1, 2] = np.nan
    code, document = tree.json("replay", STAGE, capture(tree, values), "-o", OUTPUT)
    assert code == document["exit_code"] == 3
    assert document["status"] == "trapped"
    assert document["trap"]["expected"] is True
    assert document["trap"]["reason"].startswith("a value is not finite")
    assert "thread (2, 0, 0)" in document["trap"]["where"]
    assert not (tree.root / OUTPUT).exists()
    shown = " ".join(tree.run("replay", STAGE, INPUT).stdout.split())
    assert "trapped" in shown
    assert "a value is not finite" in shown


def test_a_file_that_does_not_fit_exits_2_in_one_line_and_nothing_is_written(tree: Tree) -> None:
    done = tree.run("replay", STAGE, capture(tree, VALUES, "valeus"), "-o", OUTPUT)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "qsa-bench: reading in.safetensors: "
        "tensor 'valeus' is no argument; the arguments are values"
    ]
    assert done.stdout == ""
    assert not (tree.root / OUTPUT).exists()


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        (VALUES.astype(np.int32), "tensor 'values' is i32, not f32"),
        (VALUES.reshape(-1), "tensor 'values' has shape [6], not 2 dimension(s)"),
        (VALUES[:, :0], "tensor 'values' has shape [2, 0]; 1 to 64 elements"),
    ],
)
def test_a_tensor_of_another_type_or_shape_is_refused_by_name(
    planted: Tree, values: np.ndarray, complaint: str
) -> None:
    capture(planted, values)
    assert refused(UsageError) == f"reading in.safetensors: {complaint}"


@pytest.mark.parametrize("content", [None, b"", b"not a tensor file", b"\x20" + 31 * b"\0"])
def test_a_file_that_cannot_be_read_is_refused_by_name(
    planted: Tree, content: bytes | None
) -> None:
    if content is not None:
        Path(INPUT).write_bytes(content)
    assert refused(UsageError).startswith("in.safetensors: ")


def test_a_kernel_or_mutant_that_is_not_there_is_no_success(planted: Tree) -> None:
    capture(planted)
    assert "no such stage" in refused(NothingSelectedError, kernel="specimens")
    line = refused(NothingSelectedError, mutant="counts-nothing")
    assert f"mutant {STAGE}/counts-nothing: there is none of this id" in line


def test_an_output_needs_a_folder(planted: Tree) -> None:
    capture(planted)
    assert "nowhere/out.safetensors" in refused(UsageError, output="nowhere/out.safetensors")


def test_a_kernel_that_does_not_compile_is_told_as_that(planted: Tree) -> None:
    planted.edit(RANK, "int32_t below = 0;", "int32_t below = none_such;")
    capture(planted)
    with pytest.raises(BuildError, match="none_such"):
        run()


def test_a_mutant_of_python_code_is_replayed_too(planted: Tree) -> None:
    capture(planted)
    result = run(mutant=f"{STAGE}/counts-a-step-twice")
    assert result.exit_code is ExitCode.GATE_FAILED
    assert [line for line in result.lines if "want 2, got 4" in line]


def test_a_trap_that_does_not_come_is_a_failure(planted: Tree) -> None:
    values = VALUES.copy()
    values[0, 1] = np.inf
    capture(planted, values)
    result = run(mutant="lets-infinity-pass")
    assert (result.status, result.exit_code) == (Status.WRONG, ExitCode.GATE_FAILED)
    assert "want a trap, got it succeeded" in result.lines[0]


def test_a_crash_is_told_as_that_with_its_words(planted: Tree) -> None:
    capture(planted)
    result = run(mutant="divides-by-zero")
    assert (result.status, result.exit_code) == (Status.CRASHED, ExitCode.GATE_FAILED)
    (line,) = result.lines
    assert line.startswith("no-crash: Floating point exception")
    assert not Path(OUTPUT).exists()


def test_a_difference_that_one_order_of_threads_shows_is_seen(planted: Tree) -> None:
    # In the first order every thread has read its levels before thread 0 ends, in the last not.
    planted.edit(RANK, "  rank[element] = below;\n", "  rank[element] = below;\n  levels[2] = 9;\n")
    capture(planted)
    result = run()
    assert result.exit_code is ExitCode.GATE_FAILED
    assert {f.check for f in result.findings if f.status is not Status.PASS} >= {"schedules-agree"}
