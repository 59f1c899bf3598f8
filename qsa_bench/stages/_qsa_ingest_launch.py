"""Ingests: the kernel, and the calls that bring a sequence its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from qsa_bench.model import STREAM, Argument, Axis, Entry, Kernel, Role
from qsa_bench.poison import POISON
from qsa_bench.program import At, Buffer, Call, Program, Value
from qsa_bench.stages import _qsa_inputs as qsa
from qsa_bench.stages.base import (
    poisoned_like,
)

Array = npt.NDArray[Any]

STAGE_NAME = "qsa_ingest"


_STEP_WORDS = 4


_INPUTS = (
    Argument("fused_qk", "bf16", Role.INPUT, ("row_count", "640"), doc="rows of the new tokens"),
    Argument("k_norm_weight", "bf16", Role.INPUT, ("128",)),
    Argument("cos", "bf16", Role.INPUT, ("tokens", "64"), doc="by absolute position"),
    Argument("sin", "bf16", Role.INPUT, ("tokens", "64"), doc="by absolute position"),
)


_STATE = (
    Argument("raw_keys", "bf16", Role.INOUT, ("tokens", "128"), doc="of every token so far"),
    Argument("block_keys", "bf16", Role.OUTPUT, ("tokens / 4", "128")),
)


_SCALARS = (
    Argument("tokens", "i64", Role.SCALAR, doc="capacity of the sequence, rows of the tables"),
    Argument("fused_stride", "i64", Role.SCALAR, doc="640"),
    Argument("rotary_dim", "i64", Role.SCALAR, doc="64"),
    Argument("eps", "f32", Role.SCALAR, doc="added to the mean square"),
    STREAM,
)


KERNEL = Kernel(
    STAGE_NAME,
    "kernels/qsa/ingest.cu",
    (
        Entry(
            "qsa_ingest",
            (
                *_INPUTS,
                *_STATE,
                Argument("first_position", "i64", Role.SCALAR, doc="position of row 0"),
                Argument("row_count", "i64", Role.SCALAR, doc="new tokens"),
                *_SCALARS,
            ),
            "new tokens of a chunk",
        ),
        Entry(
            "qsa_ingest_step",
            (
                *_INPUTS,
                Argument("position", "i32", Role.INPUT, ("1",), doc="-1 for an empty slot"),
                *_STATE,
                Argument("step", "i32", Role.OUTPUT, ("4",), doc="visible, live, position, 0"),
                Argument("cos_row", "bf16", Role.OUTPUT, ("64",)),
                Argument("sin_row", "bf16", Role.OUTPUT, ("64",)),
                *_SCALARS,
            ),
            "the new token of a captured step",
        ),
    ),
    axes={"threads": Axis("QSA_INGEST_THREADS", (32, 128, 256), "threads a block")},
)


@dataclass(frozen=True)
class Chunk:
    """One call: `count` rows of the fused rows from `row` on, for tokens from `start` on.

    `step` is a captured step's call; with `start` -1 it is an empty slot.
    """

    start: int
    count: int
    row: int
    step: bool = False


@dataclass(frozen=True)
class Stream:
    """Fused rows, in the order of the calls, and the calls that bring a sequence of `tokens`."""

    inputs: qsa.Inputs
    chunks: tuple[Chunk, ...]
    tokens: int

    @property
    def steps(self) -> tuple[Chunk, ...]:
        """The calls of captured steps."""
        return tuple(chunk for chunk in self.chunks if chunk.step)


def in_order(inputs: qsa.Inputs, counts: Sequence[int], step: bool = False) -> Stream:
    """Return the stream of chunks of `counts` tokens, from token 0 on."""
    chunks, start = [], 0
    for count in counts:
        chunks.append(Chunk(start, count, start, step))
        start += count
    return Stream(inputs, tuple(chunks), inputs.tokens)


def program(stream: Stream) -> Program:
    """Return the program of all calls over one sequence's keys."""
    inputs, steps = stream.inputs, stream.steps
    positions = np.array([chunk.start for chunk in steps], dtype=np.int32)
    kept = poisoned_like((stream.tokens, qsa.HEAD_DIM), "uint16", POISON)
    buffers = [
        *inputs.buffers("fused_qk", "k_norm_weight"),
        *(
            Buffer(name, "bf16", (stream.tokens, qsa.ROTARY_DIM), Role.INPUT, table)
            for name, table in (
                ("cos", inputs.cos[: stream.tokens]),
                ("sin", inputs.sin[: stream.tokens]),
            )
        ),
        Buffer(
            "raw_keys",
            "bf16",
            kept.shape,
            Role.INOUT,
            kept,
            uninitialised=((0, kept.size),) if len(stream.chunks) == 1 else (),
        ),
        Buffer("block_keys", "bf16", (stream.tokens // qsa.RATIO, qsa.HEAD_DIM), Role.OUTPUT),
    ]
    if steps:
        rows = (len(steps), qsa.ROTARY_DIM)
        buffers += [
            Buffer("position", "i32", positions.shape, Role.INPUT, positions),
            Buffer("step", "i32", (len(steps), _STEP_WORDS), Role.OUTPUT),
            Buffer("cos_row", "bf16", rows, Role.OUTPUT),
            Buffer("sin_row", "bf16", rows, Role.OUTPUT),
        ]
    calls, done = [], 0
    for chunk in stream.chunks:
        calls.append(_call(stream, chunk, done))
        done += chunk.step
    return Program(tuple(buffers), tuple(calls))


def _call(stream: Stream, chunk: Chunk, done: int) -> Call:
    """Return a chunk's call, behind `done` captured steps."""
    width = int(stream.inputs.fused_qk.shape[1])
    values: dict[str, Value] = {
        "fused_qk": At("fused_qk", chunk.row * width),
        **{name: name for name in ("k_norm_weight", "cos", "sin", "raw_keys", "block_keys")},
        "tokens": stream.tokens,
        "fused_stride": 640,
        "rotary_dim": qsa.ROTARY_DIM,
        "eps": qsa.EPS,
    }
    if not chunk.step:
        return Call(
            STAGE_NAME,
            "qsa_ingest",
            {**values, "first_position": chunk.start, "row_count": chunk.count},
        )
    values["position"] = At("position", done)
    values["step"] = At("step", done * _STEP_WORDS)
    values["cos_row"] = At("cos_row", done * qsa.ROTARY_DIM)
    values["sin_row"] = At("sin_row", done * qsa.ROTARY_DIM)
    return Call(STAGE_NAME, "qsa_ingest_step", values)
