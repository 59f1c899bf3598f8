"""Seeded inputs of pool and score, as the stages would give them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qsa_bench.bf16 import U16, round_to_bf16, to_float32
from qsa_bench.oracles.qsa_head_vector import HEAD_DIM, ROTARY_DIM
from qsa_bench.oracles.qsa_numerics import (
    FUSED_STRIDE,
    I32,
    PooledKeys,
    ScoreOracle,
    pool_oracle,
    score_oracle,
)

EPS = 1e-6


@dataclass(frozen=True)
class Inputs:
    """One sequence: fused rows [tokens, 640], norm weights [128], tables [tokens, 64], rows to score."""

    fused_qk: U16
    q_norm_weight: U16
    k_norm_weight: U16
    cos: U16
    sin: U16
    rows: I32
    visible_len: I32

    def pooled(self, eps: float = EPS) -> PooledKeys:
        """Return the oracle's block keys."""
        return pool_oracle(self.fused_qk, self.k_norm_weight, self.cos, self.sin, eps)

    def scored(self, keys: PooledKeys | U16, eps: float = EPS) -> ScoreOracle:
        """Return the oracle's scores against `keys`."""
        return score_oracle(
            self.fused_qk,
            self.q_norm_weight,
            self.cos,
            self.sin,
            keys,
            self.rows,
            self.visible_len,
            eps,
        )


def rotary_tables(tokens: int, first: int = 0) -> tuple[U16, U16]:
    """Return cos and sin [tokens, 64] of positions `first` on, theta 1e7."""
    exponent = np.arange(0, ROTARY_DIM, 2, dtype=np.float32) / np.float32(ROTARY_DIM)
    frequency = (np.float32(1.0) / np.float32(1e7) ** exponent).astype(np.float32)
    angle = np.outer(np.arange(first, first + tokens, dtype=np.float32), frequency)
    both = np.concatenate((angle, angle), axis=1).astype(np.float32)
    return round_to_bf16(np.cos(both)), round_to_bf16(np.sin(both))


def make_inputs(seed: int, tokens: int, rows: int | None = None, scale: float = 1.0) -> Inputs:
    """Return normal inputs; the last `rows` positions are scored, all of them by default."""
    rng = np.random.default_rng(seed)
    fused = round_to_bf16((scale * rng.standard_normal((tokens, FUSED_STRIDE))).astype(np.float32))
    weights = [
        round_to_bf16((0.1 * rng.standard_normal(HEAD_DIM)).astype(np.float32)) for _ in range(2)
    ]
    cos, sin = rotary_tables(tokens)
    first = 0 if rows is None else tokens - rows
    positions = np.arange(first, tokens, dtype=np.int32)
    return Inputs(fused, weights[0], weights[1], cos, sin, positions, positions + np.int32(1))


def scaled(bits: U16, factor: float) -> U16:
    """Return bfloat16 `bits` times `factor`, rounded."""
    return round_to_bf16(to_float32(bits) * np.float32(factor))
