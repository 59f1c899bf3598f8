"""Judging DSA scores: the derived bound of each, all of them together, what is masked and untouched."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from qsa_bench.compare import bitwise, bounded
from qsa_bench.goldens.dsa import MASKED
from qsa_bench.model import Evidence, Finding, Status
from qsa_bench.oracles.dsa_scores import scores
from qsa_bench.oracles.qsa_numerics import PooledKeys
from qsa_bench.stages import _dsa_inputs as dsa
from qsa_bench.stages._dsa_judge import partly, untouched

Array = npt.NDArray[Any]

CHECKS = {
    "score": "every candidate's score lies within its bound of the float64 oracle",
    "scale": "the scores together are not too large or too small: |slope - 1| within its bound",
    "masked": "pools that a row does not see hold the least f32",
    "visible-pools": "every row's count of visible pools is the oracle's",
    "untouched-scores": "columns past a sequence's live pools keep every bit",
}
NUMBERS = {
    "scores": "golden scores judged",
    "widened": "of them that see a key with two legal roundings",
}

# As for QSA's scores: ten times what the worst order of f32 sums leaves over a case, above what a
# tensor core that cuts its sums leaves, and below a scale error of 1e-6.
_SCALE_BOUND = 4e-7
_LEAST_SCORES = 32


@dataclass(frozen=True)
class Wanted:
    """Scores and bounds [B, Q, cols] f64, and the pools each row sees, [B, Q].

    `candidate` marks the scores of pools that a row sees, `written` all that a launch owes.
    """

    value: Array
    bound: Array
    widened: Array
    candidate: Array
    written: Array
    visible: Array


def wanted(
    inputs: dsa.Inputs, keys: Sequence[PooledKeys], positions: Array, live: int, score_cols: int
) -> Wanted:
    """Return the oracle of rows at `positions` [Q] with `live` tokens and each sequence's keys."""
    shape = (inputs.batch, positions.size, score_cols)
    value, bound = np.zeros(shape), np.ones(shape)
    widened, candidate, written = (np.zeros(shape, dtype=bool) for _ in range(3))
    visible = np.zeros(shape[:2], dtype=np.int32)
    for row, lists in enumerate(inputs.lists(live)):
        pools = lists.starts.size
        seen = np.array([lists.pools_seen(int(p), inputs.kpool) for p in positions])
        found = scores(inputs.q[row], inputs.weights[row], keys[row])
        is_seen = np.arange(pools) < seen[:, None]
        value[row, :, :pools] = np.where(is_seen, found.value, 0.0)
        bound[row, :, :pools] = np.where(is_seen, found.bound, 1.0)
        widened[row, :, :pools] = is_seen & found.widened
        candidate[row, :, :pools] = is_seen
        written[row, :, :pools] = True
        visible[row] = seen
    return Wanted(value, bound, widened, candidate, written, visible)


def judge_scores(
    want: Wanted, got: Array, visible: Array, golden: bool = False
) -> Iterator[Finding]:
    """Yield the findings on scores [B, Q, cols] f32 and visible_pools [B, Q] i32."""
    shown = np.where(want.candidate, got.astype(np.float64), 0.0)
    score = bounded("score", "scores", want.value, shown, want.bound, "scores")
    count = int(want.candidate.sum())
    numbers = {}
    if golden:
        numbers = {"scores": float(count), "widened": float(want.widened.sum())}
    yield Finding("score", score.status, _counted(score.evidence, count, numbers))
    yield from _scale(want, got)
    masked = want.written & ~want.candidate
    fill = np.full(got.shape, MASKED, dtype=np.float32)
    if masked.any():
        yield bitwise("masked", "scores", fill, np.where(masked, got, fill), "scores")
    yield partly(
        "visible-pools", "visible_pools", want.visible, visible, np.full(visible.shape, True)
    )
    yield untouched("untouched-scores", "scores", got, want.written)


def _counted(evidence: Evidence, total: int, numbers: dict[str, float]) -> Evidence:
    return Evidence(
        evidence.count,
        total,
        evidence.unit,
        evidence.first,
        evidence.want,
        evidence.got,
        evidence.error,
        evidence.bound,
        evidence.where,
        evidence.note,
        numbers,
    )


def _scale(want: Wanted, got: Array) -> Iterator[Finding]:
    usable = want.candidate & ~want.widened & np.isfinite(want.value) & np.isfinite(got)
    if int(usable.sum()) < _LEAST_SCORES:
        return
    value = want.value[usable]
    residual = got[usable].astype(np.float64) - value
    slope = float((residual * value).sum() / (value * value).sum())
    wrong = abs(slope) > _SCALE_BOUND
    evidence = Evidence(
        int(wrong),
        value.size,
        "scores",
        error=abs(slope),
        bound=_SCALE_BOUND,
        note=f"slope 1{slope:+.3g}",
    )
    yield Finding("scale", Status.WRONG if wrong else Status.PASS, evidence)
