"""One decode attention: the kernel, its buffers and call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from qsa_bench.model import STREAM, Argument, Entry, Kernel, Role
from qsa_bench.program import Buffer, Call, Program, Value
from qsa_bench.stages import _qsa_attention as attention
from qsa_bench.stages import _qsa_paged as paged

Array = npt.NDArray[Any]

STAGE_NAME = "qsa_decode_attention"


KERNEL = Kernel(
    STAGE_NAME,
    "kernels/qsa/decode_attention.cu",
    (
        Entry(
            STAGE_NAME,
            (
                attention.QUERIES,
                *paged.POINTERS,
                Argument("lengths", "i32", Role.INPUT, ("row_count",), doc="tokens of each row"),
                Argument("context", "bf16", Role.OUTPUT, attention.CONTEXT_SHAPE),
                Argument("row_count", "i64", Role.SCALAR, doc="rows, a sequence's each"),
                *paged.EXTENTS,
                *attention.GEOMETRY,
                STREAM,
            ),
            "context of one token a sequence",
        ),
    ),
)


def program(rows: attention.Rows, device: Mapping[str, int] | None = None) -> Program:
    """Return the program of one decode over every row's own sequence."""
    lengths = np.array([len(tokens or ()) for tokens in rows.tokens], dtype=np.int32)
    buffers = (
        Buffer("q", "bf16", rows.q.shape, Role.INPUT, rows.q),
        *rows.cache.buffers(),
        Buffer("lengths", "i32", lengths.shape, Role.INPUT, lengths),
        attention.context_buffer(rows),
    )
    values: dict[str, Value] = {
        **rows.cache.values_of(),
        **{name: name for name in ("q", "lengths", "context")},
        "row_count": len(lengths),
        **attention.GEOMETRY_VALUES,
    }
    return Program(buffers, (Call(STAGE_NAME, STAGE_NAME, values),), device or {})
