"""The committed arguments are for mutants that exist, of code that is still as it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from qsa_bench import automatic, equivalence, resources
from qsa_bench.mutants import ARGUMENTS
from qsa_bench.stages import load_stage

ROOT = resources.tree_root()
ARGUED = sorted(path.parent.name for path in (ROOT / "mutations").glob(f"*/{ARGUMENTS}"))


def test_some_stage_has_arguments() -> None:
    assert {"qsa_pool", "qsa_score", "qsa_select"} <= set(ARGUED)


@pytest.mark.parametrize("stage", ARGUED)
def test_every_argument_is_for_a_mutant_of_today_and_none_is_stale(stage: str) -> None:
    derived = automatic.derive(ROOT, stage, load_stage(stage).kernels).mutants
    known = {mutant.id: mutant for mutant in derived}
    equivalence.hold(ROOT, stage, known)
    stale = [
        name
        for name, argument in equivalence.read(ROOT, stage).items()
        if equivalence.context_of(known[name], Path(ROOT)) != argument.context
    ]
    assert stale == []
