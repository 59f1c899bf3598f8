"""The DSA pipeline: keys and gates to pool keys to scores to kept pools to token ids, judged as one.

Each kernel's output is the next one's input, over one scratch, through the launches of
qsa_bench/engine; a decode step compresses only the pool it completes, and a replayed step reads its
length from the device. Mutants: mutations/dsa/.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from qsa_bench.compare import bitwise
from qsa_bench.goldens import Golden
from qsa_bench.goldens import dsa as dsa_golden
from qsa_bench.model import Finding, Role
from qsa_bench.program import At, Buffer, Call, Program, Value
from qsa_bench.stages import (
    _dsa_compress_launch,
    _dsa_expand_launch,
    _dsa_score_judge,
    _dsa_score_launch,
    _dsa_topk_launch,
    dsa_write_geom,
)
from qsa_bench.stages import _dsa_inputs as dsa_inputs
from qsa_bench.stages._dsa_faults import refusals
from qsa_bench.stages._dsa_pipeline import (
    Pipeline,
    Step,
    buffers,
    program,
    values_of,
    wanted_of,
    whole,
)
from qsa_bench.stages._dsa_pipeline_judge import judge_every_step, judge_last_step, judge_reference
from qsa_bench.stages._dsa_sweep import SWEEP
from qsa_bench.stages.base import FEW_SCHEDULES, ONE_SCHEDULE, Case, Outputs, Stage

STAGE_NAME = "dsa"
_SEEDS = 6
_CHECKED_BYTES = 150_000

CLAUSES = {
    "hand-over": "every kernel reads what the one before it wrote, and nothing else",
    "selection": "the ids are those of the highest computed scores, and the tail",
    "reference": "ids are the reference's, except where scores lie within their bound of the cut",
    "keys-once": "a decode step compresses the pool it completes and no other",
    "padding": "a padded sequence selects what the unpadded one does, shifted",
    "replay": "launches at the ceiling follow the length on the device, from no pool up",
    "one-row-each": "rows that are verified together select into rows of their own",
    "capture": "one captured graph serves every length; two captures give the same bytes",
    "layout": "counts and capacities that do not fit are refused before a pointer is touched",
}
CHECKS = {
    "pool-keys": "every element has the oracle's bits, or a legal neighbour's where it may flip",
    **_dsa_score_judge.CHECKS,
    "kept-pools": "the last step's pools are the stable selection of the scores it computed",
    "token-ids": "the last step's ids are in full those of the pools it kept, and the tail",
    "selection": "every step's ids are the oracle's, but for pools within their bound of the cut",
    "reference-ids": "the reference's own ids are the oracle's, up to the same pools",
    "equal-rows": "rows that should select the same do so, bit by bit",
}
NUMBERS = {
    **_dsa_score_judge.NUMBERS,
    "near_cut": "pools whose score lies within its bound of the cut, where either pick is right",
}


def _case(
    family: str,
    label: str,
    clauses: Sequence[str],
    make: Callable[[], Pipeline],
    schedules: str = ONE_SCHEDULE,
    recorded: dsa_golden.DsaCase | None = None,
) -> Case:
    pipeline = functools.cache(make)
    wanted = functools.cache(lambda: wanted_of(pipeline()))
    built = functools.cache(lambda: program(pipeline()))

    def judge(_program: Program, outputs: Outputs) -> Iterable[Finding]:
        given, want = pipeline(), wanted()
        golden = recorded is not None
        yield from judge_last_step(given, want[-1], outputs, golden)
        for finding in judge_every_step(given, want, outputs):
            numbers = finding.evidence.numbers if golden else {}
            yield replace(finding, evidence=replace(finding.evidence, numbers=numbers))
        if recorded is not None:
            yield judge_reference(given, want[-1], recorded)

    return Case(
        STAGE_NAME,
        family,
        label,
        tuple(clauses),
        built,
        judge,
        checked=built().bytes <= _CHECKED_BYTES,
        schedules=schedules,
    )


def _golden_cases(golden: Golden) -> Iterator[Case]:
    for case in dsa_golden.cases(golden):
        inputs = dsa_inputs.of_golden(case)
        yield _case(
            "golden",
            f"case{case.index}",
            ("hand-over", "selection", "reference", "padding"),
            lambda inputs=inputs: whole(inputs),  # type: ignore[misc]
            recorded=case,
        )


def _families() -> Iterator[Case]:
    rows = (3, 40, 66, 101, 118, 119)
    for seed in range(_SEEDS):
        yield _case(
            "seeds",
            str(seed),
            ("hand-over", "selection"),
            lambda seed=seed: whole(  # type: ignore[misc]
                dsa_inputs.random_inputs(
                    120, "pipeline", seed, rows=rows, kpool=(4, 16)[seed % 2], topk=32
                )
            ),
        )
    padded: Mapping[str, Any] = {"batch": 3, "padding": (0, 5, 34), "rows": (4, 20, 33)}
    holes: Mapping[str, Any] = {"holes": ((0, 9), (0, 22)), "rows": (8, 11, 21, 22, 30, 33)}
    for label, mask in (("left", padded), ("holes", holes)):
        for tail in (True, False):
            yield _case(
                "padding",
                f"{label}-{'tail' if tail else 'no-tail'}",
                ("padding", "hand-over"),
                lambda mask=mask, tail=tail: whole(  # type: ignore[misc]
                    dsa_inputs.random_inputs(34, "pipeline", topk=16, **mask), tail
                ),
                schedules=FEW_SCHEDULES,
            )
    for label, mask in (("plain", {}), ("padded", {"padding": (7,), "holes": ((0, 20),)})):
        yield _case(
            "decode",
            label,
            ("keys-once", "hand-over"),
            functools.partial(_decode, mask),
            schedules=FEW_SCHEDULES,
        )
        yield _case(
            "replay",
            label,
            ("replay", "keys-once"),
            functools.partial(_replay, mask),
            schedules=FEW_SCHEDULES if mask else ONE_SCHEDULE,
        )
    yield _verify_case()


def _decode(mask: Mapping[str, Any]) -> Pipeline:
    """A prompt of 21 tokens, a chunk of 6, token by token, then a speculative step that is rewound."""
    live = [21, 27, *range(28, 37), 41, 38, 39]
    fresh = [21, 6, *[1] * 9, 5, 1, 1]
    counts = [2, 1, *[1] * 9, 5, 1, 1]
    positions: list[int] = []
    for tokens, rows in zip(live, counts, strict=True):
        positions += range(tokens - rows, tokens)
    inputs = dsa_inputs.random_inputs(44, "decode", topk=16, rows=tuple(positions), **mask)
    steps = tuple(Step(*step) for step in zip(live, fresh, counts, strict=True))
    return Pipeline(inputs, steps)


def _replay(mask: Mapping[str, Any]) -> Pipeline:
    """One launch at the ceiling for every length from one token up, past the budget, and back."""
    lengths = [*range(1, 18), 20, 23, 24, 25, 22, 12]
    rows = tuple(tokens - 1 for tokens in lengths)
    inputs = dsa_inputs.random_inputs(90, "replay", topk=16, rows=rows, **mask)
    # Three tokens are fresh in every launch, as a captured scalar says: the most that a step brings.
    return Pipeline(inputs, tuple(Step(tokens, 3, 1) for tokens in lengths), replayed=True)


def _verify_case() -> Case:
    """Five rows verified at once, and by a replayed launch each: the same ids, row by row."""
    tokens, rows = 45, 5
    positions = tuple(range(tokens - rows, tokens))
    inputs = dsa_inputs.random_inputs(tokens, "verify", topk=16, rows=positions)
    together = Pipeline(inputs, (Step(tokens, tokens, rows),))
    # Lists and keys of all five tokens are there before the first of them is verified.
    one_by_one = Pipeline(
        inputs,
        (Step(tokens, tokens, 0), *(Step(position + 1, 1, 1) for position in positions)),
        replayed=True,
    )
    first, second = program(together), program(one_by_one)
    own = ("scratch", "token_ids")
    calls = tuple(
        replace(
            given,
            values={
                name: _renamed(value, own, "_each") if name in own else value
                for name, value in given.values.items()
            },
        )
        for given in second.calls
    )
    extra = tuple(
        replace(buffer, name=f"{buffer.name}_each")
        for buffer in second.buffers
        if buffer.name in own
    )
    both = Program((*first.buffers, *extra), (*first.calls, *calls))
    wanted = functools.cache(lambda: wanted_of(together))

    def judge(_program: Program, outputs: Outputs) -> Iterable[Finding]:
        yield from judge_last_step(together, wanted()[-1], outputs, False)
        yield from judge_every_step(together, wanted(), outputs)
        ids, each = outputs["token_ids"], outputs["token_ids_each"]
        yield bitwise("equal-rows", "token_ids_each", ids, each, "ids")

    return Case(STAGE_NAME, "verify", "five-rows", ("one-row-each",), lambda: both, judge)


def _renamed(value: Value, names: Sequence[str], suffix: str) -> Value:
    if isinstance(value, At):
        return At(f"{value.buffer}{suffix}", value.offset) if value.buffer in names else value
    return f"{value}{suffix}" if value in names else value


def _graph_cases() -> Iterator[Case]:
    """One captured graph for many lengths, twice, on a device that has graphs."""
    steps = 40
    rows = tuple(range(steps))
    inputs = dsa_inputs.random_inputs(90, "graph", topk=16, rows=rows)
    pipeline = Pipeline(inputs, tuple(Step(row + 1, 1, 1) for row in rows), replayed=True)
    width = pipeline.layout.output_width
    heads = dsa_inputs.HEADS * dsa_inputs.HEAD_DIM
    staged = (
        Buffer("staged_q", "bf16", (heads,), Role.SCRATCH),
        Buffer("staged_weights", "f32", (dsa_inputs.HEADS,), Role.SCRATCH),
        Buffer("staged_ids", "i32", (width,), Role.SCRATCH),
    )
    again = Buffer("token_ids_again", "i32", (1, steps, width), Role.OUTPUT)
    values = values_of(
        pipeline,
        **{buffer.name: buffer.name for buffer in staged},
        fresh=1,
        steps=steps,
        first_live=1,
        q_bytes=heads * 2,
        weight_bytes=dsa_inputs.HEADS * 4,
        id_bytes=width * 4,
    )
    surface = "qsa_bench.engine.dsa_replay:replay"
    once = Call(dsa_write_geom.STAGE_NAME, "replay", values, python=surface)
    twice = replace(once, values={**values, "token_ids": "token_ids_again"})
    built = Program((*buffers(pipeline), *staged, again), (once, twice))
    wanted = functools.cache(lambda: wanted_of(pipeline))

    def judge(_program: Program, outputs: Outputs) -> Iterable[Finding]:
        yield from judge_every_step(pipeline, wanted(), outputs)
        ids, other = outputs["token_ids"], outputs["token_ids_again"]
        yield bitwise("equal-rows", "token_ids_again", ids, other, "ids")

    yield Case(
        STAGE_NAME,
        "graph",
        "every-length-twice",
        ("capture", "replay"),
        lambda: built,
        judge,
        targets=("cuda",),
    )


def _refusals() -> Iterator[Case]:
    pipeline = whole(dsa_inputs.random_inputs(24, "refusal", topk=16))
    base = program(pipeline)
    changes: Mapping[str, Mapping[str, Value]] = {
        "no-rows": {"query_rows": 0},
        "no-tokens": {"tokens": 0},
        "outgrown-context": {"tokens": 25},
        "outgrown-rows": {"query_rows": 2},
        "too-little-scratch": {"scratch_bytes": pipeline.layout.needed_bytes - 1},
        "wider-than-served": {"topk": 2052, "scratch_bytes": 1 << 30},
        "kpool-8": {"kpool": 8},
        "two-rows-in-a-graph": {"query_rows": 2, "most_rows": 2, "replayed": 1},
    }
    for name in ("compress", "score", "select", "expand"):
        given = next(found for found in base.calls if str(found.python).endswith(f":{name}"))
        alone = Program(base.buffers, (given,))
        named = [
            (f"{name}-{label}", change, dsa_inputs.BAD_EXTENT) for label, change in changes.items()
        ]
        yield from refusals(STAGE_NAME, lambda alone=alone: alone, named, "layout")  # type: ignore[misc]


def cases(golden: Golden | None) -> Sequence[Case]:
    """Return every case: the golden's (if given), families and refusals."""
    return [
        *(_golden_cases(golden) if golden is not None else ()),
        *_families(),
        *_graph_cases(),
        *_refusals(),
    ]


STAGE = Stage(
    name=STAGE_NAME,
    summary="DSA pipeline: keys, gates and queries to token ids",
    kernels=(
        dsa_write_geom.KERNEL,
        _dsa_compress_launch.KERNEL,
        _dsa_score_launch.KERNEL,
        _dsa_topk_launch.KERNEL,
        _dsa_expand_launch.KERNEL,
    ),
    clauses=CLAUSES,
    checks=CHECKS,
    cases=cases,
    sweep=SWEEP,
    golden_kind="dsa",
    numbers=NUMBERS,
)
