"""replay on trees of the specimen, through the real command line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from qsa_bench import tensor_file
from qsa_bench.tensor_file import TensorFile
from tests.specimen.fixtures import (  # noqa: F401 - fixtures of this module
    specimen_master,
    specimen_session_folder,
    specimen_tree,
)
from tests.specimen.trees import STAGE, Tree

VALUES = np.array([[1.0, -2.0, 0.5], [0.25, 4.0, -1.0]], np.float32)
RANK = "kernels/specimen/rank.cu"


def capture(tree: Tree, values: np.ndarray = VALUES, name: str = "values") -> str:
    """Write a captured file into the tree; return its name."""
    dtype = {"float32": "f32", "int32": "i32"}[str(values.dtype)]
    tensor_file.write(tree.root / "in.safetensors", {name: values}, {name: dtype}, {})
    return "in.safetensors"


def outputs(tree: Tree) -> TensorFile:
    return tensor_file.read(tree.root / "out.safetensors")


def test_a_kernel_that_equals_the_oracle_exits_0_and_leaves_its_outputs(tree: Tree) -> None:
    done = tree.run("replay", STAGE, capture(tree), "-o", "out.safetensors")
    assert (done.returncode, done.stderr) == (0, "")
    written = outputs(tree)
    assert dict(written.dtypes) == {
        "state": "f32",
        "level": "f32",
        "steps": "i32",
        "rank": "i32",
    }
    assert written.tensors["state"].tolist() == [0.75, 3.0, -0.75]
    assert written.tensors["level"].tolist() == pytest.approx([0.75 / 1.75, 0.75, -0.75 / 1.75])
    assert written.tensors["rank"].tolist() == [1, 2, 0]
    assert written.tensors["steps"].tolist() == [2]
    assert [path.name for path in tree.root.glob("results/*")] == []


def test_an_output_that_exists_is_overwritten_only_when_told_to(tree: Tree) -> None:
    words = ("replay", STAGE, capture(tree), "-o", "out.safetensors")
    tree.write("out.safetensors", "mine")
    done = tree.run(*words)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "qsa-bench: writing out.safetensors: it exists already; give another name or --force"
    ]
    assert tree.read("out.safetensors") == "mine"
    assert tree.run(*words, "--force").returncode == 0
    assert outputs(tree).tensors["rank"].tolist() == [1, 2, 0]


def test_a_mutant_that_differs_exits_3_names_the_check_and_leaves_its_outputs(tree: Tree) -> None:
    words = ("replay", STAGE, capture(tree), "--mutant", "counts-equals")
    code, document = tree.json(*words, "-o", "out.safetensors")
    assert code == document["exit_code"] == 3
    assert (document["status"], document["mutant"]) == ("wrong", "counts-equals")
    wrong = [f for f in document["findings"] if f["status"] != "pass"]
    assert [(f["check"], f["count"], f["want"], f["got"]) for f in wrong] == [("rank", 3, "1", "2")]
    assert outputs(tree).tensors["rank"].tolist() == [2, 3, 1]
    shown = " ".join(tree.run(*words).stdout.split())
    assert "rank wrong 3 of 3 elements differ, first at rank[0], want 1, got 2" in shown
    assert "(mutant counts-equals)" in shown


def test_a_mutant_of_python_code_is_replayed_too(tree: Tree) -> None:
    done = tree.run("replay", STAGE, capture(tree), "--mutant", f"{STAGE}/counts-a-step-twice")
    assert done.returncode == 3
    assert "want 2, got 4" in done.stdout


def test_a_trap_exits_3_with_reason_and_place_though_the_contract_demands_it(tree: Tree) -> None:
    values = VALUES.copy()
    values[1, 2] = np.nan
    code, document = tree.json("replay", STAGE, capture(tree, values), "-o", "out.safetensors")
    assert code == 3
    assert document["status"] == "trapped"
    assert document["trap"]["expected"] is True
    assert document["trap"]["reason"].startswith("a value is not finite")
    assert "thread (2, 0, 0)" in document["trap"]["where"]
    assert not (tree.root / "out.safetensors").exists()
    shown = " ".join(tree.run("replay", STAGE, "in.safetensors").stdout.split())
    assert "trapped" in shown
    assert "a value is not finite" in shown


def test_a_trap_that_does_not_come_exits_3(tree: Tree) -> None:
    values = VALUES.copy()
    values[0, 1] = np.inf
    words = ("replay", STAGE, capture(tree, values), "--mutant", "lets-infinity-pass")
    done = tree.run(*words)
    assert done.returncode == 3
    assert "want a trap, got it succeeded" in done.stdout


def test_a_crash_exits_3_and_says_so(tree: Tree) -> None:
    code, document = tree.json("replay", STAGE, capture(tree), "--mutant", "divides-by-zero")
    assert code == 3
    assert document["status"] == "crashed"
    (finding,) = document["findings"]
    assert finding["check"] == "no-crash"
    assert finding["note"].startswith("Floating point exception")


@pytest.mark.parametrize(
    ("values", "name", "complaint"),
    [
        (VALUES, "valeus", "tensor 'valeus' is no argument; the arguments are values"),
        (VALUES.astype(np.int32), "values", "tensor 'values' is i32, not f32"),
        (VALUES.reshape(-1), "values", "tensor 'values' has shape [6], not 2 dimension(s)"),
        (VALUES[:, :0], "values", "tensor 'values' has shape [2, 0]; 1 to 64 elements"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_in_one_line_and_nothing_is_written(
    tree: Tree, values: np.ndarray, name: str, complaint: str
) -> None:
    done = tree.run("replay", STAGE, capture(tree, values, name), "-o", "out.safetensors")
    assert done.returncode == 2
    assert done.stderr.splitlines() == [f"qsa-bench: reading in.safetensors: {complaint}"]
    assert done.stdout == ""
    assert not (tree.root / "out.safetensors").exists()


@pytest.mark.parametrize("content", [None, b"", b"not a tensor file", b"\x20" + 31 * b"\0"])
def test_a_file_that_cannot_be_read_is_refused_in_one_line(
    tree: Tree, content: bytes | None
) -> None:
    if content is not None:
        (tree.root / "in.safetensors").write_bytes(content)
    done = tree.run("replay", STAGE, "in.safetensors")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("qsa-bench: in.safetensors: ")


def test_a_kernel_or_mutant_that_is_not_there_is_no_success(tree: Tree) -> None:
    done = tree.run("replay", "specimens", capture(tree))
    assert done.returncode == 6
    done = tree.run("replay", STAGE, capture(tree), "--mutant", "counts-nothing")
    assert done.returncode == 6
    (line,) = done.stderr.splitlines()
    assert f"matches {STAGE}/counts-nothing" in line


def test_a_kernel_that_does_not_compile_is_told_as_that(tree: Tree) -> None:
    tree.edit(RANK, "int32_t below = 0;", "int32_t below = none_such;")
    done = tree.run("replay", STAGE, capture(tree))
    assert done.returncode == 5
    assert "none_such" in done.stderr


def test_outputs_go_where_there_is_a_folder_or_the_command_says_so(tree: Tree) -> None:
    done = tree.run("replay", STAGE, capture(tree), "-o", "nowhere/out.safetensors")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "nowhere/out.safetensors" in line


def test_the_whole_output_path_is_free_of_half_written_files(tree: Tree) -> None:
    before = {path.name for path in Path(tree.root).iterdir()}
    assert tree.run("replay", STAGE, capture(tree), "-o", "out.safetensors").returncode == 0
    made = {path.name for path in Path(tree.root).iterdir()} - before
    assert made == {"in.safetensors", "out.safetensors"}
