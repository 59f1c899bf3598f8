"""Judging the DSA pipeline: ids against the oracle's up to what a score's bound leaves open."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from qsa_bench.compare import bitwise
from qsa_bench.goldens import dsa as dsa_golden
from qsa_bench.model import Evidence, Finding, Status
from qsa_bench.oracles.dsa_select import tail_of, token_ids, top_pools
from qsa_bench.stages._dsa_compress_launch import joined
from qsa_bench.stages._dsa_judge import flip_numbers, keys_finding
from qsa_bench.stages._dsa_pipeline import Pipeline, StepWanted, region_of
from qsa_bench.stages._dsa_score_judge import judge_scores
from qsa_bench.stages.base import Outputs

Array = npt.NDArray[Any]


def judge_last_step(
    pipeline: Pipeline, want: StepWanted, outputs: Outputs, golden: bool
) -> Iterator[Finding]:
    """Yield the findings on what the last step left in the scratch, and its ids in full."""
    scratch = outputs["scratch"]
    inputs = want.inputs
    rows = inputs.batch * want.positions.size
    keys = region_of(pipeline, scratch, "pool_keys")
    given = np.concatenate([keys[row, : len(of.value)] for row, of in enumerate(want.keys)])
    kept = joined(want.keys)
    yield keys_finding("pool-keys", kept, given, flip_numbers(kept, given) if golden else None)
    shape = (inputs.batch, want.positions.size)
    scores = region_of(pipeline, scratch, "scores")[:rows]
    visible = region_of(pipeline, scratch, "visible_pools")[:rows]
    found_scores = judge_scores(
        want.scores, scores.reshape(*shape, -1), visible.reshape(shape), golden
    )
    # What an earlier step wrote into the same rows stays there.
    alone = len(pipeline.steps) == 1
    yield from (found for found in found_scores if alone or found.check != "untouched-scores")
    seen = want.scores.visible.reshape(-1)
    usable = np.where(np.isfinite(scores), scores, 0).astype(np.float32)
    pools, counts = top_pools(usable, seen, pipeline.layout.most_kept)
    found = region_of(pipeline, scratch, "kept_pools")[:rows]
    yield bitwise("kept-pools", "kept_pools", pools, found, "pools")
    ids = outputs["token_ids"][:, -want.positions.size :]
    wanted = np.array(
        [
            _ids(pipeline, want, place[0], place[1], pools[number, : counts[number]])
            for number, place in enumerate(np.ndindex(*shape))
        ],
        dtype=np.int32,
    )
    yield bitwise("token-ids", "token_ids", wanted.reshape(ids.shape), ids, "ids")


def _ids(pipeline: Pipeline, want: StepWanted, sequence: int, row: int, kept: Array) -> Array:
    inputs = want.inputs
    return token_ids(
        kept,
        inputs.lists(want.live)[sequence],
        inputs.mask(want.live)[sequence],
        int(want.positions[row]),
        inputs.topk,
        inputs.kpool,
        pipeline.select_tail,
    )


def judge_every_step(
    pipeline: Pipeline, want: list[StepWanted], outputs: Outputs
) -> Iterator[Finding]:
    """Yield one finding on the ids of all steps: right whatever the scores within their bounds."""
    near, wrong, total, first = 0, 0, 0, ""
    done = 0
    for step in want:
        for sequence in range(step.inputs.batch):
            for row in range(step.positions.size):
                ids = outputs["token_ids"][sequence, done + row]
                open_pools, fault = row_fault(pipeline, step, sequence, row, ids)
                near += open_pools
                total += 1
                if fault:
                    wrong += 1
                    first = first or f"sequence {sequence}, row {done + row}: {fault}"
        done += step.positions.size
    evidence = Evidence(
        wrong,
        total,
        "rows",
        first=first,
        where=first,
        note=first,
        numbers={"near_cut": float(near)},
    )
    yield Finding("selection", Status.WRONG if wrong else Status.PASS, evidence)


def row_fault(
    pipeline: Pipeline, want: StepWanted, sequence: int, row: int, ids: Array
) -> tuple[int, str]:
    """Return how many pools of a row may be kept or dropped, and how its ids [width] are wrong."""
    inputs = want.inputs
    lists, valid = inputs.lists(want.live)[sequence], inputs.mask(want.live)[sequence]
    position = int(want.positions[row])
    if position < 0 or not valid[position]:
        return 0, "" if (ids == -1).all() else "a masked row selects a token"
    seen = int(want.scores.visible[sequence, row])
    keep = min(inputs.keep, seen)
    value, bound = want.scores.value[sequence, row, :seen], want.scores.bound[sequence, row, :seen]
    chosen = ids[: keep * inputs.kpool].reshape(keep, inputs.kpool)
    if (chosen != chosen[:, :1] + np.arange(inputs.kpool)).any():
        return 0, "its first ids are no whole pools"
    kept = np.searchsorted(lists.starts, chosen[:, 0])
    if (np.diff(kept) <= 0).any() or not np.isin(chosen[:, 0], lists.starts[:seen]).all():
        return 0, "its pools do not ascend, or are none that it sees"
    must, may = _decided(value, bound, keep)
    is_kept = np.zeros(seen, dtype=bool)
    is_kept[kept] = True
    if (must & ~is_kept).any() or (is_kept & ~may).any():
        return int((may & ~must).sum()), "a pool away from the cut is kept or dropped"
    rest = np.full(ids.size - keep * inputs.kpool, -1, dtype=np.int64)
    if pipeline.select_tail:
        tail = tail_of(valid, position, inputs.kpool)
        tail = tail[~np.isin(tail, chosen)]
        rest[: tail.size] = tail
    if (ids[keep * inputs.kpool :] != rest).any():
        return int((may & ~must).sum()), "what follows the pools is not the tail and -1"
    return int((may & ~must).sum()), ""


def _decided(value: Array, bound: Array, keep: int) -> tuple[Array, Array]:
    """Return which pools a correct kernel must keep and which it may, whatever the errors.

    A pool must stay when fewer than `keep` others can reach it, and must go when `keep` others lie
    above it in any case.
    """
    low, high = value - bound, value + bound
    can_reach = value.size - np.searchsorted(np.sort(high), low, side="left") - 1
    surely_above = value.size - np.searchsorted(np.sort(low), high, side="right")
    return np.asarray(can_reach < keep), np.asarray(surely_above < keep)


def judge_reference(pipeline: Pipeline, want: StepWanted, recorded: dsa_golden.DsaCase) -> Finding:
    """Hold the reference's own ids to the oracle, as sets and up to the same open pools."""
    wrong, first = 0, ""
    places = list(np.ndindex(want.inputs.batch, want.positions.size))
    for sequence, row in places:
        starts = want.inputs.lists(want.live)[sequence].starts
        ids = _in_order(recorded.token_ids[sequence, row], starts, want.inputs.kpool)
        _, fault = row_fault(pipeline, want, sequence, row, ids)
        if fault:
            wrong += 1
            first = first or f"case {recorded.index}, sequence {sequence}, row {row}: {fault}"
    evidence = Evidence(wrong, len(places), "rows", first=first, where=first, note=first)
    return Finding("reference-ids", Status.WRONG if wrong else Status.PASS, evidence)


def _in_order(ids: Array, starts: Array, kpool: int) -> Array:
    """Return a row of the reference in the contract's order.

    It lists pools by score, -1 between them, and tokens twice that pool and tail share. A tail has
    fewer tokens than a pool, so the pools whose tokens are all there are the kept ones.
    """
    chosen = np.unique(ids[ids >= 0])
    pools = starts[:, None] + np.arange(kpool)
    kept = pools[np.isin(pools, chosen).all(axis=1)].reshape(-1)
    listed = np.concatenate([kept, chosen[~np.isin(chosen, kept)]])
    ordered = np.full(ids.size, -1, dtype=np.int64)
    ordered[: listed.size] = listed
    return ordered
