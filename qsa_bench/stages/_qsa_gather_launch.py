"""One gather: the kernel, its buffers and call, and what the scratch should hold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from qsa_bench.compare import bitwise
from qsa_bench.model import STREAM, Argument, Axis, Entry, Finding, Kernel, Role
from qsa_bench.poison import POISON
from qsa_bench.program import Buffer, Call, Program, Value
from qsa_bench.stages import _qsa_paged as qsa
from qsa_bench.stages.base import (
    Outputs,
    poisoned_like,
)

Array = npt.NDArray[Any]

STAGE_NAME = "qsa_gather"


_SLOTS = ("row_count", "scratch_tokens", "kv_heads", "head_dim")


KERNEL = Kernel(
    STAGE_NAME,
    "kernels/qsa/gather.cu",
    (
        Entry(
            "qsa_gather",
            (
                *qsa.POINTERS,
                Argument("ids", "i32", Role.INPUT, ("row_count", "ids_stride"), doc="ascending"),
                Argument("counts", "i32", Role.INPUT, ("row_count",), doc="ids of each row"),
                Argument("k_scratch", "bf16", Role.OUTPUT, _SLOTS),
                Argument("v_scratch", "bf16", Role.OUTPUT, _SLOTS),
                Argument(
                    "identity", "i32", Role.OUTPUT, ("row_count", "scratch_tokens / page_tokens")
                ),
                Argument("lengths", "i32", Role.OUTPUT, ("row_count",)),
                Argument("row_count", "i64", Role.SCALAR, doc="rows, a sequence's each"),
                *qsa.EXTENTS,
                Argument("kv_heads", "i64", Role.SCALAR, doc="KV heads"),
                Argument("head_dim", "i64", Role.SCALAR, doc="a multiple of 8"),
                Argument("ids_stride", "i64", Role.SCALAR, doc="ids from one row to the next"),
                Argument("scratch_tokens", "i64", Role.SCALAR, doc="slots of a row's scratch"),
                STREAM,
            ),
            "selected keys and values",
        ),
    ),
    axes={"threads": Axis("QSA_GATHER_THREADS", (128, 256, 512), "threads a block")},
)


@dataclass(frozen=True)
class Selection:
    """A paged cache, the ids of each row and the width of the scratch in tokens."""

    cache: qsa.Paged
    rows: tuple[tuple[int, ...], ...]
    scratch_tokens: int
    ids_stride: int

    @property
    def counts(self) -> Array:
        """How many ids each row has."""
        return np.array([len(row) for row in self.rows], dtype=np.int32)


def program(selection: Selection) -> Program:
    """Return the program of one gather; ids past a row's count are -1 and unreadable."""
    cache, rows = selection.cache, len(selection.rows)
    ids = np.full((rows, selection.ids_stride), -1, dtype=np.int32)
    unread = []
    for row, given in enumerate(selection.rows):
        ids[row, : len(given)] = given
        start = row * selection.ids_stride + len(given)
        stop = (row + 1) * selection.ids_stride
        if start < stop:
            unread.append((start, stop))
    _, _, kv_heads, head_dim = cache.keys.shape
    slots = (rows, selection.scratch_tokens, kv_heads, head_dim)
    pages = selection.scratch_tokens // cache.page_tokens
    buffers = (
        *cache.buffers(),
        Buffer("ids", "i32", ids.shape, Role.INPUT, ids, uninitialised=tuple(unread)),
        Buffer("counts", "i32", (rows,), Role.INPUT, selection.counts),
        Buffer("k_scratch", "bf16", slots, Role.OUTPUT),
        Buffer("v_scratch", "bf16", slots, Role.OUTPUT),
        Buffer("identity", "i32", (rows, pages), Role.OUTPUT),
        Buffer("lengths", "i32", (rows,), Role.OUTPUT),
    )
    own = ("ids", "counts", "k_scratch", "v_scratch", "identity", "lengths")
    values: dict[str, Value] = {
        **cache.values_of(),
        **{name: name for name in own},
        "row_count": rows,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "ids_stride": selection.ids_stride,
        "scratch_tokens": selection.scratch_tokens,
    }
    return Program(buffers, (Call(STAGE_NAME, "qsa_gather", values),))


def judge_gather(selection: Selection, outputs: Outputs) -> Iterator[Finding]:
    """Hold the scratch, the identity table and the lengths to what the ids name."""
    cache = selection.cache
    shape = outputs["k_scratch"].shape
    within = np.arange(shape[1])[None, :] < selection.counts[:, None]
    for check, held, tensor in (("k", "k_scratch", cache.keys), ("v", "v_scratch", cache.values)):
        want = poisoned_like(shape, "uint16", POISON)
        for row, ids in enumerate(selection.rows):
            want[row, : len(ids)] = tensor[row, list(ids)]
        yield bitwise(check, held, want[within], outputs[held][within])
    want = poisoned_like(shape, "uint16", POISON)[~within]
    rest = np.concatenate([outputs[name][~within] for name in ("k_scratch", "v_scratch")])
    yield bitwise("past-the-count", "scratch", np.concatenate([want, want]), rest)
    identity = outputs["identity"]
    numbered = np.arange(identity.size, dtype=np.int32).reshape(identity.shape)
    yield bitwise("identity", "identity", numbered, identity)
    yield bitwise("lengths", "lengths", selection.counts, outputs["lengths"])
