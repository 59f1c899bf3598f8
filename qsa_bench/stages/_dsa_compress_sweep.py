"""What of DSA's key pooling is timed: everything at once, or the token of a decode step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

from qsa_bench.model import Finding
from qsa_bench.program import Program
from qsa_bench.stages import _dsa_inputs as dsa
from qsa_bench.stages._dsa_compress_launch import (
    STAGE_NAME,
    Launch,
    Step,
    Wanted,
    judge_pools,
    program,
    wanted_of,
)
from qsa_bench.stages.base import Outputs, SweepAxis, SweepPoint, SweepSpec

_BF16 = 2
_CONTEXTS = ("8192", "65536")
INPUTS = {"normal": "N(0, 1) keys and gates"}


def _launch(context: int, fresh: int) -> Launch:
    inputs = dsa.random_inputs(context, "sweep")
    return Launch(inputs, (Step(context, min(fresh, context)),))


@lru_cache(maxsize=1)
def _wanted(context: int, fresh: int) -> Wanted:
    return wanted_of(_launch(context, fresh))


def point(entry: str, axes: Mapping[str, str]) -> SweepPoint:
    """Return the launch that pools the last tokens of a context."""
    context, fresh = int(axes["context"]), int(axes["rows"])
    launch = _launch(context, fresh)

    def judge(_program: Program, outputs: Outputs) -> Iterable[Finding]:
        return judge_pools(launch, _wanted(context, fresh), outputs)

    kpool = launch.inputs.kpool
    pools = context // kpool - (context - launch.steps[0].fresh) // kpool
    read = pools * kpool * dsa.HEAD_DIM * 2 * _BF16 + kpool * dsa.HEAD_DIM * 4
    written = pools * dsa.HEAD_DIM * _BF16
    return SweepPoint(entry, dict(axes), program(launch), judge, read, written)


SWEEP = SweepSpec(
    entries=(STAGE_NAME,),
    axes={
        "context": SweepAxis("size", "tokens of the sequence afterwards", _CONTEXTS),
        "rows": SweepAxis("count", "fresh tokens", ("1",)),
        "input": SweepAxis("word", "kind of vectors", ("normal",), INPUTS),
    },
    standard=(
        {"context": ("65536",), "rows": ("1",), "cache": ("warm", "cold")},
        {"context": _CONTEXTS, "rows": ("2048", "65536")},
    ),
    point=point,
)
