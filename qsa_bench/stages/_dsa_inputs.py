"""Seeded inputs of the DSA indexer: keys, gates, positions' embeddings, validity, queries.

bf16 is uint16 throughout. A golden's case and a generated one have the same form.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from qsa_bench.bf16 import round_to_bf16, to_float32
from qsa_bench.families import seeded
from qsa_bench.goldens import dsa as dsa_golden
from qsa_bench.model import Role
from qsa_bench.oracles.dsa_pools import PoolLists, pool_lists
from qsa_bench.program import Buffer

Array = npt.NDArray[Any]

HEADS = dsa_golden.HEADS
HEAD_DIM = dsa_golden.HEAD_DIM
# kernels/common/status.h
NULL_POINTER, BAD_EXTENT, BAD_BUDGET, BAD_STRIDE, UNSUPPORTED = 1, 2, 3, 4, 8


@dataclass(frozen=True)
class Inputs:
    """What B sequences of T tokens give the indexer.

    `keys`, `gate` [B, T, 128]; `ape` [kpool, 128] f32; `valid` [B, T] u8, or None where every
    token is a key; `q` [B, Q, 32, 128]; `weights` [B, Q, 32] f32; `q_pos` [Q] i32.
    """

    keys: Array
    gate: Array
    ape: Array
    valid: Array | None
    q: Array
    weights: Array
    q_pos: Array
    topk: int

    @property
    def batch(self) -> int:
        """Sequences."""
        return int(self.keys.shape[0])

    @property
    def tokens(self) -> int:
        """Tokens of a sequence, padding included."""
        return int(self.keys.shape[1])

    @property
    def kpool(self) -> int:
        """Tokens of a pool."""
        return int(self.ape.shape[0])

    @property
    def query_rows(self) -> int:
        """Query rows of a sequence."""
        return int(self.q_pos.size)

    @property
    def pool_capacity(self) -> int:
        """Pools that a sequence can have."""
        return self.tokens // self.kpool

    @property
    def keep(self) -> int:
        """Pools kept at most."""
        return self.topk // self.kpool

    def mask(self, tokens: int | None = None) -> Array:
        """Return which of the first `tokens` tokens are keys, [B, tokens] u8."""
        count = self.tokens if tokens is None else tokens
        if self.valid is None:
            return np.ones((self.batch, count), dtype=np.uint8)
        return self.valid[:, :count]

    def lists(self, tokens: int | None = None) -> list[PoolLists]:
        """Return each sequence's pools with `tokens` live tokens."""
        return [pool_lists(row, self.kpool) for row in self.mask(tokens)]

    def buffers(self, *names: str) -> list[Buffer]:
        """Return the named inputs as buffers; `valid` only where there is one."""
        dtypes = {"ape": "f32", "weights": "f32", "valid": "u8", "q_pos": "i32"}
        made = []
        for name in names:
            data = getattr(self, name)
            if data is not None:
                made.append(Buffer(name, dtypes.get(name, "bf16"), data.shape, Role.INPUT, data))
        return made

    def unpadded(self, sequence: int, padding: int) -> Inputs:
        """Return one sequence alone without its first `padding` tokens, rows before them left out."""
        rows = self.q_pos >= padding
        assert self.valid is not None
        return replace(
            self,
            keys=self.keys[sequence : sequence + 1, padding:],
            gate=self.gate[sequence : sequence + 1, padding:],
            valid=self.valid[sequence : sequence + 1, padding:],
            q=self.q[sequence : sequence + 1, rows],
            weights=self.weights[sequence : sequence + 1, rows],
            q_pos=self.q_pos[rows] - np.int32(padding),
        )


@functools.lru_cache(maxsize=64)
def random_inputs(
    tokens: int,
    *words: object,
    kpool: int = 4,
    topk: int = 2048,
    batch: int = 1,
    rows: tuple[int, ...] = (),
    padding: tuple[int, ...] | None = None,
    holes: tuple[tuple[int, int], ...] = (),
    gate_scale: float = 1.3,
    key_scale: float = 1.0,
) -> Inputs:
    """Return normal inputs; ape values that bf16 cannot hold; weights of both signs.

    `rows` are the query positions, the last token where there are none. `padding` gives each
    sequence's tokens before its first key, `holes` (sequence, token) that are no keys; without
    either every token is a key and there is no mask.
    """
    random = seeded("dsa-inputs", tokens, kpool, batch, *words)
    positions = np.array(rows or (tokens - 1,), dtype=np.int32)
    shape, count = (batch, tokens, HEAD_DIM), positions.size
    valid = None
    if padding is not None or holes:
        pads = np.array(padding or (0,) * batch)
        valid = (np.arange(tokens)[None, :] >= pads[:, None]).astype(np.uint8)
        for sequence, token in holes:
            valid[sequence, token] = 0
    return Inputs(
        keys=round_to_bf16(key_scale * random.standard_normal(shape)),
        gate=round_to_bf16(gate_scale * random.standard_normal(shape)),
        ape=(0.5 * random.standard_normal((kpool, HEAD_DIM))).astype(np.float32),
        valid=valid,
        q=round_to_bf16(0.8 * random.standard_normal((batch, count, HEADS, HEAD_DIM))),
        weights=(HEADS**-0.5 * random.standard_normal((batch, count, HEADS))).astype(np.float32),
        q_pos=positions,
        topk=topk,
    )


def of_golden(case: dsa_golden.DsaCase) -> Inputs:
    """Return the inputs of a golden's case; the loader makes ape f32."""
    return Inputs(
        keys=case.k_normed,
        gate=case.gate,
        ape=to_float32(case.ape),
        valid=case.valid,
        q=case.q,
        weights=case.weights,
        q_pos=case.q_pos,
        topk=case.topk,
    )


def listed_pool_keys(case: dsa_golden.DsaCase, sequence: int) -> Array:
    """Return the reference's keys of a sequence's pools alone, in the order of the list."""
    return np.asarray(case.pool_keys[sequence, case.pool_valid[sequence] == 1])


def list_buffers(inputs: Inputs, role: Role, tokens: int | None = None) -> list[Buffer]:
    """Return first_keys, slots and pool_starts: an output, or filled as compress leaves them.

    Empty where the inputs have no mask. What compress never writes is uninitialised.
    """
    if inputs.valid is None:
        return []
    capacity = inputs.pool_capacity
    shapes = {
        "first_keys": (inputs.batch,),
        "slots": (inputs.batch, capacity + 1, 2),
        "pool_starts": (inputs.batch, capacity),
    }
    if role is Role.OUTPUT:
        return [Buffer(name, "i32", shape, role) for name, shape in shapes.items()]
    filled = {name: np.full(shape, -7, dtype=np.int32) for name, shape in shapes.items()}
    for sequence, lists in enumerate(inputs.lists(tokens)):
        filled["first_keys"][sequence] = lists.first
        filled["slots"][sequence, : len(lists.slots)] = lists.slots
        filled["pool_starts"][sequence, : lists.starts.size] = lists.starts
    return [Buffer(name, "i32", shapes[name], role, filled[name]) for name in shapes]


def geometry_words(tokens: int, kpool: int, topk: int) -> Array:
    """Return the five words that describe `tokens` live tokens."""
    whole = tokens // kpool
    return np.array(
        [tokens, -(-tokens // kpool), whole, -(-whole // 4) * 4, min(topk // kpool, whole)],
        dtype=np.int32,
    )


def with_geometry(buffers: Sequence[Buffer], words: Array) -> tuple[Buffer, ...]:
    """Return the buffers with other words in the one named geometry."""
    return tuple(
        replace(buffer, data=words) if buffer.name == "geometry" else buffer for buffer in buffers
    )


def names_of(*names: str, inputs: Inputs) -> dict[str, str]:
    """Return buffer names as call values, without those that inputs without a mask lack."""
    masked = {"valid", "first_keys", "slots", "pool_starts"}
    return {name: name for name in names if inputs.valid is not None or name not in masked}


def rows_of(inputs: Inputs) -> Sequence[tuple[int, int, int]]:
    """Return (sequence, query row, position) of every row, in the order of the flat rows."""
    return [
        (sequence, row, int(position))
        for sequence in range(inputs.batch)
        for row, position in enumerate(inputs.q_pos)
    ]
