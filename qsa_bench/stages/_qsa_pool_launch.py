"""Pooling: the kernel, a launch, and the judge of pooled keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from qsa_bench.bf16 import to_float32
from qsa_bench.model import STREAM, Argument, Axis, Entry, Evidence, Finding, Kernel, Role, Status
from qsa_bench.oracles.qsa_head_vector import WINDOW_ULP
from qsa_bench.oracles.qsa_numerics import PooledKeys, illegal_keys
from qsa_bench.program import Buffer, Call, Program, Value
from qsa_bench.stages import _qsa_inputs as qsa

Array = npt.NDArray[Any]

STAGE_NAME = "qsa_pool"


KERNEL = Kernel(
    STAGE_NAME,
    "kernels/qsa/pool.cu",
    (
        Entry(
            "qsa_pool",
            (
                Argument("fused_qk", "bf16", Role.INPUT, ("tokens", "640"), doc="projected rows"),
                Argument("k_norm_weight", "bf16", Role.INPUT, ("128",)),
                Argument("cos", "bf16", Role.INPUT, ("tokens", "64"), doc="by absolute position"),
                Argument("sin", "bf16", Role.INPUT, ("tokens", "64"), doc="by absolute position"),
                Argument("block_keys", "bf16", Role.OUTPUT, ("tokens / 4", "128")),
                Argument("tokens", "i64", Role.SCALAR, doc="rows of fused_qk, cos and sin"),
                Argument("first_block", "i64", Role.SCALAR, doc="first block to pool"),
                Argument("block_count", "i64", Role.SCALAR, doc="blocks to pool"),
                Argument("fused_stride", "i64", Role.SCALAR, doc="640"),
                Argument("rotary_dim", "i64", Role.SCALAR, doc="64"),
                Argument("eps", "f32", Role.SCALAR, doc="added to the mean square"),
                STREAM,
            ),
            "pooled block keys",
        ),
    ),
    axes={"threads": Axis("QSA_POOL_THREADS", (64, 128, 256, 512), "threads a block")},
)


def judge_keys(
    want: PooledKeys, got: Array, blocks: Array | None = None, golden: bool = False
) -> Iterator[Finding]:
    """Yield the finding on pooled keys `got` [blocks, 128]; `blocks` numbers the rows, from 0 on.

    The error of an element is its distance from the nearest legal bf16. Its bound is the window
    in which the oracle trusts a f32 result, 2 ulp (of the larger of both, so that a zero has one
    too): as bf16 lie 32,768 of these apart or more, a key that is wrong at all is wrong by 16,384
    times its bound. `golden` adds the counts that a run prints.
    """
    numbers: dict[str, float] = {}
    if golden:
        flagged = want.flagged()
        numbers = {
            "elements": float(got.size),
            "may_flip": float(flagged.sum()),
            "flipped": float((flagged & (got != want.value)).sum()),
        }
    illegal = np.flatnonzero(illegal_keys(got, want).reshape(-1))
    if illegal.size == 0:
        evidence = Evidence(0, got.size, error=0.0, bound=0.0, numbers=numbers)
        yield Finding("block-keys", Status.PASS, evidence)
        return
    low, high, wanted, given = (
        to_float32(bits).reshape(-1)[illegal] for bits in (want.low, want.high, want.value, got)
    )
    nearest = np.clip(given, low, high)
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.abs(given.astype(np.float64) - nearest)
        larger = np.maximum(np.abs(nearest), np.abs(given)).astype(np.float64)
        bound = WINDOW_ULP * 2.0**-23 * larger
        margin = np.where(np.isnan(error / bound), np.inf, error / bound)
    worst = int(np.argmax(margin))
    row, dim = divmod(int(illegal[worst]), qsa.HEAD_DIM)
    row_0, dim_0 = divmod(int(illegal[0]), qsa.HEAD_DIM)
    number = np.arange(got.shape[0]) if blocks is None else blocks
    finite = bool(np.isfinite(margin[worst]))
    yield Finding(
        "block-keys",
        Status.WRONG,
        Evidence(
            int(illegal.size),
            got.size,
            first=f"block_keys[{number[row_0]}, {dim_0}]",
            want=f"{wanted[worst]:.9g}",
            got=f"{given[worst]:.9g}",
            error=float(error[worst]) if finite else float("inf"),
            bound=float(bound[worst]) if finite else 0.0,
            where=f"block_keys[{number[row]}, {dim}]",
            note=f"{illegal.size} of {got.size} elements of block_keys have no legal value",
            numbers=numbers,
        ),
    )


def pool_call(inputs: qsa.Inputs, first_block: int, block_count: int) -> Call:
    """Return the call that pools blocks of `inputs` into the buffer block_keys."""
    values: dict[str, Value] = {
        "fused_qk": "fused_qk",
        "k_norm_weight": "k_norm_weight",
        "cos": "cos",
        "sin": "sin",
        "block_keys": "block_keys",
        "tokens": inputs.tokens,
        "first_block": first_block,
        "block_count": block_count,
        "fused_stride": 640,
        "rotary_dim": qsa.ROTARY_DIM,
        "eps": qsa.EPS,
    }
    return Call(STAGE_NAME, "qsa_pool", values)


def keys_buffer(inputs: qsa.Inputs) -> Buffer:
    """Return the output buffer of all complete blocks."""
    return Buffer("block_keys", "bf16", (inputs.blocks, qsa.HEAD_DIM), Role.OUTPUT)


def program(inputs: qsa.Inputs, ranges: Sequence[tuple[int, int]]) -> Program:
    """Return the program that pools `ranges` of (first block, count), one call each."""
    return Program(
        (*inputs.buffers("fused_qk", "k_norm_weight", "cos", "sin"), keys_buffer(inputs)),
        tuple(pool_call(inputs, first, count) for first, count in ranges),
    )
