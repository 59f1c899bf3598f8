"""Cases whose judge relates outputs to one another: the emulation may still round them its own way.

A control that adds in another order stands for the device: its scores differ in their last bits,
as a device's do, and everything that is held at a bound must be compared at that bound.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from qsa_bench import against_host, baseline, mutants, parity, resources
from qsa_bench.builder import Builder
from qsa_bench.stages import load_stage


@pytest.mark.parametrize(
    ("stage_name", "control", "case"),
    [
        ("qsa_chain", "qsa_score/controls/scales-each-head", "decode/reused"),
        ("dsa_index_scores", "dsa_index_scores/controls/sums-downwards", "padding/shifted"),
        ("dsa", "dsa_index_scores/controls/sums-downwards", "verify/five-rows"),
    ],
)
def test_scores_added_in_another_order_lie_within_two_bounds(
    stage_name: str, control: str, case: str, tmp_path: Path
) -> None:
    stage = load_stage(stage_name)
    known = baseline.read_mutants(load_stage(control.partition("/")[0]))
    (mutant,) = (one for one in known if one.id == control)
    builder = Builder(resources.cache_root())
    tree = mutants.apply(mutant, resources.tree_root(), tmp_path)
    builds = parity.build_stage(builder, stage.kernels, "host", tree.root, (parity.PLAIN,))
    golden = baseline.Goldens(None, (stage_name,)).of(stage)
    chosen = [one for one in stage.cases(golden) if one.id == f"{stage_name}/{case}"]
    with parity.Workload(stage, chosen, "host", 0) as workload:
        seen = workload.gate(builds)
        root = resources.tree_root()
        (found,) = against_host.compare(workload, builds, seen, builder, root, 0, 1)
    assert {verdict.status for verdict in seen.verdicts} == {"pass"}
    numbers = found.evidence.numbers
    assert numbers[against_host.EQUAL] < numbers[against_host.COMPARISONS]
    assert found.passed, found.evidence
