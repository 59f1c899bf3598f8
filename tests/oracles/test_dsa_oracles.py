"""The DSA oracles against other ways of computing the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from qsa_bench.bf16 import round_to_bf16, round_trip, to_float32
from qsa_bench.families import seeded
from qsa_bench.oracles.dsa_pools import compress, pool_lists
from qsa_bench.oracles.dsa_scores import scores
from qsa_bench.oracles.dsa_select import tail_of, token_ids, top_pools
from qsa_bench.oracles.qsa_numerics import PooledKeys, illegal_keys
from qsa_bench.oracles.select import kept_blocks_by_counting
from qsa_bench.stages._dsa_inputs import random_inputs

Array = npt.NDArray[Any]


def in_float32(inputs: Any, starts: Array, order: str) -> Array:
    """Pool as a kernel does, in f32, in one of several orders."""
    tokens = starts[:, None] + np.arange(inputs.kpool)
    logit = to_float32(inputs.gate[0][tokens]) + inputs.ape
    if order == "backwards":
        logit, tokens = logit[:, ::-1], tokens[:, ::-1]
    depth = logit - logit.max(axis=1, keepdims=True)
    if order == "powers-of-two":
        power = np.exp2((depth * np.float32(1.44269504)).astype(np.float32))
    else:
        power = np.exp(depth)
    total = np.zeros_like(power[:, 0])
    for token in range(inputs.kpool):
        total = total + power[:, token]
    probability = round_trip(power / total[:, None])
    product = round_trip(probability * to_float32(inputs.keys[0][tokens]))
    key = np.zeros_like(product[:, 0])
    for token in range(inputs.kpool):
        key = key + product[:, token]
    return round_to_bf16(key)


@pytest.mark.parametrize("order", ["forwards", "backwards", "powers-of-two"])
@pytest.mark.parametrize("kpool", [4, 16])
def test_no_float32_order_leaves_the_legal_range(order: str, kpool: int) -> None:
    flipped = 0
    for seed in range(6):
        inputs = random_inputs(
            1600, "oracle", seed, kpool=kpool, gate_scale=(0.5, 2.0, 9.0)[seed % 3]
        )
        starts = inputs.lists()[0].starts
        want = compress(inputs.keys[0], inputs.gate[0], inputs.ape, starts)
        got = in_float32(inputs, starts, order)
        assert not illegal_keys(got, want).any()
        flipped += int((got != want.value).sum())
        # The range is narrow: few elements have one at all.
        assert want.flagged().mean() < 0.02
    assert flipped > 0


def test_a_wrong_bit_is_outside_the_range_almost_everywhere() -> None:
    inputs = random_inputs(400, "oracle", "bit")
    want = compress(inputs.keys[0], inputs.gate[0], inputs.ape, inputs.lists()[0].starts)
    assert illegal_keys(want.value ^ np.uint16(1), want).mean() > 0.998


def test_equal_gates_give_the_mean() -> None:
    keys = round_to_bf16(np.arange(8 * 128, dtype=np.float64).reshape(8, 128) % 64)
    gate = np.zeros((8, 128), dtype=np.uint16)
    want = compress(keys, gate, np.zeros((4, 128), np.float32), np.array([0, 4]))
    mean = to_float32(keys).reshape(2, 4, 128).mean(axis=1)
    assert np.array_equal(want.value, round_to_bf16(mean))


@pytest.mark.parametrize(
    ("valid", "first", "starts", "slots"),
    [
        ([1] * 9, 0, [0, 4], [[0, 0], [4, 1], [8, 2]]),
        ([0, 0] + [1] * 9, 2, [2, 6], [[0, 0], [4, 1], [8, 2]]),
        ([1, 1, 0, 1, 1, 1, 1, 1], 0, [4], [[0, 0], [3, 0], [7, 1]]),
        ([0, 0, 0], 3, [], [[0, 0]]),
        ([1, 1, 1], 0, [], [[0, 0]]),
        ([], 0, [], [[0, 0]]),
    ],
)
def test_lists_begin_at_the_first_key_and_leave_out_what_is_no_pool(
    valid: list[int], first: int, starts: list[int], slots: list[list[int]]
) -> None:
    found = pool_lists(np.array(valid, dtype=np.uint8), 4)
    assert found.first == first
    assert found.starts.tolist() == starts
    assert found.slots.tolist() == slots
    for position in range(len(valid)):
        ends = [start + 3 for start in starts]
        assert found.pools_seen(position, 4) == sum(end <= position for end in ends)


def test_scores_are_the_sum_over_heads_written_out() -> None:
    inputs = random_inputs(32, "oracle", "scores", rows=(30, 31))
    keys = round_to_bf16(seeded("oracle-keys").standard_normal((5, 128)))
    found = scores(inputs.q[0], inputs.weights[0], PooledKeys.given(keys))
    q, k = to_float32(inputs.q[0]).astype(np.float64), to_float32(keys).astype(np.float64)
    for row in range(2):
        for pool in range(5):
            want = sum(
                inputs.weights[0, row, head] * max(q[row, head] @ k[pool] * 128**-0.5, 0)
                for head in range(32)
            )
            assert found.value[row, pool] == pytest.approx(want, abs=1e-12)
    assert not found.widened.any()
    assert (found.bound < 2e-4).all()


def test_a_key_that_may_flip_widens_its_scores_by_what_it_spans() -> None:
    inputs = random_inputs(32, "oracle", "spread", rows=(31,))
    keys = round_to_bf16(seeded("oracle-keys").standard_normal((3, 128)))
    high = keys.copy()
    high[1, 7] += 1
    low = np.where(to_float32(keys) < to_float32(high), keys, high)
    top = np.where(to_float32(keys) < to_float32(high), high, keys)
    uncertain = PooledKeys(keys, low, top, PooledKeys.given(keys).flips)
    found = scores(inputs.q[0], inputs.weights[0], uncertain)
    other = scores(inputs.q[0], inputs.weights[0], PooledKeys.given(high))
    assert found.widened.tolist() == [[False, True, False]]
    assert abs(found.value[0, 1] - other.value[0, 1]) <= found.bound[0, 1]


def test_kept_pools_are_those_that_counting_keeps() -> None:
    random = seeded("oracle-kept")
    for pools in (1, 5, 40):
        row = random.choice([-2.0, -0.0, 0.0, 1.0, 3.5], pools).astype(np.float32)
        kept, counts = top_pools(row[None], np.array([pools]), 7)
        want = kept_blocks_by_counting(row, min(7, pools))
        assert kept[0, : counts[0]].tolist() == want.tolist()
        assert (kept[0, counts[0] :] == -1).all()


def test_the_tail_is_the_incomplete_pool_and_with_keys_missing_the_references() -> None:
    whole = np.ones(23, dtype=np.uint8)
    assert tail_of(whole, 21, 4).tolist() == [20, 21]
    assert tail_of(whole, 19, 4).tolist() == []
    assert tail_of(whole, 1, 4).tolist() == [0, 1]
    padded = whole.copy()
    padded[:5] = 0
    assert tail_of(padded, 10, 4).tolist() == [9, 10]
    assert tail_of(padded, 4, 4).tolist() == []
    # Ten keys of eleven slots: the last two of the first ten, one of them missing.
    missing = whole.copy()
    missing[9] = 0
    assert tail_of(missing, 10, 4).tolist() == [8]


def test_ids_are_pools_then_the_tail_then_nothing_and_no_token_twice() -> None:
    valid = np.ones(23, dtype=np.uint8)
    lists = pool_lists(valid, 4)
    ids = token_ids(np.array([3, 0]), lists, valid, 21, 16, 4, True)
    assert ids.tolist() == [0, 1, 2, 3, 12, 13, 14, 15, 20, 21, *[-1] * 9]
    assert token_ids(np.array([0]), lists, valid, 21, 4, 4, False).tolist() == [0, 1, 2, 3]
    valid[1] = 0
    lists = pool_lists(valid, 4)
    # 11 keys: the tail's rule points at 8, 9 and 10, of the pool that is kept.
    ids = token_ids(np.array([1]), lists, valid, 11, 8, 4, True)
    assert ids.tolist() == [8, 9, 10, 11, *[-1] * 7]
    assert (token_ids(np.array([1]), lists, valid, 1, 8, 4, True) == -1).all()
