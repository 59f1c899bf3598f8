"""The attention oracle against plain softmax, its bound, and the judge both stages share."""

from __future__ import annotations

import numpy as np
import pytest

from qsa_bench.bf16 import round_to_bf16, to_float32
from qsa_bench.oracles.qsa_attention import attend
from qsa_bench.stages import _qsa_attention as attention
from tests.stages.judged import POISON_BYTE, failed


def rows_of(tokens: int) -> attention.Rows:
    q, cache = attention.random_rows((2, 1, tokens), "judge")
    return attention.Rows(q, cache, (0, 0), (tuple(range(tokens)), None))


def right(rows: attention.Rows) -> np.ndarray:
    context = np.full(rows.q.shape, POISON_BYTE * 0x0101, dtype=np.uint16)
    held = attend(rows.q[0], rows.cache.keys[0], rows.cache.values[0])
    context[0] = round_to_bf16(held.value)
    return context


def test_the_oracle_is_a_softmax_over_the_heads_own_kv_head() -> None:
    rows = rows_of(9)
    q, keys, values = (
        to_float32(a).astype(np.float64)
        for a in (rows.q[0], rows.cache.keys[0], rows.cache.values[0])
    )
    value = attend(rows.q[0], rows.cache.keys[0], rows.cache.values[0]).value
    for head in (0, 7, 8, 15):
        scores = np.exp(keys[:, head // 8] @ q[head] / 16)
        assert value[head] == pytest.approx(scores @ values[:, head // 8] / scores.sum(), abs=1e-12)


def test_a_context_one_bound_off_is_seen_and_the_rounded_oracle_passes() -> None:
    rows = rows_of(40)
    context = right(rows)
    assert failed(attention.judge_context(rows, context)) == set()
    held = attend(rows.q[0], rows.cache.keys[0], rows.cache.values[0])
    off = context.copy()
    off[0, 3, 9] = round_to_bf16(np.array([held.value[3, 9] + 3 * held.bound[3, 9]]))[0]
    assert failed(attention.judge_context(rows, off)) == {"context"}


def test_a_row_that_is_not_the_kernels_keeps_every_bit() -> None:
    rows = rows_of(12)
    context = right(rows)
    context[1, 15, 255] ^= 1
    assert failed(attention.judge_context(rows, context)) == {"untouched"}


def test_the_bound_is_no_wider_than_two_roundings_of_the_values() -> None:
    rows = rows_of(64)
    held = attend(rows.q[0], rows.cache.keys[0], rows.cache.values[0])
    largest = np.abs(to_float32(rows.cache.values)).max()
    assert (held.bound > 0).all()
    assert held.bound.max() < 2 * 2.0**-8 * largest
