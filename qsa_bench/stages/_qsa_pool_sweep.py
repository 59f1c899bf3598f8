"""What of pool is timed: every complete block of a context. Times do not follow the values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

import numpy as np

from qsa_bench.bf16 import round_to_bf16
from qsa_bench.families import seeded
from qsa_bench.model import Finding
from qsa_bench.oracles.qsa_numerics import FUSED_STRIDE, KEY_COLUMN, pool_oracle
from qsa_bench.program import Program
from qsa_bench.stages import _qsa_inputs as qsa
from qsa_bench.stages import _qsa_pool_launch as pool
from qsa_bench.stages.base import Outputs, SweepAxis, SweepPoint, SweepSpec

_BF16 = 2
_CONTEXTS = ("2048", "8192", "65536")
INPUTS = {"normal": "N(0, 1) raw keys"}


@lru_cache(maxsize=1)
def _inputs(context: int) -> qsa.Inputs:
    """Return rows whose key columns alone are filled: pool reads no others."""
    random = seeded("qsa-pool", "sweep", context)
    fused = np.zeros((context, FUSED_STRIDE), dtype=np.uint16)
    fused[:, KEY_COLUMN:] = round_to_bf16(random.standard_normal((context, qsa.HEAD_DIM)))
    weight = round_to_bf16(0.2 * random.standard_normal(qsa.HEAD_DIM))
    return qsa.Inputs(fused, weight, weight, *qsa.rotary_tables(context))


def point(entry: str, axes: Mapping[str, str]) -> SweepPoint:
    """Return the launch that pools a whole context."""
    inputs = _inputs(int(axes["context"]))

    def judge(_program: Program, outputs: Outputs) -> Iterable[Finding]:
        want = pool_oracle(inputs.fused_qk, inputs.k_norm_weight, inputs.cos, inputs.sin, qsa.EPS)
        return pool.judge_keys(want, outputs["block_keys"])

    read = inputs.tokens * qsa.HEAD_DIM + inputs.blocks * 2 * qsa.ROTARY_DIM + qsa.HEAD_DIM
    made = pool.program(inputs, [(0, inputs.blocks)])
    written = inputs.blocks * qsa.HEAD_DIM * _BF16
    return SweepPoint(entry, dict(axes), made, judge, read * _BF16, written)


SWEEP = SweepSpec(
    entries=("qsa_pool",),
    axes={
        "context": SweepAxis("size", "tokens pooled", _CONTEXTS),
        "input": SweepAxis("word", "kind of keys", ("normal",), INPUTS),
    },
    standard=({"context": _CONTEXTS, "cache": ("warm", "cold")},),
    point=point,
)
