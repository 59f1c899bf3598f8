"""build on trees of the specimen, through the real command line."""

from __future__ import annotations

from typing import Any

from tests.specimen.fixtures import (  # noqa: F401 - fixtures of this module
    specimen_master,
    specimen_session_folder,
    specimen_tree,
)
from tests.specimen.trees import STAGE, Tree

RANK = "kernels/specimen/rank.cu"
HEADER = "kernels/specimen/element.cuh"
BUILD = ("build", "--stage", STAGE)


def fresh(document: dict[str, Any]) -> set[tuple[str, str]]:
    """Return kernel and mode of what was not in the cache."""
    return {(b["kernel"], b["mode"]) for b in document["builds"] if not b["cached"]}


def test_only_what_changed_is_built_again_and_a_shared_header_changes_all(tree: Tree) -> None:
    code, document = tree.json(*BUILD)
    assert code == 0
    assert len(document["builds"]) == 4
    assert fresh(document) == set()
    tree.edit(RANK, "? 1 : 0", "? 1 : 0 * 7")
    assert fresh(tree.json(*BUILD)[1]) == {("rank", "plain"), ("rank", "checked")}
    tree.edit(HEADER, "Into (-1, 1)", "Into (-1, 1), as it were")
    assert fresh(tree.json(*BUILD, "--mode", "plain")[1]) == {
        ("rank", "plain"),
        ("smooth", "plain"),
    }


def test_a_kernel_that_does_not_compile_is_told_with_its_first_error(tree: Tree) -> None:
    tree.edit(RANK, "int32_t below = 0;", "int32_t below = none_such;")
    code, document = tree.json(*BUILD, "--mode", "plain")
    assert code == 5
    assert (document["asked"], document["done"]) == (2, 1)
    (log,) = [b["log"] for b in document["builds"] if b["library"] is None]
    assert "none_such" in log
    assert "none_such" in tree.run(*BUILD, "--mode", "plain").stdout


def test_a_warning_passes_unless_it_is_made_an_error(tree: Tree) -> None:
    tree.edit(RANK, "int32_t below = 0;", "int32_t below = 0;\n  int32_t idle = 0;")
    assert tree.run(*BUILD, "--mode", "plain").returncode == 0
    assert tree.run(*BUILD, "--mode", "plain", "--warnings-as-errors").returncode == 5
