"""QSA decode attention: one token a sequence over a paged cache, such as the gather's scratch.

Kernel: kernels/qsa/decode_attention.cu; mutants: mutations/qsa_decode_attention/.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from qsa_bench.goldens import Golden
from qsa_bench.model import TARGETS, Finding
from qsa_bench.program import At, Call, Program, Value
from qsa_bench.stages import _qsa_attention as attention
from qsa_bench.stages import _qsa_paged as paged
from qsa_bench.stages._qsa_decode_attention_launch import KERNEL, STAGE_NAME, program
from qsa_bench.stages._qsa_decode_attention_sweep import SWEEP
from qsa_bench.stages.base import FEW_SCHEDULES, ONE_SCHEDULE, Case, Outputs, Stage

Array = npt.NDArray[Any]

_CHECKED_BYTES = 200_000


CLAUSES = {
    "every-token": "a row attends to the tokens before its length, and to all of them",
    "grouped-heads": "query head h reads KV head h / 8",
    "softmax": "the softmax is online, whichever way the scores run",
    "empty-slot": "a row of length 0 is written as zeros",
    "nothing-else": "slots past the length are never read, whatever they hold",
    "row-table": "every row reads its own block table",
    "not-finite": "a NaN or infinity reaches the heads that see it, and no other",
    "offsets-64-bit": "a page's offset is computed in 64 bits",
    "traps": "negative lengths and tokens behind the table trap",
    "refusals": "the C entry refuses malformed arguments by code and launches nothing",
    "memory": "no race, no access outside a buffer, no read of what nothing wrote",
}
CHECKS = attention.CHECKS


def _rows(
    lengths: Sequence[int], *words: object, nan: Sequence[int] = (), **more: Any
) -> attention.Rows:
    """Return a row a sequence; tokens past a row's length are NaN in its pages."""
    q, cache = attention.random_rows((len(lengths), len(lengths), max(lengths) + 3), *words, **more)
    keys, values = cache.keys.copy(), cache.values.copy()
    for row, length in enumerate(lengths):
        keys[row, length:] = paged.NAN_BF16
        values[row, length:] = paged.NAN_BF16
    kept = paged.Paged(keys, values, cache.pages, cache.page_tokens, cache.page_count, cache.gap)
    if nan:
        kept = attention.poisoned(kept, nan)
    every = tuple(tuple(range(length)) for length in lengths)
    return attention.Rows(q, kept, tuple(range(len(lengths))), every)


def _case(
    family: str,
    label: str,
    clauses: Sequence[str],
    rows: attention.Rows,
    schedules: str = ONE_SCHEDULE,
    device: Mapping[str, int] | None = None,
) -> Case:
    built = program(rows, device)

    def judge(_program: Program, outputs: Outputs) -> Iterable[Finding]:
        return attention.judge_context(rows, outputs["context"])

    return Case(
        STAGE_NAME,
        family,
        label,
        tuple(clauses),
        lambda: built,
        judge,
        checked=built.bytes <= _CHECKED_BYTES,
        schedules=schedules,
        targets=TARGETS if device is None else ("host",),
    )


def _families() -> Iterator[Case]:
    every = ("every-token", "grouped-heads", "softmax")
    for length in (1, 15, 16, 17, 64, 65, 131):
        yield _case("length", str(length), (*every, "nothing-else", "memory"), _rows((length,)))
    yield _case(
        "batch",
        "ragged",
        ("row-table", "empty-slot", "nothing-else", "memory"),
        _rows((9, 0, 33, 1)),
        schedules=FEW_SCHEDULES,
    )
    yield _case("batch", "all-empty", ("empty-slot",), _rows((0, 0)))
    # Two tiles a warp of a cluster's 32, so that peaks move within warps and between them.
    for label, ramp in (("rising", 0.3), ("falling", -0.3)):
        yield _case("ramp", label, ("softmax",), _rows((700,), ramp=ramp))
    yield _case("ramp", "wide", ("softmax",), _rows((700,), spread=20.0))
    for capability in (80, 120):
        yield _case(
            "device",
            f"sm{capability}",
            ("every-token", "empty-slot", "memory"),
            _rows((70, 0)),
            device={"compute_capability": capability},
        )
    for page_tokens in (9, 16, 64):
        yield _case(
            "pages", str(page_tokens), ("row-table",), _rows((50, 21), page_tokens=page_tokens)
        )
    yield _case("pages", "spaced", ("row-table",), _rows((30,), gap=64))
    yield _case("not-finite", "nan", ("not-finite",), _one_head_nan())
    yield _case("length", "2051", every, _rows((2051,), page_tokens=64))


def _one_head_nan() -> attention.Rows:
    """NaN in one key and in one dim of one value, of one KV head each."""
    rows = _rows((40,), "nan")
    keys, values = rows.cache.keys.copy(), rows.cache.values.copy()
    keys[0, 17, 0, 3] = paged.NAN_BF16
    values[0, 5, 1, 100] = paged.NAN_BF16
    cache = rows.cache
    held = paged.Paged(keys, values, cache.pages, cache.page_tokens, cache.page_count)
    return attention.Rows(rows.q, held, rows.sequences, rows.tokens)


def _far_pages() -> Iterator[Case]:
    """A page whose offset in elements has more than 32 bits."""
    q, cache = attention.random_rows((1, 1, 8), "far")
    pages = np.array([[2**20 + 3]], dtype=np.int32)
    far = paged.Paged(cache.keys, cache.values, pages, 8, 2**20 + 4)
    rows = attention.Rows(q, far, (0,), (tuple(range(8)),))
    yield _case("far-pages", "2^20", ("offsets-64-bit",), rows)


def _refusals() -> Iterator[Case]:
    base = program(_rows((9, 12)))
    for label, name, place, value in (
        ("negative-length", "lengths", 0, -1),
        ("behind-the-table", "lengths", 1, 17),
        ("page-not-there", "block_table", 0, -1),
    ):
        yield attention.refused(
            STAGE_NAME,
            "trap",
            label,
            "traps",
            lambda name=name, place=place, value=value: attention.edited(  # type: ignore[misc]
                base, name, place, value, STAGE_NAME
            ),
        )
    aligned = ("q", "k_pages", "v_pages", "context")
    changes: list[tuple[str, Mapping[str, Value], int]] = [
        *(
            (f"null-{name}", {name: None}, paged.NULL_POINTER)
            for name in (*aligned, "block_table", "lengths")
        ),
        *((f"unaligned-{name}", {name: At(name, 4)}, paged.UNSUPPORTED) for name in aligned),
        ("negative-rows", {"row_count": -1}, paged.BAD_EXTENT),
        # Eight CTAs a row: one row more than a grid holds.
        ("too-many-rows", {"row_count": 2**28}, paged.BAD_EXTENT),
        ("heads-8", {"query_heads": 8}, paged.BAD_EXTENT),
        ("kv-heads-4", {"kv_heads": 4}, paged.BAD_EXTENT),
        ("dims-128", {"head_dim": 128}, paged.BAD_EXTENT),
        ("pages-overlap", {"page_stride": 8 * 512 - 8}, paged.BAD_EXTENT),
        ("odd-stride", {"page_stride": 8 * 512 + 4}, paged.BAD_STRIDE),
    ]
    for label, change, code in changes:
        call = Call(STAGE_NAME, STAGE_NAME, {**base.calls[0].values, **change}, code)
        yield attention.refused(
            STAGE_NAME,
            "refusal",
            label,
            "refusals",
            lambda call=call: Program(base.buffers, (call,)),  # type: ignore[misc]
        )


def cases(_golden: Golden | None) -> Sequence[Case]:
    """Return every case: families, traps and refusals."""
    return [*_families(), *_far_pages(), *_refusals()]


STAGE = Stage(
    name=STAGE_NAME,
    summary="QSA decode attention: one token a sequence over gathered keys and values",
    kernels=(KERNEL,),
    clauses=CLAUSES,
    checks=CHECKS,
    cases=cases,
    sweep=SWEEP,
)
