"""What of ingest is timed: the last tokens of a context, as a chunk or as a captured step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from qsa_bench.bf16 import round_to_bf16
from qsa_bench.compare import bitwise
from qsa_bench.families import seeded
from qsa_bench.model import Finding
from qsa_bench.oracles.qsa_numerics import FUSED_STRIDE, KEY_COLUMN, pool_oracle
from qsa_bench.program import Program
from qsa_bench.stages import _qsa_ingest_launch as ingest
from qsa_bench.stages import _qsa_inputs as qsa
from qsa_bench.stages._qsa_pool_launch import judge_keys
from qsa_bench.stages.base import Outputs, SweepAxis, SweepPoint, SweepSpec

Array = npt.NDArray[Any]

_BF16 = 2
_CHUNK, _STEP = "qsa_ingest", "qsa_ingest_step"
INPUTS = {"normal": "N(0, 1) raw keys"}


@lru_cache(maxsize=1)
def _state(context: int, rows: int) -> tuple[qsa.Inputs, Array]:
    """Return the inputs of the last `rows` tokens, and the raw keys of all before them."""
    random = seeded("qsa-ingest", "sweep", context, rows)
    fused = round_to_bf16(random.standard_normal((rows, FUSED_STRIDE)))
    weight = round_to_bf16(0.2 * random.standard_normal(qsa.HEAD_DIM))
    raw = round_to_bf16(random.standard_normal((context, qsa.HEAD_DIM)))
    return qsa.Inputs(fused, weight, weight, *qsa.rotary_tables(context)), raw


def _program(entry: str, context: int, rows: int) -> Program:
    inputs, raw = _state(context, rows)
    chunk = ingest.Chunk(context - rows, rows, 0, step=entry == _STEP)
    made = ingest.program(ingest.Stream(inputs, (chunk,), context))
    buffers = tuple(
        replace(buffer, data=raw, uninitialised=()) if buffer.name == "raw_keys" else buffer
        for buffer in made.buffers
    )
    return Program(buffers, made.calls)


def _judge(context: int, rows: int, outputs: Outputs) -> Iterable[Finding]:
    """Hold the raw keys, old and new, and the keys of the blocks that the new ones complete."""
    inputs, raw = _state(context, rows)
    want = raw.copy()
    want[context - rows :] = inputs.fused_qk[:, KEY_COLUMN:]
    yield bitwise("raw-keys", "raw_keys", want, outputs["raw_keys"])
    blocks = np.arange((context - rows) // qsa.RATIO, context // qsa.RATIO)
    first = int(blocks[0]) * qsa.RATIO
    image = np.zeros((context - first, FUSED_STRIDE), dtype=np.uint16)
    image[:, KEY_COLUMN:] = want[first:]
    tables = (inputs.cos[first:], inputs.sin[first:])
    keys = pool_oracle(image, inputs.k_norm_weight, *tables, qsa.EPS)
    yield from judge_keys(keys, outputs["block_keys"][blocks], blocks)


def point(entry: str, axes: Mapping[str, str]) -> SweepPoint:
    """Return the launch that takes the last tokens of a context; a step takes one."""
    context = int(axes["context"])
    rows = 1 if entry == _STEP else min(int(axes["rows"]), context)

    def judge(_program: Program, outputs: Outputs) -> Iterable[Finding]:
        return _judge(context, rows, outputs)

    pooled = context // qsa.RATIO - (context - rows) // qsa.RATIO
    read = max(rows, pooled * qsa.RATIO) * qsa.HEAD_DIM + pooled * 2 * qsa.ROTARY_DIM
    written = (rows + pooled) * qsa.HEAD_DIM
    made = _program(entry, context, rows)
    return SweepPoint(entry, dict(axes), made, judge, read * _BF16, written * _BF16)


_CONTEXTS = ("8192", "65536")

SWEEP = SweepSpec(
    entries=(_CHUNK, _STEP),
    axes={
        "context": SweepAxis("size", "tokens of the sequence afterwards", _CONTEXTS),
        "rows": SweepAxis("count", "new tokens of a chunk", ("2048",)),
        "input": SweepAxis("word", "kind of keys", ("normal",), INPUTS),
    },
    standard=(
        {"entry": (_CHUNK,), "context": _CONTEXTS, "rows": ("1", "2048")},
        {"entry": (_STEP,), "context": ("262144",), "rows": ("1",), "cache": ("warm", "cold")},
    ),
    point=point,
)
