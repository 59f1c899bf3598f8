"""QSA prefill attention: a slab's selective rows over the blocks they selected and their tail.

Contract section 1, "prefill attention". Kernel: kernels/qsa/prefill_attention.cu; mutants:
mutations/qsa_prefill_attention/.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from qsa_bench.families import seeded
from qsa_bench.goldens import Golden
from qsa_bench.model import Finding
from qsa_bench.program import At, Call, Program, Value
from qsa_bench.stages import _qsa_attention as attention
from qsa_bench.stages import _qsa_paged as paged
from qsa_bench.stages._qsa_prefill_attention_launch import _RATIO, KERNEL, STAGE_NAME, Slab, program
from qsa_bench.stages._qsa_prefill_attention_sweep import SWEEP
from qsa_bench.stages.base import FEW_SCHEDULES, ONE_SCHEDULE, Case, Outputs, Stage

Array = npt.NDArray[Any]

_CHECKED_BYTES = 250_000


CLAUSES = {
    "selected-blocks": "a row attends to the blocks it selected, and to no other",
    "tail": "a row attends to the tokens behind its last complete block",
    "inert-bound": "rows before the inert bound keep every bit; the first at it is written",
    "grouped-heads": "query head h reads KV head h / 8",
    "softmax": "the softmax is online, whichever way the scores run",
    "nothing-else": "what was not selected is never read, whatever it holds",
    "pages": "tokens are found through the block table, whatever the size of a page",
    "not-finite": "a NaN or infinity reaches the heads that see it, and no other",
    "offsets-64-bit": "a page's offset is computed in 64 bits",
    "traps": "a list that is not the row's, and tokens behind the table, trap",
    "refusals": "the C entry refuses malformed arguments by code and launches nothing",
    "memory": "no race, no access outside a buffer, no read of what nothing wrote",
}
CHECKS = attention.CHECKS


def _slab(
    positions: Sequence[int], budget: int, *words: object, poison: bool = True, **more: Any
) -> Slab:
    """Return rows of random blocks; tokens that no row selected are NaN."""
    tokens = max(positions) + 2
    q, cache = attention.random_rows((len(positions), 1, tokens), *words, **more)
    random = seeded("prefill", tuple(positions), budget, *words)
    blocks: list[tuple[int, ...] | None] = []
    for position in positions:
        complete = (position + 1) // _RATIO
        if position < budget + _RATIO - 1:
            blocks.append(None)
            continue
        chosen = random.permutation(complete)[: budget // _RATIO]
        blocks.append(tuple(sorted(int(block) for block in chosen)))
    slab = Slab(q, cache, tuple(positions), tuple(blocks), budget)
    if poison:
        seen = {token for held in slab.tokens for token in held or ()}
        unseen = sorted(set(range(tokens)) - seen)
        slab = Slab(q, attention.poisoned(cache, unseen), slab.positions, slab.blocks, budget)
    return slab


def _case(
    family: str, label: str, clauses: Sequence[str], slab: Slab, schedules: str = ONE_SCHEDULE
) -> Case:
    built = program(slab)
    rows = attention.Rows(slab.q, slab.cache, (0,) * len(slab.positions), slab.tokens)

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
        writes=any(held is not None for held in slab.tokens),
    )


def _families() -> Iterator[Case]:
    yield _case(
        "bound",
        "both-sides",
        ("inert-bound", "tail", "memory"),
        _slab((8, 9, 10, 11, 12, 13), 8),
        schedules=FEW_SCHEDULES,
    )
    yield _case("bound", "all-dense", ("inert-bound",), _slab((0, 7, 10), 8))
    for position in (40, 41, 42, 43):
        yield _case(
            "tail",
            str((position + 1) % _RATIO),
            ("selected-blocks", "tail", "nothing-else", "grouped-heads", "memory"),
            _slab((position,), 16),
        )
    yield _case(
        "slab",
        "awkward",
        ("selected-blocks", "inert-bound", "grouped-heads"),
        _slab((200, 33, 66, 67, 71, 150), 64),
        schedules=FEW_SCHEDULES,
    )
    yield _case("slab", "one-block", ("selected-blocks",), _slab((30, 4, 7, 6), 4))
    for label, ramp in (("rising", 0.3), ("falling", -0.3)):
        yield _case("ramp", label, ("softmax",), _slab((190,), 132, ramp=ramp))
    yield _case("ramp", "wide", ("softmax",), _slab((130,), 80, spread=20.0))
    for page_tokens in (9, 10, 16, 64):
        yield _case(
            "pages", str(page_tokens), ("pages",), _slab((75, 60), 32, page_tokens=page_tokens)
        )
    yield _case("pages", "spaced", ("pages",), _slab((50,), 16, gap=64))
    yield _case("not-finite", "nan", ("not-finite",), _one_head_nan())
    yield _case("slab", "2048", ("selected-blocks", "inert-bound"), _long())
    yield _far_pages()


def _long() -> Slab:
    return _slab((2050, 2051, 2400), 2048, page_tokens=64)


def _one_head_nan() -> Slab:
    """NaN in one key and in one dim of one value, of one KV head each."""
    slab = _slab((42,), 16, "nan")
    held = slab.tokens[0] or ()
    keys, values = slab.cache.keys.copy(), slab.cache.values.copy()
    keys[0, held[3], 0, 3] = paged.NAN_BF16
    values[0, held[7], 1, 100] = paged.NAN_BF16
    cache = slab.cache
    poisoned = paged.Paged(keys, values, cache.pages, cache.page_tokens, cache.page_count)
    return Slab(slab.q, poisoned, slab.positions, slab.blocks, slab.budget)


def _far_pages() -> Case:
    """A page whose offset in elements has more than 32 bits."""
    slab = _slab((14,), 8, "far", poison=False)
    pages = np.array([[2**20 + 3, 5]], dtype=np.int32)
    far = paged.Paged(slab.cache.keys, slab.cache.values, pages, 8, 2**20 + 4)
    moved = Slab(slab.q, far, slab.positions, slab.blocks, slab.budget)
    return _case("far-pages", "2^20", ("offsets-64-bit",), moved)


def _refusals() -> Iterator[Case]:
    slab = _slab((42, 6), 16, "refusal")
    base = program(slab)
    first = int(slab.ids[0, 0])
    for label, name, place, value in (
        ("negative-position", "rows", 1, -1),
        ("count-one-short", "counts", 0, 18),
        ("count-of-another-tail", "counts", 0, 16),
        ("id-inside-a-block", "ids", 0, first + 1),
        ("id-missing", "ids", 4, -1),
        ("id-of-the-incomplete-block", "ids", 0, 40),
        ("page-not-there", "block_table", 5, -1),
        ("behind-the-table", "rows", 0, 58),
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
    words = ("rows", "block_table", "ids", "counts")
    changes: list[tuple[str, Mapping[str, Value], int]] = [
        *((f"null-{name}", {name: None}, paged.NULL_POINTER) for name in (*aligned, *words)),
        *((f"unaligned-{name}", {name: At(name, 4)}, paged.UNSUPPORTED) for name in aligned),
        ("negative-rows", {"row_count": -1}, paged.BAD_EXTENT),
        ("heads-8", {"query_heads": 8}, paged.BAD_EXTENT),
        ("kv-heads-4", {"kv_heads": 4}, paged.BAD_EXTENT),
        ("dims-128", {"head_dim": 128}, paged.BAD_EXTENT),
        ("no-budget", {"budget": 0}, paged.BAD_BUDGET),
        ("budget-14", {"budget": 14}, paged.BAD_BUDGET),
        ("budget-2052", {"budget": 2052, "ids_stride": 2055}, paged.BAD_BUDGET),
        ("short-ids", {"ids_stride": 18}, paged.BAD_STRIDE),
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
    return [*_families(), *_refusals()]


STAGE = Stage(
    name=STAGE_NAME,
    summary="QSA prefill attention: a slab's selective rows over their selected blocks",
    kernels=(KERNEL,),
    clauses=CLAUSES,
    checks=CHECKS,
    cases=cases,
    sweep=SWEEP,
)
