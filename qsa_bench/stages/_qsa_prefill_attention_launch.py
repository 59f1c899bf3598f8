"""One slab's attention: the kernel, its buffers and call."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from qsa_bench.model import STREAM, Argument, Entry, Kernel, Role
from qsa_bench.program import Buffer, Call, Program, Value
from qsa_bench.stages import _qsa_attention as attention
from qsa_bench.stages import _qsa_paged as paged

Array = npt.NDArray[Any]

STAGE_NAME = "qsa_prefill_attention"


_RATIO = attention.RATIO


KERNEL = Kernel(
    STAGE_NAME,
    "kernels/qsa/prefill_attention.cu",
    (
        Entry(
            STAGE_NAME,
            (
                attention.QUERIES,
                Argument("rows", "i32", Role.INPUT, ("row_count",), doc="absolute positions"),
                *paged.POINTERS,
                Argument("ids", "i32", Role.INPUT, ("row_count", "ids_stride")),
                Argument("counts", "i32", Role.INPUT, ("row_count",), doc="ids of each row"),
                Argument("context", "bf16", Role.OUTPUT, attention.CONTEXT_SHAPE),
                Argument("row_count", "i64", Role.SCALAR, doc="rows of the slab"),
                *paged.EXTENTS,
                *attention.GEOMETRY,
                Argument("ids_stride", "i64", Role.SCALAR, doc="ids from one row to the next"),
                Argument("budget", "i64", Role.SCALAR, doc="tokens of the selected blocks"),
                STREAM,
            ),
            "context of a slab's selective rows",
        ),
    ),
)


@dataclass(frozen=True)
class Slab:
    """Rows at positions, their selected blocks (None before the bound) and the budget in tokens."""

    q: Array
    cache: paged.Paged
    positions: tuple[int, ...]
    blocks: tuple[tuple[int, ...] | None, ...]
    budget: int

    @property
    def ids(self) -> Array:
        """Token ids [rows, budget + 3] as the selection leaves them, -1 past the count."""
        ids = np.full((len(self.positions), self.budget + _RATIO - 1), -1, dtype=np.int32)
        for row, tokens in enumerate(self.tokens):
            ids[row, : len(tokens or ())] = tokens or ()
        return ids

    @cached_property
    def tokens(self) -> tuple[tuple[int, ...] | None, ...]:
        """Tokens that each selective row attends to."""
        found: list[tuple[int, ...] | None] = []
        for position, blocks in zip(self.positions, self.blocks, strict=True):
            if blocks is None:
                found.append(None)
                continue
            of_blocks = [block * _RATIO + i for block in blocks for i in range(_RATIO)]
            tail = range((position + 1) // _RATIO * _RATIO, position + 1)
            found.append((*of_blocks, *tail))
        return tuple(found)


def program(slab: Slab) -> Program:
    """Return the program of one slab; what a row before the bound would list is unreadable."""
    rows = len(slab.positions)
    positions = np.array(slab.positions, dtype=np.int32)
    counts = np.array([len(tokens or ()) for tokens in slab.tokens], dtype=np.int32)
    ids = slab.ids
    dense = [
        (row * ids.shape[1], (row + 1) * ids.shape[1]) for row in range(rows) if not counts[row]
    ]
    buffers = (
        Buffer("q", "bf16", slab.q.shape, Role.INPUT, slab.q),
        Buffer("rows", "i32", positions.shape, Role.INPUT, positions),
        *slab.cache.buffers(),
        Buffer("ids", "i32", ids.shape, Role.INPUT, ids, uninitialised=tuple(dense)),
        Buffer("counts", "i32", counts.shape, Role.INPUT, counts),
        Buffer("context", "bf16", slab.q.shape, Role.OUTPUT),
    )
    values: dict[str, Value] = {
        **slab.cache.values_of(),
        **{name: name for name in ("q", "rows", "ids", "counts", "context")},
        "row_count": rows,
        **attention.GEOMETRY_VALUES,
        "ids_stride": int(ids.shape[1]),
        "budget": slab.budget,
    }
    return Program(buffers, (Call(STAGE_NAME, STAGE_NAME, values),))
