"""One launch of dsa_kpool_compress: the kernel, a launch's buffers and calls, its oracle and judge."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from qsa_bench.goldens import dsa as dsa_golden
from qsa_bench.model import STREAM, Argument, Axis, Entry, Finding, Kernel, Role
from qsa_bench.oracles.dsa_pools import PoolLists, compress
from qsa_bench.oracles.qsa_numerics import Flips, PooledKeys
from qsa_bench.program import OK, At, Buffer, Call, Program, Value
from qsa_bench.stages import _dsa_inputs as dsa
from qsa_bench.stages._dsa_judge import flip_numbers, keys_finding, partly, untouched
from qsa_bench.stages.base import Outputs

Array = npt.NDArray[Any]

STAGE_NAME = "dsa_kpool_compress"

KERNEL = Kernel(
    STAGE_NAME,
    "kernels/dsa/kpool_compress.cu",
    (
        Entry(
            STAGE_NAME,
            (
                Argument("keys", "bf16", Role.INPUT, ("batch", "token_capacity", "128")),
                Argument("gate", "bf16", Role.INPUT, ("batch", "token_capacity", "128")),
                Argument("ape", "f32", Role.INPUT, ("kpool", "128")),
                Argument("valid", "u8", Role.INPUT, ("batch", "token_capacity"), optional=True),
                Argument("geometry", "i32", Role.INPUT, ("5",), optional=True),
                Argument("pool_keys", "bf16", Role.OUTPUT, ("batch", "pool_capacity", "128")),
                Argument("first_keys", "i32", Role.INOUT, ("batch",), optional=True),
                Argument(
                    "slots", "i32", Role.INOUT, ("batch", "pool_capacity + 1", "2"), optional=True
                ),
                Argument(
                    "pool_starts", "i32", Role.INOUT, ("batch", "pool_capacity"), optional=True
                ),
                Argument("batch", "i64", Role.SCALAR, doc="sequences"),
                Argument("tokens", "i64", Role.SCALAR, doc="live tokens, or their ceiling"),
                Argument(
                    "fresh_tokens", "i64", Role.SCALAR, doc="of them, new since the last step"
                ),
                Argument("token_capacity", "i64", Role.SCALAR, doc="tokens a sequence's rows hold"),
                Argument("pool_capacity", "i64", Role.SCALAR, doc="pools a sequence's rows hold"),
                Argument("kpool", "i64", Role.SCALAR, doc="tokens a pool: 4 or 16"),
                STREAM,
            ),
            "pooled keys and the lists of pools",
        ),
    ),
    axes={"threads": Axis("DSA_COMPRESS_THREADS", (64, 128, 256), "threads a block")},
)


@dataclass(frozen=True)
class Step:
    """One call: live tokens, how many of them are fresh, and whether the device says so."""

    live: int
    fresh: int
    by_geometry: bool = False


@dataclass(frozen=True)
class Launch:
    """Inputs and the steps that pool them.

    `listed_before` are the live tokens whose lists an earlier step left; `spare` pools of capacity
    are never reached.
    """

    inputs: dsa.Inputs
    steps: tuple[Step, ...]
    listed_before: int | None = None
    spare: int = 0

    @property
    def pool_capacity(self) -> int:
        """Pools a sequence's rows hold."""
        return self.inputs.pool_capacity + self.spare


def compress_call(
    inputs: dsa.Inputs, step: Step, pool_capacity: int, expect: str | int = OK, geometry: int = 0
) -> Call:
    """Return a step's call over the buffers named as the arguments.

    `geometry` is the element of the buffer of that name at which the step's words lie.
    """
    names = ("keys", "gate", "ape", "valid", "pool_keys", "first_keys", "slots", "pool_starts")
    values: dict[str, Value] = {
        **dsa.names_of(*names, inputs=inputs),
        "batch": inputs.batch,
        "tokens": inputs.tokens if step.by_geometry else step.live,
        "fresh_tokens": step.fresh,
        "token_capacity": inputs.tokens,
        "pool_capacity": pool_capacity,
        "kpool": inputs.kpool,
    }
    if step.by_geometry:
        values["geometry"] = At("geometry", geometry)
    return Call(STAGE_NAME, STAGE_NAME, values, expect)


def keys_buffer(inputs: dsa.Inputs, pool_capacity: int) -> Buffer:
    """Return the output buffer of pool keys."""
    shape = (inputs.batch, pool_capacity, dsa.HEAD_DIM)
    return Buffer("pool_keys", "bf16", shape, Role.OUTPUT)


def program(launch: Launch) -> Program:
    """Return the program of a launch's steps."""
    inputs, capacity = launch.inputs, launch.pool_capacity
    before = launch.listed_before
    lists = dsa.list_buffers(inputs, Role.OUTPUT if before is None else Role.INOUT, before)
    words = [
        dsa.geometry_words(step.live, inputs.kpool, inputs.topk)
        for step in launch.steps
        if step.by_geometry
    ]
    geometry = []
    if words:
        data = np.concatenate(words)
        geometry = [Buffer("geometry", "i32", (data.size,), Role.INPUT, data)]
    calls, place = [], 0
    for step in launch.steps:
        calls.append(compress_call(inputs, step, capacity, geometry=place))
        place += 5 if step.by_geometry else 0
    buffers = inputs.buffers("keys", "gate", "ape", "valid")
    return Program((*buffers, *geometry, keys_buffer(inputs, capacity), *lists), tuple(calls))


def _fresh(launch: Launch, lists: PoolLists) -> Array:
    """Return which pools [pools] of the last step's list any step completes."""
    last = lists.starts + launch.inputs.kpool - 1
    fresh = np.zeros(last.size, dtype=bool)
    for step in launch.steps:
        fresh |= (last >= step.live - step.fresh) & (last < step.live)
    return fresh


@dataclass(frozen=True)
class Wanted:
    """Keys of each sequence's pools and which are written; its lists."""

    keys: list[PooledKeys]
    fresh: list[Array]
    lists: list[PoolLists]


def wanted_of(launch: Launch) -> Wanted:
    """Return the oracle of a launch."""
    inputs = launch.inputs
    lists = inputs.lists(launch.steps[-1].live)
    keys = [
        compress(inputs.keys[row], inputs.gate[row], inputs.ape, found.starts)
        for row, found in enumerate(lists)
    ]
    return Wanted(keys, [_fresh(launch, found) for found in lists], lists)


def joined(keys: Sequence[PooledKeys], chosen: Sequence[Array] | None = None) -> PooledKeys:
    """Return the keys of several sequences, the `chosen` ones of each, as one list."""
    which = [slice(None)] * len(keys) if chosen is None else chosen
    value, low, high = (
        np.concatenate([getattr(of, part)[rows] for of, rows in zip(keys, which, strict=True)])
        for part in ("value", "low", "high")
    )
    return PooledKeys(value, low, high, Flips())


def judge_pools(
    launch: Launch, want: Wanted, outputs: Outputs, golden: bool = False
) -> Iterator[Finding]:
    """Yield the findings on pool keys and lists."""
    got = outputs["pool_keys"]
    written = np.zeros(got.shape[:2], dtype=bool)
    for row, fresh in enumerate(want.fresh):
        written[row, : fresh.size] = fresh
    kept = joined(want.keys, want.fresh)
    given = got[written]
    yield keys_finding("pool-keys", kept, given, flip_numbers(kept, given) if golden else None)
    yield untouched("untouched", "pool_keys", got, written)
    if launch.inputs.valid is not None and launch.listed_before is None:
        yield from _judge_lists(want.lists, outputs)


def _judge_lists(lists: Sequence[PoolLists], outputs: Outputs) -> Iterator[Finding]:
    found = []
    for name in ("first_keys", "slots", "pool_starts"):
        got = outputs[name]
        want = np.zeros(got.shape, dtype=np.int32)
        written = np.zeros(got.shape, dtype=bool)
        for row, of in enumerate(lists):
            values = {"first_keys": np.array(of.first), "slots": of.slots, "pool_starts": of.starts}
            place = (row, slice(0, len(values[name]))) if name != "first_keys" else (row,)
            want[place] = values[name]
            written[place] = True
        found.append(partly("lists", name, want, got, written))
    wrong = [finding for finding in found if finding.evidence.count]
    yield (wrong or found)[0]


def reference_finding(recorded: dsa_golden.DsaCase, keys: Sequence[PooledKeys]) -> Finding:
    """Hold the reference's own keys of a golden's case to the oracle."""
    own = [dsa.listed_pool_keys(recorded, row) for row in range(recorded.batch)]
    return keys_finding("reference-keys", joined(keys), np.concatenate(own))
