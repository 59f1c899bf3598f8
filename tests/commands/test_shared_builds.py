"""Mutants of the specimen that share a build end as they do in builds of their own."""

from __future__ import annotations

import json
from typing import Any

from tests.specimen.fixtures import (  # noqa: F401 - fixtures of this module
    specimen_master,
    specimen_session_folder,
    specimen_tree,
)
from tests.specimen.trees import MUTATIONS, STAGE, Tree

MUTATE = ("mutate", "--stage", STAGE, "--seeds", "1", "--jobs", "1", "--fresh")
SHARING = ("counts-equals", "drops-the-barrier", "forgets-the-decay", "lets-infinity-pass")
# One that should live, and one of Python code.
ALONE = ("turns-a-comparison", "counts-a-step-twice")


def shares(document: dict[str, Any]) -> set[str]:
    """Return the mutants whose kernels came out of a build that others share."""
    return {b["mutant"].removeprefix(f"{STAGE}/") for b in document["builds"] if "-w" in b["flags"]}


def rows(document: dict[str, Any], table: str) -> list[str]:
    """Return a table's rows without what differs from run to run."""
    differs = ("duration_ns", "reused")
    return sorted(
        json.dumps({k: v for k, v in row.items() if k not in differs}, sort_keys=True)
        for row in document[table]
    )


def test_a_build_that_mutants_share_changes_no_result(tree: Tree) -> None:
    tree.keep_mutants(*SHARING, *ALONE)
    code, shared = tree.json(*MUTATE)
    assert code == 0
    assert set(SHARING) <= shares(shared)
    assert not set(ALONE) & shares(shared)
    code, separate = tree.json(*MUTATE, "--separate-builds")
    assert code == 0
    assert shares(separate) == set()
    for table in ("mutants", "kills"):
        assert rows(separate, table) == rows(shared, table)
    assert separate["summary"] == shared["summary"]


def test_without_the_parser_each_mutant_is_built_by_itself(tree: Tree) -> None:
    tree.keep_mutants(*SHARING)
    tree.write("tree_sitter_cuda.py", 'raise ImportError("not here")\n')
    code, document = tree.json(*MUTATE)
    assert code == 0
    assert shares(document) == set()
    assert len(document["mutants"]) == len(SHARING) + 2


def test_one_that_does_not_build_takes_none_of_those_it_shares_a_build_with_along(
    tree: Tree,
) -> None:
    tree.keep_mutants(*SHARING)
    tree.edit(f"{MUTATIONS}/counts-equals.patch", "levels[other] <=", "no_other[other] <=")
    code, document = tree.json(*MUTATE)
    assert code == 4
    outcomes = {m["id"].removeprefix(f"{STAGE}/"): m["outcome"] for m in document["mutants"]}
    assert outcomes.pop("counts-equals") == "unviable"
    assert outcomes.pop("controls/does-nothing") == "survived"
    assert set(outcomes.values()) == {"killed"}
    assert set(SHARING[1:]) <= shares(document)


def test_one_that_does_not_die_there_as_it_should_is_built_by_itself(tree: Tree) -> None:
    tree.keep_mutants(*SHARING)
    tree.edit(f"{MUTATIONS}/counts-equals.toml", '["rank"]', '["rank", "steps"]')
    code, document = tree.json(*MUTATE)
    assert code == 4
    (odd,) = [m for m in document["mutants"] if not m["as_expected"]]
    assert odd["why"] == "not killed by steps, as its manifest says"
    assert "counts-equals" not in shares(document)
    assert set(SHARING[1:]) <= shares(document)


def test_those_of_a_source_beyond_ascii_are_built_by_themselves(tree: Tree) -> None:
    tree.keep_mutants(*SHARING)
    for path in (tree.root / "kernels" / "specimen").glob("*.cu*"):
        source = str(path.relative_to(tree.root))
        tree.write(source, f"{tree.read(source)}// schön\n")
    code, document = tree.json(*MUTATE)
    assert code == 0
    assert shares(document) == set()
    assert len(document["mutants"]) == len(SHARING) + 2
