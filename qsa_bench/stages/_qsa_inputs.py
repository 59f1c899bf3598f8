"""Seeded inputs of the QSA indexer before selection: fused rows, norm weights, rotary tables.

bf16 is uint16 throughout. A golden's case and a generated one have the same form.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from qsa_bench.bf16 import round_to_bf16
from qsa_bench.families import seeded
from qsa_bench.goldens import Golden
from qsa_bench.goldens import qsa as qsa_golden
from qsa_bench.model import Role
from qsa_bench.oracles.qsa_numerics import FUSED_STRIDE, KEY_COLUMN
from qsa_bench.program import Buffer

Array = npt.NDArray[Any]

RATIO = 4
HEAD_DIM = 128
ROTARY_DIM = 64
ROPE_THETA = 1e7
EPS = 1e-6
# kernels/common/status.h
NULL_POINTER, BAD_EXTENT, BAD_STRIDE, BAD_ROTARY, BAD_EPS, UNSUPPORTED = 1, 2, 4, 5, 6, 8


@dataclass(frozen=True)
class Inputs:
    """What one sequence gives the indexer.

    `fused_qk` [tokens, 640]; `q_norm_weight`, `k_norm_weight` [128]; `cos`, `sin` [tokens, 64].
    """

    fused_qk: Array
    q_norm_weight: Array
    k_norm_weight: Array
    cos: Array
    sin: Array

    @property
    def tokens(self) -> int:
        """Tokens of the sequence."""
        return int(self.fused_qk.shape[0])

    @property
    def blocks(self) -> int:
        """Complete blocks of the sequence."""
        return self.tokens // RATIO

    def with_fused(self, fused_qk: Array) -> Inputs:
        """Return the same with other fused rows."""
        return replace(self, fused_qk=fused_qk)

    def buffers(self, *names: str) -> list[Buffer]:
        """Return the named inputs as bf16 buffers."""
        return [
            Buffer(name, "bf16", getattr(self, name).shape, Role.INPUT, getattr(self, name))
            for name in names
        ]


def rotary_tables(tokens: int) -> tuple[Array, Array]:
    """Return cos and sin [tokens, 64] by absolute position, second half equal to the first."""
    frequency = ROPE_THETA ** (-np.arange(0, ROTARY_DIM, 2, dtype=np.float64) / ROTARY_DIM)
    angle = np.arange(tokens, dtype=np.float64)[:, None] * frequency
    both = np.concatenate([angle, angle], axis=1)
    return round_to_bf16(np.cos(both)), round_to_bf16(np.sin(both))


def random_inputs(tokens: int, *words: object, scale: float = 1.0) -> Inputs:
    """Return normal fused rows of standard deviation `scale` and norm weights around zero."""
    random = seeded("qsa-inputs", tokens, *words)
    cos, sin = rotary_tables(tokens)
    return Inputs(
        round_to_bf16(scale * random.standard_normal((tokens, FUSED_STRIDE))),
        round_to_bf16(0.2 * random.standard_normal(HEAD_DIM)),
        round_to_bf16(0.2 * random.standard_normal(HEAD_DIM)),
        cos,
        sin,
    )


def of_golden(golden: Golden, case: qsa_golden.QsaCase) -> Inputs:
    """Return the inputs of a golden's case."""
    return Inputs(
        case.fused_qk,
        golden.tensors["q_norm_weight"],
        golden.tensors["k_norm_weight"],
        case.cos,
        case.sin,
    )


def one_hot_heads(tokens: int) -> Inputs:
    """Return rows in which every head vector has one non-zero dim: few terms, exact sums."""
    random = seeded("one-hot", tokens)
    base = random_inputs(tokens, "one-hot")
    fused = np.zeros((tokens, FUSED_STRIDE), dtype=np.float64)
    for head in range(FUSED_STRIDE // HEAD_DIM):
        places = random.integers(0, HEAD_DIM, tokens)
        fused[np.arange(tokens), head * HEAD_DIM + places] = random.choice([-2.0, 1.0, 3.0], tokens)
    return base.with_fused(round_to_bf16(fused))


def opposed_heads(tokens: int) -> Inputs:
    """Return rows whose queries point away from every key: all dots negative, all scores zero.

    Dims past the rotary ones alone carry weight, so that no rotation can turn a sign.
    """
    random = seeded("opposed", tokens)
    base = random_inputs(tokens, "opposed")
    fused = np.zeros((tokens, FUSED_STRIDE), dtype=np.float64)
    for head in range(4):
        columns = slice(head * HEAD_DIM + ROTARY_DIM, (head + 1) * HEAD_DIM)
        fused[:, columns] = -random.uniform(0.5, 2.0, (tokens, HEAD_DIM - ROTARY_DIM))
    fused[:, KEY_COLUMN + ROTARY_DIM :] = random.uniform(0.5, 2.0, (tokens, HEAD_DIM - ROTARY_DIM))
    return base.with_fused(round_to_bf16(fused))


def poisoned_key(tokens: int, token: int) -> Inputs:
    """Return random rows with a NaN in the raw key of one token."""
    base = random_inputs(tokens, "poisoned")
    fused = base.fused_qk.copy()
    fused[token, KEY_COLUMN + 70] = 0x7FC0
    return base.with_fused(fused)


def largest_key(tokens: int) -> Inputs:
    """Return random rows and a block whose raw keys add up to more than bf16 holds, but not f32."""
    base = random_inputs(tokens, "largest")
    fused = base.fused_qk.copy()
    column = KEY_COLUMN + 70
    fused[4 : 4 + RATIO, column] = round_to_bf16(np.array([1.0, 1.0, 1.0, 1 - 2.0**-8]) * 2.0**126)
    return base.with_fused(fused)
