"""QSA scores: query norm and rotation fused with the relu-sum over heads.

Contract section 1, "query" and "score". Kernel: kernels/qsa/score.cu; mutants:
mutations/qsa_score/.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from qsa_bench.families import seeded
from qsa_bench.goldens import Golden
from qsa_bench.goldens import qsa as qsa_golden
from qsa_bench.model import Finding
from qsa_bench.oracles.qsa_numerics import ABSOLUTE_BOUND, pool_oracle
from qsa_bench.program import TRAP, At, Call, Program, Value
from qsa_bench.stages import _qsa_inputs as qsa
from qsa_bench.stages._qsa_score_judge import CHECKS, NUMBERS, judge_scores
from qsa_bench.stages._qsa_score_launch import (
    KERNEL,
    STAGE_NAME,
    Launch,
    launch_of,
    oracle_of,
    program,
)
from qsa_bench.stages._qsa_score_sweep import SWEEP
from qsa_bench.stages.base import (
    EVERY_SCHEDULE,
    FEW_SCHEDULES,
    ONE_SCHEDULE,
    Case,
    Outputs,
    Stage,
    no_judge,
)

_GENERATED_ROWS = 250
_SEEDS = 20
_CHECKED_BYTES = 300_000

CLAUSES = {
    "relu-per-head": "each head's dot product is cut at zero before the heads are added",
    "heads": "all four heads are added, each with weight one",
    "scale": "the sum is divided by sqrt(128)",
    "f32-dot": "dot products are accumulated in f32",
    "one-plus-weight": "the query's RMSNorm multiplies by 1 + weight",
    "eps": "eps is added to the mean square, inside the root",
    "norm-rounding": "the normalised query is rounded to bf16 before the rotation",
    "own-position": "the query is rotated at its row's own position",
    "half-split-rotation": "dim i of the first 64 pairs with dim i + 32",
    "three-roundings": "both products of the rotation and their sum are each rounded to bf16",
    "block-order": "column b is the score of block b",
    "nan-stays": "a NaN stays NaN in the scores that see it, and reaches no other",
    "untouched-tail": "only the first visible_len / 4 columns are written",
    "zero-visible": "visible_len 0 writes nothing and succeeds; so do no rows",
    "first-position": "row r reads fused row rows[r] - first_position",
    "score-stride": "row r of scores starts at r * score_cols",
    "visible-range-traps": "visible_len outside 0..tokens traps, and so does a missing key",
    "row-range-traps": "a row outside the tables or the fused rows traps, it is not clamped",
    "refusals": "the C entry refuses malformed arguments by code and launches nothing",
    "memory": "no race, no access outside a buffer, no read of what nothing wrote",
}


def _case(
    family: str,
    label: str,
    clauses: Sequence[str],
    make: Callable[[], Launch],
    schedules: str = FEW_SCHEDULES,
    golden: bool = False,
) -> Case:
    launch = functools.cache(make)
    oracle = functools.cache(lambda: oracle_of(launch()))

    def judge(_program: Program, outputs: Outputs) -> Iterable[Finding]:
        return judge_scores(oracle(), outputs["scores"], golden)

    built = program(launch())
    return Case(
        STAGE_NAME,
        family,
        label,
        tuple(clauses),
        lambda: built,
        judge,
        checked=built.bytes <= _CHECKED_BYTES,
        schedules=schedules,
        writes=any(seen >= qsa.RATIO for seen in launch().visible_len),
    )


_NUMERICS = (
    "relu-per-head",
    "heads",
    "scale",
    "f32-dot",
    "one-plus-weight",
    "norm-rounding",
    "own-position",
    "half-split-rotation",
    "three-roundings",
    "block-order",
)


def _golden_cases(golden: Golden) -> Iterator[Case]:
    for case in qsa_golden.cases(golden):
        inputs = qsa.of_golden(golden, case)
        yield _case(
            "golden",
            f"case{case.index}",
            (*_NUMERICS, "untouched-tail"),
            lambda inputs=inputs, case=case: launch_of(inputs, case.rows.tolist()),  # type: ignore[misc]
            schedules=ONE_SCHEDULE if inputs.tokens > 1000 else FEW_SCHEDULES,
            golden=True,
        )


def _families() -> Iterator[Case]:
    for scale, clause in ((3e-3, "eps"), (1e-4, "eps"), (30.0, "one-plus-weight")):
        yield _case(
            "scale",
            f"{scale:g}",
            (clause, *_NUMERICS),
            lambda scale=scale: launch_of(  # type: ignore[misc]
                qsa.random_inputs(64, "scale", scale=scale), (63, 40, 61)
            ),
        )
    for seed in range(_SEEDS):
        yield _case(
            "seeds",
            str(seed),
            _NUMERICS,
            lambda seed=seed: launch_of(  # type: ignore[misc]
                qsa.random_inputs(200, "seed", seed), (199, 130, 197)
            ),
            schedules=ONE_SCHEDULE,
        )
    yield _case("one-hot", "heads", _NUMERICS, lambda: launch_of(qsa.one_hot_heads(80), (79, 50)))
    yield _case(
        "zeros", "opposed", ("relu-per-head",), lambda: launch_of(qsa.opposed_heads(60), (59, 33))
    )
    for token in (0, 21, 39):
        yield _case(
            "nan",
            f"token{token}",
            ("nan-stays",),
            lambda token=token: launch_of(  # type: ignore[misc]
                qsa.poisoned_key(44, token), (43, 19, 22, 38, 39)
            ),
        )
    yield _case("nan", "query", ("nan-stays",), _poisoned_query)
    for length in range(6):
        yield _case(
            "visible",
            str(length),
            ("zero-visible", "untouched-tail"),
            lambda length=length: launch_of(  # type: ignore[misc]
                qsa.random_inputs(24, "visible"), (20, 9), (length, 5 - length)
            ),
        )
    for first in (0, 1, 2, 3, 33):
        yield _case(
            "start",
            f"first{first}",
            ("first-position", "own-position"),
            lambda first=first: launch_of(  # type: ignore[misc]
                qsa.random_inputs(72, "start"),
                (71, first + 7, 50, first),
                fused_first=first,
            ),
            schedules=EVERY_SCHEDULE if first == 33 else FEW_SCHEDULES,
        )
    for extra in (1, 3, 40):
        yield _case(
            "spare-cols",
            str(extra),
            ("score-stride", "untouched-tail"),
            lambda extra=extra: launch_of(  # type: ignore[misc]
                qsa.random_inputs(52, "spare"), (51, 10, 33), extra_cols=extra
            ),
        )
    # Padding rows: their positions are of no sequence and must not be looked at.
    yield _case(
        "visible",
        "padding-rows",
        ("zero-visible",),
        lambda: launch_of(
            qsa.random_inputs(24, "visible"), (20, -1, 9, 2**31 - 1, 24), (21, 0, 10, 0, 0)
        ),
    )
    # One CTA a row that walks all blocks, and as many CTAs as there are blocks to share out.
    for processors in (1, 132):
        yield _case(
            "split",
            f"multiprocessors{processors}",
            ("block-order",),
            lambda processors=processors: replace(  # type: ignore[misc]
                launch_of(qsa.random_inputs(150, "split"), (149, 131, 60)),
                multiprocessors=processors,
            ),
        )
    yield _case(
        "long",
        "blocks-past-32768",
        ("block-order",),
        _long_launch,
        schedules=ONE_SCHEDULE,
    )


def _long_launch() -> Launch:
    """One row that sees 32,800 blocks, of which the last 48 have keys that are not zero.

    Only the fused row and the table rows at the row's own position are read, so the others stay
    zero: what would be 170 MB of random numbers is none.
    """
    blocks, live = 32800, 48
    tokens = blocks * qsa.RATIO
    near = qsa.random_inputs(live * qsa.RATIO, "long")
    keys = np.zeros((blocks, qsa.HEAD_DIM), dtype=np.uint16)
    keys[-live:] = pool_oracle(near.fused_qk, near.k_norm_weight, near.cos, near.sin, qsa.EPS).value
    tables = [np.zeros((tokens, qsa.ROTARY_DIM), dtype=np.uint16) for _ in range(2)]
    for table, rows in zip(tables, (near.cos, near.sin), strict=True):
        table[-4:] = rows[-4:]
    fused = np.zeros((tokens, near.fused_qk.shape[1]), dtype=np.uint16)
    fused[-4:] = near.fused_qk[-4:]
    inputs = qsa.Inputs(fused, near.q_norm_weight, near.k_norm_weight, *tables)
    return Launch(inputs, keys, (tokens - 1,), (tokens,), fused_first=tokens - 4)


def _poisoned_query() -> Launch:
    inputs = qsa.random_inputs(44, "nan-query")
    fused = inputs.fused_qk.copy()
    fused[30, 200] = 0x7FC0
    return launch_of(inputs.with_fused(fused), (43, 30, 29, 31))


def _traps() -> Iterator[Case]:
    wrong: Mapping[str, tuple[str, Sequence[int], Sequence[int], int]] = {
        "visible-negative": ("visible-range-traps", (20, 21), (21, -1), 0),
        "visible-past-tokens": ("visible-range-traps", (20, 21), (21, 49), 0),
        "visible-least": ("visible-range-traps", (20,), (-(2**31),), 0),
        "row-negative": ("row-range-traps", (20, -1), (21, 8), 0),
        "row-past-tokens": ("row-range-traps", (20, 48), (21, 8), 0),
        "row-before-fused": ("row-range-traps", (20, 7), (21, 8), 8),
    }
    for label, (clause, rows, seen, first) in wrong.items():

        def build(
            rows: Sequence[int] = rows, seen: Sequence[int] = seen, first: int = first
        ) -> Program:
            return program(launch_of(qsa.random_inputs(48, "trap"), rows, seen, first), TRAP)

        yield _trap(label, clause, build)

    # One capacity smaller than what the buffers hold: nothing but the check itself stops these.
    smaller: Mapping[str, tuple[str, Mapping[str, Value], tuple[int, int], tuple[int, int]]] = {
        "row-past-tables": ("row-range-traps", {"tokens": 44}, (20, 44), (21, 8)),
        "row-past-fused": ("row-range-traps", {"fused_rows": 40}, (20, 40), (21, 41)),
        "visible-past-tables": ("visible-range-traps", {"tokens": 40}, (20, 30), (21, 41)),
        "keys-short": ("visible-range-traps", {"block_capacity": 9}, (20, 40), (21, 41)),
    }
    for label, (clause, change, two_rows, two_seen) in smaller.items():

        def build_smaller(
            change: Mapping[str, Value] = change,
            rows: Sequence[int] = two_rows,
            seen: Sequence[int] = two_seen,
        ) -> Program:
            base = program(launch_of(qsa.random_inputs(48, "trap"), rows, seen), TRAP)
            values = {**base.calls[0].values, **change}
            return Program(base.buffers, (Call(STAGE_NAME, "qsa_score", values, TRAP),))

        yield _trap(label, clause, build_smaller)


def _trap(label: str, clause: str, build: Callable[[], Program]) -> Case:
    return Case(
        STAGE_NAME,
        "trap",
        label,
        (clause,),
        build,
        no_judge,
        checked=True,
        schedules=FEW_SCHEDULES,
        writes=False,
    )


def _refusals() -> Iterator[Case]:
    pointers = (
        "fused_qk",
        "q_norm_weight",
        "cos",
        "sin",
        "block_keys",
        "rows",
        "visible_len",
        "scores",
    )
    extents = (
        "row_count",
        "tokens",
        "first_position",
        "fused_rows",
        "block_capacity",
        "score_cols",
    )
    most = 2**31 - 1
    changes: list[tuple[str, Mapping[str, Value], int]] = [
        *((f"null-{name}", {name: None}, qsa.NULL_POINTER) for name in pointers),
        *((f"unaligned-{name}", {name: At(name, 4)}, qsa.UNSUPPORTED) for name in pointers[:5]),
        # Only what comes after it is refused: 16 bytes of alignment, and the last i32, will do.
        ("null-after-16", {"fused_qk": At("fused_qk", 8), "cos": None}, qsa.NULL_POINTER),
        ("null-after-most-rows", {"row_count": most, "cos": None}, qsa.NULL_POINTER),
        (
            "null-after-most-tokens",
            {"tokens": most, "score_cols": most // 4, "cos": None},
            qsa.NULL_POINTER,
        ),
        ("null-after-one-col", {"tokens": 3, "score_cols": 1, "cos": None}, qsa.NULL_POINTER),
        ("rows-beyond-i32", {"row_count": most + 1}, qsa.BAD_EXTENT),
        ("tokens-beyond-i32", {"tokens": most + 1, "score_cols": most}, qsa.BAD_EXTENT),
        *((f"negative-{name}", {name: -1}, qsa.BAD_EXTENT) for name in extents),
        ("stride-639", {"fused_stride": 639}, qsa.BAD_STRIDE),
        ("stride-641", {"fused_stride": 641}, qsa.BAD_STRIDE),
        ("rotary-32", {"rotary_dim": 32}, qsa.BAD_ROTARY),
        ("rotary-128", {"rotary_dim": 128}, qsa.BAD_ROTARY),
        ("negative-eps", {"eps": -1e-6}, qsa.BAD_EPS),
        ("nan-eps", {"eps": float("nan")}, qsa.BAD_EPS),
        ("short-score-cols", {"score_cols": 7}, qsa.BAD_STRIDE),
        ("zero-score-cols", {"score_cols": 0, "tokens": 3}, qsa.BAD_STRIDE),
    ]
    for label, change, code in changes:

        def build(change: Mapping[str, Value] = change, code: int = code) -> Program:
            base = program(launch_of(qsa.random_inputs(32, "refusal"), (31, 12)))
            values = {**base.calls[0].values, **change}
            return Program(base.buffers, (Call(STAGE_NAME, "qsa_score", values, code),))

        yield _nothing("refusal", label, "refusals", build)

    def no_rows() -> Program:
        base = program(launch_of(qsa.random_inputs(32, "refusal"), (31, 12)))
        values = {**base.calls[0].values, "row_count": 0}
        return Program(base.buffers, (Call(STAGE_NAME, "qsa_score", values),))

    yield _nothing("no-rows", "zero", "zero-visible", no_rows)


def _nothing(family: str, label: str, clause: str, build: Callable[[], Program]) -> Case:
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


def generated(seed: int) -> tuple[Case, int]:
    """Return a case of random rows that see random lengths, zero among them, and its rows."""
    random = seeded("generated-rows", seed)
    tokens = 24 + seed % 61
    rows = random.integers(0, tokens, _GENERATED_ROWS)
    seen = random.integers(0, tokens + 1, _GENERATED_ROWS)
    made = _case(
        "generated",
        str(seed),
        _NUMERICS,
        lambda: launch_of(
            qsa.random_inputs(tokens, "generated", seed, scale=10.0 ** (seed % 5 - 2)),
            rows.tolist(),
            seen.tolist(),
        ),
        schedules=ONE_SCHEDULE,
    )
    return made, _GENERATED_ROWS


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
    summary="QSA scores: fused rows and block keys to scores",
    kernels=(KERNEL,),
    clauses=CLAUSES,
    checks=CHECKS,
    cases=cases,
    generated=generated,
    golden_kind="qsa",
    numbers=NUMBERS,
    sweep=SWEEP,
    float_bound=ABSOLUTE_BOUND,
)
