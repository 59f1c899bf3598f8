"""What of the DSA pipeline is timed: a replayed decode step with its pools cached.

The four launches that a captured graph holds, at a ceiling that the live length has reached; the
step's token completes a pool.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from qsa_bench.bf16 import round_to_bf16
from qsa_bench.families import seeded
from qsa_bench.model import Finding, Role
from qsa_bench.oracles.dsa_pools import compress
from qsa_bench.oracles.qsa_numerics import PooledKeys
from qsa_bench.program import Buffer, Program
from qsa_bench.stages import _dsa_inputs as dsa
from qsa_bench.stages import _dsa_score_judge
from qsa_bench.stages._dsa_pipeline import Pipeline, Step, StepWanted, buffers, call, values_of
from qsa_bench.stages._dsa_pipeline_judge import judge_last_step
from qsa_bench.stages.base import Outputs, SweepAxis, SweepPoint, SweepSpec

Array = npt.NDArray[Any]

_ENTRY = "dsa_decode_step"
_LAUNCHES = ("compress", "score", "select", "expand")
_KPOOL, _TOPK, _BF16 = 4, 2048, 2
_CONTEXTS = ("8192", "65536", "262144")
INPUTS = {"normal": "N(0, 1) queries, keys and weights"}


@lru_cache(maxsize=1)
def _pipeline(context: int) -> tuple[Pipeline, Array]:
    """Return the step at the end of a context, and the pool keys [pools, 128] before it."""
    random = seeded("dsa", "sweep", context)
    keys, gate = (np.zeros((1, context, dsa.HEAD_DIM), dtype=np.uint16) for _ in range(2))
    for tensor in (keys, gate):
        tensor[0, -_KPOOL:] = round_to_bf16(random.standard_normal((_KPOOL, dsa.HEAD_DIM)))
    shape = (1, 1, dsa.HEADS, dsa.HEAD_DIM)
    inputs = dsa.Inputs(
        keys=keys,
        gate=gate,
        ape=(0.5 * random.standard_normal((_KPOOL, dsa.HEAD_DIM))).astype(np.float32),
        valid=None,
        q=round_to_bf16(random.standard_normal(shape)),
        weights=(dsa.HEADS**-0.5 * random.standard_normal(shape[:3])).astype(np.float32),
        q_pos=np.array([context - 1], dtype=np.int32),
        topk=_TOPK,
    )
    pools = round_to_bf16(random.standard_normal((context // _KPOOL, dsa.HEAD_DIM)))
    return Pipeline(inputs, (Step(context, 1, 1),), replayed=True), pools


def _program(context: int) -> Program:
    pipeline, pools = _pipeline(context)
    layout, inputs = pipeline.layout, pipeline.inputs
    words = dsa.geometry_words(context, _KPOOL, _TOPK)
    kept = (
        (layout.offset("geometry"), words.view(np.uint8)),
        (layout.offset("pool_keys"), np.ascontiguousarray(pools).view(np.uint8).reshape(-1)),
    )
    newest = (inputs.keys.size - _KPOOL * dsa.HEAD_DIM, slice(-_KPOOL, None))
    made = []
    for buffer in buffers(pipeline):
        if buffer.name == "scratch":
            made.append(Buffer("scratch", "u8", buffer.shape, Role.INOUT, segments=kept))
        elif buffer.name in ("keys", "gate"):
            last = getattr(inputs, buffer.name)[0, newest[1]].reshape(-1)
            made.append(replace(buffer, data=None, segments=((newest[0], last),)))
        else:
            made.append(buffer)
    values = values_of(pipeline, fresh=1)
    return Program(tuple(made), tuple(call(name, values) for name in _LAUNCHES))


@lru_cache(maxsize=1)
def _wanted(context: int) -> StepWanted:
    pipeline, pools = _pipeline(context)
    inputs = pipeline.inputs
    last = np.array([context - _KPOOL])
    newest = compress(inputs.keys[0], inputs.gate[0], inputs.ape, last)
    kept = PooledKeys.given(pools[:-1])
    value, low, high = (
        np.concatenate([getattr(kept, part), getattr(newest, part)])
        for part in ("value", "low", "high")
    )
    keys = PooledKeys(value, low, high, newest.flips)
    positions = np.array([context - 1])
    columns = pipeline.layout.score_cols
    scores = _dsa_score_judge.wanted(inputs, [keys], positions, context, columns)
    return StepWanted(inputs, context, positions, scores, [keys])


def point(entry: str, axes: Mapping[str, str]) -> SweepPoint:
    """Return the decode step at the end of a context."""
    context = int(axes["context"])
    pipeline, pools = _pipeline(context)

    def judge(_program: Program, outputs: Outputs) -> Iterable[Finding]:
        return judge_last_step(pipeline, _wanted(context), outputs, golden=False)

    # What the step can't do without: the pool keys, its token's pool, the query, and the ids.
    read = (pools.size + 2 * _KPOOL * dsa.HEAD_DIM + dsa.HEADS * dsa.HEAD_DIM) * _BF16
    flops = 2 * pools.size * dsa.HEADS
    written = pipeline.layout.output_width * 4
    return SweepPoint(entry, dict(axes), _program(context), judge, read, written, flops=flops)


SWEEP = SweepSpec(
    entries=(_ENTRY,),
    axes={
        "context": SweepAxis("size", "tokens of the sequence", _CONTEXTS),
        "input": SweepAxis("word", "kind of vectors", ("normal",), INPUTS),
    },
    standard=({"context": _CONTEXTS, "cache": ("warm", "cold")},),
    point=point,
    pipeline=True,
)
