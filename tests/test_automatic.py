"""Automatic mutants: patches that apply, ids that last, only code that is compiled."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from qsa_bench import automatic, mutants, patches
from qsa_bench.errors import EnvironmentMissingError
from qsa_bench.model import Mutant
from qsa_bench.operators import OPERATORS, syntax
from tests.specimen import trees
from tests.specimen.fixtures import (  # noqa: F401 - fixtures of this module
    specimen_master,
    specimen_session_folder,
    specimen_tree,
)
from tests.specimen.trees import STAGE, Tree

RANK, HEADER = "kernels/specimen/rank.cu", "kernels/specimen/element.cuh"


def derive(tree: Tree) -> dict[str, Mutant]:
    found = automatic.derive(tree.root, STAGE, trees.stage().kernels)
    assert found.unparsed == ()
    assert len({mutant.id for mutant in found.mutants}) == len(found.mutants)
    return {mutant.id: mutant for mutant in found.mutants}


def test_every_patch_applies_and_changes_one_place(tree: Tree) -> None:
    found = derive(tree)
    assert len(found) > 60
    for mutant in found.values():
        changed = patches.apply_to_tree(mutant.patch, mutants.locator(tree.root))
        assert len(changed) == 1
        ((path, first, last),) = patches.places(mutant.patch)
        (patch,) = patches.parse(mutant.patch)
        lines = patches.changed_lines(patch, tree.read(path))
        assert (min(lines), max(lines)) == (first, last)


def test_an_id_names_kernel_function_and_operator(tree: Tree) -> None:
    for name, mutant in derive(tree).items():
        stage, auto, kernel, function, operator, digest = name.split("/")
        assert (stage, auto) == (STAGE, "auto")
        assert kernel in {k.name for k in trees.stage().kernels}
        assert operator == mutant.operator
        assert operator in OPERATORS
        assert function
        assert len(digest.partition("-")[0]) == 8


def test_functions_of_one_name_in_two_files_have_ids_of_their_own(tree: Tree) -> None:
    twin = "static inline int twin(int count) {\n  return count + 1;\n}\n"
    # A header is mutated for the first kernel that includes it.
    for path in ("kernels/specimen/smooth.cu", HEADER):
        tree.write(path, tree.read(path) + twin)
    names = [name for name in derive(tree) if "/twin/" in name]
    assert len(names) >= 4
    digests = [name.rpartition("/")[2] for name in names]
    assert {digest.partition("-")[2] for digest in digests} == {"", "2"}


def test_an_edit_elsewhere_keeps_every_other_id(tree: Tree) -> None:
    before = derive(tree)
    tree.edit(
        RANK,
        "  __syncthreads();\n",
        "  // All levels are there before any is read.\n\n  __syncthreads();\n  count += 0;\n",
    )
    after = derive(tree)
    assert set(before) <= set(after)
    assert all("/rank_kernel/" in name for name in set(after) - set(before))


def test_a_statement_that_changes_changes_its_own_ids(tree: Tree) -> None:
    before = derive(tree)
    tree.edit(RANK, "int32_t below = 0;", "int32_t below = 2 - 2;")
    gone = set(before) - set(derive(tree))
    assert gone
    assert all("below = 0" in before[name].patch for name in gone)


def test_a_header_of_two_kernels_is_mutated_once(tree: Tree) -> None:
    places = [m.patch for m in derive(tree).values() if f"+++ b/{HEADER}" in m.patch]
    assert places
    assert len(set(places)) == len(places)


def test_what_a_macro_leaves_out_has_no_mutant(tree: Tree) -> None:
    before = derive(tree)
    more = "#ifdef NEVER\nint never(int n) { return n + 1; }\n#endif\n"
    tree.write(HEADER, tree.read(HEADER) + more)
    assert set(derive(tree)) == set(before)


def test_a_hunk_grows_until_its_old_text_stands_once(tree: Tree) -> None:
    twin = "\n".join(f"int twin_{n}() {{\n\n\n\n  return 7;\n\n\n\n}}" for n in "ab")
    tree.write(HEADER, tree.read(HEADER) + f"namespace twins {{\n{twin}\n}}\n")
    made = [m for m in derive(tree).values() if "twin_" in m.id and m.operator == "constant"]
    assert len(made) == 4
    for mutant in made:
        patches.apply_to_tree(mutant.patch, mutants.locator(tree.root))


def test_without_the_grammar_one_line_says_what_to_install(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tree_sitter_cuda", None)
    syntax._parser.cache_clear()
    with pytest.raises(EnvironmentMissingError, match=r"pip install 'qsa-bench\[auto\]'"):
        derive(tree)
    syntax._parser.cache_clear()


def test_a_source_that_does_not_preprocess_is_told(tree: Tree, tmp_path: Path) -> None:
    from qsa_bench.errors import BuildError

    tree.edit(RANK, '#include "common/status.h"', '#include "common/none.h"')
    with pytest.raises(BuildError, match=r"none\.h"):
        derive(tree)
