"""Flipped elements are told from wrong scores."""

from __future__ import annotations

import math

import numpy as np

from qsa_bench.bf16 import F32, to_float32
from qsa_bench.oracles.qsa_flips import Explanation, explain_scores
from qsa_bench.oracles.qsa_numerics import PooledKeys, query_heads, score_margin
from tests.oracles.qsa_inputs import EPS, Inputs, make_inputs


def _explain(got: F32, x: Inputs, keys: PooledKeys) -> Explanation:
    return explain_scores(
        got, x.fused_qk, x.q_norm_weight, x.cos, x.sin, keys, x.rows, x.visible_len, EPS
    )


def _inputs_with_flags() -> tuple[Inputs, PooledKeys]:
    for seed in range(100):
        x = make_inputs(seed, 2055, rows=6)
        keys = x.pooled()
        if keys.flagged().sum() >= 4 and x.scored(keys).flips.rotated:
            return x, keys
    raise AssertionError("no seed has uncertain keys and queries")


def test_the_oracles_own_scores_need_no_flip() -> None:
    x, keys = _inputs_with_flags()
    found = _explain(x.scored(keys).value.astype(np.float32), x, keys)
    assert (found.taken, found.beyond, found.left) == (0, 0, 0)
    assert found.legal >= 5


def test_flipped_keys_are_found_and_leave_nothing() -> None:
    x, keys = _inputs_with_flags()
    other = np.where(keys.value == keys.low, keys.high, keys.low)
    flipped = np.where(keys.flagged() & (np.arange(128) < 64), other, keys.value)
    count = int((flipped != keys.value).sum())
    assert count > 0
    found = _explain(x.scored(flipped).value.astype(np.float32), x, keys)
    assert found.beyond > 0
    assert found.left == 0
    assert found.worst < 0.1
    assert found.taken == count


def test_a_flipped_query_element_is_found_among_padding_rows() -> None:
    x, keys = _inputs_with_flags()
    query, _ = query_heads(x.fused_qk, x.q_norm_weight, x.cos, x.sin, x.rows, EPS, 0)
    at = tuple(np.argwhere(query.uncertain())[0])
    heads = query.value.astype(np.float64)
    heads[at] = query.low[at] if query.value[at] == query.high[at] else query.high[at]
    dots = heads @ to_float32(keys.value).astype(np.float64).T
    got = (np.maximum(dots, 0).sum(axis=1) / math.sqrt(128)).astype(np.float32)
    padded = Inputs(
        x.fused_qk,
        x.q_norm_weight,
        x.k_norm_weight,
        x.cos,
        x.sin,
        np.append(x.rows, np.int32(1_000_000)),
        np.append(x.visible_len, np.int32(0)),
    )
    found = _explain(np.vstack((got, got[:1])), padded, keys)
    assert found.beyond > 0
    assert (found.taken, found.left) == (1, 0)


def test_a_score_that_is_wrong_by_less_than_its_widened_bound_is_left_over() -> None:
    x, keys = _inputs_with_flags()
    scored = x.scored(keys)
    got = scored.value.astype(np.float32)
    room = np.where(scored.flagged, scored.bound, 0.0)
    at = np.unravel_index(int(np.argmax(room)), room.shape)
    got[at] += np.float32(0.5 * room[at])
    assert score_margin(got, scored).max() < 1
    found = _explain(got, x, keys)
    assert found.left == 1
    assert found.worst > 1
