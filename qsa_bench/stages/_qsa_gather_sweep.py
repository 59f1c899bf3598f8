"""What of the gather is timed: rows that selected a whole budget and a tail of three.

Every row has blocks of its own, anywhere in a context that they share.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from qsa_bench.families import seeded
from qsa_bench.model import Finding
from qsa_bench.program import Program
from qsa_bench.stages import _qsa_gather_launch as gather
from qsa_bench.stages import _qsa_paged as paged
from qsa_bench.stages.base import Outputs, SweepAxis, SweepPoint, SweepSpec

Array = npt.NDArray[Any]

_RATIO, _BUDGET, _PAGE_TOKENS = 4, 2048, 64
_KV_HEADS, _HEAD_DIM, _BF16 = 2, 256, 2
_SCRATCH_TOKENS = 2112  # of the longest row, 2,051, in whole pages
INPUTS = {"independent": "every row selects blocks of its own"}
_CONTEXTS = ("65536", "262144")


def selected_ids(context: int, rows: int, *words: object) -> list[Array]:
    """Return ascending ids of rows at the context's last token but one: blocks, a tail of three."""
    random = seeded("qsa-selected", context, rows, *words)
    position = context - 2
    blocks = (position + 1) // _RATIO
    tail = np.arange(blocks * _RATIO, position + 1)
    found = []
    for _ in range(rows):
        chosen = np.sort(random.permutation(blocks)[: _BUDGET // _RATIO])
        tokens = (chosen[:, None] * _RATIO + np.arange(_RATIO)).reshape(-1)
        found.append(np.concatenate([tokens, tail]).astype(np.int32))
    return found


@lru_cache(maxsize=1)
def _cache(context: int) -> paged.Paged:
    keys, values = (
        paged.long_tensor(context, _KV_HEADS, _HEAD_DIM, "sweep", name) for name in ("k", "v")
    )
    return paged.paged(keys, values, _PAGE_TOKENS, "sweep")


@lru_cache(maxsize=1)
def _selection(context: int, rows: int) -> gather.Selection:
    ids = tuple(tuple(row.tolist()) for row in selected_ids(context, rows, "gather"))
    return gather.Selection(_cache(context), ids, _SCRATCH_TOKENS, _BUDGET + _RATIO - 1)


def _program(selection: gather.Selection) -> Program:
    """Return the gather of rows that share one sequence's pages: every row has its table."""
    made = gather.program(selection)
    pages = np.repeat(selection.cache.pages, len(selection.rows), axis=0)
    buffers = tuple(
        replace(buffer, shape=pages.shape, data=pages) if buffer.name == "block_table" else buffer
        for buffer in made.buffers
    )
    return Program(buffers, made.calls)


def point(entry: str, axes: Mapping[str, str]) -> SweepPoint:
    """Return one gather of a number of rows out of a context."""
    selection = _selection(int(axes["context"]), int(axes["rows"]))
    cache, rows = selection.cache, len(selection.rows)

    def judge(_program: Program, outputs: Outputs) -> Iterable[Finding]:
        keys, values = (
            np.broadcast_to(held, (rows, *held.shape[1:])) for held in (cache.keys, cache.values)
        )
        shared = replace(selection, cache=replace(cache, keys=keys, values=values))
        return gather.judge_gather(shared, outputs)

    tokens = int(selection.counts.sum())
    moved = tokens * _KV_HEADS * _HEAD_DIM * 2 * _BF16
    words = tokens * 4 + rows * 4
    written = moved + rows * (_SCRATCH_TOKENS // _PAGE_TOKENS + 1) * 4
    made = _program(selection)
    return SweepPoint(entry, dict(axes), made, judge, moved + words, written, requested=moved)


SWEEP = SweepSpec(
    entries=("qsa_gather",),
    axes={
        "context": SweepAxis("size", "tokens that the rows select from", _CONTEXTS),
        "rows": SweepAxis("count", "rows of a batch", ("1",)),
        "input": SweepAxis("word", "whose blocks rows select", ("independent",), INPUTS),
    },
    standard=(
        {"context": _CONTEXTS, "rows": ("1", "64"), "cache": ("warm", "cold")},
        {"context": ("65536",), "rows": ("8",)},
    ),
    point=point,
    peers={"qsa_gather": ("qsa_bench.peers.attention:copy",)},
)
