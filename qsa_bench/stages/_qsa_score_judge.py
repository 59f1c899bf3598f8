"""Judging scores: the derived bound, what lies beyond it, and what a published gate would say.

Beside the bound of every single score, two figures of a whole case see faults that move all scores
the same way by less than any single bound: a scale error and a lean. Each figure keeps its own
worst score and place.

Several entries over the same inputs are held to the same oracle, each by itself, and to each other:
they must leave select the same choice. What that means is said at `same_selection`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
SELECTION = {
    "selection": "whatever the budget, select keeps the same blocks by either entry's scores, but "
    "for blocks closer to each other than f32 sums of the same bf16 values may err",
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


def judge_entries(
    want: ScoreOracle, outputs: Mapping[str, Array], golden: bool = False
) -> Iterator[Finding]:
    """Yield the findings on the scores of several entries, by buffer; of each check the worst."""
    found: dict[str, Finding] = {}
    for name, got in outputs.items():
        for finding in judge_scores(want, got, golden, name):
            before = found.get(finding.check)
            found[finding.check] = finding if before is None else worse(before, finding)
    yield from found.values()
    if len(outputs) > 1:
        yield same_selection(want, outputs)


def worse(left: Finding, right: Finding) -> Finding:
    """Return the worse of two findings of a check; what is left unexplained counts for both."""
    chosen = max(left, right, key=_weight)
    numbers = dict(left.evidence.numbers)
    if "left" in numbers:
        numbers["left"] += right.evidence.numbers["left"]
    return replace(chosen, evidence=replace(chosen.evidence, numbers=numbers))


def _weight(finding: Finding) -> tuple[bool, float]:
    return finding.status is not Status.PASS, finding.evidence.margin or 0.0


def judge_scores(
    want: ScoreOracle, got: Array, golden: bool = False, name: str = "scores"
) -> Iterator[Finding]:
    """Yield the findings on scores `got` [rows, score_cols] f32, the buffer `name`.

    `golden` adds the published gate's verdict and the counts that a run prints.
    """
    tight = want.written & ~want.flagged
    score = _bounded("score", want, got, tight, name)
    found = [score]
    if want.flagged.any():
        found.append(_bounded("widened", want, got, want.flagged, name))
    if golden:
        numbers = {
            "scores": float(want.written.sum()),
            "widened": float(want.flagged.sum()),
            "left": float(sum(finding.evidence.count for finding in found)),
        }
        found[0] = replace(score, evidence=replace(score.evidence, numbers=numbers))
        found.append(published(want, got, name))
    yield from found
    yield _not_negative(want.written, got, name)
    yield _untouched(want.written, got, name)
    yield from _together(want, got, name)


def same_selection(want: ScoreOracle, outputs: Mapping[str, Array]) -> Finding:
    """Hold the order of each row's blocks by the first entry's scores against every other's.

    Select keeps the first blocks of a row in the order of scores, equal ones by index. It keeps
    the same of two entries' scores at every budget when no two blocks stand in one order here and
    in the other there, so it is pairs of blocks that are held, and no budget has to be chosen.
    The entries build the same bf16 queries, bit by bit, from the same keys: no rounding is free
    between them, and each score lies within the unwidened bound u of one exact value. Two blocks
    may then change places only if their scores, by either entry, are no further apart than
    2 (u + u'): a tie, as far as f32 tells. A query rounded the other way, which the bounds of the
    oracle must allow an entry by itself, is seen here where it turns a pair. Scores that are not
    finite are left out: select traps on them.
    """
    (first, *others), bound = outputs, want.unwidened()
    count, total, worst = 0, 0, Evidence(0, 0, "pairs", error=0.0, bound=1.0)
    for other in others:
        for row in range(want.value.shape[0]):
            usable = want.written[row].copy()
            for name in (first, other):
                usable &= np.isfinite(outputs[name][row])
            usable &= np.isfinite(bound[row])
            blocks = np.flatnonzero(usable)
            if blocks.size < 2:
                continue
            total += blocks.size * (blocks.size - 1) // 2
            for left, right in ((first, other), (other, first)):
                kept = outputs[left][row, blocks].astype(np.float64)
                by = outputs[right][row, blocks]
                gap, limit, pair = _inversions(kept, by, bound[row, blocks])
                count += int((gap > limit).sum())
                at = int(np.argmax(gap / limit))
                if gap[at] / limit[at] > (worst.margin or 0.0):
                    upper, lower = (int(blocks[place]) for place in pair[at])
                    worst = Evidence(
                        0,
                        0,
                        "pairs",
                        want=f"block {upper} before {lower}, as {right} have it",
                        got=f"{kept[pair[at][0]]:.9g} and {kept[pair[at][1]]:.9g}",
                        error=float(gap[at]),
                        bound=float(limit[at]),
                        where=f"{left}[{row}, {upper}]",
                    )
    first_place = worst.where if count else ""
    evidence = replace(worst, count=count, total=total, first=first_place)
    return Finding("selection", Status.WRONG if count else Status.PASS, evidence)


def _inversions(scores: Array, order_by: Array, bound: Array) -> tuple[Array, Array, Array]:
    """Return, for each block but the last, how far another overtakes it: gap, limit, the pair.

    In the order that `order_by` [blocks] f32 gives, the later block is the one of highest `scores`
    f64 less twice its bound; a gap of 0 says that none overtakes.
    """
    order = np.argsort(-order_by, kind="stable")
    score, reach = scores[order], 2 * bound[order]
    backwards = (score - reach)[::-1]
    highest = np.maximum.accumulate(backwards)
    places = np.arange(order.size)
    is_new = np.concatenate([[True], backwards[1:] > highest[:-1]])
    later = (order.size - 1 - np.maximum.accumulate(np.where(is_new, places, 0)))[::-1][1:]
    earlier = places[:-1]
    gap = np.maximum(score[later] - score[earlier], 0.0)
    return gap, reach[later] + reach[earlier], order[np.stack([earlier, later], axis=1)]


def _bounded(check: str, want: ScoreOracle, got: Array, which: Array, name: str) -> Finding:
    """Hold the scores in `which` at the oracle's bounds; the rest count for nothing."""
    finding = bounded(
        check,
        name,
        np.where(which, want.value, 0.0),
        np.where(which, got.astype(np.float64), 0.0),
        np.where(which, want.bound, 1.0),
        "scores",
    )
    return replace(finding, evidence=replace(finding.evidence, total=int(which.sum())))


def published(want: ScoreOracle, got: Array, name: str = "scores") -> Finding:
    """Return what a gate with one bound for all scores says of `got` [rows, score_cols]."""
    value = np.where(want.written, want.value, 0.0)
    with np.errstate(invalid="ignore"):
        bound = SINGLE_BOUND * np.maximum(1.0, np.abs(value))
    shown = np.where(want.written, got.astype(np.float64), 0.0)
    return bounded("single-bound", name, value, shown, bound, "scores")


def _not_negative(written: Array, got: Array, name: str) -> Finding:
    """A bound around zero can't tell zero from the poison; the sign can."""
    below = np.flatnonzero((written & (got < 0)).reshape(-1))
    if below.size == 0:
        return Finding("not-negative", Status.PASS, Evidence(0, int(written.sum()), "scores"))
    place = f"{name}{coordinates(got.shape, int(below[0]))}"
    value = f"{got.reshape(-1)[below[0]]:.9g}"
    evidence = Evidence(
        int(below.size), int(written.sum()), "scores", place, "0 or more", value, where=place
    )
    return Finding("not-negative", Status.WRONG, evidence)


def _untouched(written: Array, got: Array, name: str) -> Finding:
    """The tail of a row carries no margin: one changed bit is a fault."""
    raw = np.ascontiguousarray(got).view(np.uint8).reshape(*got.shape, 4)
    touched = (raw != POISON).any(axis=2) & ~written
    count = int(touched.sum())
    if count == 0:
        return Finding("untouched", Status.PASS, Evidence(0, int((~written).sum())))
    place = f"{name}{coordinates(got.shape, int(np.flatnonzero(touched.reshape(-1))[0]))}"
    note = f"{count} scores past visible_len / 4 were written"
    evidence = Evidence(count, int((~written).sum()), first=place, where=place, note=note)
    return Finding("untouched", Status.WRONG, evidence)


def _together(want: ScoreOracle, got: Array, name: str) -> Iterator[Finding]:
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
            where=f"{name}{coordinates(got.shape, int(places[most]))}",
            note=note,
        )
        yield Finding(check, Status.WRONG if wrong else Status.PASS, evidence)
