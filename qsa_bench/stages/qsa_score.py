"""QSA scores: query norm and rotation fused with the relu-sum over heads.

Contract section 1, "query" and "score". Kernel: kernels/qsa/score.cu; mutants:
mutations/qsa_score/.

A case calls the automatic entry and the scalar one; the mma entry, which the emulated device has in
the automatic one's place, is called on a GPU in cases of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from qsa_bench.families import seeded
from qsa_bench.goldens import Golden
from qsa_bench.goldens import qsa as qsa_golden
from qsa_bench.stages import _qsa_inputs as qsa
from qsa_bench.stages._qsa_score_case import NUMERICS, launch_case
from qsa_bench.stages._qsa_score_faults import refusals, traps
from qsa_bench.stages._qsa_score_judge import CHECKS, NUMBERS, SELECTION
from qsa_bench.stages._qsa_score_launch import (
    KERNEL,
    STAGE_NAME,
    Launch,
    launch_of,
)
from qsa_bench.stages._qsa_score_shapes import shapes
from qsa_bench.stages._qsa_score_sweep import SWEEP
from qsa_bench.stages.base import (
    EVERY_SCHEDULE,
    FEW_SCHEDULES,
    ONE_SCHEDULE,
    Case,
    Stage,
)

# Least and most rows of a generated launch, and the longest context: every other one has most rows.
_GENERATED = (
    (250, 250, 84),
    (3, 8, 700),
    (250, 250, 84),
    (9, 32, 300),
    (250, 250, 84),
    (33, 40, 800),
    (250, 250, 84),
    (1, 2, 2000),
)
_SEEDS = 20

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
    "unseen-keys": "a key that no row sees reaches no score, whatever it holds",
    "rows-apart": "a row's scores depend on no other row of the launch, however many there are",
    "untouched-tail": "only the first visible_len / 4 columns are written",
    "zero-visible": "visible_len 0 writes nothing and succeeds; so do no rows",
    "first-position": "row r reads fused row rows[r] - first_position",
    "score-stride": "row r of scores starts at r * score_cols",
    "visible-range-traps": "visible_len outside 0..tokens traps, and so does a missing key",
    "row-range-traps": "a row outside the tables or the fused rows traps, it is not clamped",
    "refusals": "the C entry refuses malformed arguments by code and launches nothing",
    "memory": "no race, no access outside a buffer, no read of what nothing wrote",
}


def _golden_cases(golden: Golden) -> Iterator[Case]:
    for case in qsa_golden.cases(golden):
        inputs = qsa.of_golden(golden, case)
        yield from launch_case(
            "golden",
            f"case{case.index}",
            (*NUMERICS, "untouched-tail"),
            lambda inputs=inputs, case=case: launch_of(inputs, case.rows.tolist()),  # type: ignore[misc]
            schedules=ONE_SCHEDULE if inputs.tokens > 1000 else FEW_SCHEDULES,
            golden=True,
        )


def _families() -> Iterator[Case]:
    for scale, clause in ((3e-3, "eps"), (1e-4, "eps"), (30.0, "one-plus-weight")):
        yield from launch_case(
            "scale",
            f"{scale:g}",
            (clause, *NUMERICS),
            lambda scale=scale: launch_of(  # type: ignore[misc]
                qsa.random_inputs(64, "scale", scale=scale), (63, 40, 61)
            ),
        )
    for seed in range(_SEEDS):
        yield from launch_case(
            "seeds",
            str(seed),
            NUMERICS,
            lambda seed=seed: launch_of(  # type: ignore[misc]
                qsa.random_inputs(200, "seed", seed), (199, 130, 197)
            ),
            schedules=ONE_SCHEDULE,
        )
    yield from launch_case(
        "one-hot", "heads", NUMERICS, lambda: launch_of(qsa.one_hot_heads(80), (79, 50))
    )
    yield from launch_case(
        "zeros", "opposed", ("relu-per-head",), lambda: launch_of(qsa.opposed_heads(60), (59, 33))
    )
    for token in (0, 21, 39):
        yield from launch_case(
            "nan",
            f"token{token}",
            ("nan-stays",),
            lambda token=token: launch_of(  # type: ignore[misc]
                qsa.poisoned_key(44, token), (43, 19, 22, 38, 39)
            ),
        )
    yield from launch_case("nan", "query", ("nan-stays",), _poisoned_query)
    for length in range(6):
        yield from launch_case(
            "visible",
            str(length),
            ("zero-visible", "untouched-tail"),
            lambda length=length: launch_of(  # type: ignore[misc]
                qsa.random_inputs(24, "visible"), (20, 9), (length, 5 - length)
            ),
        )
    for first in (0, 1, 2, 3, 33):
        yield from launch_case(
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
        yield from launch_case(
            "spare-cols",
            str(extra),
            ("score-stride", "untouched-tail"),
            lambda extra=extra: launch_of(  # type: ignore[misc]
                qsa.random_inputs(52, "spare"), (51, 10, 33), extra_cols=extra
            ),
        )
    # Alone, and of no key: there is none before the first to load in its place.
    yield from launch_case(
        "visible",
        "none-of-one-row",
        ("zero-visible", "memory"),
        lambda: launch_of(qsa.random_inputs(24, "visible"), (20,), (0,)),
    )
    # Padding rows: their positions are of no sequence and must not be looked at.
    yield from launch_case(
        "visible",
        "padding-rows",
        ("zero-visible",),
        lambda: launch_of(
            qsa.random_inputs(24, "visible"), (20, -1, 9, 2**31 - 1, 24), (21, 0, 10, 0, 0)
        ),
    )
    # Every dim is multiplied by its own column of the tables, whose halves only happen to be equal.
    for rows in (3, 34):
        yield from launch_case(
            "tables",
            f"halves-apart-rows{rows}",
            ("half-split-rotation",),
            lambda rows=rows: launch_of(_halves_apart(40), range(40 - rows, 40)),  # type: ignore[misc]
        )
    yield from shapes()


def _halves_apart(tokens: int) -> qsa.Inputs:
    """Return random rows whose tables have another position's angles in their second halves."""
    inputs = qsa.random_inputs(tokens, "tables")
    cos, sin = inputs.cos.copy(), inputs.sin.copy()
    for table in (cos, sin):
        half = table.shape[1] // 2
        table[:, half:] = np.roll(table[:, half:], 1, axis=0)
    return replace(inputs, cos=cos, sin=sin)


def _poisoned_query() -> Launch:
    inputs = qsa.random_inputs(44, "nan-query")
    fused = inputs.fused_qk.copy()
    fused[30, 200] = 0x7FC0
    return launch_of(inputs.with_fused(fused), (43, 30, 29, 31))


def generated(seed: int) -> tuple[Case, int]:
    """Return a case of random rows that see random lengths, zero among them, and its rows.

    In turns launches are of so many rows, and over so long a context, that every body and shape of
    a launch has them.
    """
    random = seeded("generated-rows", seed)
    least, most, longest = _GENERATED[seed % len(_GENERATED)]
    count = int(random.integers(least, most + 1))
    tokens = int(random.integers(24, longest + 1))
    rows = random.integers(0, tokens, count)
    seen = random.integers(0, tokens + 1, count)
    processors = int(random.choice((1, 4, 132)))
    made = next(
        launch_case(
            "generated",
            str(seed),
            NUMERICS,
            lambda: replace(
                launch_of(
                    qsa.random_inputs(tokens, "generated", seed, scale=10.0 ** (seed % 5 - 2)),
                    rows.tolist(),
                    seen.tolist(),
                    extra_cols=seed % 3,
                ),
                multiprocessors=processors,
            ),
            schedules=ONE_SCHEDULE,
        )
    )
    return made, count


def cases(golden: Golden | None) -> Sequence[Case]:
    """Return every case: the golden's (if given), families, traps and refusals."""
    return [
        *(_golden_cases(golden) if golden is not None else ()),
        *_families(),
        *traps(),
        *refusals(),
    ]


STAGE = Stage(
    name=STAGE_NAME,
    summary="QSA scores: fused rows and block keys to scores",
    kernels=(KERNEL,),
    clauses=CLAUSES,
    checks={**CHECKS, **SELECTION},
    cases=cases,
    generated=generated,
    golden_kind="qsa",
    numbers=NUMBERS,
    sweep=SWEEP,
)
