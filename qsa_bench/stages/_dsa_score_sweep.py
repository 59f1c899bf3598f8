"""What of the DSA scores is timed: rows of one sequence against every pool of a context.

One row is decoding with cached pool keys; 2,048 rows are a chunk of prefill, each at the context's
last token, so that every row sees every pool. Times do not follow the values.
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
from qsa_bench.model import Finding, Status
from qsa_bench.program import Program
from qsa_bench.stages import _dsa_inputs as dsa
from qsa_bench.stages._dsa_score_judge import Wanted, judge_scores
from qsa_bench.stages._dsa_score_launch import STAGE_NAME, Launch, program, wanted_of
from qsa_bench.stages.base import Outputs, SweepAxis, SweepPoint, SweepSpec

Array = npt.NDArray[Any]

# Rows of a launch repeat so many different queries: the oracle of 2,048 would take longer than the
# sweep. A prime, so that rows mixed up by a power of two show.
_DIFFERENT_ROWS = 7
_KPOOL = 4
_CONTEXTS = ("2048", "8192", "65536", "262144", "1048576")
INPUTS = {"normal": "N(0, 1) queries, keys and weights"}


@lru_cache(maxsize=1)
def _launch(count: int, context: int) -> Launch:
    random = seeded(STAGE_NAME, "sweep", context)
    different = min(count, _DIFFERENT_ROWS)
    places = np.arange(count) % different
    shape = (different, dsa.HEADS, dsa.HEAD_DIM)
    nothing = np.broadcast_to(np.uint16(0), (1, context, dsa.HEAD_DIM))
    keys = round_to_bf16(random.standard_normal((context // _KPOOL, dsa.HEAD_DIM)))
    weights = (dsa.HEADS**-0.5 * random.standard_normal(shape[:2])).astype(np.float32)
    inputs = dsa.Inputs(
        keys=nothing,
        gate=nothing,
        ape=np.zeros((_KPOOL, dsa.HEAD_DIM), dtype=np.float32),
        valid=None,
        q=round_to_bf16(random.standard_normal(shape))[places][None],
        weights=weights[places][None],
        q_pos=np.full(count, context - 1, dtype=np.int32),
        topk=2048,
    )
    return Launch(inputs, (keys,), context)


@lru_cache(maxsize=1)
def _oracle(count: int, context: int) -> Wanted:
    """Return the oracle of the rows that differ; the others repeat them."""
    launch = _launch(count, context)
    few = slice(0, min(count, _DIFFERENT_ROWS))
    inputs = launch.inputs
    different = replace(
        inputs, q=inputs.q[:, few], weights=inputs.weights[:, few], q_pos=inputs.q_pos[few]
    )
    return wanted_of(replace(launch, inputs=different))


def point(entry: str, axes: Mapping[str, str]) -> SweepPoint:
    """Return one launch at a context and a number of rows."""
    context, count = int(axes["context"]), int(axes["rows"])
    pools = context // _KPOOL
    queries = min(count, _DIFFERENT_ROWS) * dsa.HEADS * (dsa.HEAD_DIM * 2 + 4)

    def judge(_program: Program, outputs: Outputs) -> Iterable[Finding]:
        return _judge(_oracle(count, context), outputs["scores"], outputs["visible_pools"])

    read = pools * dsa.HEAD_DIM * 2 + queries + count * 4
    launched = program(_launch(count, context))
    flops = 2 * count * pools * dsa.HEADS * dsa.HEAD_DIM
    written = count * (pools * 4 + 4)
    return SweepPoint(entry, dict(axes), launched, judge, read, written, flops=flops)


def _judge(want: Wanted, got: Array, visible: Array) -> list[Finding]:
    """Hold the rows to the oracle of those that differ, in turns; the worst of each check."""
    different = want.value.shape[1]
    worst: dict[str, Finding] = {}
    for first in range(0, got.shape[1], different):
        rows = slice(first, first + different)
        held = slice(0, got[:, rows].shape[1])
        parts = {name: getattr(want, name)[:, held] for name in Wanted.__dataclass_fields__}
        for finding in judge_scores(Wanted(**parts), got[:, rows], visible[:, rows]):
            before = worst.get(finding.check)
            if before is None or _weight(finding) > _weight(before):
                worst[finding.check] = finding
    return list(worst.values())


def _weight(finding: Finding) -> tuple[bool, float]:
    return finding.status is not Status.PASS, finding.evidence.margin or 0.0


SWEEP = SweepSpec(
    entries=(STAGE_NAME,),
    axes={
        "context": SweepAxis("size", "tokens that every row sees", _CONTEXTS),
        "rows": SweepAxis("count", "query rows of a launch", ("1",)),
        "input": SweepAxis("word", "kind of vectors", ("normal",), INPUTS),
    },
    standard=(
        {"context": _CONTEXTS, "rows": ("1",), "cache": ("warm", "cold")},
        {"context": ("8192", "65536"), "rows": ("4", "64", "2048")},
    ),
    point=point,
)
