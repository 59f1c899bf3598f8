"""QSA ingest: a sequence's new raw keys, and the keys of the blocks that they complete.

Contract section 1, "ingest". Kernel: kernels/qsa/ingest.cu; mutants: mutations/qsa_ingest/.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from qsa_bench.compare import bitwise
from qsa_bench.goldens import Golden
from qsa_bench.goldens import qsa as qsa_golden
from qsa_bench.model import Evidence, Finding, Role, Status
from qsa_bench.oracles.qsa_numerics import KEY_COLUMN, Flips, PooledKeys, pool_oracle
from qsa_bench.poison import POISON
from qsa_bench.program import TRAP, At, Buffer, Call, Program, Value
from qsa_bench.stages import _qsa_inputs as qsa
from qsa_bench.stages._qsa_ingest_launch import (
    KERNEL,
    STAGE_NAME,
    Chunk,
    Stream,
    in_order,
    program,
)
from qsa_bench.stages._qsa_ingest_sweep import SWEEP
from qsa_bench.stages._qsa_pool_launch import judge_keys
from qsa_bench.stages.base import (
    EVERY_SCHEDULE,
    FEW_SCHEDULES,
    ONE_SCHEDULE,
    Case,
    Outputs,
    Stage,
    no_judge,
    poisoned_like,
)
from qsa_bench.stages.qsa_pool import CHECKS as POOL_CHECKS

Array = npt.NDArray[Any]

_CHECKED_TOKENS = 100


CLAUSES = {
    "keeps-raw-keys": "the raw keys of the new tokens are kept bit by bit",
    "completed-blocks": "exactly the blocks that the new tokens complete are pooled",
    "split-invariance": "how tokens are split into calls changes no bit",
    "rewind": "a rewound sequence pools a block again when it is complete again, and no other",
    "numerics": "a block's key is the one that qsa_pool gives it",
    "nothing-else": "rows of other tokens and blocks keep every bit",
    "step": "a step takes its position from the device and leaves what later launches read",
    "empty-slot": "a position of -1 does nothing but say so",
    "position-traps": "a position outside the capacity traps",
    "refusals": "the C entry refuses malformed arguments by code and launches nothing",
    "memory": "no race, no access outside a buffer, no read of what nothing wrote",
}
CHECKS = {
    "block-keys": POOL_CHECKS["block-keys"],
    "raw-keys": "raw keys of the tokens so far are the fused rows', bit by bit",
    "untouched": "keys of tokens and blocks that no call was given keep every bit",
    "step": "every step says how many tokens are visible, whether it is live, and its position",
    "step-tables": "every live step's table rows are those of its position",
}


@dataclass(frozen=True)
class Wanted:
    """What the calls leave: raw keys with `kept` marking tokens, and keys of `pooled` blocks."""

    raw_keys: Array
    kept: Array
    keys: PooledKeys
    pooled: Array


def wanted_of(stream: Stream) -> Wanted:
    """Return the oracle: a block has the key of its raw keys when it was last completed."""
    inputs, tokens = stream.inputs, stream.tokens
    raw = np.zeros((tokens, qsa.HEAD_DIM), dtype=np.uint16)
    kept = np.zeros(tokens, dtype=bool)
    image = np.zeros((tokens, KEY_COLUMN + qsa.HEAD_DIM), dtype=np.uint16)
    pooled = np.zeros(tokens // qsa.RATIO, dtype=bool)
    for chunk in stream.chunks:
        if chunk.start < 0:
            continue
        end = chunk.start + chunk.count
        fresh = inputs.fused_qk[chunk.row : chunk.row + chunk.count, KEY_COLUMN:]
        raw[chunk.start : end] = fresh
        kept[chunk.start : end] = True
        blocks = slice(chunk.start // qsa.RATIO, end // qsa.RATIO)
        where = slice(blocks.start * qsa.RATIO, max(blocks.start, blocks.stop) * qsa.RATIO)
        image[where, KEY_COLUMN:] = raw[where]
        pooled[blocks] = True
    cos, sin = inputs.cos[:tokens], inputs.sin[:tokens]
    keys = pool_oracle(image, inputs.k_norm_weight, cos, sin, qsa.EPS)
    return Wanted(raw, kept, keys, pooled)


def judge_ingest(stream: Stream, want: Wanted, outputs: Outputs) -> Iterator[Finding]:
    """Hold the keys, and what steps leave, to the oracle."""
    there = np.flatnonzero(want.pooled)
    keys = want.keys
    kept = PooledKeys(keys.value[there], keys.low[there], keys.high[there], Flips())
    yield from judge_keys(kept, outputs["block_keys"][there], there)
    raw = outputs["raw_keys"]
    yield bitwise("raw-keys", "raw_keys", want.raw_keys[want.kept], raw[want.kept])
    rest = np.concatenate(
        [part.reshape(-1) for part in (raw[~want.kept], outputs["block_keys"][~want.pooled])]
    ).view(np.uint8)
    touched = int(np.count_nonzero(rest != POISON))
    note = f"{touched} bytes of other tokens' or blocks' keys" if touched else ""
    status = Status.WRONG if touched else Status.PASS
    yield Finding("untouched", status, Evidence(touched, rest.size, "bytes", note=note))
    if stream.steps:
        yield from _judge_steps(stream, outputs)


def _judge_steps(stream: Stream, outputs: Outputs) -> Iterator[Finding]:
    starts = np.array([chunk.start for chunk in stream.steps])
    live = starts >= 0
    words = np.stack([starts + 1, live, np.maximum(starts, 0), np.zeros_like(starts)], axis=1)
    yield bitwise("step", "step", words.astype(np.int32), outputs["step"], "words")
    for name, table in (("cos_row", stream.inputs.cos), ("sin_row", stream.inputs.sin)):
        rows = poisoned_like(outputs[name].shape, "uint16", POISON)
        rows[live] = table[starts[live]]
        finding = bitwise("step-tables", name, rows, outputs[name])
        if finding.status is not Status.PASS or name == "sin_row":
            yield finding
            return


def _case(
    family: str,
    label: str,
    clauses: Sequence[str],
    stream: Stream,
    schedules: str = FEW_SCHEDULES,
) -> Case:
    wanted = functools.cache(lambda: wanted_of(stream))

    def judge(_program: Program, outputs: Outputs) -> Iterable[Finding]:
        return judge_ingest(stream, wanted(), outputs)

    return Case(
        STAGE_NAME,
        family,
        label,
        tuple(clauses),
        lambda: program(stream),
        judge,
        checked=stream.tokens <= _CHECKED_TOKENS,
        schedules=schedules,
    )


def _golden_cases(golden: Golden) -> Iterator[Case]:
    for case in qsa_golden.cases(golden):
        inputs = qsa.of_golden(golden, case)
        for size in (2047,) if inputs.tokens > 1000 else (1, 3, 5):
            yield _case(
                "golden",
                f"case{case.index}-by-{size}",
                ("split-invariance", "numerics", "keeps-raw-keys"),
                in_order(inputs, _split(inputs.tokens, size)),
                schedules=ONE_SCHEDULE,
            )


def _split(tokens: int, size: int) -> list[int]:
    whole, rest = divmod(tokens, size)
    return [size] * whole + ([rest] if rest else [])


def _families() -> Iterator[Case]:
    inputs = qsa.random_inputs(45, "ingest")
    for size in (1, 2, 3, 4, 5, 7, 45):
        yield _case(
            "split",
            f"by-{size}",
            ("split-invariance", "completed-blocks", "keeps-raw-keys", "memory"),
            in_order(inputs, _split(45, size)),
            schedules=EVERY_SCHEDULE if size == 5 else FEW_SCHEDULES,
        )
    yield _case(
        "split",
        "awkward",
        ("split-invariance", "completed-blocks", "nothing-else"),
        replace(in_order(inputs, (1, 6, 0, 2, 13, 1, 1, 3, 9)), tokens=40),
    )
    # Sixteen tokens touch five blocks, one more than the warps of a CTA.
    yield _case("split", "across-ctas", ("completed-blocks",), in_order(inputs, (3, 16, 26)))
    yield _case(
        "split",
        "no-block",
        ("completed-blocks", "nothing-else"),
        replace(in_order(inputs, (2, 1)), tokens=9),
    )
    for scale in (3e-3, 30.0):
        yield _case(
            "scale",
            f"{scale:g}",
            ("numerics",),
            in_order(qsa.random_inputs(40, "ingest", scale=scale), (3, 9, 28)),
        )
    yield _case(
        "nan",
        "token13",
        ("keeps-raw-keys", "numerics"),
        in_order(qsa.poisoned_key(40, 13), (7, 7, 26)),
    )
    yield from _rewinds()
    for tokens in (3, 4, 45):
        yield _case(
            "step",
            f"to-{tokens}",
            ("step", "completed-blocks", "split-invariance", "memory"),
            in_order(qsa.random_inputs(tokens, "step"), [1] * tokens, step=True),
            schedules=ONE_SCHEDULE,
        )
    mixed = (
        Chunk(0, 10, 0),
        Chunk(-1, 1, 10, step=True),
        *(Chunk(position, 1, position, step=True) for position in range(10, 15)),
        Chunk(-1, 1, 30, step=True),
        Chunk(15, 6, 15),
        *(Chunk(position, 1, position, step=True) for position in (21, 22, 23)),
    )
    yield _case("step", "mixed", ("step", "empty-slot", "nothing-else"), Stream(inputs, mixed, 41))


def _rewinds() -> Iterator[Case]:
    """Ten tokens, then other ones from a position before the end on, as speculation leaves them."""
    inputs = qsa.random_inputs(45, "rewind")
    for position in (0, 3, 4, 6, 7, 9):
        for count in (1, 2, 5, 9):
            chunks = (Chunk(0, 10, 0), Chunk(position, count, 20), Chunk(position + count, 3, 30))
            yield _case(
                "rewind",
                f"to-{position}-then-{count}",
                ("rewind", "completed-blocks"),
                Stream(inputs, chunks, 24),
                schedules=ONE_SCHEDULE,
            )


def _traps() -> Iterator[Case]:
    base = in_order(qsa.random_inputs(12, "trap"), [1], step=True)
    for label, position in (("behind-the-capacity", 12), ("below-an-empty-slot", -2)):

        def build(position: int = position) -> Program:
            built = program(base)
            where = np.array([position], dtype=np.int32)
            buffers = tuple(
                Buffer("position", "i32", (1,), Role.INPUT, where) if b.name == "position" else b
                for b in built.buffers
            )
            call = Call(STAGE_NAME, "qsa_ingest_step", built.calls[0].values, TRAP)
            return Program(buffers, (call,))

        yield _refused("trap", label, "position-traps", build)


def _refused(family: str, label: str, clause: str, build: Any) -> Case:
    return Case(
        STAGE_NAME,
        family,
        label,
        (clause,),
        build,
        no_judge,
        schedules=ONE_SCHEDULE,
        writes=False,
    )


def _refusals() -> Iterator[Case]:
    pointers = ("fused_qk", "k_norm_weight", "cos", "sin", "raw_keys", "block_keys")
    rows = ("cos_row", "sin_row")
    common: list[tuple[str, Mapping[str, Value], int]] = [
        *((f"null-{name}", {name: None}, qsa.NULL_POINTER) for name in pointers),
        *((f"unaligned-{name}", {name: At(name, 4)}, qsa.UNSUPPORTED) for name in pointers),
        ("negative-tokens", {"tokens": -1}, qsa.BAD_EXTENT),
        ("stride-639", {"fused_stride": 639}, qsa.BAD_STRIDE),
        ("rotary-32", {"rotary_dim": 32}, qsa.BAD_ROTARY),
        ("negative-eps", {"eps": -1e-6}, qsa.BAD_EPS),
        ("nan-eps", {"eps": float("nan")}, qsa.BAD_EPS),
    ]
    chunk: list[tuple[str, Mapping[str, Value], int]] = [
        ("negative-first", {"first_position": -1}, qsa.BAD_EXTENT),
        ("negative-count", {"row_count": -1}, qsa.BAD_EXTENT),
        ("past-the-capacity", {"first_position": 5, "row_count": 8}, qsa.BAD_EXTENT),
    ]
    step: list[tuple[str, Mapping[str, Value], int]] = [
        *((f"null-{name}", {name: None}, qsa.NULL_POINTER) for name in ("position", "step", *rows)),
        *((f"unaligned-{name}", {name: At(name, 4)}, qsa.UNSUPPORTED) for name in rows),
    ]
    for entry, own in (("qsa_ingest", chunk), ("qsa_ingest_step", step)):
        stepped = entry == "qsa_ingest_step"
        base = program(in_order(qsa.random_inputs(12, "refusal"), [1], step=stepped))
        for label, change, code in (*common, *own):
            call = Call(STAGE_NAME, entry, {**base.calls[0].values, **change}, code)
            yield _refused(
                "refusal",
                f"{entry}-{label}",
                "refusals",
                lambda base=base, call=call: Program(base.buffers, (call,)),
            )


def cases(golden: Golden | None) -> Sequence[Case]:
    """Return every case: the golden's (if given), families, traps and refusals."""
    return [
        *(_golden_cases(golden) if golden is not None else ()),
        *_families(),
        *_traps(),
        *_refusals(),
    ]


STAGE = Stage(
    name=STAGE_NAME,
    summary="QSA ingest: new raw keys and the keys of the blocks they complete",
    kernels=(KERNEL,),
    clauses=CLAUSES,
    checks=CHECKS,
    cases=cases,
    sweep=SWEEP,
    golden_kind="qsa",
)
