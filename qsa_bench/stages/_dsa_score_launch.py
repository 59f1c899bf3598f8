"""One launch of dsa_index_scores: the kernel, a launch's buffers and call, and its oracle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from qsa_bench.compare import bounded
from qsa_bench.goldens import dsa as dsa_golden
from qsa_bench.model import STREAM, Argument, Entry, Finding, Kernel, Role
from qsa_bench.oracles.dsa_pools import compress
from qsa_bench.oracles.qsa_numerics import PooledKeys
from qsa_bench.program import OK, Buffer, Call, Program, Value
from qsa_bench.stages import _dsa_inputs as dsa
from qsa_bench.stages._dsa_score_judge import Wanted, wanted

Array = npt.NDArray[Any]

STAGE_NAME = "dsa_index_scores"

KERNEL = Kernel(
    STAGE_NAME,
    "kernels/dsa/index_scores.cu",
    (
        Entry(
            STAGE_NAME,
            (
                Argument("q", "bf16", Role.INPUT, ("batch", "query_rows", "32", "128")),
                Argument("weights", "f32", Role.INPUT, ("batch", "query_rows", "32")),
                Argument("pool_keys", "bf16", Role.INPUT, ("batch", "pool_capacity", "128")),
                Argument("q_pos", "i32", Role.INPUT, ("query_rows",), optional=True),
                Argument("valid", "u8", Role.INPUT, ("batch", "token_capacity"), optional=True),
                Argument("geometry", "i32", Role.INPUT, ("5",), optional=True),
                Argument("first_keys", "i32", Role.INPUT, ("batch",), optional=True),
                Argument(
                    "slots", "i32", Role.INPUT, ("batch", "pool_capacity + 1", "2"), optional=True
                ),
                Argument("scores", "f32", Role.OUTPUT, ("batch", "query_rows", "score_cols")),
                Argument("visible_pools", "i32", Role.OUTPUT, ("batch", "query_rows")),
                Argument("batch", "i64", Role.SCALAR, doc="sequences"),
                Argument("query_rows", "i64", Role.SCALAR, doc="query rows of a sequence"),
                Argument("tokens", "i64", Role.SCALAR, doc="live tokens, or their ceiling"),
                Argument("token_capacity", "i64", Role.SCALAR, doc="tokens a sequence's rows hold"),
                Argument("pool_capacity", "i64", Role.SCALAR, doc="pools a sequence's rows hold"),
                Argument("score_cols", "i64", Role.SCALAR, doc="row stride of scores"),
                Argument("kpool", "i64", Role.SCALAR, doc="tokens a pool: 4 or 16"),
                STREAM,
            ),
            "scores of query rows against pools",
        ),
    ),
)


@dataclass(frozen=True)
class Launch:
    """One launch: inputs, each sequence's pool keys, live tokens, spare columns.

    With `by_geometry` the one row stands at the last live token and the launch at the ceiling.
    """

    inputs: dsa.Inputs
    pool_keys: tuple[Array, ...]
    live: int
    by_geometry: bool = False
    extra_cols: int = 0
    multiprocessors: int | None = None

    @property
    def score_cols(self) -> int:
        """Row stride of the scores."""
        return max(1, self.inputs.pool_capacity) + self.extra_cols

    @property
    def positions(self) -> Array:
        """Positions of the query rows."""
        if self.by_geometry:
            return np.array([self.live - 1], dtype=np.int32)
        return self.inputs.q_pos


def launch_of(inputs: dsa.Inputs, live: int | None = None, **more: Any) -> Launch:
    """Return a launch whose pool keys are the compress oracle's."""
    tokens = inputs.tokens if live is None else live
    keys = tuple(
        compress(inputs.keys[row], inputs.gate[row], inputs.ape, lists.starts).value
        for row, lists in enumerate(inputs.lists(tokens))
    )
    return Launch(inputs, keys, tokens, **more)


def score_call(launch: Launch, expect: str | int = OK) -> Call:
    """Return the call of a launch over the buffers named as the arguments."""
    names = ["q", "weights", "pool_keys", "valid", "first_keys", "slots", "scores", "visible_pools"]
    names.append("geometry" if launch.by_geometry else "q_pos")
    inputs = launch.inputs
    values: dict[str, Value] = {
        **dsa.names_of(*names, inputs=inputs),
        "batch": inputs.batch,
        "query_rows": launch.positions.size,
        "tokens": inputs.tokens if launch.by_geometry else launch.live,
        "token_capacity": inputs.tokens,
        "pool_capacity": inputs.pool_capacity,
        "score_cols": launch.score_cols,
        "kpool": inputs.kpool,
    }
    return Call(STAGE_NAME, STAGE_NAME, values, expect)


def score_buffers(inputs: dsa.Inputs, rows: int, score_cols: int) -> list[Buffer]:
    """Return the output buffers of a launch."""
    return [
        Buffer("scores", "f32", (inputs.batch, rows, score_cols), Role.OUTPUT),
        Buffer("visible_pools", "i32", (inputs.batch, rows), Role.OUTPUT),
    ]


def program(launch: Launch, expect: str | int = OK) -> Program:
    """Return the program of a launch; pool keys past a sequence's list belong to nobody."""
    inputs = launch.inputs
    keys = np.full((inputs.batch, inputs.pool_capacity, dsa.HEAD_DIM), 0x7FC0, dtype=np.uint16)
    holes = []
    for row, given in enumerate(launch.pool_keys):
        keys[row, : len(given)] = given
        start, stop = row * inputs.pool_capacity + len(given), (row + 1) * inputs.pool_capacity
        if start < stop:
            holes.append((start * dsa.HEAD_DIM, stop * dsa.HEAD_DIM))
    lists = dsa.list_buffers(inputs, Role.INPUT, launch.live)
    geometry = []
    if launch.by_geometry:
        words = dsa.geometry_words(launch.live, inputs.kpool, inputs.topk)
        geometry = [Buffer("geometry", "i32", (5,), Role.INPUT, words)]
    processors = launch.multiprocessors
    return Program(
        (
            *inputs.buffers("q", "weights", *(() if launch.by_geometry else ("q_pos",)), "valid"),
            *geometry,
            Buffer("pool_keys", "bf16", keys.shape, Role.INPUT, keys, uninitialised=tuple(holes)),
            *(buffer for buffer in lists if buffer.name != "pool_starts"),
            *score_buffers(inputs, launch.positions.size, launch.score_cols),
        ),
        (score_call(launch, expect),),
        {} if processors is None else {"multiprocessors": processors},
    )


def wanted_of(launch: Launch) -> Wanted:
    """Return the oracle of a launch, keys taken as given."""
    keys = [PooledKeys.given(given) for given in launch.pool_keys]
    return wanted(launch.inputs, keys, launch.positions, launch.live, launch.score_cols)


def reference_finding(recorded: dsa_golden.DsaCase, want: Wanted) -> Finding:
    """Hold the reference's own scores of a golden's case to the oracle, pool by pool of the lists."""
    own = np.zeros(want.value.shape)
    for row in range(recorded.batch):
        listed = recorded.scores[row][:, recorded.pool_valid[row] == 1]
        own[row, :, : listed.shape[1]] = listed
    shown = np.where(want.candidate, own, 0.0)
    return bounded("reference-scores", "scores", want.value, shown, want.bound, "scores")
