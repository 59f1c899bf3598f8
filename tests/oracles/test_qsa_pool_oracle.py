"""The pool oracle: its value equals the naive oracle's, and its legal range is neither wider nor narrower."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from qsa_bench.bf16 import U16, round_to_bf16, to_float32
from qsa_bench.oracles import qsa_numerics
from qsa_bench.oracles.qsa_head_vector import WINDOW_ULP, Rounded, mean_of_blocks, rms_norm, rotate
from qsa_bench.oracles.qsa_numerics import KEY_COLUMN, Flips, illegal_keys, pool_oracle
from tests.oracles import naive_qsa as naive
from tests.oracles.qsa_inputs import EPS, Inputs, make_inputs, rotary_tables


def _vector(bits: U16) -> naive.Vector:
    return [naive.value_of(int(b)) for b in bits]


def _naive_key(x: Inputs, block: int, eps: float = EPS) -> list[int]:
    first = 4 * block
    raw = [_vector(x.fused_qk[first + token, KEY_COLUMN:]) for token in range(4)]
    key = naive.block_key(
        raw,
        _vector(x.k_norm_weight),
        _vector(x.cos[first]),
        _vector(x.sin[first]),
        Fraction(float(np.float32(eps))),
    )
    return [naive.bits_of(value) for value in key]


@pytest.mark.parametrize(("seed", "scale"), [(0, 1.0), (1, 3e-3), (2, 30.0)])
def test_a_key_equals_the_naive_one(seed: int, scale: float) -> None:
    x = make_inputs(seed, 12, scale=scale)
    keys = x.pooled()
    want = np.array([_naive_key(x, block) for block in range(3)], np.uint16)
    assert not keys.flagged().any()
    assert np.array_equal(to_float32(keys.value), to_float32(want))


@pytest.mark.parametrize("eps", [0.0, 1e-4])
def test_eps_is_added_to_the_mean_square(eps: float) -> None:
    x = make_inputs(3, 4, scale=3e-3)
    keys = x.pooled(eps)
    assert (
        to_float32(keys.value[0]).tolist()
        == to_float32(np.array(_naive_key(x, 0, eps), np.uint16)).tolist()
    )


def test_a_partial_block_has_no_key() -> None:
    assert make_inputs(0, 3).pooled().value.shape == (0, 128)
    assert make_inputs(0, 11).pooled().value.shape == (2, 128)


def test_a_range_of_blocks_is_a_slice_of_all() -> None:
    x = make_inputs(0, 40)
    some = pool_oracle(x.fused_qk, x.k_norm_weight, x.cos, x.sin, EPS, 3, 5)
    assert np.array_equal(some.value, x.pooled().value[3:8])


def test_more_blocks_than_are_complete_are_refused() -> None:
    x = make_inputs(0, 11)
    with pytest.raises(ValueError, match="2 complete"):
        pool_oracle(x.fused_qk, x.k_norm_weight, x.cos, x.sin, EPS, 1, 2)


def test_the_pieces_a_long_context_is_worked_in_do_not_show(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = make_inputs(5, 2055)
    whole = x.pooled()
    monkeypatch.setattr(qsa_numerics, "_BLOCKS_AT_ONCE", 100)
    pieces = x.pooled()
    assert np.array_equal(whole.value, pieces.value)
    assert np.array_equal(whole.high, pieces.high)
    assert whole.flips == pieces.flips != Flips()


def test_a_nan_stays_in_its_block() -> None:
    x = make_inputs(0, 12)
    x.fused_qk[5, KEY_COLUMN + 70] = 0x7FC0
    key = to_float32(x.pooled().value)
    assert np.isnan(key[1]).all()
    assert not np.isnan(key[[0, 2]]).any()


def test_a_mean_that_is_exact_in_any_order_has_one_rounding_even_on_a_midpoint() -> None:
    raw = np.zeros((1, 4, 128), np.uint16)
    raw[0, :2] = round_to_bf16(np.array([1.0, 1.0078125], np.float32))[:, None]
    raw[0, 2:] = raw[0, :2]
    mean = mean_of_blocks(raw)
    midpoint = np.float32(1.00390625)
    assert float(midpoint) == (1.0 + 1.0078125) / 2
    assert (mean.value == 1.0).all()
    assert not mean.uncertain().any()


def test_a_mean_whose_order_matters_on_a_midpoint_may_round_either_way() -> None:
    raw = np.zeros((1, 4, 128), np.uint16)
    raw[0] = round_to_bf16(np.array([2.0, 1.0078125, 1.0078125, 2.0**-26], np.float32))[:, None]
    mean = mean_of_blocks(raw)
    assert set(mean.low[0]) == {np.float32(1.0)}
    assert set(mean.high[0]) == {np.float32(1.0078125)}
    assert set(mean.value[0]) == {np.float32(1.0078125)}  # just above the midpoint


def test_cancelling_keys_may_lose_what_float32_cannot_hold() -> None:
    raw = np.zeros((1, 4, 128), np.uint16)
    raw[0] = round_to_bf16(np.array([1.0, 2.0**-27, -1.0, 0.0], np.float32))[:, None]
    mean = mean_of_blocks(raw)
    assert (mean.value == np.float32(2.0**-29)).all()
    assert (mean.low <= 0).all()
    raw[0] = round_to_bf16(np.array([1.0, 2.0**-9, -1.0, 0.0], np.float32))[:, None]
    assert not mean_of_blocks(raw).uncertain().any()


def _distance_in_ulp(value: Fraction) -> Fraction:
    """Return how far `value` is from the nearest bfloat16 midpoint, in ulp of 2^-23 relative."""
    below = naive.to_bf16(value)
    quantum = naive._quantum(abs(value), 8)
    midpoint = below + quantum / 2 if value > below else below - quantum / 2
    return abs(value - midpoint) / (abs(value) * Fraction(2) ** -23)


def test_both_roundings_are_legal_exactly_where_a_norm_is_within_the_window() -> None:
    # 50,000 norms, each compared with its exact value.
    rng = np.random.default_rng(11)
    raw = round_to_bf16(rng.standard_normal((400, 128)).astype(np.float32))
    weight = round_to_bf16((0.1 * rng.standard_normal(128)).astype(np.float32))
    normed = rms_norm(Rounded.exactly(raw), weight, EPS)
    flagged = {(int(i), int(j)) for i, j in np.argwhere(normed.uncertain())}
    assert len(flagged) > 2
    eps = Fraction(float(np.float32(EPS)))
    within = set()
    for i in sorted({i for i, _ in flagged} | set(range(0, 400, 40))):
        exact = naive.before_norm_rounding(_vector(raw[i]), _vector(weight), eps)
        within |= {(i, j) for j, v in enumerate(exact) if _distance_in_ulp(v) <= WINDOW_ULP}
    assert flagged == within
    for i, j in flagged:
        low, high = (
            Fraction(float(normed.low[i, j])),
            Fraction(float(normed.high[i, j])),
        )
        assert high - low == naive._quantum(max(abs(low), abs(high)), 8)


def test_an_uncertain_input_makes_every_norm_of_its_vector_uncertain_by_no_more_than_it_moves() -> (
    None
):
    rng = np.random.default_rng(12)
    bits = round_to_bf16(rng.standard_normal((1, 128)).astype(np.float32))
    other = bits.copy()
    other[0, 7] += np.uint16(1)
    first, second = to_float32(bits), to_float32(other)
    x = Rounded(first, np.minimum(first, second), np.maximum(first, second))
    weight = round_to_bf16(
        np.full(128, -1.5, np.float32)
    )  # a negative factor turns the range round
    normed = rms_norm(x, weight, EPS)
    for choice in (bits, other):
        chosen = rms_norm(Rounded.exactly(choice), weight, EPS)
        assert (normed.low <= chosen.low).all()
        assert (chosen.high <= normed.high).all()
    assert normed.uncertain()[0, 7]
    assert normed.uncertain().sum() <= 4  # 2^-15 relative is 1 element in 100


def test_a_norm_range_holds_inputs_that_all_move_together() -> None:
    rng = np.random.default_rng(14)
    bits = round_to_bf16(rng.standard_normal((1, 128)).astype(np.float32))
    # A larger magnitude everywhere moves the mean square most, and against the element itself.
    smaller, larger = to_float32(bits), to_float32(bits + np.uint16(3))
    x = Rounded(smaller, np.minimum(smaller, larger), np.maximum(smaller, larger))
    weight = round_to_bf16(np.zeros(128, np.float32))
    normed = rms_norm(x, weight, EPS)
    for one in range(0, 128, 5):
        for rest, alone in ((smaller, larger), (larger, smaller)):
            choice = rest.copy()
            choice[0, one] = alone[0, one]
            chosen = rms_norm(Rounded(choice, choice, choice), weight, EPS)
            assert (normed.low <= chosen.low).all()
            assert (chosen.high <= normed.high).all()


def test_a_rotation_range_holds_every_choice_of_its_pair() -> None:
    rng = np.random.default_rng(13)
    cos, sin = rotary_tables(64)
    bits = round_to_bf16(rng.standard_normal((64, 128)).astype(np.float32))
    step = (rng.random((64, 128)) < 0.5).astype(np.uint16)
    first, second = to_float32(bits), to_float32(bits + step)
    x = Rounded(first, np.minimum(first, second), np.maximum(first, second))
    rotated = rotate(x, cos, sin).result
    reached_low = np.full((64, 128), np.inf, np.float32)
    reached_high = np.full((64, 128), -np.inf, np.float32)
    for first_half in (first, second):
        for second_half in (first, second):
            choice = first_half.copy()
            choice[:, 32:64] = second_half[:, 32:64]
            value = rotate(Rounded(choice, choice, choice), cos, sin).result.value
            reached_low = np.minimum(reached_low, value)
            reached_high = np.maximum(reached_high, value)
    assert np.array_equal(rotated.low[:, :64], reached_low[:, :64])
    assert np.array_equal(rotated.high[:, :64], reached_high[:, :64])


def test_a_key_is_illegal_by_one_bit_unless_both_roundings_are_allowed() -> None:
    keys = next(
        k for k in (make_inputs(seed, 400).pooled() for seed in range(20)) if k.flagged().any()
    )
    assert not illegal_keys(keys.value, keys).any()
    assert not illegal_keys(keys.low, keys).any()
    assert not illegal_keys(keys.high, keys).any()
    above = illegal_keys(keys.high + np.uint16(1), keys)
    assert above.all()


def test_a_zero_may_carry_either_sign_and_a_nan_any_payload() -> None:
    x = make_inputs(0, 4)
    x.fused_qk[:, KEY_COLUMN:] = 0x8000
    keys = x.pooled()
    zeros = np.zeros((1, 128), np.uint16)
    assert not illegal_keys(zeros, keys).any()
    assert not illegal_keys(zeros | np.uint16(0x8000), keys).any()
    x.fused_qk[0, KEY_COLUMN] = 0x7FC0
    assert not illegal_keys(np.full((1, 128), 0xFFC1, np.uint16), x.pooled()).any()
    assert illegal_keys(zeros, x.pooled()).all()
    assert illegal_keys(np.full((1, 128), 0x7FC0, np.uint16), keys).all()
