"""QSA key pooling: one rotated, normalised key a block of four tokens.

Contract section 1, "pool". Kernel: kernels/qsa/pool.cu; mutants: mutations/qsa_pool/.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from qsa_bench.goldens import Golden
from qsa_bench.goldens import qsa as qsa_golden
from qsa_bench.model import Evidence, Finding, Status
from qsa_bench.oracles.qsa_numerics import PooledKeys, pool_oracle, score_oracle
from qsa_bench.poison import POISON
from qsa_bench.program import At, Call, Program, Value
from qsa_bench.stages import _qsa_inputs as qsa
from qsa_bench.stages._qsa_pool_launch import (
    KERNEL,
    STAGE_NAME,
    judge_keys,
    program,
)
from qsa_bench.stages._qsa_pool_sweep import SWEEP
from qsa_bench.stages._qsa_score_judge import published
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

_SEEDS = 20
_CHECKED_BLOCKS = 40
_GENERATED_BLOCKS = 500


CLAUSES = {
    "mean-then-bf16": "the block's mean of raw keys is taken in f32 and rounded to bf16",
    "one-plus-weight": "RMSNorm multiplies by 1 + weight",
    "eps": "eps is added to the mean square, inside the root",
    "norm-rounding": "the normalised key is rounded to bf16 before the rotation",
    "first-token-rotation": "a block's key is rotated at the position of its first token",
    "half-split-rotation": "dim i of the first 64 pairs with dim i + 32",
    "three-roundings": "both products of the rotation and their sum are each rounded to bf16",
    "key-column": "the raw key is columns 512 to 639 of a fused row",
    "block-range": "first_block and block_count choose the blocks; every other row is untouched",
    "whole-blocks": "only complete blocks have a key; fewer than four tokens succeed with none",
    "nan-stays": "a NaN in a raw key makes its block's key NaN, and no other's",
    "refusals": "the C entry refuses malformed arguments by code and launches nothing",
    "memory": "no race, no access outside a buffer, no read of what nothing wrote",
}
CHECKS = {
    "block-keys": "every element has the oracle's bits, or a legal neighbour's where it may flip",
    "untouched": "rows of block_keys outside the pooled range keep every bit",
    "single-bound": "what a published gate holds instead: the golden's scores with these keys, at "
    "5e-3 of each or of 1, whichever is more (kept for comparison)",
}
NUMBERS = {
    "elements": "golden key elements judged",
    "may_flip": "of them with two legal roundings",
    "flipped": "of them that took the other one",
}


def _case(
    family: str,
    label: str,
    clauses: Sequence[str],
    make: Callable[[], qsa.Inputs],
    ranges: Sequence[tuple[int, int]] | None = None,
    schedules: str = FEW_SCHEDULES,
    scored_rows: Array | None = None,
) -> Case:
    """Return a case; `scored_rows` are those of a golden, None for generated inputs."""
    inputs = make()
    chosen = ((0, inputs.blocks),) if ranges is None else ranges
    pooled = np.zeros(inputs.blocks, dtype=bool)
    for first, count in chosen:
        pooled[first : first + count] = True

    @functools.cache
    def oracle() -> PooledKeys:
        return pool_oracle(inputs.fused_qk, inputs.k_norm_weight, inputs.cos, inputs.sin, qsa.EPS)

    def judge(_program: Program, outputs: Outputs) -> Iterable[Finding]:
        want, got = oracle(), outputs["block_keys"]
        there = np.flatnonzero(pooled)
        kept = PooledKeys(want.value[there], want.low[there], want.high[there], want.flips)
        yield from judge_keys(kept, got[there], there, golden=scored_rows is not None)
        rest = got[~pooled].view(np.uint8)
        touched = int(np.count_nonzero(rest != POISON))
        note = f"{touched} bytes outside the range" if touched else ""
        yield Finding(
            "untouched",
            Status.WRONG if touched else Status.PASS,
            Evidence(touched, rest.size, "bytes", note=note),
        )
        if scored_rows is not None:
            yield _published(inputs, scored_rows, want.value, got)

    return Case(
        STAGE_NAME,
        family,
        label,
        tuple(clauses),
        lambda: program(inputs, chosen),
        judge,
        checked=inputs.blocks <= _CHECKED_BLOCKS,
        schedules=schedules,
        writes=bool(pooled.any()),
    )


def _published(inputs: qsa.Inputs, rows: Array, want: Array, got: Array) -> Finding:
    """Return what a gate over scores with one loose bound would say of keys `got`."""
    scores = [
        score_oracle(
            inputs.fused_qk,
            inputs.q_norm_weight,
            inputs.cos,
            inputs.sin,
            keys,
            rows,
            rows + np.int32(1),
            qsa.EPS,
        )
        for keys in (want, got)
    ]
    return published(scores[0], scores[1].value)


_NUMERICS = (
    "mean-then-bf16",
    "one-plus-weight",
    "norm-rounding",
    "first-token-rotation",
    "half-split-rotation",
    "three-roundings",
    "key-column",
)


def _golden_cases(golden: Golden) -> Iterator[Case]:
    for case in qsa_golden.cases(golden):
        inputs = qsa.of_golden(golden, case)
        yield _case(
            "golden",
            f"case{case.index}",
            _NUMERICS,
            lambda inputs=inputs: inputs,  # type: ignore[misc]
            schedules=ONE_SCHEDULE if inputs.tokens > 1000 else EVERY_SCHEDULE,
            scored_rows=case.rows,
        )


def _families() -> Iterator[Case]:
    for scale, clause in ((3e-3, "eps"), (1e-4, "eps"), (30.0, "one-plus-weight")):
        yield _case(
            "scale",
            f"{scale:g}",
            (clause, *_NUMERICS),
            lambda scale=scale: qsa.random_inputs(64, "scale", scale=scale),  # type: ignore[misc]
        )
    for seed in range(_SEEDS):
        yield _case(
            "seeds",
            str(seed),
            _NUMERICS,
            lambda seed=seed: qsa.random_inputs(132, "seed", seed),  # type: ignore[misc]
            schedules=ONE_SCHEDULE,
        )
    yield _case("one-hot", "heads", _NUMERICS, lambda: qsa.one_hot_heads(40))
    yield _case("largest", "sum-beyond-bf16", ("mean-then-bf16",), lambda: qsa.largest_key(24))
    for token in (0, 13, 39):
        yield _case(
            "nan",
            f"token{token}",
            ("nan-stays",),
            lambda token=token: qsa.poisoned_key(40, token),  # type: ignore[misc]
        )
    for tokens in range(10):
        yield _case(
            "tokens",
            str(tokens),
            ("whole-blocks",),
            lambda tokens=tokens: qsa.random_inputs(tokens, "tokens"),  # type: ignore[misc]
        )
    ranges: Mapping[str, Sequence[tuple[int, int]]] = {
        "middle": ((3, 5),),
        "last": ((15, 1),),
        "none": ((4, 0),),
        "behind-the-end": ((16, 0),),
        "one-by-one": tuple((block, 1) for block in range(16)),
        "chunks": ((0, 1), (1, 8), (9, 7)),
    }
    for label, chosen in ranges.items():
        yield _case(
            "range",
            label,
            ("block-range",),
            lambda: qsa.random_inputs(66, "range"),
            chosen,
            schedules=EVERY_SCHEDULE if label == "chunks" else FEW_SCHEDULES,
        )


def _refusals() -> Iterator[Case]:
    pointers = ("fused_qk", "k_norm_weight", "cos", "sin", "block_keys")
    changes: list[tuple[str, Mapping[str, Value], int]] = [
        *((f"null-{name}", {name: None}, qsa.NULL_POINTER) for name in pointers),
        *((f"unaligned-{name}", {name: At(name, 4)}, qsa.UNSUPPORTED) for name in pointers),
        # Only what comes after it is refused.
        ("null-after-16", {"fused_qk": At("fused_qk", 8), "cos": None}, qsa.NULL_POINTER),
        ("null-after-most-tokens", {"tokens": 2**31 - 1, "cos": None}, qsa.NULL_POINTER),
        ("null-after-zero-eps", {"eps": 0.0, "cos": None}, qsa.NULL_POINTER),
        ("tokens-beyond-i32", {"tokens": 2**31}, qsa.BAD_EXTENT),
        ("negative-tokens", {"tokens": -1}, qsa.BAD_EXTENT),
        ("negative-tokens-no-blocks", {"tokens": -1, "block_count": 0}, qsa.BAD_EXTENT),
        ("negative-first", {"first_block": -1}, qsa.BAD_EXTENT),
        ("negative-count", {"block_count": -1}, qsa.BAD_EXTENT),
        ("past-the-end", {"first_block": 5, "block_count": 4}, qsa.BAD_EXTENT),
        ("incomplete-block", {"tokens": 31, "block_count": 8}, qsa.BAD_EXTENT),
        ("stride-639", {"fused_stride": 639}, qsa.BAD_STRIDE),
        ("stride-641", {"fused_stride": 641}, qsa.BAD_STRIDE),
        ("rotary-32", {"rotary_dim": 32}, qsa.BAD_ROTARY),
        ("rotary-128", {"rotary_dim": 128}, qsa.BAD_ROTARY),
        ("negative-eps", {"eps": -1e-6}, qsa.BAD_EPS),
        ("nan-eps", {"eps": float("nan")}, qsa.BAD_EPS),
    ]
    for label, change, code in changes:

        def build(change: Mapping[str, Value] = change, code: int = code) -> Program:
            base = program(qsa.random_inputs(32, "refusal"), ((0, 8),))
            values = {**base.calls[0].values, **change}
            return Program(base.buffers, (Call(STAGE_NAME, "qsa_pool", values, code),))

        yield Case(
            STAGE_NAME,
            "refusal",
            label,
            ("refusals",),
            build,
            no_judge,
            schedules=ONE_SCHEDULE,
            writes=False,
        )


def generated(seed: int) -> tuple[Case, int]:
    """Return a case of random keys, of another magnitude with each seed, and its blocks."""
    tokens = qsa.RATIO * _GENERATED_BLOCKS + seed % qsa.RATIO
    made = _case(
        "generated",
        str(seed),
        _NUMERICS,
        lambda: qsa.random_inputs(tokens, "generated", seed, scale=10.0 ** (seed % 7 - 3)),
        schedules=ONE_SCHEDULE,
    )
    return made, _GENERATED_BLOCKS


def cases(golden: Golden | None) -> Sequence[Case]:
    """Return every case: the golden's (if given), families and refusals."""
    return [*(_golden_cases(golden) if golden is not None else ()), *_families(), *_refusals()]


STAGE = Stage(
    name=STAGE_NAME,
    summary="QSA key pooling: fused rows to block keys",
    kernels=(KERNEL,),
    clauses=CLAUSES,
    checks=CHECKS,
    cases=cases,
    sweep=SWEEP,
    generated=generated,
    golden_kind="qsa",
    numbers=NUMBERS,
)
