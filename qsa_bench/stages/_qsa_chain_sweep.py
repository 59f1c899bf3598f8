"""What of the QSA pipeline is timed: score and then select of one row, as a captured step runs them.

The launch and the oracle are those of score's sweep; select is held to the scores that the launch
before it computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from qsa_bench.compare import bitwise
from qsa_bench.model import Finding, Role
from qsa_bench.oracles.select import RATIO, select
from qsa_bench.program import Buffer, Call, Program
from qsa_bench.stages import qsa_select
from qsa_bench.stages._qsa_score_judge import judge_scores
from qsa_bench.stages._qsa_score_launch import SCORES, program
from qsa_bench.stages._qsa_score_sweep import SWEEP as SCORE
from qsa_bench.stages._qsa_score_sweep import launch_of, oracle
from qsa_bench.stages._qsa_score_sweep import point as score_point
from qsa_bench.stages._qsa_select_cases import BUDGET
from qsa_bench.stages.base import Outputs, SweepAxis, SweepPoint, SweepSpec

_ENTRY = "qsa_score_and_select"
_SCORE = next(iter(SCORES))
_CONTEXTS = ("8192", "65536", "262144")


def _program(context: int) -> Program:
    scored = program(launch_of(1, context), entries=(_SCORE,))
    given = scored.calls[0].values
    mask = Buffer("mask", "u8", (1, context), Role.OUTPUT)
    chosen = Call(
        qsa_select.KERNEL.name,
        "qsa_select",
        {
            "scores": given["scores"],
            "rows": given["rows"],
            "mask": "mask",
            "row_count": 1,
            "tokens": context,
            "score_cols": given["score_cols"],
            "budget": BUDGET,
        },
    )
    return Program((*scored.buffers, mask), (*scored.calls, chosen))


def point(entry: str, axes: Mapping[str, str]) -> SweepPoint:
    """Return the two launches of one row at a context."""
    context = int(axes["context"])
    score = score_point(_SCORE, {**axes, "rows": "1"})

    def judge(_program: Program, outputs: Outputs) -> Iterable[Finding]:
        scores = outputs[SCORES[_SCORE]]
        yield from judge_scores(oracle(1, context), scores)
        rows = np.array([context - 1], dtype=np.int32)
        want = select(scores.reshape(-1), rows, context, scores.shape[-1], BUDGET)
        yield bitwise("mask", "mask", want.mask, outputs["mask"], "bits")

    blocks = context // RATIO
    read, written = score.bytes_read + blocks * 4, score.bytes_written + context
    return SweepPoint(entry, dict(axes), _program(context), judge, read, written)


SWEEP = SweepSpec(
    entries=(_ENTRY,),
    axes={
        "context": SweepAxis("size", "tokens that the row sees", _CONTEXTS),
        "input": SCORE.axes["input"],
    },
    standard=({"context": _CONTEXTS, "cache": ("warm", "cold")},),
    point=point,
    pipeline=True,
)
