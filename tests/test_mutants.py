"""Manifests are read strictly; a mutant is a copy in which only its own files differ."""

from __future__ import annotations

from pathlib import Path

import pytest

from qsa_bench import mutants
from qsa_bench.errors import ManifestError, NothingSelectedError
from qsa_bench.exit_codes import ExitCode
from qsa_bench.model import Expect, Mutant
from tests.test_patches import diff

SOURCE = "one\ntwo\nthree\n"
KILLED = 'proves = "p"\nclause = "tail"\nexpect = "killed"\nkilled_by = ["mask"]\n'
SURVIVES = 'proves = "p"\nclause = "tail"\nexpect = "survives"\nwhy_survives = "it must"\n'
CLAUSES, CHECKS = ("tail", "order"), ("mask", "ids")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A tree of one kernel file and one header."""
    kernels = tmp_path / "root/kernels/k"
    kernels.mkdir(parents=True)
    (kernels / "k.cu").write_text(SOURCE)
    (kernels / "k.cuh").write_text("header\n")
    return tmp_path / "root"


def add(
    root: Path, name: str, manifest: str | None = KILLED, patch: str | None = "default"
) -> None:
    """Put a mutant of stage "k" in the tree."""
    stem = root / "mutations/k" / name
    stem.parent.mkdir(parents=True, exist_ok=True)
    if manifest is not None:
        stem.with_suffix(".toml").write_text(manifest)
    if patch == "default":
        patch = diff(SOURCE, SOURCE.replace("two", "2"), "kernels/k/k.cu")
    if patch is not None:
        stem.with_suffix(".patch").write_text(patch)


def load(root: Path) -> list[Mutant]:
    """Read the mutants of stage "k"."""
    return mutants.load(root, "k", CLAUSES, CHECKS)


def test_a_manifest_and_its_patch_become_a_mutant_named_after_its_stage_and_file(
    root: Path,
) -> None:
    add(
        root,
        "drops-two",
        KILLED + 'targets = ["host"]\ndiffering_bits = 7\nleast_margin = 2\nrace = true\n',
    )
    (mutant,) = load(root)
    assert (mutant.id, mutant.stage, mutant.proves) == ("k/drops-two", "k", "p")
    assert (mutant.clause, mutant.expect, mutant.killed_by) == ("tail", Expect.KILLED, ("mask",))
    assert (mutant.targets, mutant.differing_bits, mutant.least_margin) == (("host",), 7, 2)
    assert mutant.race
    assert not mutant.control


def test_mutants_are_sorted_by_id(root: Path) -> None:
    for name in ("b", "a", "controls/does-nothing"):
        add(root, name)
    assert [mutant.id for mutant in load(root)] == ["k/a", "k/b", "k/controls/does-nothing"]


def test_what_lies_in_controls_is_a_control_and_may_name_any_clause(root: Path) -> None:
    add(root, "controls/does-nothing", SURVIVES.replace("tail", "none of them"))
    (mutant,) = load(root)
    assert mutant.control


def test_a_stage_without_a_folder_has_no_mutants(root: Path) -> None:
    assert load(root) == []


@pytest.mark.parametrize(
    ("manifest", "complaint"),
    [
        (KILLED + 'kiled_by = ["mask"]\n', "unknown keys kiled_by"),
        (KILLED.replace('proves = "p"\n', ""), "missing proves"),
        (KILLED.replace('clause = "tail"\n', ""), "missing clause"),
        (KILLED.replace('expect = "killed"\n', ""), "missing expect"),
        (KILLED.replace("killed", "dead", 1), "expect is 'dead', not one of killed, "),
        (KILLED.replace('["mask"]', '"mask"'), "killed_by is a str"),
        (KILLED.replace('["mask"]', '["mask", "msak"]'), "killed_by names 'msak'"),
        (KILLED.replace("tail", "tial"), "clause 'tial' is none of the stage's"),
        (KILLED.replace('killed_by = ["mask"]', ""), "names in killed_by the checks"),
        (KILLED + "differing_bits = true\n", "differing_bits is a bool"),
        (KILLED + "differing_bits = 1.5\n", "differing_bits is a float"),
        (KILLED + 'equivalent = "yes"\n', "equivalent is a str"),
        (KILLED + "equivalent = true\n", "an equivalent mutant survives"),
        (KILLED + 'why_survives = "no"\n', "why_survives stands exactly when"),
        (KILLED + 'targets = ["gpu"]\n', "targets: unknown or none: \\['gpu'\\]"),
        (KILLED + "targets = []\n", "targets: unknown or none"),
        (SURVIVES.replace('why_survives = "it must"\n', ""), "why_survives stands exactly when"),
        (SURVIVES + 'killed_by = ["mask"]\n', "names no check in killed_by"),
        ("proves = \n", "Invalid value"),
    ],
)
def test_a_manifest_that_makes_no_sense_is_refused_in_words(
    root: Path, manifest: str, complaint: str
) -> None:
    add(root, "bad", manifest)
    with pytest.raises(ManifestError, match=f"k/bad: .*{complaint}"):
        load(root)


def test_an_integer_margin_is_a_margin(root: Path) -> None:
    add(root, "a", KILLED + "least_margin = 3\n")
    add(root, "b", KILLED + "least_margin = 3.5\n")
    assert [mutant.least_margin for mutant in load(root)] == [3, 3.5]


@pytest.mark.parametrize("missing", ["toml", "patch"])
def test_a_mutant_needs_both_its_files(root: Path, missing: str) -> None:
    add(root, "half")
    (root / f"mutations/k/half.{missing}").unlink()
    with pytest.raises(ManifestError, match=rf"half\.{missing} is missing"):
        load(root)


def test_a_patch_whose_old_text_is_gone_is_refused(root: Path) -> None:
    add(root, "stale")
    (root / "kernels/k/k.cu").write_text("something else\n")
    with pytest.raises(ManifestError, match="k/stale: .*is not there"):
        load(root)


def test_a_patch_of_anything_but_kernels_and_the_package_is_refused(root: Path) -> None:
    (root / "pyproject.toml").write_text("one\n")
    add(root, "a", patch=diff("one\n", "two\n", "pyproject.toml"))
    with pytest.raises(ManifestError, match="pyproject.toml: a mutant patches kernels/ or"):
        load(root)


def test_everything_that_is_wrong_is_told_at_once(root: Path) -> None:
    add(root, "a", KILLED + "typo = 1\n")
    add(root, "b")
    add(root, "c", patch="no patch\n")
    with pytest.raises(ManifestError, match="2 invalid or stale: k/a: .*; k/c: ") as caught:
        load(root)
    assert caught.value.exit_code is ExitCode.MANIFEST_INVALID
    assert "\n" not in str(caught.value)


def test_a_glob_matches_an_id_with_or_without_its_stage(root: Path) -> None:
    for name in ("drops-a", "drops-b", "keeps-a"):
        add(root, name)
    found = load(root)
    names = [mutant.id for mutant in mutants.select(found, ["drops-*"])]
    assert names == ["k/drops-a", "k/drops-b"]
    assert [m.id for m in mutants.select(found, ["k/keeps-a", "drops-b"])] == [
        "k/drops-b",
        "k/keeps-a",
    ]
    assert mutants.select(found, []) == found


def test_a_glob_that_matches_nothing_is_an_error(root: Path) -> None:
    add(root, "drops-a")
    with pytest.raises(NothingSelectedError, match="none of 1 matches keeps-"):
        mutants.select(load(root), ["keeps-*"])
    with pytest.raises(NothingSelectedError):
        mutants.select([], [])


def test_applying_changes_the_copy_and_not_the_tree(root: Path, tmp_path: Path) -> None:
    add(root, "drops-two")
    (mutant,) = load(root)
    tree = mutants.apply(mutant, root, tmp_path / "scratch")
    assert (tree.root / "kernels/k/k.cu").read_text() == "one\n2\nthree\n"
    assert (tree.root / "kernels/k/k.cuh").read_text() == "header\n"
    assert (root / "kernels/k/k.cu").read_text() == SOURCE
    assert not tree.python
    assert not (tree.root / "qsa_bench").exists()


def test_a_patch_of_python_takes_the_package_along(root: Path, tmp_path: Path) -> None:
    # The package is the one that runs, wherever the kernels lie.
    old = Path(mutants.__file__).with_name("poison.py").read_text()
    add(root, "a", patch=diff(old, old.replace("0xA5\n", "0xA6\n"), "qsa_bench/poison.py"))
    (mutant,) = load(root)
    tree = mutants.apply(mutant, root, tmp_path / "scratch")
    assert tree.python
    assert "POISON = 0xA6" in (tree.root / "qsa_bench/poison.py").read_text()
    assert (tree.root / "qsa_bench/worker.py").is_file()
    assert (tree.root / "kernels/k/k.cu").read_text() == SOURCE
    assert Path(mutants.__file__).with_name("poison.py").read_text() == old


def test_applying_a_patch_that_went_stale_names_the_mutant(root: Path, tmp_path: Path) -> None:
    add(root, "drops-two")
    (mutant,) = load(root)
    (root / "kernels/k/k.cu").write_text("one\n2\nthree\n")
    with pytest.raises(ManifestError, match="applying k/drops-two: .*is not there"):
        mutants.apply(mutant, root, tmp_path / "scratch")


def test_a_file_that_differs_without_being_named_is_an_error(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(root, "drops-two")
    (mutant,) = load(root)
    copy = mutants.shutil.copytree

    def careless(source: Path, target: Path, *options: object, **more: object) -> None:
        copy(source, target, *options, **more)
        if (Path(target) / "k.cuh").exists():
            (Path(target) / "k.cuh").unlink()
            (Path(target) / "k.cuh").write_text("another header\n")

    monkeypatch.setattr(mutants.shutil, "copytree", careless)
    with pytest.raises(ManifestError, match=r"but \['kernels/k/k.cu', 'kernels/k/k.cuh'\] differ"):
        mutants.apply(mutant, root, tmp_path / "scratch")
