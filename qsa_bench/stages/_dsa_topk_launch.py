"""One launch of dsa_topk_pools: the kernel, a launch's buffers and call, and its judge."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from qsa_bench.compare import bitwise
from qsa_bench.model import STREAM, Argument, Entry, Finding, Kernel, Role
from qsa_bench.oracles.dsa_select import top_pools
from qsa_bench.program import OK, Buffer, Call, Program, Value
from qsa_bench.stages import _dsa_inputs as dsa
from qsa_bench.stages.base import Outputs

Array = npt.NDArray[Any]

STAGE_NAME = "dsa_topk_pools"
_NAN = np.float32("nan")

KERNEL = Kernel(
    STAGE_NAME,
    "kernels/dsa/topk_pools.cu",
    (
        Entry(
            STAGE_NAME,
            (
                Argument("scores", "f32", Role.INPUT, ("row_count", "score_cols")),
                Argument("visible_pools", "i32", Role.INPUT, ("row_count",)),
                Argument("geometry", "i32", Role.INPUT, ("5",), optional=True),
                Argument("kept_pools", "i32", Role.OUTPUT, ("row_count", "topk / kpool")),
                Argument("kept_counts", "i32", Role.OUTPUT, ("row_count",)),
                Argument("row_count", "i64", Role.SCALAR, doc="rows of all sequences"),
                Argument("score_cols", "i64", Role.SCALAR, doc="row stride of scores"),
                Argument("pools", "i64", Role.SCALAR, doc="pools a row sees at most"),
                Argument("topk", "i64", Role.SCALAR, doc="tokens kept at most, beside the tail"),
                Argument("kpool", "i64", Role.SCALAR, doc="tokens a pool: 4 or 16"),
                STREAM,
            ),
            "ascending kept pools, -1 past the count",
        ),
    ),
    short={"cuda": {"QSA_SELECT_FEW_SHAPES": 1}},
)


@dataclass(frozen=True)
class Launch:
    """Scores of each row, visible ones alone; pools of capacity; the budget.

    `live` are the tokens of a geometry, None without one.
    """

    rows: tuple[Array, ...]
    topk: int
    kpool: int = 4
    spare_pools: int = 0
    spare_cols: int = 0
    live: int | None = None

    @property
    def pools(self) -> int:
        """Pools that a row can see."""
        return max(len(row) for row in self.rows) + self.spare_pools

    @property
    def score_cols(self) -> int:
        """Row stride."""
        return max(1, self.pools) + self.spare_cols

    @property
    def keep(self) -> int:
        """Pools kept at most."""
        return self.topk // self.kpool


def topk_call(
    rows: int, score_cols: int, pools: int, topk: int, kpool: int, expect: str | int = OK
) -> Call:
    """Return a call over the buffers named as the arguments, without a geometry."""
    names = ("scores", "visible_pools", "kept_pools", "kept_counts")
    values: dict[str, Value] = {
        **{name: name for name in names},
        "row_count": rows,
        "score_cols": score_cols,
        "pools": pools,
        "topk": topk,
        "kpool": kpool,
    }
    return Call(STAGE_NAME, STAGE_NAME, values, expect)


def kept_buffers(rows: int, keep: int) -> list[Buffer]:
    """Return the output buffers."""
    return [
        Buffer("kept_pools", "i32", (rows, keep), Role.OUTPUT),
        Buffer("kept_counts", "i32", (rows,), Role.OUTPUT),
    ]


def program(launch: Launch, expect: str | int = OK) -> Program:
    """Return the program of a launch; what no row sees is NaN and must not be read."""
    count, cols = len(launch.rows), launch.score_cols
    scores = np.full((count, cols), _NAN, dtype=np.float32)
    holes = []
    for row, seen in enumerate(launch.rows):
        scores[row, : len(seen)] = seen
        if len(seen) < cols:
            holes.append((row * cols + len(seen), (row + 1) * cols))
    visible = np.array([len(row) for row in launch.rows], dtype=np.int32)
    call = topk_call(count, cols, launch.pools, launch.topk, launch.kpool, expect)
    buffers = [
        Buffer("scores", "f32", scores.shape, Role.INPUT, scores, uninitialised=tuple(holes)),
        Buffer("visible_pools", "i32", (count,), Role.INPUT, visible),
        *kept_buffers(count, launch.keep),
    ]
    if launch.live is not None:
        words = dsa.geometry_words(launch.live, launch.kpool, launch.topk)
        buffers.append(Buffer("geometry", "i32", (5,), Role.INPUT, words))
        call = replace(call, values={**call.values, "geometry": "geometry"})
    return Program(tuple(buffers), (call,))


def judge_kept(scores: Array, visible: Array, keep: int, outputs: Outputs) -> Iterator[Finding]:
    """Hold kept pools and counts to the stable oracle on `scores` [rows, cols]."""
    pools, counts = top_pools(scores, visible, keep)
    yield bitwise("kept-pools", "kept_pools", pools, outputs["kept_pools"], "pools")
    yield bitwise("kept-counts", "kept_counts", counts, outputs["kept_counts"], "rows")
