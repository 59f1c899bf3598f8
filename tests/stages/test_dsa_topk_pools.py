"""What the DSA pool selection's judge sees; rows of both signs, ties and short rows on the kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from qsa_bench.oracles.dsa_select import top_pools
from qsa_bench.stages import _dsa_topk_sweep as sweep
from qsa_bench.stages import load_stage
from tests.stages.dsa_judged import case_of, faults, untouched
from tests.stages.judged import gated

Array = npt.NDArray[Any]

STAGE = load_stage("dsa_topk_pools")


def correct(name: str) -> tuple[Any, dict[str, Array]]:
    case = case_of(STAGE, name)
    built = case.build()
    outputs = untouched(built)
    keep = outputs["kept_pools"].shape[1]
    pools, counts = top_pools(built.array("scores"), built.array("visible_pools"), keep)
    return case, {"kept_pools": pools, "kept_counts": counts}


@pytest.mark.parametrize("name", ["golden/case6", "rows/ragged", "budget/kpool4-topk8"])
def test_the_oracles_lists_pass_and_one_other_pool_does_not(name: str) -> None:
    case, outputs = correct(name)
    assert faults(case, outputs) == set()
    place = tuple(np.argwhere(outputs["kept_pools"] >= 0)[-1])
    outputs["kept_pools"][place] += 1
    assert faults(case, outputs) == {"kept-pools"}
    outputs["kept_counts"][0] += 1
    assert faults(case, outputs) == {"kept-pools", "kept-counts"}


def test_what_nothing_wrote_passes_for_no_list() -> None:
    case, _ = correct("replay/3")
    assert faults(case, untouched(case.build())) == {"kept-pools", "kept-counts"}


def test_negative_scores_and_ties_are_kept_in_the_contracts_order() -> None:
    names = ("equal", "zero-plateau", "signed-zeros", "normal")
    verdicts = gated(STAGE, [case_of(STAGE, f"distribution/{name}") for name in names])
    assert {verdict.status for verdict in verdicts} == {"pass"}


def test_a_point_of_the_sweep_sees_a_wrong_pool_in_any_row() -> None:
    point = sweep.point("dsa_topk_pools", {"context": "8192", "rows": "16", "input": "normal"})
    built = point.program
    pools, counts = top_pools(built.array("scores"), built.array("visible_pools"), 512)
    outputs = {"kept_pools": pools, "kept_counts": counts}

    def seen() -> set[str]:
        found = point.judge(built, outputs)
        return {finding.check for finding in found if finding.status != "pass"}

    assert seen() == set()
    for row in (0, 6, 7, 15):
        pools[row, 40] += 1
        assert seen() == {"kept-pools"}
        pools[row, 40] -= 1
