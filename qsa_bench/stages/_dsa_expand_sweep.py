"""What of DSA's expansion is timed: rows that keep a whole budget, with a tail of three."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

import numpy as np

from qsa_bench.compare import bitwise
from qsa_bench.families import seeded
from qsa_bench.model import Finding
from qsa_bench.program import Program
from qsa_bench.stages import _dsa_inputs as dsa
from qsa_bench.stages._dsa_expand_launch import STAGE_NAME, Launch, program, wanted_ids
from qsa_bench.stages.base import Outputs, SweepAxis, SweepPoint, SweepSpec

# As for the scores.
_DIFFERENT_ROWS = 7
_KPOOL, _TOPK = 4, 2048
_CONTEXTS = ("8192", "65536", "262144")
INPUTS = {"normal": "pools kept anywhere in the context"}


@lru_cache(maxsize=1)
def _launch(context: int, count: int) -> Launch:
    different = min(count, _DIFFERENT_ROWS)
    pools = context // _KPOOL
    nothing = np.broadcast_to(np.uint16(0), (1, context, dsa.HEAD_DIM))
    scores = seeded(STAGE_NAME, "sweep", context).standard_normal((1, different, pools))
    inputs = dsa.Inputs(
        keys=nothing,
        gate=nothing,
        ape=np.zeros((_KPOOL, dsa.HEAD_DIM), dtype=np.float32),
        valid=None,
        q=np.broadcast_to(np.uint16(0), (1, count, dsa.HEADS, dsa.HEAD_DIM)),
        weights=np.zeros((1, count, dsa.HEADS), dtype=np.float32),
        q_pos=np.full(count, context - 2, dtype=np.int32),
        topk=_TOPK,
    )
    places = np.arange(count) % different
    return Launch(inputs, scores.astype(np.float32)[:, places], context)


def point(entry: str, axes: Mapping[str, str]) -> SweepPoint:
    """Return one launch at a context and a number of rows."""
    launch = _launch(int(axes["context"]), int(axes["rows"]))
    count = launch.inputs.query_rows

    def judge(_program: Program, outputs: Outputs) -> Iterable[Finding]:
        pools, counts = launch.kept()
        want = wanted_ids(launch.inputs, pools, counts, launch.positions, launch.live)
        yield bitwise("token-ids", "token_ids", want, outputs["token_ids"], "ids")

    read = count * (_TOPK // _KPOOL + 2) * 4
    return SweepPoint(entry, dict(axes), program(launch), judge, read, count * launch.width * 4)


SWEEP = SweepSpec(
    entries=(STAGE_NAME,),
    axes={
        "context": SweepAxis("size", "tokens that every row sees", _CONTEXTS),
        "rows": SweepAxis("count", "query rows of a launch", ("1",)),
        "input": SweepAxis("word", "kind of selection", ("normal",), INPUTS),
    },
    standard=(
        {"context": _CONTEXTS, "rows": ("1",), "cache": ("warm", "cold")},
        {"context": ("65536",), "rows": ("64", "2048")},
    ),
    point=point,
)
