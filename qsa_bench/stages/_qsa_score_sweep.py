"""What of score is timed: rows of one sequence against every block key of a context.

One row is decoding; 2,048 rows are a chunk of prefill, each against all keys, as select's points
are rows of full length. Times do not follow the values, so there is one kind of input.
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
from qsa_bench.model import Finding
from qsa_bench.oracles.qsa_numerics import FUSED_STRIDE, ScoreOracle
from qsa_bench.program import Program
from qsa_bench.stages import _qsa_inputs as qsa
from qsa_bench.stages._qsa_score_judge import judge_scores, worse
from qsa_bench.stages._qsa_score_launch import (
    SCALAR,
    SCORES,
    STAGE_NAME,
    Launch,
    oracle_of,
    program,
)
from qsa_bench.stages.base import Outputs, SweepAxis, SweepPoint, SweepSpec

Array = npt.NDArray[Any]

# Rows of a launch are at these many positions, the last of the context, over and over: the oracle
# of 2,048 would take longer than the sweep. A prime, so that rows mixed up by a power of two show.
_DIFFERENT_ROWS = 61
_BF16 = 2
_CONTEXTS = ("2048", "2052", "8192", "65536", "262144", "1048576")
INPUTS = {"normal": "N(0, 1) queries and keys"}


@lru_cache(maxsize=1)
def launch_of(count: int, context: int) -> Launch:
    """Return a launch of `count` rows that see all of a context."""
    random = seeded(STAGE_NAME, "sweep", context)
    different = min(count, _DIFFERENT_ROWS, context)
    first = context - different
    # Only the rows at the positions used are read: the others stay untouched zero pages.
    tables = [np.zeros((context, qsa.ROTARY_DIM), dtype=np.uint16) for _ in range(2)]
    angle = np.arange(first, context, dtype=np.float64)[:, None] * qsa.ROPE_THETA ** (
        -np.arange(0, qsa.ROTARY_DIM, 2, dtype=np.float64) / qsa.ROTARY_DIM
    )
    for table, function in zip(tables, (np.cos, np.sin), strict=True):
        table[first:] = round_to_bf16(np.tile(function(angle), 2))
    fused = np.zeros((context, FUSED_STRIDE), dtype=np.uint16)
    fused[first:] = round_to_bf16(random.standard_normal((different, FUSED_STRIDE)))
    keys = round_to_bf16(random.standard_normal((context // qsa.RATIO, qsa.HEAD_DIM)))
    weights = [round_to_bf16(0.2 * random.standard_normal(qsa.HEAD_DIM)) for _ in range(2)]
    inputs = qsa.Inputs(fused, *weights, *tables)
    rows = [first + row % different for row in range(count)]
    return Launch(inputs, keys, rows, [context] * count, fused_first=first)


@lru_cache(maxsize=1)
def oracle(count: int, context: int) -> ScoreOracle:
    """Return the oracle of the rows that differ; the others repeat them."""
    launch = launch_of(count, context)
    different = min(count, _DIFFERENT_ROWS, context)
    return oracle_of(
        replace(launch, rows=launch.rows[:different], visible_len=launch.visible_len[:different])
    )


def point(entry: str, axes: Mapping[str, str]) -> SweepPoint:
    """Return one launch at a context and a number of rows."""
    context, count = int(axes["context"]), int(axes["rows"])
    launch = launch_of(count, context)
    different, blocks = min(count, _DIFFERENT_ROWS, context), context // qsa.RATIO
    queries = different * (FUSED_STRIDE - qsa.HEAD_DIM + 2 * qsa.ROTARY_DIM)
    read = (queries + qsa.HEAD_DIM + blocks * qsa.HEAD_DIM) * _BF16 + count * 8

    def judge(_program: Program, outputs: Outputs) -> Iterable[Finding]:
        return _judge(oracle(count, context), outputs[SCORES[entry]], SCORES[entry])

    made = program(launch, entries=(entry,))
    flops = 2 * count * blocks * (FUSED_STRIDE - qsa.HEAD_DIM)
    return SweepPoint(entry, dict(axes), made, judge, read, count * blocks * 4, flops=flops)


def _judge(want: ScoreOracle, got: Array, name: str) -> list[Finding]:
    """Hold the rows to the oracle of those that differ, in turns; the worst of each check."""
    different = want.value.shape[0]
    worst: dict[str, Finding] = {}
    for first in range(0, got.shape[0], different):
        part = got[first : first + different]
        held = slice(0, part.shape[0])
        oracle = replace(
            want,
            value=want.value[held],
            bound=want.bound[held],
            written=want.written[held],
            flagged=want.flagged[held],
        )
        for finding in judge_scores(oracle, part, name=name):
            before = worst.get(finding.check)
            worst[finding.check] = finding if before is None else worse(before, finding)
    return list(worst.values())


_ENTRIES = tuple(SCORES)

SWEEP = SweepSpec(
    entries=_ENTRIES,
    axes={
        "context": SweepAxis("size", "tokens that every row sees", _CONTEXTS),
        "rows": SweepAxis("count", "rows of a launch", ("1",)),
        "input": SweepAxis("word", "kind of vectors", ("normal",), INPUTS),
    },
    standard=(
        {"context": _CONTEXTS, "rows": ("1",), "cache": ("warm", "cold"), "entry": _ENTRIES},
        {
            "context": _CONTEXTS,
            "rows": ("1",),
            "threads": ("128", "256", "512"),
            "entry": (SCALAR,),
        },
        {"context": ("8192", "65536", "262144"), "rows": ("8", "64"), "entry": _ENTRIES},
        {"context": ("8192", "65536"), "rows": ("2048",), "entry": _ENTRIES},
    ),
    point=point,
)
