"""One launch of dsa_expand_selection: the kernel, a launch's buffers and call, and its oracle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from qsa_bench import families
from qsa_bench.model import STREAM, Argument, Entry, Kernel, Role
from qsa_bench.oracles.dsa_select import token_ids, top_pools
from qsa_bench.program import OK, Buffer, Call, Program, Value
from qsa_bench.stages import _dsa_inputs as dsa

Array = npt.NDArray[Any]

STAGE_NAME = "dsa_expand_selection"

KERNEL = Kernel(
    STAGE_NAME,
    "kernels/dsa/expand_selection.cu",
    (
        Entry(
            STAGE_NAME,
            (
                Argument("kept_pools", "i32", Role.INPUT, ("batch", "query_rows", "topk / kpool")),
                Argument("kept_counts", "i32", Role.INPUT, ("batch", "query_rows")),
                Argument("q_pos", "i32", Role.INPUT, ("query_rows",), optional=True),
                Argument("valid", "u8", Role.INPUT, ("batch", "token_capacity"), optional=True),
                Argument("geometry", "i32", Role.INPUT, ("5",), optional=True),
                Argument("first_keys", "i32", Role.INPUT, ("batch",), optional=True),
                Argument(
                    "slots", "i32", Role.INPUT, ("batch", "pool_capacity + 1", "2"), optional=True
                ),
                Argument(
                    "pool_starts", "i32", Role.INPUT, ("batch", "pool_capacity"), optional=True
                ),
                Argument("token_ids", "i32", Role.OUTPUT, ("batch", "query_rows", "width")),
                Argument("batch", "i64", Role.SCALAR, doc="sequences"),
                Argument("query_rows", "i64", Role.SCALAR, doc="query rows of a sequence"),
                Argument("tokens", "i64", Role.SCALAR, doc="live tokens, or their ceiling"),
                Argument("token_capacity", "i64", Role.SCALAR, doc="tokens a sequence's rows hold"),
                Argument("pool_capacity", "i64", Role.SCALAR, doc="pools a sequence's rows hold"),
                Argument("topk", "i64", Role.SCALAR, doc="tokens kept at most, beside the tail"),
                Argument("kpool", "i64", Role.SCALAR, doc="tokens a pool: 4 or 16"),
                Argument("select_tail", "i64", Role.SCALAR, doc="1: the tail is always selected"),
                STREAM,
            ),
            "token ids of kept pools and tail, -1 past them",
        ),
    ),
)


@dataclass(frozen=True)
class Launch:
    """Inputs, the scores that its kept pools come from [B, Q, pools], live tokens, the tail."""

    inputs: dsa.Inputs
    scores: Array
    live: int
    by_geometry: bool = False
    select_tail: bool = True

    @property
    def positions(self) -> Array:
        """Positions of the query rows."""
        if self.by_geometry:
            return np.array([self.live - 1], dtype=np.int32)
        return self.inputs.q_pos

    @property
    def width(self) -> int:
        """Ids of a row."""
        return self.inputs.topk + (self.inputs.kpool - 1 if self.select_tail else 0)

    def kept(self) -> tuple[Array, Array]:
        """Return kept pools [B, Q, keep] and counts [B, Q]."""
        found = [
            top_pools(
                self.scores[row],
                np.array([lists.pools_seen(int(p), self.inputs.kpool) for p in self.positions]),
                self.inputs.keep,
            )
            for row, lists in enumerate(self.inputs.lists(self.live))
        ]
        return np.stack([pools for pools, _ in found]), np.stack([counts for _, counts in found])


def launch_of(inputs: dsa.Inputs, live: int | None = None, **more: Any) -> Launch:
    """Return a launch whose pools are kept by scores drawn from the inputs' shape."""
    random = families.seeded(STAGE_NAME, inputs.tokens, inputs.batch, inputs.query_rows)
    shape = (inputs.batch, inputs.query_rows, inputs.pool_capacity)
    drawn = random.standard_normal(shape).astype(np.float32)
    return Launch(inputs, drawn, inputs.tokens if live is None else live, **more)


def expand_call(
    inputs: dsa.Inputs,
    rows: int,
    tokens: int,
    by_geometry: bool = False,
    select_tail: bool = True,
    expect: str | int = OK,
) -> Call:
    """Return a call over the buffers named as the arguments."""
    names = [
        "kept_pools",
        "kept_counts",
        "valid",
        "first_keys",
        "slots",
        "pool_starts",
        "token_ids",
    ]
    names.append("geometry" if by_geometry else "q_pos")
    values: dict[str, Value] = {
        **dsa.names_of(*names, inputs=inputs),
        "batch": inputs.batch,
        "query_rows": rows,
        "tokens": tokens,
        "token_capacity": inputs.tokens,
        "pool_capacity": inputs.pool_capacity,
        "topk": inputs.topk,
        "kpool": inputs.kpool,
        "select_tail": int(select_tail),
    }
    return Call(STAGE_NAME, STAGE_NAME, values, expect)


def program(launch: Launch, expect: str | int = OK) -> Program:
    """Return the program of a launch."""
    inputs = launch.inputs
    pools, counts = launch.kept()
    rows = launch.positions.size
    geometry = []
    if launch.by_geometry:
        words = dsa.geometry_words(launch.live, inputs.kpool, inputs.topk)
        geometry = [Buffer("geometry", "i32", (5,), Role.INPUT, words)]
    tokens = inputs.tokens if launch.by_geometry else launch.live
    return Program(
        (
            Buffer("kept_pools", "i32", pools.shape, Role.INPUT, pools),
            Buffer("kept_counts", "i32", counts.shape, Role.INPUT, counts),
            *inputs.buffers(*(() if launch.by_geometry else ("q_pos",)), "valid"),
            *geometry,
            *dsa.list_buffers(inputs, Role.INPUT, launch.live),
            Buffer("token_ids", "i32", (inputs.batch, rows, launch.width), Role.OUTPUT),
        ),
        (expand_call(inputs, rows, tokens, launch.by_geometry, launch.select_tail, expect),),
    )


def wanted_ids(
    inputs: dsa.Inputs, kept: Array, counts: Array, positions: Array, live: int, tail: bool = True
) -> Array:
    """Return token ids [B, Q, width] of kept pools [B, Q, keep] and counts [B, Q]."""
    mask = inputs.mask(live)
    return np.stack(
        [
            np.stack(
                [
                    token_ids(
                        kept[row, query, : counts[row, query]],
                        lists,
                        mask[row],
                        int(position),
                        inputs.topk,
                        inputs.kpool,
                        tail,
                    )
                    for query, position in enumerate(positions)
                ]
            )
            for row, lists in enumerate(inputs.lists(live))
        ]
    )
