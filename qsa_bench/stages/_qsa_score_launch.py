"""One launch of qsa_score: the kernel, a launch's buffers and call, and its oracle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from qsa_bench.model import STREAM, Argument, Axis, Entry, Kernel, Role
from qsa_bench.oracles.qsa_numerics import ScoreOracle, pool_oracle, score_oracle
from qsa_bench.program import OK, Buffer, Call, Program, Value
from qsa_bench.stages import _qsa_inputs as qsa

Array = npt.NDArray[Any]

STAGE_NAME = "qsa_score"
AUTOMATIC, MMA, SCALAR = "qsa_score", "qsa_score_mma", "qsa_score_scalar"
# The buffer that an entry's scores go to. The emulated device runs mma.sync and nothing beyond it,
# so there the automatic entry is the mma one.
SCORES = {AUTOMATIC: "scores", MMA: "scores_mma", SCALAR: "scores_scalar"}
BOTH = (AUTOMATIC, SCALAR)

_ARGUMENTS = (
    Argument("fused_qk", "bf16", Role.INPUT, ("fused_rows", "640")),
    Argument("q_norm_weight", "bf16", Role.INPUT, ("128",)),
    Argument("cos", "bf16", Role.INPUT, ("tokens", "64"), doc="by absolute position"),
    Argument("sin", "bf16", Role.INPUT, ("tokens", "64"), doc="by absolute position"),
    Argument("block_keys", "bf16", Role.INPUT, ("block_capacity", "128")),
    Argument("rows", "i32", Role.INPUT, ("row_count",), doc="absolute positions"),
    Argument("visible_len", "i32", Role.INPUT, ("row_count",), doc="tokens seen"),
    Argument("scores", "f32", Role.OUTPUT, ("row_count", "score_cols")),
    Argument("row_count", "i64", Role.SCALAR, doc="rows to score"),
    Argument("tokens", "i64", Role.SCALAR, doc="capacity: length of the tables"),
    Argument("first_position", "i64", Role.SCALAR, doc="position of fused row 0"),
    Argument("fused_rows", "i64", Role.SCALAR, doc="rows of fused_qk"),
    Argument("block_capacity", "i64", Role.SCALAR, doc="rows of block_keys"),
    Argument("score_cols", "i64", Role.SCALAR, doc="row stride of scores"),
    Argument("fused_stride", "i64", Role.SCALAR, doc="640"),
    Argument("rotary_dim", "i64", Role.SCALAR, doc="64"),
    Argument("eps", "f32", Role.SCALAR, doc="added to the mean square"),
    STREAM,
)

KERNEL = Kernel(
    STAGE_NAME,
    "kernels/qsa/score.cu",
    (
        Entry(AUTOMATIC, _ARGUMENTS, "scores of rows against block keys, by the fastest body"),
        Entry(MMA, _ARGUMENTS, "the same by mma.sync, whatever else the device has"),
        Entry(SCALAR, _ARGUMENTS, "the same on the CUDA cores"),
    ),
    axes={"threads": Axis("QSA_SCORE_THREADS", (128, 256, 512), "threads a block, scalar body")},
)


@dataclass(frozen=True)
class Launch:
    """One launch: the sequence's inputs and block keys, rows and how far each sees.

    `fused_first` cuts the fused rows at a position, as decode does; `extra_cols` is spare width.
    `multiprocessors` of the emulated device decide over how many CTAs a row is split, its
    `compute_capability` how much shared memory a CTA may ask for. `unseen` is
    the first block key that nothing initialised: no row may see it or any after it.
    """

    inputs: qsa.Inputs
    block_keys: Array
    rows: Sequence[int]
    visible_len: Sequence[int]
    fused_first: int = 0
    extra_cols: int = 0
    multiprocessors: int | None = None
    compute_capability: int | None = None
    unseen: int | None = None

    @property
    def score_cols(self) -> int:
        """Row stride of the scores."""
        return max(1, self.inputs.tokens // qsa.RATIO) + self.extra_cols


def launch_of(
    inputs: qsa.Inputs,
    rows: Sequence[int],
    visible_len: Sequence[int] | None = None,
    fused_first: int = 0,
    extra_cols: int = 0,
) -> Launch:
    """Return a launch whose block keys are the pool oracle's; rows see themselves and before."""
    keys = pool_oracle(inputs.fused_qk, inputs.k_norm_weight, inputs.cos, inputs.sin, qsa.EPS)
    seen = [row + 1 for row in rows] if visible_len is None else visible_len
    return Launch(inputs, keys.value, rows, seen, fused_first, extra_cols)


def score_call(launch: Launch, expect: str | int = OK, entry: str = AUTOMATIC) -> Call:
    """Return an entry's call of a launch: the buffers are named as the arguments, but for scores."""
    values: dict[str, Value] = {
        name: name
        for name in (
            "fused_qk",
            "q_norm_weight",
            "cos",
            "sin",
            "block_keys",
            "rows",
            "visible_len",
        )
    }
    values |= {
        "scores": SCORES[entry],
        "row_count": len(launch.rows),
        "tokens": launch.inputs.tokens,
        "first_position": launch.fused_first,
        "fused_rows": launch.inputs.tokens - launch.fused_first,
        "block_capacity": launch.block_keys.shape[0],
        "score_cols": launch.score_cols,
        "fused_stride": 640,
        "rotary_dim": qsa.ROTARY_DIM,
        "eps": qsa.EPS,
    }
    return Call(STAGE_NAME, entry, values, expect)


def row_buffers(launch: Launch, entries: Sequence[str] = (AUTOMATIC,)) -> list[Buffer]:
    """Return rows, visible_len and each entry's scores of a launch."""
    count = len(launch.rows)
    rows = np.array(launch.rows, dtype=np.int32)
    seen = np.array(launch.visible_len, dtype=np.int32)
    return [
        Buffer("rows", "i32", (count,), Role.INPUT, rows),
        Buffer("visible_len", "i32", (count,), Role.INPUT, seen),
        *(
            Buffer(SCORES[entry], "f32", (count, launch.score_cols), Role.OUTPUT)
            for entry in entries
        ),
    ]


def program(
    launch: Launch, expect: str | int = OK, entries: Sequence[str] = (AUTOMATIC,)
) -> Program:
    """Return the program that calls each of `entries` on a launch."""
    fused = np.ascontiguousarray(launch.inputs.fused_qk[launch.fused_first :])
    inputs = launch.inputs.with_fused(fused)
    keys = launch.block_keys
    told = {
        "multiprocessors": launch.multiprocessors,
        "compute_capability": launch.compute_capability,
    }
    device = {name: value for name, value in told.items() if value is not None}
    unseen = () if launch.unseen is None else ((launch.unseen * qsa.HEAD_DIM, keys.size),)
    return Program(
        (
            *inputs.buffers("fused_qk", "q_norm_weight", "cos", "sin"),
            Buffer("block_keys", "bf16", keys.shape, Role.INPUT, keys, uninitialised=unseen),
            *row_buffers(launch, entries),
        ),
        tuple(score_call(launch, expect, entry) for entry in entries),
        device,
    )


def oracle_of(launch: Launch) -> ScoreOracle:
    """Return the oracle of a launch, keys taken as given."""
    return score_oracle(
        launch.inputs.fused_qk[launch.fused_first :],
        launch.inputs.q_norm_weight,
        launch.inputs.cos,
        launch.inputs.sin,
        launch.block_keys,
        np.array(launch.rows, dtype=np.int32),
        np.array(launch.visible_len, dtype=np.int32),
        qsa.EPS,
        launch.fused_first,
        launch.score_cols,
    )
