"""QSA gather: the selected tokens' keys and values out of a paged cache, into a contiguous one.

Contract section 1, "gather". Kernel: kernels/qsa/gather.cu; mutants: mutations/qsa_gather/.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from qsa_bench.families import seeded
from qsa_bench.goldens import Golden
from qsa_bench.model import Finding, Role
from qsa_bench.program import TRAP, At, Buffer, Call, Program, Value
from qsa_bench.stages import _qsa_paged as qsa
from qsa_bench.stages._qsa_gather_launch import (
    KERNEL,
    STAGE_NAME,
    Selection,
    judge_gather,
    program,
)
from qsa_bench.stages._qsa_gather_sweep import SWEEP
from qsa_bench.stages.base import (
    EVERY_SCHEDULE,
    FEW_SCHEDULES,
    ONE_SCHEDULE,
    Case,
    Outputs,
    Stage,
    no_judge,
)

Array = npt.NDArray[Any]

_CHECKED_BYTES = 60_000


CLAUSES = {
    "copies-tokens": "slot i of a row holds the keys and values of its i-th id, bit by bit",
    "geometry": "any number of KV heads and any head_dim that is a multiple of 8",
    "page-size": "pages of any size from 8 tokens on, in any order, any stride apart",
    "offsets-64-bit": "a page's offset is computed in 64 bits",
    "counts": "the count of a row is read on the device; a row of none is served",
    "past-the-count": "ids and slots past the count are neither read nor written",
    "identity": "the identity table and the lengths make the scratch readable as a paged cache",
    "row-table": "every row reads its own block table",
    "traps": "ids that do not ascend, tokens behind the table and pages that are not there trap",
    "refusals": "the C entry refuses malformed arguments by code and launches nothing",
    "memory": "no race, no access outside a buffer, no read of what nothing wrote",
}
CHECKS = {
    "k": "slots within the count hold the keys of their token, bit by bit",
    "v": "slots within the count hold the values of their token, bit by bit",
    "past-the-count": "slots at and past the count keep every bit",
    "identity": "the identity table numbers the pages of each row's own scratch",
    "lengths": "the lengths are the counts",
}


def _case(
    family: str,
    label: str,
    clauses: Sequence[str],
    selection: Selection,
    schedules: str = FEW_SCHEDULES,
) -> Case:
    built = program(selection)

    def judge(_program: Program, outputs: Outputs) -> Iterable[Finding]:
        return judge_gather(selection, outputs)

    return Case(
        STAGE_NAME,
        family,
        label,
        tuple(clauses),
        lambda: built,
        judge,
        checked=built.bytes <= _CHECKED_BYTES,
        schedules=schedules,
    )


def _selection(
    lengths: Sequence[int],
    counts: Sequence[int],
    page_tokens: int = 8,
    kv_heads: int = 2,
    head_dim: int = 16,
    scratch_tokens: int = 24,
    spare_ids: int = 3,
    gap: int = 0,
) -> Selection:
    """Return rows that pick `counts` of `lengths` tokens; the last is among them."""
    shape = (len(lengths), max(*lengths, 1), kv_heads, head_dim)
    words = (page_tokens, tuple(counts))
    cache = qsa.paged(
        qsa.random_tensor(shape, "k", *words),
        qsa.random_tensor(shape, "v", *words),
        page_tokens,
        *words,
        gap=gap,
    )
    random = seeded("gather", tuple(lengths), *words, kv_heads, head_dim)
    rows: list[tuple[int, ...]] = []
    for length, count in zip(lengths, counts, strict=True):
        if count == 0:
            rows.append(())
            continue
        others = random.permutation(length - 1)[: count - 1]
        rows.append((*sorted(int(token) for token in others), length - 1))
    return Selection(cache, tuple(rows), scratch_tokens, max(counts) + spare_ids)


def _families() -> Iterator[Case]:
    for kv_heads, head_dim in ((1, 8), (2, 256), (9, 128), (3, 24), (1, 264)):
        yield _case(
            "geometry",
            f"{kv_heads}x{head_dim}",
            ("copies-tokens", "geometry"),
            _selection((21,), (9,), kv_heads=kv_heads, head_dim=head_dim, scratch_tokens=16),
        )
    for page_tokens in (8, 9, 13, 16, 64):
        yield _case(
            "page-size",
            str(page_tokens),
            ("page-size", "identity"),
            _selection((70, 61), (19, 5), page_tokens, scratch_tokens=3 * page_tokens),
        )
    yield _case(
        "page-stride",
        "spaced",
        ("page-size",),
        _selection((40, 33), (11, 20), gap=8 * 40),
    )
    ragged = _selection((50, 8, 0, 17, 33), (24, 0, 0, 17, 1))
    yield _case(
        "batch",
        "ragged",
        ("counts", "row-table", "past-the-count", "identity", "memory"),
        ragged,
        schedules=EVERY_SCHEDULE,
    )
    yield _case(
        "batch",
        "all-empty",
        ("counts", "past-the-count"),
        _selection((9, 9, 9), (0, 0, 0)),
    )
    for count in (1, 7, 8, 9, 23, 24):
        yield _case(
            "count",
            str(count),
            ("counts", "past-the-count"),
            _selection((60,), (count,)),
        )
    yield from _far_pages()
    yield _far_ids()


def _far_pages() -> Iterator[Case]:
    """Pages whose offset in elements, and in bytes, has more than 32 bits."""
    tokens = 24
    shape = (1, tokens, 1, 8)
    keys, values = (qsa.random_tensor(shape, name, "far") for name in "kv")
    pages = np.array([[2**25 + 5, 3, 2**26 - 2]], dtype=np.int32)
    cache = qsa.Paged(keys, values, pages, 8, 2**26)
    ids = (0, 1, 7, 8, 15, 16, 20, 23)
    yield _case(
        "far-pages",
        "2^26",
        ("offsets-64-bit",),
        Selection(cache, (ids,), 16, len(ids)),
        schedules=ONE_SCHEDULE,
    )


def _far_ids() -> Case:
    """Token ids up to 2^31 - 1, through a block table that is written where they look alone."""
    entries = 2**28
    shape = (1, 24, 1, 8)
    keys, values = (qsa.random_tensor(shape, name, "far-ids") for name in "kv")
    cache = qsa.Paged(keys, values, np.array([[4, 1, 3]], dtype=np.int32), 8, 5)
    near = Selection(cache, ((0, 9, 15, 16, 17, 22, 23),), 16, 7)
    built = program(near)
    # The last page's tokens are those of the table's last entry.
    ids = built.array("ids").copy()
    ids[ids >= 16] += 8 * (entries - 3)
    far = {
        "ids": Buffer("ids", "i32", ids.shape, Role.INPUT, ids),
        "block_table": Buffer(
            "block_table",
            "i32",
            (1, entries),
            Role.INPUT,
            segments=((0, cache.pages[0, :2]), (entries - 1, cache.pages[0, 2:])),
        ),
    }
    buffers = tuple(far.get(buffer.name, buffer) for buffer in built.buffers)
    call = replace(built.calls[0], values={**built.calls[0].values, "table_pages": entries})
    return Case(
        STAGE_NAME,
        "far-ids",
        "2^31",
        ("copies-tokens", "offsets-64-bit"),
        lambda: Program(buffers, (call,)),
        lambda _program, outputs: judge_gather(near, outputs),
        schedules=ONE_SCHEDULE,
    )


def _traps() -> Iterator[Case]:
    base = _selection((30, 30), (10, 12))
    changes: Mapping[str, tuple[str, int, int]] = {
        "count-negative": ("counts", 1, -1),
        "count-past-the-scratch": ("counts", 0, 25),
        "id-negative": ("ids", 0, -1),
        "id-behind-the-table": ("ids", 9, 32),
        "id-twice": ("ids", 4, base.rows[0][3]),
        "id-descends": ("ids", 4, max(base.rows[0][3] - 1, 0)),
        "page-not-allocated": ("block_table", int(base.rows[0][-1]) // 8, -1),
        "page-behind-the-last": ("block_table", int(base.rows[0][-1]) // 8, 11),
    }
    for label, (name, place, value) in changes.items():

        def build(name: str = name, place: int = place, value: int = value) -> Program:
            built = program(base)
            data = built.array(name).copy()
            data.reshape(-1)[place] = value
            buffers = tuple(
                Buffer(name, "i32", data.shape, Role.INPUT, data) if buffer.name == name else buffer
                for buffer in built.buffers
            )
            return Program(buffers, (Call(STAGE_NAME, "qsa_gather", built.calls[0].values, TRAP),))

        yield Case(
            STAGE_NAME,
            "trap",
            label,
            ("traps",),
            build,
            no_judge,
            schedules=ONE_SCHEDULE,
            writes=False,
        )


def _refusals() -> Iterator[Case]:
    aligned = ("k_pages", "v_pages", "k_scratch", "v_scratch")
    words = ("block_table", "ids", "counts", "identity", "lengths")
    changes: list[tuple[str, Mapping[str, Value], int]] = [
        *((f"null-{name}", {name: None}, qsa.NULL_POINTER) for name in (*aligned, *words)),
        *((f"unaligned-{name}", {name: At(name, 4)}, qsa.UNSUPPORTED) for name in aligned),
        *(
            (f"negative-{name}", {name: -1}, qsa.BAD_EXTENT)
            for name in ("row_count", "page_count", "table_pages", "ids_stride", "scratch_tokens")
        ),
        ("page-of-7", {"page_tokens": 7, "scratch_tokens": 21}, qsa.BAD_EXTENT),
        ("more-pages-than-ids", {"page_count": 2**31 + 1}, qsa.BAD_EXTENT),
        ("pages-overlap", {"page_stride": 8 * 32 - 8}, qsa.BAD_EXTENT),
        ("part-of-a-page", {"scratch_tokens": 20}, qsa.BAD_EXTENT),
        ("no-heads", {"kv_heads": 0}, qsa.BAD_EXTENT),
        ("no-dims", {"head_dim": 0}, qsa.BAD_EXTENT),
        ("dims-12", {"head_dim": 12}, qsa.BAD_STRIDE),
        ("odd-stride", {"page_stride": 8 * 32 + 4}, qsa.BAD_STRIDE),
    ]
    base = program(_selection((30, 30), (10, 12)))
    for label, change, code in changes:
        call = Call(STAGE_NAME, "qsa_gather", {**base.calls[0].values, **change}, code)
        yield Case(
            STAGE_NAME,
            "refusal",
            label,
            ("refusals",),
            lambda call=call: Program(base.buffers, (call,)),  # type: ignore[misc]
            no_judge,
            schedules=ONE_SCHEDULE,
            writes=False,
        )


def cases(_golden: Golden | None) -> Sequence[Case]:
    """Return every case: families, traps and refusals."""
    return [*_families(), *_traps(), *_refusals()]


STAGE = Stage(
    name=STAGE_NAME,
    summary="QSA gather: selected keys and values out of a paged cache",
    kernels=(KERNEL,),
    clauses=CLAUSES,
    checks=CHECKS,
    cases=cases,
    sweep=SWEEP,
)
