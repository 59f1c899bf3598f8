"""What of the sparse prefill attention is timed: a slab of selective rows at the end of a context.

How much rows share decides how much the L2 helps, so there are two kinds of selection: rows that
share nothing but by chance, the worst there is, and rows that keep most of the row before's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from qsa_bench.families import seeded
from qsa_bench.model import Finding
from qsa_bench.program import Program
from qsa_bench.stages import _qsa_attention as attention
from qsa_bench.stages import _qsa_paged as paged
from qsa_bench.stages import _qsa_prefill_attention_launch as prefill
from qsa_bench.stages.base import Outputs, SweepAxis, SweepPoint, SweepSpec

Array = npt.NDArray[Any]

_BUDGET, _PAGE_TOKENS, _BF16 = 2048, 64, 2
_KEPT = _BUDGET // attention.RATIO
_TOKEN_BYTES = 2 * attention.KV_HEADS * attention.HEAD_DIM * _BF16
# The oracle of a row takes longer than the slab: every 61st row is judged, and the last.
_JUDGED_STEP = 61
_RENEWED = 16
INPUTS = {
    "independent": "every row selects blocks of its own",
    "neighbours": f"a row keeps all but {_RENEWED} of the blocks of the row before",
}


def _blocks(context: int, rows: int, kind: str) -> list[tuple[int, ...]]:
    random = seeded("qsa-prefill", "sweep", context, rows, kind)
    positions = range(context - rows, context)
    least = (positions[0] + 1) // attention.RATIO
    found: list[tuple[int, ...]] = []
    held = random.permutation(least)[:_KEPT]
    for _ in positions:
        if kind == "independent":
            held = random.permutation(least)[:_KEPT]
        else:
            rest = np.setdiff1d(random.permutation(least)[: 2 * _KEPT], held)
            held = np.concatenate([held[_RENEWED:], random.permutation(rest)[:_RENEWED]])
        found.append(tuple(int(block) for block in np.sort(held)))
    return found


@lru_cache(maxsize=1)
def _slab(context: int, rows: int, kind: str) -> prefill.Slab:
    keys, values = (
        paged.long_tensor(context, attention.KV_HEADS, attention.HEAD_DIM, "sweep", name)
        for name in ("k", "v")
    )
    cache = paged.paged(keys, values, _PAGE_TOKENS, "sweep")
    q = paged.random_tensor((rows, attention.HEADS, attention.HEAD_DIM), "sweep", "q")
    positions = tuple(range(context - rows, context))
    return prefill.Slab(q, cache, positions, tuple(_blocks(context, rows, kind)), _BUDGET)


def point(entry: str, axes: Mapping[str, str]) -> SweepPoint:
    """Return one slab of rows at the end of a context."""
    slab = _slab(int(axes["context"]), int(axes["rows"]), axes["input"])
    count = len(slab.positions)
    judged = sorted({*range(0, count, _JUDGED_STEP), count - 1})
    tokens = slab.tokens

    def judge(_program: Program, outputs: Outputs) -> Iterable[Finding]:
        rows = attention.Rows(
            slab.q[judged], slab.cache, (0,) * len(judged), tuple(tokens[row] for row in judged)
        )
        return attention.judge_context(rows, outputs["context"][judged])

    attended = sum(len(held or ()) for held in tokens)
    requested = attended * _TOKEN_BYTES
    seen = np.unique(np.concatenate([np.array(held or (), dtype=np.int64) for held in tokens]))
    rows_bytes = slab.q.size * _BF16
    flops = 4 * attended * attention.HEADS * attention.HEAD_DIM
    return SweepPoint(
        entry,
        dict(axes),
        prefill.program(slab),
        judge,
        seen.size * _TOKEN_BYTES + rows_bytes + attended * 4,
        rows_bytes,
        requested,
        flops,
    )


SWEEP = SweepSpec(
    entries=("qsa_prefill_attention",),
    axes={
        "context": SweepAxis("size", "tokens up to the slab's last row", ("65536",)),
        "rows": SweepAxis("count", "rows of a slab", ("2048",)),
        "input": SweepAxis("word", "what rows select", ("independent",), INPUTS),
    },
    standard=({"context": ("65536",), "rows": ("2048",), "input": tuple(INPUTS)},),
    point=point,
    peers={"qsa_prefill_attention": ("qsa_bench.peers.attention:sdpa",)},
)
