"""The score oracle: its value equals the naive oracle's, and its bound holds what the roundings span."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from qsa_bench.bf16 import F64, U16, to_float32
from qsa_bench.oracles import qsa_numerics
from qsa_bench.oracles.qsa_head_vector import HEAD_DIM
from qsa_bench.oracles.qsa_numerics import (
    ABSOLUTE_BOUND,
    RELATIVE_BOUND,
    Flips,
    PooledKeys,
    score_margin,
    score_oracle,
)
from tests.oracles import naive_qsa as naive
from tests.oracles.qsa_inputs import EPS, Inputs, make_inputs

NAN_BF16 = 0x7FC0


def _vector(bits: U16) -> naive.Vector:
    return [naive.value_of(int(b)) for b in bits]


def _naive_scores(x: Inputs, keys: U16) -> list[float]:
    eps = Fraction(float(np.float32(EPS)))
    scores = []
    for position, visible in zip(x.rows.tolist(), x.visible_len.tolist(), strict=True):
        heads = [
            naive.query_head(
                _vector(x.fused_qk[position, HEAD_DIM * h : HEAD_DIM * (h + 1)]),
                _vector(x.q_norm_weight),
                _vector(x.cos[position]),
                _vector(x.sin[position]),
                eps,
            )
            for h in range(4)
        ]
        scores += [naive.score(heads, _vector(keys[block])) for block in range(visible // 4)]
    return scores


def _base_bound(value: F64) -> F64:
    return np.asarray(ABSOLUTE_BOUND + RELATIVE_BOUND * np.abs(value))


@pytest.mark.parametrize(("seed", "scale"), [(0, 1.0), (1, 3e-3)])
def test_a_score_equals_the_naive_one(seed: int, scale: float) -> None:
    x = make_inputs(seed, 13, rows=4, scale=scale)
    keys = x.pooled().value
    scored = x.scored(keys)
    np.testing.assert_allclose(scored.value[scored.written], _naive_scores(x, keys), rtol=1e-13)


def test_only_visible_blocks_are_written() -> None:
    x = make_inputs(0, 13)
    scored = x.scored(x.pooled())
    assert scored.value.shape == (13, 3)
    assert scored.written.sum(axis=1).tolist() == [0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3]
    assert np.isnan(scored.value[~scored.written]).all()
    assert np.isnan(scored.bound[~scored.written]).all()
    assert np.isfinite(scored.value[scored.written]).all()


def test_a_row_reads_its_fused_row_from_first_position_on() -> None:
    x = make_inputs(0, 40, rows=3)
    keys = x.pooled()
    whole = x.scored(keys)
    cut = score_oracle(
        x.fused_qk[37:], x.q_norm_weight, x.cos, x.sin, keys, x.rows, x.visible_len, EPS, 37
    )
    assert np.array_equal(whole.value, cut.value, equal_nan=True)


def test_a_row_that_sees_nothing_is_not_looked_at() -> None:
    x = make_inputs(0, 8, rows=2)
    x.rows[0] = 1_000_000
    x.visible_len[0] = 0
    scored = x.scored(x.pooled())
    assert scored.written.tolist() == [[False, False], [True, True]]


@pytest.mark.parametrize(
    ("row", "visible", "message"),
    [(8, 4, "row"), (-1, 4, "row"), (7, 9, "visible_len"), (7, -1, "visible_len")],
)
def test_what_a_kernel_must_trap_on_is_refused(row: int, visible: int, message: str) -> None:
    x = make_inputs(0, 8, rows=1)
    x.rows[0] = row
    x.visible_len[0] = visible
    with pytest.raises(ValueError, match=message):
        x.scored(x.pooled())


@pytest.mark.parametrize("first_position", [8, 5])
def test_a_row_whose_fused_row_is_not_there_is_refused(first_position: int) -> None:
    x = make_inputs(0, 8, rows=1)
    with pytest.raises(ValueError, match="2 fused rows"):
        score_oracle(
            x.fused_qk[:2],
            x.q_norm_weight,
            x.cos,
            x.sin,
            x.pooled(),
            x.rows,
            x.visible_len,
            EPS,
            first_position,
        )


def test_more_blocks_visible_than_there_are_keys_is_refused() -> None:
    x = make_inputs(0, 8, rows=1)
    with pytest.raises(ValueError, match="1 keys"):
        x.scored(x.pooled().value[:1])


def test_the_pieces_many_rows_are_worked_in_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    x = make_inputs(3, 200)
    keys = x.pooled()
    whole = x.scored(keys)
    monkeypatch.setattr(qsa_numerics, "_DOTS_AT_ONCE", 1000)
    pieces = x.scored(keys)
    np.testing.assert_allclose(whole.value, pieces.value, rtol=1e-13)
    assert np.array_equal(whole.flagged, pieces.flagged)


def test_given_keys_leave_only_the_query_uncertain() -> None:
    x = make_inputs(0, 2055, rows=1)
    keys = x.pooled()
    assert keys.flagged().any()
    chained, alone = x.scored(keys), x.scored(keys.value)
    assert alone.flips == chained.flips == Flips()
    assert chained.flagged.any()
    assert not alone.flagged.any()
    assert np.array_equal(chained.value, alone.value, equal_nan=True)


def _certain_inputs(tokens: int) -> Inputs:
    """Return inputs of which neither keys nor queries are anywhere uncertain."""
    candidates = (make_inputs(seed, tokens) for seed in range(100))
    return next(
        x
        for x in candidates
        if x.pooled().flips == Flips() and x.scored(x.pooled()).flips == Flips()
    )


def _with_one_flag(keys: PooledKeys, block: int, dim: int) -> PooledKeys:
    high = keys.value.copy()
    high[block, dim] += np.uint16(1)
    first, second = to_float32(keys.value), to_float32(high)
    low_bits = np.where(second < first, high, keys.value)
    high_bits = np.where(second < first, keys.value, high)
    return PooledKeys(keys.value, low_bits, high_bits, Flips())


def test_a_score_that_sees_no_uncertain_element_keeps_the_base_bound() -> None:
    x = _certain_inputs(64)
    scored = x.scored(_with_one_flag(x.pooled(), block=5, dim=3))
    other = scored.written & (np.arange(16) != 5)
    assert scored.flagged[:, 5].any()
    assert not scored.flagged[other].any()
    assert np.array_equal(scored.bound[other], _base_bound(scored.value)[other])
    assert np.array_equal(scored.unwidened(), _base_bound(scored.value), equal_nan=True)


def test_the_bound_is_what_the_two_roundings_span() -> None:
    x = _certain_inputs(64)
    keys = x.pooled()
    scored = x.scored(_with_one_flag(keys, block=5, dim=3))
    flipped = keys.value.copy()
    flipped[5, 3] += np.uint16(1)
    moved = np.abs(x.scored(flipped).value - scored.value)[:, 5]
    widening = (scored.bound - _base_bound(scored.value))[:, 5]
    seen = scored.written[:, 5]
    assert moved[seen].max() > 1e-4
    assert (moved[seen] <= widening[seen] * (1 + 1e-9) + 1e-12).all()
    # Heads that cut each other's change leave a span a few times the change itself, no more.
    assert np.median(widening[seen & (moved > 0)] / moved[seen & (moved > 0)]) < 4


def test_a_head_far_below_zero_widens_nothing() -> None:
    x = _certain_inputs(64)
    keys = x.pooled()
    scored = x.scored(_with_one_flag(keys, block=5, dim=3))
    zero = scored.written[:, 5] & (scored.value[:, 5] == 0)
    assert zero.any()
    assert not scored.flagged[zero, 5].any()


def test_an_uncertain_query_element_widens_its_row_alone() -> None:
    for seed in range(40):
        x = make_inputs(seed, 256, rows=8)
        scored = x.scored(x.pooled().value)
        if scored.flips.normed == 1:
            break
    assert scored.flips.normed == 1
    assert scored.flagged.any(axis=1).sum() == 1


def test_a_nan_key_reaches_exactly_the_rows_that_see_its_block() -> None:
    x = make_inputs(0, 40)
    keys = x.pooled().value.copy()
    keys[3, 100] = NAN_BF16
    scored = x.scored(keys)
    is_nan = scored.written & np.isnan(scored.value)
    assert is_nan[:, 3].sum() == np.count_nonzero(x.visible_len >= 16)
    assert is_nan.sum() == is_nan[:, 3].sum()


def test_a_nan_query_makes_its_whole_row_nan() -> None:
    x = make_inputs(0, 40, rows=2)
    x.fused_qk[38, 2 * HEAD_DIM] = NAN_BF16
    scored = x.scored(x.pooled())
    assert np.isnan(scored.value[0]).all()
    assert np.isfinite(scored.value[1][scored.written[1]]).all()


def test_the_margin_is_error_over_bound() -> None:
    x = make_inputs(0, 40, rows=2)
    scored = x.scored(x.pooled().value)
    assert score_margin(scored.value.astype(np.float32), scored).max() < 0.1
    off = (scored.value + 3 * scored.bound).astype(np.float32)
    np.testing.assert_allclose(score_margin(off, scored)[scored.written], 3, rtol=0.1)


def test_a_nan_matches_only_a_nan_and_an_infinity_only_itself() -> None:
    x = make_inputs(0, 8, rows=1)
    keys = x.pooled().value.copy()
    keys[0, 100] = NAN_BF16
    scored = x.scored(keys)
    right = scored.value.astype(np.float32)
    assert score_margin(right, scored).max() < 0.1
    assert score_margin(np.array([[0.0, right[0, 1]]], np.float32), scored)[0, 0] == np.inf
    assert score_margin(np.array([[np.nan, np.nan]], np.float32), scored)[0, 1] == np.inf
    assert score_margin(np.array([[np.nan, np.inf]], np.float32), scored)[0, 1] == np.inf


def test_what_lies_in_unwritten_columns_is_not_judged() -> None:
    x = make_inputs(0, 13, rows=1)
    x.visible_len[0] = 7
    scored = x.scored(x.pooled())
    got = np.where(scored.written, scored.value, 1e9).astype(np.float32)
    assert score_margin(got, scored).max() < 0.1
