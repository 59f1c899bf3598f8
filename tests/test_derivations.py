"""Derived mutants are kept by everything that decides them, and by nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from qsa_bench import automatic, derivations
from qsa_bench.automatic import Derived
from tests.specimen import trees
from tests.specimen.fixtures import (  # noqa: F401 - fixtures of this module
    specimen_master,
    specimen_session_folder,
    specimen_tree,
)
from tests.specimen.trees import STAGE, Tree


class Counted:
    """`automatic.derive`, counting its calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kept_in: Path) -> None:
        self.calls = 0
        self._kept_in = kept_in
        self._derive = automatic.derive
        monkeypatch.setattr(automatic, "derive", self._count)

    def _count(self, *words: object) -> Derived:
        self.calls += 1
        return self._derive(*words)  # type: ignore[arg-type]

    def of(self, tree: Tree) -> Derived:
        return derivations.derive(tree.root, STAGE, trees.stage().kernels, self._kept_in)


@pytest.fixture(name="counted")
def counted_derivations(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Counted:
    return Counted(monkeypatch, tmp_path / "derived")


def test_what_is_kept_is_what_was_derived(counted: Counted, tree: Tree) -> None:
    first, again = counted.of(tree), counted.of(tree)
    assert counted.calls == 1
    assert again == first
    assert len(first.mutants) > 60


@pytest.mark.parametrize("path", ["rank.cu", "element.cuh"])
def test_an_edit_of_a_kernel_or_its_header_derives_anew(
    counted: Counted, tree: Tree, path: str
) -> None:
    before = counted.of(tree)
    name = f"kernels/specimen/{path}"
    tree.write(name, "// one line more\n" + tree.read(name))
    after = counted.of(tree)
    assert counted.calls == 2
    assert [mutant.id for mutant in after.mutants] == [mutant.id for mutant in before.mutants]
    assert after.mutants != before.mutants  # their lines moved


def test_a_kept_file_that_was_cut_short_is_derived_anew(
    counted: Counted, tree: Tree, tmp_path: Path
) -> None:
    first = counted.of(tree)
    (kept,) = (tmp_path / "derived").iterdir()
    kept.write_text(kept.read_text()[:500])
    assert counted.of(tree) == first
    assert counted.calls == 2


def test_a_folder_that_cannot_be_written_costs_no_result(
    monkeypatch: pytest.MonkeyPatch, tree: Tree, tmp_path: Path
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    counted = Counted(monkeypatch, blocked / "derived")
    assert counted.of(tree) == counted.of(tree)
    assert counted.calls == 2
