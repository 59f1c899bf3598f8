"""Scripts of the QSA runtime as programs, and what each should leave: a plain simulation in numpy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from qsa_bench.engine import qsa_script as script
from qsa_bench.model import Role
from qsa_bench.program import Buffer, Call, Program, Value
from qsa_bench.stages import _qsa_attention
from qsa_bench.stages import _qsa_inputs as qsa
from qsa_bench.stages import _qsa_paged as paged

Array = npt.NDArray[Any]

ENTRY = "qsa_bench.engine.qsa_script:run"
EMPTY = -1


@dataclass(frozen=True)
class Operation:
    """One operation of qsa_script with its words, and the code it should return."""

    kind: int
    sequence: int
    words: tuple[int, ...] = ()
    code: int = script.OK


@dataclass(frozen=True)
class Batch:
    """Positions and fused rows of a decode step's slots."""

    positions: tuple[int, ...]
    fused: tuple[int, ...]


@dataclass(frozen=True)
class Script:
    """Operations over sequences that share inputs and pages.

    Row i of `inputs.fused_qk` has the queries q[i]; keys and values of position p of a sequence lie
    where its block table places p. `equal` are groups of output rows that must agree bit by bit.
    """

    inputs: qsa.Inputs
    q: Array
    cache: paged.Paged
    operations: tuple[Operation, ...]
    sequences: int
    capacity: int
    budget: int
    outs: int
    batches: tuple[Batch, ...] = ()
    slab_rows: int = 2048
    dense_prefill: bool = False
    scalar_scores: bool = False
    equal: tuple[tuple[int, ...], ...] = ()
    equal_sequences: tuple[int, ...] = ()

    @property
    def blocks(self) -> int:
        """Rows of a sequence's block keys."""
        return max(self.capacity // qsa.RATIO, 1)


def random_inputs(
    rows: int, sequences: int, tokens: int, *words: object, shared: bool = False, page: int = 8
) -> tuple[qsa.Inputs, Array, paged.Paged]:
    """Return fused rows, queries and a cache; `shared` gives every sequence the same pages."""
    inputs = qsa.random_inputs(max(rows, tokens), "engine", *words)
    own = 1 if shared else sequences
    q, cache = _qsa_attention.random_rows(
        (inputs.tokens, own, tokens), "engine", *words, page_tokens=page
    )
    if shared:
        pages = np.repeat(cache.pages, sequences, axis=0)
        keys, values = (np.repeat(t, sequences, axis=0) for t in (cache.keys, cache.values))
        cache = paged.Paged(keys, values, pages, page, cache.page_count)
    return inputs, q, cache


def program(given: Script) -> Program:
    """Return the program of one call that runs the script."""
    operations = np.zeros((len(given.operations), script.WORDS), dtype=np.int32)
    for row, operation in enumerate(given.operations):
        words = (operation.kind, operation.sequence, *operation.words)
        operations[row, : len(words)] = words
    batches = np.array(
        [[*batch.positions, *batch.fused] for batch in given.batches] or [[0]], dtype=np.int32
    )
    arena = _arena_bytes(given)
    ids = (given.outs, given.budget + qsa.RATIO - 1)
    tables = (given.capacity, qsa.ROTARY_DIM)
    buffers = (
        *given.inputs.buffers("fused_qk", "q_norm_weight", "k_norm_weight"),
        Buffer("cos", "bf16", tables, Role.INPUT, given.inputs.cos[: given.capacity]),
        Buffer("sin", "bf16", tables, Role.INPUT, given.inputs.sin[: given.capacity]),
        Buffer("q", "bf16", given.q.shape, Role.INPUT, given.q),
        *given.cache.buffers(),
        Buffer("script", "i32", operations.shape, Role.INPUT, operations),
        Buffer("batches", "i32", batches.shape, Role.INPUT, batches),
        Buffer("codes", "i32", (len(given.operations), 3), Role.OUTPUT),
        Buffer("ids_out", "i32", ids, Role.OUTPUT),
        Buffer("counts_out", "i32", (given.outs,), Role.OUTPUT),
        Buffer("context_out", "bf16", (given.outs, 16, 256), Role.OUTPUT),
        Buffer("keys_out", "bf16", (given.sequences, given.blocks, qsa.HEAD_DIM), Role.OUTPUT),
        Buffer("arena", "u8", (arena,), Role.SCRATCH),
    )
    values: dict[str, Value] = {
        **given.cache.values_of(),
        **{buffer.name: buffer.name for buffer in buffers},
        "arena_bytes": arena,
        "capacity": given.capacity,
        "budget": given.budget,
        "slab_rows": given.slab_rows,
        "sequences": given.sequences,
        "operations": len(given.operations),
        "dense_prefill": int(given.dense_prefill),
        "scalar_scores": int(given.scalar_scores),
    }
    return Program(buffers, (Call("qsa_ingest", "qsa_ingest", values, python=ENTRY),))


def _arena_bytes(given: Script) -> int:
    """Return enough for the runtime's own tensors, snapshots and a batch included."""
    rows = given.capacity * qsa.HEAD_DIM * 2
    state = 2 * rows
    snapshots = sum(op.kind == script.SNAPSHOT for op in given.operations)
    row = given.blocks * 4 + (given.budget + 3) * 4 + 8
    slot = row + 4096 * 4 + 4 * 1024 * (given.budget + 3 + given.cache.page_tokens)
    return (
        (given.sequences + snapshots) * state
        + 2 * given.slab_rows * row
        + given.sequences * slot
        + (1 << 16)
    )


@dataclass(frozen=True)
class Wanted:
    """What an output row should be: the fused rows of its context, in order, or None untouched.

    `attended` says that its context is written; an empty slot has no rows and zeros.
    """

    fused: tuple[int, ...]
    sequence: int
    attended: bool


@dataclass(frozen=True)
class Simulation:
    """Codes [operations, 3], output rows by number, and fused rows of every sequence at the end."""

    codes: Array
    rows: dict[int, Wanted]
    ends: tuple[tuple[int, ...], ...]


def simulate(given: Script) -> Simulation:
    """Run the script on lists of fused rows alone; operations that return a code change nothing."""
    held: list[tuple[int, ...]] = [() for _ in range(given.sequences)]
    saved: dict[int, tuple[int, ...]] = {}
    rows: dict[int, Wanted] = {}
    freed = 0
    codes: list[tuple[int, int, int]] = []
    for operation in given.operations:
        number, words = operation.sequence, operation.words
        if _releases(operation):
            freed += _freed(operation, given, codes)
        elif operation.code == script.OK:
            _step(given, operation, held, saved, rows)
        if (
            operation.code != script.OK
            and operation.kind == script.MISUSE
            and words[0] in _INGESTING
        ):
            held[number] += (0,) * _INGESTING[words[0]]
        codes.append((operation.code, len(held[number]), freed))
    return Simulation(np.array(codes, dtype=np.int32), rows, tuple(held))


# What a misuse ingests before it is refused.
_INGESTING = {
    script.SHORT_BLOCK_TABLE: 1,
    script.SHORT_CONTEXT: 1,
    script.VOID_SLAB: 2,
    script.SLAB_OF_RELEASED: 1,
}
# What releases its sequence, and how many tensors come back.
_RELEASING = {script.FREE_FAILS: 1, script.SLAB_OF_RELEASED: 2}


def _releases(operation: Operation) -> bool:
    misuse = operation.kind == script.MISUSE and operation.words[0] in _RELEASING
    return operation.kind == script.RELEASE or misuse


def _freed(operation: Operation, given: Script, codes: Sequence[tuple[int, int, int]]) -> int:
    """Return how many tensors a release gives back: two, one when a free fails, none when again."""
    again = any(
        _releases(earlier) and earlier.sequence == operation.sequence
        for earlier in given.operations[: len(codes)]
    )
    if again:
        return 0
    return _RELEASING[operation.words[0]] if operation.kind == script.MISUSE else 2


def _step(
    given: Script,
    operation: Operation,
    held: list[tuple[int, ...]],
    saved: dict[int, tuple[int, ...]],
    rows: dict[int, Wanted],
) -> None:
    kind, number, words = operation.kind, operation.sequence, operation.words
    if kind in (script.INGEST, script.PREFILL):
        start, count, fused = words[:3]
        if count:
            held[number] = (*held[number][:start], *range(fused, fused + count))
        if kind == script.PREFILL and not given.dense_prefill:
            for position in range(max(start, given.budget + 3), start + count):
                context = held[number][: position + 1]
                rows[words[3] + position - start] = Wanted(context, number, True)
    elif kind == script.DECODE:
        position, fused, out = words
        held[number] = (*held[number][:position], fused)
        rows[out] = Wanted(held[number], number, False)
    elif kind == script.REWIND:
        held[number] = held[number][: words[0]]
    elif kind == script.SNAPSHOT:
        saved[words[0]] = held[number]
    elif kind == script.RESTORE:
        held[number] = saved[words[0]]
    elif kind in (script.BATCH, script.REPLAY):
        batch = given.batches[words[0]]
        for slot, (position, fused) in enumerate(zip(batch.positions, batch.fused, strict=True)):
            if position != EMPTY:
                held[slot] = (*held[slot][:position], fused)
            context = held[slot] if position != EMPTY else ()
            rows[words[1] + slot] = Wanted(context, slot, True)
