"""What of the DSA pool selection is timed: rows that see every pool of a context."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from qsa_bench import families
from qsa_bench.compare import bitwise
from qsa_bench.model import Finding
from qsa_bench.oracles.dsa_select import top_pools
from qsa_bench.program import Program
from qsa_bench.stages._dsa_topk_launch import STAGE_NAME, Launch, program
from qsa_bench.stages.base import Outputs, SweepAxis, SweepPoint, SweepSpec

Array = npt.NDArray[Any]

# As for the scores.
_DIFFERENT_ROWS = 7
_KPOOL = 4
_TOPK = 2048
_CONTEXTS = ("2048", "8192", "65536", "262144", "1048576")
INPUTS = {"normal": "N(0, 1), both signs, as weighed heads give"}


@lru_cache(maxsize=1)
def _rows(count: int, context: int) -> tuple[Array, ...]:
    pools = context // _KPOOL
    return tuple(
        families.normal(families.seeded(STAGE_NAME, "sweep", context, row), pools)
        for row in range(min(count, _DIFFERENT_ROWS))
    )


def point(entry: str, axes: Mapping[str, str]) -> SweepPoint:
    """Return one launch at a context and a number of rows."""
    context, count = int(axes["context"]), int(axes["rows"])
    different = _rows(count, context)
    places = np.arange(count) % len(different)
    launch = Launch(tuple(different[place] for place in places), _TOPK, _KPOOL)

    def judge(_program: Program, outputs: Outputs) -> Iterable[Finding]:
        seen = np.full(len(different), launch.pools)
        pools, counts = top_pools(np.stack(different), seen, launch.keep)
        yield bitwise("kept-pools", "kept_pools", pools[places], outputs["kept_pools"], "pools")
        yield bitwise("kept-counts", "kept_counts", counts[places], outputs["kept_counts"], "rows")

    read = count * (launch.pools * 4 + 4)
    written = count * (launch.keep * 4 + 4)
    return SweepPoint(entry, dict(axes), program(launch), judge, read, written)


SWEEP = SweepSpec(
    entries=(STAGE_NAME,),
    axes={
        "context": SweepAxis("size", "tokens that every row sees", _CONTEXTS),
        "rows": SweepAxis("count", "rows of a launch", ("1",)),
        "input": SweepAxis("word", "kind of scores", ("normal",), INPUTS),
    },
    standard=(
        {"context": _CONTEXTS, "rows": ("1",), "cache": ("warm", "cold")},
        {"context": ("8192", "65536"), "rows": ("64", "2048")},
    ),
    point=point,
)
