"""What the pool stage sees and what it lets pass: each family does what it is there for."""

from __future__ import annotations

import numpy as np
import pytest

from qsa_bench.bf16 import round_to_bf16, to_float32
from qsa_bench.model import Status
from qsa_bench.oracles.qsa_numerics import PooledKeys, pool_oracle
from qsa_bench.stages import _qsa_inputs as qsa
from qsa_bench.stages import load_stage, qsa_pool
from qsa_bench.stages._qsa_pool_launch import judge_keys
from tests.stages.judged import by_check, case_of, failed, gated, golden, golden_cases, judged

STAGE = load_stage("qsa_pool")
SMALL_KEYS = "scale/0.003"


def keys_of(inputs: qsa.Inputs, eps: float = qsa.EPS) -> PooledKeys:
    return pool_oracle(inputs.fused_qk, inputs.k_norm_weight, inputs.cos, inputs.sin, eps)


def inputs_of(name: str) -> qsa.Inputs:
    """Return the inputs of a case, back from its program."""
    built = case_of(STAGE, name).build()
    fused, weight, cos, sin = (
        built.array(name) for name in ("fused_qk", "k_norm_weight", "cos", "sin")
    )
    return qsa.Inputs(fused, weight, weight, cos, sin)


def flipped_golden() -> tuple[PooledKeys, int]:
    """Return the oracle's keys of the golden's long case and an element that may flip."""
    keys = keys_of(qsa.of_golden(golden(), golden_cases()[6]))
    return keys, int(np.flatnonzero(keys.flagged().reshape(-1))[0])


def test_a_legal_rounding_passes_and_is_counted() -> None:
    keys, place = flipped_golden()
    low, high, value = (a.reshape(-1)[place] for a in (keys.low, keys.high, keys.value))
    got = keys.value.copy()
    got.reshape(-1)[place] = high if value == low else low
    finding = by_check(judge_keys(keys, got, golden=True))["block-keys"]
    assert finding.status is Status.PASS
    assert finding.evidence.margin == 0.0
    assert finding.evidence.numbers["flipped"] == 1
    assert finding.evidence.numbers["may_flip"] == keys.flagged().sum() > 1


@pytest.mark.parametrize("scale", [1e-4, 1.0, 30.0])
def test_one_wrong_rounding_is_seen_by_16384_times_its_bound(scale: float) -> None:
    keys = keys_of(qsa.random_inputs(64, "one-rounding", scale=scale))
    settled = np.flatnonzero(~keys.flagged().reshape(-1))
    for place in settled[:: settled.size // 40]:
        for step in (1, -1):
            got = keys.value.copy()
            got.reshape(-1)[place] = int(keys.value.reshape(-1)[place]) + step
            finding = by_check(judge_keys(keys, got))["block-keys"]
            assert finding.status is Status.WRONG
            assert finding.evidence.count == 1
            assert finding.evidence.margin is not None
            assert finding.evidence.margin >= 16384 * (1 - 2**-6)
            assert finding.evidence.where == f"block_keys[{place // 128}, {place % 128}]"


def test_an_element_is_measured_from_the_nearest_legal_value() -> None:
    keys, place = flipped_golden()
    low, high = (to_float32(a).reshape(-1)[place] for a in (keys.low, keys.high))
    got = keys.value.copy()
    got.reshape(-1)[place] = round_to_bf16(np.array([high + (high - low)]))[0]
    below = keys.value.copy()
    below.reshape(-1)[place] = round_to_bf16(np.array([low - (high - low)]))[0]
    for wrong in (got, below):
        evidence = by_check(judge_keys(keys, wrong))["block-keys"].evidence
        assert evidence.count == 1
        assert evidence.error == pytest.approx(float(high - low), rel=1e-6)


def test_a_zero_may_have_either_sign_and_a_nan_any_payload() -> None:
    value = np.resize(np.array([0x0000, 0x7FFF, 0x3F80], np.uint16), (2, 128))
    got = value.copy()
    got[value == 0] = 0x8000
    got[value == 0x7FFF] = 0xFFC1
    assert failed(judge_keys(PooledKeys.given(value), got)) == set()
    got[value == 0x7FFF] = 0x7F80  # an infinity is no NaN
    assert failed(judge_keys(PooledKeys.given(value), got)) == {"block-keys"}


def test_places_are_numbered_as_in_the_buffer_when_a_range_is_pooled() -> None:
    case = case_of(STAGE, "range/middle")
    inputs = inputs_of("range/middle")
    got = np.full((inputs.blocks, 128), 0xA5A5, np.uint16)
    got[3:8] = keys_of(inputs).value[3:8]
    assert failed(judged(case, block_keys=got)) == set()
    got[5, 7] ^= 1
    assert by_check(judged(case, block_keys=got))["block-keys"].evidence.where == "block_keys[5, 7]"


@pytest.mark.parametrize("block", [0, 2, 8, 15])
def test_one_byte_outside_the_range_is_seen(block: int) -> None:
    case = case_of(STAGE, "range/middle")
    inputs = inputs_of("range/middle")
    got = np.full((inputs.blocks, 128), 0xA5A5, np.uint16)
    got[3:8] = keys_of(inputs).value[3:8]
    got[block, 127] ^= 1
    assert failed(judged(case, block_keys=got)) == {"untouched"}


# A sum is four times the mean, which a RMS norm takes out again but for eps: a sixteenth of it.
@pytest.mark.parametrize("eps", [0.0, qsa.EPS / 16])
def test_small_keys_show_eps_and_the_sum_which_one_loose_bound_passes(eps: float) -> None:
    small = inputs_of(SMALL_KEYS)
    wrong = keys_of(small, eps).value
    right = to_float32(keys_of(small).value)
    assert np.abs(to_float32(wrong) - right).max() > 0.05 * np.abs(right).max()
    assert failed(judged(case_of(STAGE, SMALL_KEYS), block_keys=wrong)) == {"block-keys"}
    for case in golden_cases():
        wrong = keys_of(qsa.of_golden(golden(), case), eps).value
        found = by_check(judged(case_of(STAGE, f"golden/case{case.index}"), block_keys=wrong))
        assert found["single-bound"].status is Status.PASS


def test_the_single_bound_sees_a_key_that_is_rotated_at_its_last_token() -> None:
    case = golden_cases()[2]
    inputs = qsa.of_golden(golden(), case)
    late = [np.roll(table, -3, axis=0) for table in (inputs.cos, inputs.sin)]
    wrong = pool_oracle(inputs.fused_qk, inputs.k_norm_weight, late[0], late[1], qsa.EPS).value
    found = failed(judged(case_of(STAGE, "golden/case2"), block_keys=wrong))
    assert found == {"block-keys", "single-bound"}


@pytest.mark.parametrize("token", [0, 13, 39])
def test_a_poisoned_token_makes_its_block_nan_and_no_other(token: int) -> None:
    nan = np.isnan(to_float32(keys_of(inputs_of(f"nan/token{token}")).value))
    assert nan[token // 4].all()
    assert nan.sum() == 128


def test_the_ranges_together_pool_every_block_once() -> None:
    for label in ("one-by-one", "chunks"):
        seen = np.zeros(16, dtype=int)
        for call in case_of(STAGE, f"range/{label}").build().calls:
            first, count = (
                int(str(call.values["first_block"])),
                int(str(call.values["block_count"])),
            )
            seen[first : first + count] += 1
        assert (seen == 1).all()


def test_every_number_of_tail_tokens_is_there_and_fewer_than_four_owe_nothing() -> None:
    for tokens in range(10):
        case = case_of(STAGE, f"tokens/{tokens}")
        assert case.build().buffer("block_keys").shape == (tokens // 4, 128)
        assert case.writes == (tokens >= 4)


def test_the_kernel_passes_fifty_fresh_seeds() -> None:
    cases = [
        qsa_pool._case(
            "fresh", str(seed), (), lambda seed=seed: qsa.random_inputs(260, "fresh", seed)
        )
        for seed in range(50)
    ]
    verdicts = gated(STAGE, cases)
    assert [verdict for verdict in verdicts if not verdict.passed] == []
    assert {verdict.case for verdict in verdicts} == {case.id for case in cases}
