"""Faults of the pool selection for dials: what a nearly right selection gives."""

from __future__ import annotations

import numpy as np

from qsa_bench.program import Program
from qsa_bench.stages.base import Fault, Outputs


def _swapped(program: Program, outputs: Outputs, random: np.random.Generator) -> Outputs | None:
    """Return outputs in which a row keeps the best of its losers instead of its last winner."""
    kept, counts = outputs["kept_pools"].copy(), outputs["kept_counts"]
    visible = program.array("visible_pools")
    able = np.flatnonzero((counts > 0) & (visible > counts))
    if able.size == 0 or program.buffer("scores").data is None:
        return None
    row = int(able[int(random.integers(able.size))])
    count = int(counts[row])
    order = np.argsort(-program.array("scores")[row, : visible[row]], kind="stable")
    # Not the program's word but the order itself: what is listed must be the first of it.
    if not np.array_equal(np.sort(order[:count]), kept[row, :count]):
        return None
    chosen = np.concatenate([order[: count - 1], order[count : count + 1]])
    kept[row, :count] = np.sort(chosen)
    return {**outputs, "kept_pools": kept}


FAULTS = {
    "swap": Fault("in one row the last pool kept gives way to the first one dropped", _swapped)
}
