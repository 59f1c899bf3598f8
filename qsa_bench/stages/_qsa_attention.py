"""What the attention stages share: rows of queries over a paged cache, the judge of their context."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from qsa_bench.bf16 import round_to_bf16, to_float32
from qsa_bench.compare import bounded
from qsa_bench.families import seeded
from qsa_bench.model import Argument, Evidence, Finding, Role, Status
from qsa_bench.oracles.qsa_attention import attend
from qsa_bench.poison import POISON
from qsa_bench.program import TRAP, Buffer, Call, Program, Value
from qsa_bench.stages import _qsa_paged as paged
from qsa_bench.stages.base import ONE_SCHEDULE, Case, no_judge

Array = npt.NDArray[Any]

HEADS, KV_HEADS, HEAD_DIM = 16, 2, 256
RATIO = 4

CONTEXT_SHAPE = ("row_count", "16", "256")
QUERIES = Argument("q", "bf16", Role.INPUT, CONTEXT_SHAPE, doc="roped queries")
GEOMETRY = (
    Argument("query_heads", "i64", Role.SCALAR, doc="16"),
    Argument("kv_heads", "i64", Role.SCALAR, doc="2"),
    Argument("head_dim", "i64", Role.SCALAR, doc="256"),
)
GEOMETRY_VALUES: Mapping[str, Value] = {
    "query_heads": HEADS,
    "kv_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
}
CHECKS = {
    "context": "every element lies within the bound derived for f32 softmax over its own tokens",
    "untouched": "the context of rows that are not the kernel's keeps every bit",
}


@dataclass(frozen=True)
class Rows:
    """Queries [rows, 16, 256], the cache, and of each row its sequence and tokens, ascending.

    Tokens None is a row that the kernel leaves alone.
    """

    q: Array
    cache: paged.Paged
    sequences: tuple[int, ...]
    tokens: tuple[tuple[int, ...] | None, ...]


def judge_context(rows: Rows, context: Array) -> Iterator[Finding]:
    """Hold context [rows, 16, 256] bf16 to the oracle, and what is not written to its poison."""
    written = [row for row, tokens in enumerate(rows.tokens) if tokens is not None]
    wanted = []
    for row in written:
        held = list(rows.tokens[row] or ())
        keys, values = (
            tensor[rows.sequences[row]][held] for tensor in (rows.cache.keys, rows.cache.values)
        )
        wanted.append(attend(rows.q[row], keys, values))
    if wanted:
        value, bound = (np.stack([getattr(w, name) for w in wanted]) for name in ("value", "bound"))
        got = to_float32(context[written]).astype(np.float64)
        finite = np.isfinite(value)
        # What is no number has to stay none; where it is one, it is held at its bound.
        want = np.where(finite, value, np.nan)
        got = np.where(np.isfinite(got), got, np.nan)
        yield bounded("context", "context", want, got, np.where(finite, bound, 1.0))
    rest = np.delete(context, written, axis=0).view(np.uint8)
    touched = int(np.count_nonzero(rest != POISON))
    note = f"{touched} bytes of rows that are not the kernel's" if touched else ""
    status = Status.WRONG if touched else Status.PASS
    yield Finding("untouched", status, Evidence(touched, rest.size, "bytes", note=note))


def random_rows(
    shape: tuple[int, int, int],
    *words: object,
    page_tokens: int = 8,
    gap: int = 0,
    spread: float = 1.0,
    ramp: float = 0.0,
) -> tuple[Array, paged.Paged]:
    """Return queries and a cache for (rows, sequences, tokens).

    Scores have the standard deviation `spread`; with `ramp` they rise by so much a token (fall, if
    it is negative): the running maximum then moves at every tile, or never again.
    """
    count, sequences, tokens = shape
    random = seeded("qsa-attention", *shape, page_tokens, *words)
    q = random.standard_normal((count, HEADS, HEAD_DIM))
    keys = spread * random.standard_normal((sequences, tokens, KV_HEADS, HEAD_DIM))
    if ramp:
        q[..., 0] = 4.0
        keys[..., 0] = 4.0 * ramp * np.arange(tokens)[None, :, None]
    values = random.standard_normal((sequences, tokens, KV_HEADS, HEAD_DIM))
    cache = paged.paged(round_to_bf16(keys), round_to_bf16(values), page_tokens, *words, gap=gap)
    return round_to_bf16(q), cache


def poisoned(cache: paged.Paged, tokens: Sequence[int], what: int = paged.NAN_BF16) -> paged.Paged:
    """Return the cache with keys and values of some tokens of sequence 0 replaced."""
    keys, values = cache.keys.copy(), cache.values.copy()
    keys[0, list(tokens)] = what
    values[0, list(tokens)] = what
    return paged.Paged(keys, values, cache.pages, cache.page_tokens, cache.page_count, cache.gap)


def context_buffer(rows: Rows) -> Buffer:
    """Return the output buffer of all rows."""
    return Buffer("context", "bf16", rows.q.shape, Role.OUTPUT)


def edited(built: Program, name: str, place: int, value: int, entry: str) -> Program:
    """Return a program whose one word of an input is another, which must trap."""
    data = built.array(name).copy()
    data.reshape(-1)[place] = value
    buffers = tuple(
        Buffer(name, buffer.dtype, data.shape, Role.INPUT, data) if buffer.name == name else buffer
        for buffer in built.buffers
    )
    first = built.calls[0]
    return Program(buffers, (Call(first.kernel, entry, first.values, TRAP),))


def refused(stage: str, family: str, label: str, clause: str, build: Callable[[], Program]) -> Case:
    """Return a case that writes nothing: a trap or a refusal."""
    return Case(
        stage,
        family,
        label,
        (clause,),
        build,
        no_judge,
        schedules=ONE_SCHEDULE,
        writes=False,
    )
