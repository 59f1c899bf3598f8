"""Judging scores: the derived bound, what lies beyond it, and what a published gate would say.

Beside the bound of every single score, two figures of a whole case see faults that move all scores
the same way by less than any single bound: a scale error and a lean. Each figure keeps its own
worst score and place.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from qsa_bench.compare import bounded, coordinates
from qsa_bench.model import Evidence, Finding, Status
from qsa_bench.oracles.qsa_numerics import ScoreOracle
from qsa_bench.poison import POISON

Array = npt.NDArray[Any]

PUBLISHED = {
    "single-bound": "what a published gate holds instead: the golden's scores at 5e-3 of each or of "
    "1, whichever is more (kept for comparison)",
}
CHECKS = {
    "score": "every score that sees no element which may flip lies within 2e-6 absolute plus "
    "relative of the float64 oracle",
    "widened": "every other score lies within that plus what the legal roundings span",
    "not-negative": "no score is below zero, as no sum of values cut at zero is; what nothing wrote "
    "is a tiny negative number",
    "scale": "the scores together are not too large or too small: |slope - 1| within its bound",
    "lean": "the residuals together lean to no side: |mean residual| within its bound",
    "untouched": "columns past visible_len / 4 keep every bit",
    **PUBLISHED,
}
NUMBERS = {
    "scores": "golden scores judged",
    "widened": "of them held at a widened bound, because they see an element that may flip",
    "left": "of them outside their bound: nothing explains these",
}

# A f32 dot product of 128 terms errs to either side. Summed one after the other, the worst order
# there is, a score errs by 7e-8 of its size (root mean square); over 60 cases of at least 120
# scores the slope then stays below 4.1e-8 and the lean below 1.1e-8. The bounds are ten times
# that, which also lets pass a tensor core that cuts its sums instead of rounding them (2.2e-7 and
# 2.4e-8), and a scale error of 1e-6 not.
SCALE_BOUND = 4e-7
LEAN_BOUND = 1e-7
# Fewer scores than this say nothing about all of them.
_LEAST_SCORES = 32
SINGLE_BOUND = 5e-3


def judge_scores(want: ScoreOracle, got: Array, golden: bool = False) -> Iterator[Finding]:
    """Yield the findings on scores `got` [rows, score_cols] f32.

    `golden` adds the published gate's verdict and the counts that a run prints.
    """
    tight = want.written & ~want.flagged
    score = _bounded("score", want, got, tight)
    found = [score]
    if want.flagged.any():
        found.append(_bounded("widened", want, got, want.flagged))
    if golden:
        numbers = {
            "scores": float(want.written.sum()),
            "widened": float(want.flagged.sum()),
            "left": float(sum(finding.evidence.count for finding in found)),
        }
        found[0] = replace(score, evidence=replace(score.evidence, numbers=numbers))
        found.append(published(want, got))
    yield from found
    yield _not_negative(want.written, got)
    yield _untouched(want.written, got)
    yield from _together(want, got)


def _bounded(check: str, want: ScoreOracle, got: Array, which: Array) -> Finding:
    """Hold the scores in `which` at the oracle's bounds; the rest count for nothing."""
    finding = bounded(
        check,
        "scores",
        np.where(which, want.value, 0.0),
        np.where(which, got.astype(np.float64), 0.0),
        np.where(which, want.bound, 1.0),
        "scores",
    )
    return replace(finding, evidence=replace(finding.evidence, total=int(which.sum())))


def published(want: ScoreOracle, got: Array) -> Finding:
    """Return what a gate with one bound for all scores says of `got` [rows, score_cols]."""
    value = np.where(want.written, want.value, 0.0)
    with np.errstate(invalid="ignore"):
        bound = SINGLE_BOUND * np.maximum(1.0, np.abs(value))
    shown = np.where(want.written, got.astype(np.float64), 0.0)
    return bounded("single-bound", "scores", value, shown, bound, "scores")


def _not_negative(written: Array, got: Array) -> Finding:
    """A bound around zero can't tell zero from the poison; the sign can."""
    below = np.flatnonzero((written & (got < 0)).reshape(-1))
    if below.size == 0:
        return Finding("not-negative", Status.PASS, Evidence(0, int(written.sum()), "scores"))
    place = f"scores{coordinates(got.shape, int(below[0]))}"
    value = f"{got.reshape(-1)[below[0]]:.9g}"
    evidence = Evidence(
        int(below.size), int(written.sum()), "scores", place, "0 or more", value, where=place
    )
    return Finding("not-negative", Status.WRONG, evidence)


def _untouched(written: Array, got: Array) -> Finding:
    """The tail of a row carries no margin: one changed bit is a fault."""
    raw = np.ascontiguousarray(got).view(np.uint8).reshape(*got.shape, 4)
    touched = (raw != POISON).any(axis=2) & ~written
    count = int(touched.sum())
    if count == 0:
        return Finding("untouched", Status.PASS, Evidence(0, int((~written).sum())))
    place = f"scores{coordinates(got.shape, int(np.flatnonzero(touched.reshape(-1))[0]))}"
    note = f"{count} scores past visible_len / 4 were written"
    evidence = Evidence(count, int((~written).sum()), first=place, where=place, note=note)
    return Finding("untouched", Status.WRONG, evidence)


def _together(want: ScoreOracle, got: Array) -> Iterator[Finding]:
    """Yield scale and lean over the scores that are finite, not zero and not widened."""
    usable = want.written & ~want.flagged & np.isfinite(want.value) & (want.value > 0)
    usable &= np.isfinite(got)
    if int(usable.sum()) < _LEAST_SCORES:
        return
    value = want.value[usable]
    residual = got[usable].astype(np.float64) - value
    slope = float((residual * value).sum() / (value * value).sum())
    # Around the line: a pure scale error is the scale's to see. Relative to the scores' size.
    leaning = (residual - slope * value) / value.mean()
    lean = float(leaning.mean())
    places = np.flatnonzero(usable.reshape(-1))
    for check, figure, bound, note, pulls in (
        ("scale", slope, SCALE_BOUND, f"slope 1{slope:+.3g}", residual * value * np.sign(slope)),
        ("lean", lean, LEAN_BOUND, f"mean residual {lean:+.3g}", leaning * np.sign(lean)),
    ):
        wrong = abs(figure) > bound
        most = int(np.argmax(pulls))
        evidence = Evidence(
            int(wrong),
            value.size,
            "scores",
            want=f"{value[most]:.9g}",
            got=f"{value[most] + residual[most]:.9g}",
            error=abs(figure),
            bound=bound,
            where=f"scores{coordinates(got.shape, int(places[most]))}",
            note=note,
        )
        yield Finding(check, Status.WRONG if wrong else Status.PASS, evidence)
