"""Faults of select for dials: what a nearly right selection gives."""

from __future__ import annotations

import numpy as np

from qsa_bench.oracles.select import RATIO
from qsa_bench.program import Program
from qsa_bench.stages.base import Fault, Outputs


def _swapped(program: Program, outputs: Outputs, random: np.random.Generator) -> Outputs | None:
    """Return outputs in which a row keeps the best of its losers instead of its last winner."""
    rows = program.array("rows")
    values = program.calls[0].values
    keep, score_cols = int(str(values["budget"])) // RATIO, int(str(values["score_cols"]))
    live = int(program.array("live_rows")[0]) if "live_rows" in values else len(rows)
    able = [
        row for row in range(min(max(live, 0), len(rows))) if (int(rows[row]) + 1) // RATIO > keep
    ]
    if not able or program.buffer("scores").data is None:
        return None
    row = able[int(random.integers(len(able)))]
    blocks = (int(rows[row]) + 1) // RATIO
    scores = program.array("scores").reshape(-1)[row * score_cols : row * score_cols + blocks]
    order = np.argsort(-scores, kind="stable")
    winner, loser = int(order[keep - 1]), int(order[keep])
    changed = dict(outputs)
    gone = winner * RATIO + np.arange(RATIO)
    come = loser * RATIO + np.arange(RATIO)
    if "mask" in outputs:
        mask = outputs["mask"].copy()
        mask[row, gone], mask[row, come] = 0, 1
        changed["mask"] = mask
    if "ids" in outputs:
        ids = outputs["ids"].copy()
        listed = ids[row][ids[row] >= 0]
        kept = np.sort(np.concatenate([listed[~np.isin(listed, gone)], come]))
        ids[row, : kept.size] = kept
        changed["ids"] = ids
    return changed


FAULTS = {
    "swap": Fault(
        "in one row the last block kept gives way to the first one dropped",
        _swapped,
    )
}
