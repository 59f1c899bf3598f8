"""The QSA runtime: ingest, decode, prefill, rewind, snapshots, over all kernels, judged as one.

The scripts run through `qsa_bench.engine`, so what an engine would decide (order, capacity, state)
is decided by the code that mutants patch: mutations/qsa_engine/.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy.typing as npt

from qsa_bench.engine import qsa_script as script
from qsa_bench.goldens import Golden, qsa_attention
from qsa_bench.model import Finding
from qsa_bench.program import Program
from qsa_bench.stages import (
    _qsa_decode_attention_launch,
    _qsa_engine_golden,
    _qsa_gather_launch,
    _qsa_ingest_launch,
    _qsa_prefill_attention_launch,
    _qsa_score_launch,
    qsa_select,
)
from qsa_bench.stages._qsa_engine import (
    EMPTY,
    Batch,
    Operation,
    Script,
    program,
    random_inputs,
    simulate,
)
from qsa_bench.stages._qsa_engine_captured import captured, captured_bound
from qsa_bench.stages._qsa_engine_judge import CHECKS, Oracle, judge_script
from qsa_bench.stages._qsa_engine_sweep import sweep_of
from qsa_bench.stages.base import ONE_SCHEDULE, Case, Outputs, Stage

Array = npt.NDArray[Any]

STAGE_NAME = "qsa_engine"
_BUDGET = 16  # the first selective position is 19
_CAPACITY = 64

CLAUSES = {
    "order": "positions come in order, or an error names both numbers; 0 begins anew",
    "capacity": "more tokens, pages or rows than there is room for are refused before a write",
    "failed-step": "a refused step leaves the sequence as it was",
    "split-invariance": "a prompt gives the same bits however it is split into chunks",
    "prefill": "rows past the bound attend to their selection, slab by slab; others are left alone",
    "dense-prefill": "an option keeps prefill dense past the bound; decode still selects",
    "scalar-scores": "an option takes the scalar scorer, which selects the same",
    "decode": "a step selects, gathers and attends on both sides of every block and of the bound",
    "capture": "a step captured once gives at every length what an eager one gives",
    "batch": "slots of any length, empty ones too, are served by one step",
    "sequences": "sequences share scratch without touching each other",
    "rewind": "a rewound sequence pools again exactly the blocks it must",
    "snapshot": "a restored snapshot gives what the sequence gave then",
    "release": "a release is idempotent and goes on after its first failure",
    "reference": "with other chunks than the reference's, contexts are the reference's own",
    "surface": "wrong dtypes, devices, shapes and lengths are refused; no rows are no step",
}


def _chunks(
    sequence: int, tokens: int, size: int, out: int, first: int = 0, fused: int = 0
) -> list[Operation]:
    """Return prefills of `size` rows from token `first` on; token t is fused row t + fused."""
    return [
        Operation(
            script.PREFILL,
            sequence,
            (start, min(size, tokens - start), start + fused, out + start),
        )
        for start in range(first, tokens, size)
    ]


def _split_small() -> Script:
    tokens, sizes = 45, (1, 2, 3, 4, 5, 7, 45)
    inputs, q, cache = random_inputs(tokens, len(sizes), _CAPACITY, "split", shared=True)
    operations: list[Operation] = []
    for number, size in enumerate(sizes):
        operations += _chunks(number, tokens, size, number * tokens)
    equal = tuple(
        tuple(number * tokens + row for number in range(len(sizes)))
        for row in range(_BUDGET + 3, tokens)
    )
    return Script(
        inputs,
        q,
        cache,
        tuple(operations),
        len(sizes),
        _CAPACITY,
        _BUDGET,
        len(sizes) * tokens,
        slab_rows=8,
        equal=equal,
        equal_sequences=tuple(range(len(sizes))),
    )


def _split_long() -> Script:
    """The real budget: chunks of 2047, 2048, 2049, whole, and token by token up to the bound."""
    tokens, sizes, bound = 2053, (2047, 2048, 2049, 2053), 2051
    last = len(sizes)
    inputs, q, cache = random_inputs(tokens, last + 1, tokens, "long", shared=True, page=64)
    operations: list[Operation] = []
    # Rows before the bound have no place among the outputs: nothing may write them.
    places = [number * (tokens - bound) - bound for number in range(last + 1)]
    for number, size in enumerate(sizes):
        operations += _chunks(number, tokens, size, places[number])
    operations += [Operation(script.INGEST, last, (token, 1, token)) for token in range(bound - 1)]
    operations += _chunks(last, tokens, 1, places[last], first=bound - 1)
    equal = tuple(tuple(place + row for place in places) for row in range(bound, tokens))
    return Script(
        inputs,
        q,
        cache,
        tuple(operations),
        last + 1,
        tokens,
        2048,
        (last + 1) * (tokens - bound),
        slab_rows=3,
        equal=equal,
        equal_sequences=tuple(range(last + 1)),
    )


def _decode_every_length() -> Script:
    """Slot 0 token by token from nothing; slot 1 begins late; slot 2 is empty; slot 3 speculates."""
    steps, slots = 40, 4
    inputs, q, cache = random_inputs(160, slots, _CAPACITY, "decode")
    operations, batches = [Operation(script.INGEST, 3, (0, 17, 100))], []
    third = 17
    for step in range(steps):
        late = step - 15 if step >= 15 else EMPTY
        if step and step % 7 == 0:
            third -= 3
            operations.append(Operation(script.REWIND, 3, (third,)))
        positions = (step, late, EMPTY, third)
        batches.append(Batch(positions, (step, 60 + max(late, 0), 0, 117 + step)))
        operations.append(Operation(script.BATCH, 0, (step, step * slots)))
        third += 1
    return Script(
        inputs,
        q,
        cache,
        tuple(operations),
        slots,
        _CAPACITY,
        _BUDGET,
        steps * slots,
        tuple(batches),
        slab_rows=8,
    )


def _paths() -> Script:
    """The same tokens by prefill, by decode, by a batch and by a restored snapshot."""
    tokens, first = 40, 18
    inputs, q, cache = random_inputs(tokens, 4, _CAPACITY, "paths", shared=True)
    operations = [
        *_chunks(0, tokens, 6, 0),
        Operation(script.INGEST, 1, (0, first, 0)),
        Operation(script.INGEST, 2, (0, first, 0)),
        Operation(script.SNAPSHOT, 2, (7,)),
    ]
    operations += [
        Operation(script.DECODE, 1, (token, token, tokens + token))
        for token in range(first, tokens)
    ]
    batches = []
    for token in range(first, tokens):
        batches.append(Batch((EMPTY, EMPTY, token, EMPTY), (0, 0, token, 0)))
        operations.append(Operation(script.BATCH, 0, (token - first, 80 + 4 * token)))
    operations.append(Operation(script.RESTORE, 3, (7,)))
    operations += _chunks(3, tokens, 5, 80 + 4 * tokens, first=first)
    equal = tuple(
        (row, tokens + row, 80 + 4 * row + 2, 80 + 4 * tokens + row) for row in range(19, tokens)
    )
    return Script(
        inputs,
        q,
        cache,
        tuple(operations),
        4,
        _CAPACITY,
        _BUDGET,
        80 + 5 * tokens,
        tuple(batches),
        slab_rows=8,
        equal=equal,
        equal_sequences=(0, 1, 2, 3),
    )


def _interleaved() -> Script:
    """Three sequences of other rows and pages, chunk by chunk in turn."""
    inputs, q, cache = random_inputs(150, 3, _CAPACITY, "interleaved")
    chunks = [
        _chunks(number, 48, size, number * 50, fused=number * 50)
        for number, size in enumerate((5, 7, 9))
    ]
    operations = []
    while any(chunks):
        for own in chunks:
            if own:
                operations.append(own.pop(0))
    return Script(inputs, q, cache, tuple(operations), 3, _CAPACITY, _BUDGET, 150, slab_rows=4)


def _rewinds() -> Script:
    """Every way back into a block, with other tokens after it, then a decode."""
    inputs, q, cache = random_inputs(120, 1, _CAPACITY, "rewind")
    operations = [Operation(script.INGEST, 0, (0, 30, 0))]
    for number, position in enumerate((29, 27, 25, 24, 23, 20, 6, 3)):
        fused = 31 + 8 * number
        operations += [
            Operation(script.REWIND, 0, (position,)),
            Operation(script.PREFILL, 0, (position, 2, fused, 60 + number * 2)),
            Operation(script.INGEST, 0, (position + 2, 3, fused + 2)),
            Operation(script.DECODE, 0, (position + 5, fused + 5, number)),
            Operation(script.INGEST, 0, (position + 6, 2, fused + 6)),
        ]
    operations += [
        # Begun anew, with fewer tokens than there were.
        Operation(script.INGEST, 0, (0, 7, 40)),
        Operation(script.DECODE, 0, (7, 100, 50)),
    ]
    return Script(inputs, q, cache, tuple(operations), 1, _CAPACITY, _BUDGET, 120, slab_rows=4)


def _snapshots() -> Script:
    inputs, q, cache = random_inputs(90, 2, _CAPACITY, "snapshot", shared=True)
    decodes = [
        [Operation(script.DECODE, n, (t, t, out + t)) for t in range(26, 34)]
        for n, out in ((0, 0), (0, 40), (1, 80))
    ]
    operations = (
        Operation(script.INGEST, 0, (0, 26, 0)),
        Operation(script.SNAPSHOT, 0, (1,)),
        *decodes[0],
        Operation(script.INGEST, 0, (0, 40, 45)),
        Operation(script.RESTORE, 0, (1,)),
        *decodes[1],
        Operation(script.INGEST, 1, (0, 5, 60)),
        Operation(script.RESTORE, 1, (1,)),
        *decodes[2],
    )
    equal = tuple((t, 40 + t, 80 + t) for t in range(26, 34))
    return Script(
        inputs,
        q,
        cache,
        operations,
        2,
        _CAPACITY,
        _BUDGET,
        120,
        equal=equal,
        equal_sequences=(0, 1),
    )


def _dense() -> Script:
    inputs, q, cache = random_inputs(50, 1, _CAPACITY, "dense")
    operations = (
        *_chunks(0, 40, 11, 0),
        Operation(script.DECODE, 0, (40, 40, 45)),
        *_chunks(0, 44, 3, 0, first=41),
        Operation(script.DECODE, 0, (44, 44, 46)),
    )
    return Script(inputs, q, cache, operations, 1, _CAPACITY, _BUDGET, 50, dense_prefill=True)


def _scalar() -> Script:
    """Prefill, decode and a batch by the scorer's scalar body; the launch that fails is its own."""
    inputs, q, cache = random_inputs(50, 1, _CAPACITY, "scalar")
    operations = (
        *_chunks(0, 30, 7, 0),
        Operation(script.MISUSE, 0, (script.LAUNCH_FAILS,), script.LAUNCH + script.UNSUPPORTED),
        Operation(script.DECODE, 0, (30, 30, 45)),
        Operation(script.BATCH, 0, (0, 46)),
    )
    return Script(
        inputs,
        q,
        cache,
        operations,
        1,
        _CAPACITY,
        _BUDGET,
        50,
        (Batch((31,), (31,)),),
        scalar_scores=True,
    )


def _rules() -> Script:
    """Every refusal in the middle of a sequence, which goes on as if it had not been asked."""
    inputs, q, cache = random_inputs(90, 2, _CAPACITY, "rules")

    def refused(code: int, kind: int, *words: int) -> Operation:
        return Operation(kind, 0, words, code)

    operations = (
        refused(script.ORDER, script.INGEST, 1, 3, 0),
        Operation(script.INGEST, 0, (0, 21, 0)),
        refused(script.ORDER, script.INGEST, 20, 3, 70),
        refused(script.ORDER, script.INGEST, 22, 3, 70),
        refused(script.ORDER, script.DECODE, 20, 70, 80),
        refused(script.ORDER, script.DECODE, 22, 70, 80),
        refused(script.ORDER, script.PREFILL, 24, 3, 70, 80),
        refused(script.CAPACITY, script.INGEST, 21, 44, 40),
        refused(script.CAPACITY, script.INGEST, 0, 65, 20),
        refused(script.ORDER, script.REWIND, 22),
        refused(script.ORDER, script.REWIND, -1),
        *(
            Operation(script.MISUSE, 0, (kind,), script.TENSOR)
            for kind in (
                script.ROWS_OF_F32,
                script.ROWS_ELSEWHERE,
                script.NARROW_ROWS,
                script.UNALIGNED_ROWS,
            )
        ),
        *(
            Operation(script.MISUSE, 0, (kind,), script.ORDER)
            for kind in (script.FRACTIONAL_POSITION, script.SLAB_OF_REPLACED)
        ),
        Operation(script.MISUSE, 0, (script.SHORT_TABLES,), script.TENSOR),
        Operation(script.MISUSE, 0, (script.NO_ROWS,)),
        Operation(script.MISUSE, 0, (script.LAUNCH_FAILS,), script.LAUNCH + script.UNSUPPORTED),
        Operation(script.MISUSE, 0, (script.PREFILL_FAILS,), script.LAUNCH + script.UNSUPPORTED),
        *_chunks(0, 30, 4, 0, first=21),
        Operation(script.MISUSE, 0, (script.SHORT_BLOCK_TABLE,), script.CAPACITY),
        Operation(script.MISUSE, 0, (script.VOID_SLAB,), script.RELEASED),
        Operation(script.MISUSE, 0, (script.SHORT_CONTEXT,), script.TENSOR),
        Operation(script.DECODE, 0, (34, 60, 40)),
        Operation(script.INGEST, 0, (35, 28, 60)),
        Operation(script.DECODE, 0, (63, 88, 41)),
        refused(script.CAPACITY, script.DECODE, 64, 89, 80),
    )
    return Script(inputs, q, cache, operations, 2, _CAPACITY, _BUDGET, 90)


def _releases() -> Script:
    inputs, q, cache = random_inputs(40, 4, _CAPACITY, "release")
    operations = (
        Operation(script.INGEST, 0, (0, 22, 0)),
        Operation(script.INGEST, 1, (0, 22, 10)),
        Operation(script.RELEASE, 0),
        Operation(script.RELEASE, 0),
        Operation(script.INGEST, 0, (22, 1, 22), script.RELEASED),
        Operation(script.DECODE, 0, (0, 0, 30), script.RELEASED),
        Operation(script.REWIND, 0, (3,), script.RELEASED),
        Operation(script.SNAPSHOT, 0, (1,), script.RELEASED),
        Operation(script.DECODE, 1, (22, 33, 1)),
        Operation(script.MISUSE, 2, (script.FREE_FAILS,), script.FREE),
        Operation(script.RELEASE, 2),
        Operation(script.RELEASE, 1),
        Operation(script.INGEST, 3, (0, 22, 10)),
        Operation(script.MISUSE, 3, (script.SLAB_OF_RELEASED,), script.RELEASED),
        Operation(script.RELEASE, 3),
    )
    return Script(inputs, q, cache, operations, 4, _CAPACITY, _BUDGET, 40)


_SCRIPTS: tuple[tuple[str, str, tuple[str, ...], Callable[[], Script]], ...] = (
    ("split", "small", ("split-invariance", "prefill", "sequences"), _split_small),
    ("split", "2048", ("split-invariance", "prefill"), _split_long),
    ("decode", "every-length", ("decode", "batch", "rewind"), _decode_every_length),
    ("decode", "captured", ("capture", "decode", "batch"), captured),
    ("decode", "paths", ("split-invariance", "decode", "prefill", "snapshot"), _paths),
    ("sequences", "interleaved", ("sequences", "prefill"), _interleaved),
    ("state", "rewinds", ("rewind", "order"), _rewinds),
    ("state", "snapshots", ("snapshot",), _snapshots),
    ("state", "dense", ("dense-prefill", "decode"), _dense),
    ("state", "scalar", ("scalar-scores", "prefill", "decode"), _scalar),
    ("rules", "refusals", ("order", "capacity", "failed-step", "surface"), _rules),
    ("rules", "releases", ("release",), _releases),
)


def _case(
    family: str,
    label: str,
    clauses: Sequence[str],
    make: Callable[[], Script],
    recorded: qsa_attention.AttentionCase | None = None,
    targets: tuple[str, ...] = ("host", "cuda"),
) -> Case:
    given = cache(make)
    oracle = cache(lambda: Oracle(given(), simulate(given())))

    def judge(_program: Program, outputs: Outputs) -> Iterable[Finding]:
        yield from judge_script(oracle(), outputs)
        if recorded is not None:
            yield from _qsa_engine_golden.judge_reference(recorded, outputs)

    return Case(
        STAGE_NAME,
        family,
        label,
        tuple(clauses),
        lambda: program(given()),
        judge,
        schedules=ONE_SCHEDULE,
        targets=targets,
    )


def _families() -> Iterator[Case]:
    for family, label, clauses, make in _SCRIPTS:
        yield _case(family, label, clauses, make)
    # What the emulation would take long for shows on a device alone: a graph at the real budget.
    clauses = ("capture", "decode")
    yield _case("decode", "captured-bound", clauses, captured_bound, targets=("cuda",))


def _golden_cases(golden: Golden) -> Iterator[Case]:
    for case in qsa_attention.cases(golden):
        yield _case(
            "golden",
            f"case{case.index}",
            ("reference", "prefill", "decode"),
            lambda case=case: _qsa_engine_golden.script_of(golden, case),  # type: ignore[misc]
            case,
        )


def cases(golden: Golden | None) -> Sequence[Case]:
    """Return every case: the golden's (if given) and scripts of all rules."""
    return [*(_golden_cases(golden) if golden is not None else ()), *_families()]


_KERNELS = (
    _qsa_ingest_launch.KERNEL,
    _qsa_score_launch.KERNEL,
    qsa_select.KERNEL,
    _qsa_gather_launch.KERNEL,
    _qsa_decode_attention_launch.KERNEL,
    _qsa_prefill_attention_launch.KERNEL,
)

STAGE = Stage(
    name=STAGE_NAME,
    summary="QSA runtime: ingest, decode, prefill, rewind and snapshots over all kernels",
    kernels=_KERNELS,
    clauses=CLAUSES,
    checks={**CHECKS, **_qsa_engine_golden.CHECKS},
    cases=cases,
    sweep=sweep_of(_KERNELS),
    golden_kind="qsa_attention",
    numbers=_qsa_engine_golden.NUMBERS,
)
