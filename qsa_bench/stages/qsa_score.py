"""QSA scores: query norm and rotation fused with the relu-sum over heads.

Contract section 1, "query" and "score". Kernel: kernels/qsa/score.cu; mutants:
mutations/qsa_score/.

A case calls the automatic entry and the scalar one; the mma entry, which the emulated device has in
the automatic one's place, is called on a GPU in cases of its own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from qsa_bench.families import seeded
from qsa_bench.goldens import Golden
from qsa_bench.goldens import qsa as qsa_golden
from qsa_bench.model import TARGETS, Finding
from qsa_bench.oracles.qsa_numerics import pool_oracle
from qsa_bench.program import Program
from qsa_bench.stages import _qsa_inputs as qsa
from qsa_bench.stages._qsa_score_faults import refusals, traps
from qsa_bench.stages._qsa_score_judge import CHECKS, NUMBERS, SELECTION, judge_entries
from qsa_bench.stages._qsa_score_launch import (
    BOTH,
    KERNEL,
    MMA,
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
    Judge,
    Outputs,
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
_CHECKED_BYTES = 400_000

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


# The entries of a case, how its label ends, on which targets.
_VARIANTS = ((BOTH, "", TARGETS), ((MMA,), "-mma", ("cuda",)))


def _case(
    family: str,
    label: str,
    clauses: Sequence[str],
    make: Callable[[], Launch],
    schedules: str = FEW_SCHEDULES,
    golden: bool = False,
    variants: Sequence[tuple[Sequence[str], str, tuple[str, ...]]] = _VARIANTS,
    reserve: bool = False,
) -> Iterator[Case]:
    """Yield the case of a launch: both entries, and the mma one where it is not the automatic."""
    launch = functools.cache(make)
    oracle = functools.cache(lambda: oracle_of(launch()))

    def judge(_program: Program, outputs: Outputs) -> Iterable[Finding]:
        return judge_entries(oracle(), outputs, golden)

    for entries, ending, targets in variants:
        built = program(launch(), entries=entries)
        yield Case(
            STAGE_NAME,
            family,
            f"{label}{ending}",
            tuple(clauses),
            lambda built=built: built,  # type: ignore[misc]
            judge if entries == BOTH else _without_counts(judge),
            checked=built.bytes <= _CHECKED_BYTES,
            schedules=schedules,
            targets=targets,
            writes=any(seen >= qsa.RATIO for seen in launch().visible_len),
            reserve=reserve,
        )


def _without_counts(judge: Judge) -> Judge:
    """Return a judge whose findings carry no counts: a golden's scores are counted once."""

    def judged(built: Program, outputs: Outputs) -> Iterable[Finding]:
        for finding in judge(built, outputs):
            yield replace(finding, evidence=replace(finding.evidence, numbers={}))

    return judged


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
        yield from _case(
            "golden",
            f"case{case.index}",
            (*_NUMERICS, "untouched-tail"),
            lambda inputs=inputs, case=case: launch_of(inputs, case.rows.tolist()),  # type: ignore[misc]
            schedules=ONE_SCHEDULE if inputs.tokens > 1000 else FEW_SCHEDULES,
            golden=True,
        )


def _families() -> Iterator[Case]:
    for scale, clause in ((3e-3, "eps"), (1e-4, "eps"), (30.0, "one-plus-weight")):
        yield from _case(
            "scale",
            f"{scale:g}",
            (clause, *_NUMERICS),
            lambda scale=scale: launch_of(  # type: ignore[misc]
                qsa.random_inputs(64, "scale", scale=scale), (63, 40, 61)
            ),
        )
    for seed in range(_SEEDS):
        yield from _case(
            "seeds",
            str(seed),
            _NUMERICS,
            lambda seed=seed: launch_of(  # type: ignore[misc]
                qsa.random_inputs(200, "seed", seed), (199, 130, 197)
            ),
            schedules=ONE_SCHEDULE,
        )
    yield from _case(
        "one-hot", "heads", _NUMERICS, lambda: launch_of(qsa.one_hot_heads(80), (79, 50))
    )
    yield from _case(
        "zeros", "opposed", ("relu-per-head",), lambda: launch_of(qsa.opposed_heads(60), (59, 33))
    )
    for token in (0, 21, 39):
        yield from _case(
            "nan",
            f"token{token}",
            ("nan-stays",),
            lambda token=token: launch_of(  # type: ignore[misc]
                qsa.poisoned_key(44, token), (43, 19, 22, 38, 39)
            ),
        )
    yield from _case("nan", "query", ("nan-stays",), _poisoned_query)
    for length in range(6):
        yield from _case(
            "visible",
            str(length),
            ("zero-visible", "untouched-tail"),
            lambda length=length: launch_of(  # type: ignore[misc]
                qsa.random_inputs(24, "visible"), (20, 9), (length, 5 - length)
            ),
        )
    for first in (0, 1, 2, 3, 33):
        yield from _case(
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
        yield from _case(
            "spare-cols",
            str(extra),
            ("score-stride", "untouched-tail"),
            lambda extra=extra: launch_of(  # type: ignore[misc]
                qsa.random_inputs(52, "spare"), (51, 10, 33), extra_cols=extra
            ),
        )
    # Padding rows: their positions are of no sequence and must not be looked at.
    yield from _case(
        "visible",
        "padding-rows",
        ("zero-visible",),
        lambda: launch_of(
            qsa.random_inputs(24, "visible"), (20, -1, 9, 2**31 - 1, 24), (21, 0, 10, 0, 0)
        ),
    )
    yield from _shapes()
    yield from _case(
        "long",
        "blocks-past-32768",
        ("block-order",),
        _long_launch,
        schedules=ONE_SCHEDULE,
    )


def _shapes() -> Iterator[Case]:
    """Yield launches by how rows and keys are shared out: the values are like everywhere.

    Up to 32 rows the mma body takes 2, 4 or 8 at a time, from 33 on 128; up to 23 rows is what the
    automatic one leaves to it on compute capability 9.0.
    """
    for count in (1, 2, 8, 9, 30, 33, 129, 131):
        yield from _case(
            "rows",
            str(count),
            ("rows-apart", "untouched-tail"),
            lambda count=count: _mixed_rows(140, count),  # type: ignore[misc]
            reserve=count == 129,
        )
    # Few CTAs that walk the keys, and as many as there are keys to share out.
    for processors in (1, 132):
        for family, tokens, rows in (("split", 560, 2), ("walk", 2120, 1), ("tiles", 776, 34)):
            yield from _case(
                family,
                f"multiprocessors{processors}",
                ("block-order", "rows-apart"),
                lambda tokens=tokens, rows=rows, processors=processors: replace(  # type: ignore[misc]
                    _last_rows(tokens, rows), multiprocessors=processors
                ),
                schedules=ONE_SCHEDULE if family == "walk" else FEW_SCHEDULES,
            )
    # One CTA that walks the keys: of one or two rows there are four.
    yield from _case(
        "walk",
        "rows9",
        ("block-order", "rows-apart"),
        lambda: replace(_last_rows(1100, 9), multiprocessors=1),
        schedules=ONE_SCHEDULE,
        reserve=True,
    )
    # Two ranges of four tiles: the second one's third tile, the first to be copied while others are
    # multiplied, has another place than in the first.
    yield from _case(
        "tiles",
        "multiprocessors2",
        ("block-order",),
        lambda: replace(_last_rows(1800, 34), multiprocessors=2),
        schedules=ONE_SCHEDULE,
        reserve=True,
    )
    # Chunks of prefill whose last rows alone come to another tile of 64 keys, or 128.
    for tokens, count in ((263, 128), (520, 64)):
        yield from _case(
            "chunk",
            str(count),
            ("rows-apart", "untouched-tail"),
            lambda tokens=tokens, count=count: launch_of(  # type: ignore[misc]
                qsa.random_inputs(tokens, "chunk"),
                range(tokens - count, tokens),
                fused_first=tokens - count,
            ),
            schedules=ONE_SCHEDULE,
        )
    # The least shared memory a CTA may have on what is supported: every body has to fit. Before compute
    # capability 8.0 the automatic entry serves by its scalar body; from there on the mma one does.
    on_host = (((MMA,), "-mma", TARGETS[:1]),)
    for capability, count, variants in (
        *((86, count, _VARIANTS) for count in (1, 3, 34)),
        (79, 2, _VARIANTS),
        (80, 2, on_host),
    ):
        yield from _case(
            "small-device",
            f"sm{capability}-rows{count}",
            ("rows-apart",),
            lambda capability=capability, count=count: replace(  # type: ignore[misc]
                _mixed_rows(100, count), compute_capability=capability
            ),
            schedules=ONE_SCHEDULE,
            variants=variants,
        )
    # Strides that leave rows on 4 and on 8 bytes, and so many rows that wherever the scores begin one of
    # them lies on a multiple of 15 and not of 16.
    for extra in (1, 2):
        yield from _case(
            "spare-cols",
            f"tile-{extra}",
            ("score-stride", "untouched-tail"),
            lambda extra=extra: replace(_mixed_rows(84, 45), extra_cols=extra),  # type: ignore[misc]
        )
    yield from _case(
        "nan",
        "tile",
        ("nan-stays", "rows-apart"),
        lambda: launch_of(qsa.poisoned_key(164, 81), range(60, 164, 3)),
    )
    # Every dim is multiplied by its own column of the tables, whose halves only happen to be equal.
    for rows in (3, 34):
        yield from _case(
            "tables",
            f"halves-apart-rows{rows}",
            ("half-split-rotation",),
            lambda rows=rows: launch_of(_halves_apart(40), range(40 - rows, 40)),  # type: ignore[misc]
        )
    for rows in (2, 40):
        yield from _case(
            "unseen",
            f"rows{rows}",
            ("unseen-keys",),
            lambda rows=rows: _unseen_keys(rows),  # type: ignore[misc]
        )


def _mixed_rows(tokens: int, count: int) -> Launch:
    """Return `count` rows in no order of length, every seventh of a longer launch a padding row."""
    rows = [(37 * row + tokens - 1) % tokens for row in range(count)]
    seen = [0 if row % 7 == 6 else position + 1 for row, position in enumerate(rows)]
    at = [-1 if length == 0 else position for position, length in zip(rows, seen, strict=True)]
    return launch_of(qsa.random_inputs(tokens, "rows"), at, seen)


def _last_rows(tokens: int, count: int) -> Launch:
    """Return the last `count` rows of a context, without the fused rows of those before.

    Each sees less than the one before it, the last half of the context.
    """
    rows = range(tokens - count, tokens)
    seen = [tokens - row * (tokens // 2) // max(count - 1, 1) for row in range(count)]
    inputs = qsa.random_inputs(tokens, "last")
    return launch_of(inputs, rows, seen, fused_first=tokens - count)


def _halves_apart(tokens: int) -> qsa.Inputs:
    """Return random rows whose tables have another position's angles in their second halves."""
    inputs = qsa.random_inputs(tokens, "tables")
    cos, sin = inputs.cos.copy(), inputs.sin.copy()
    for table in (cos, sin):
        half = table.shape[1] // 2
        table[:, half:] = np.roll(table[:, half:], 1, axis=0)
    return replace(inputs, cos=cos, sin=sin)


def _unseen_keys(count: int) -> Launch:
    """Return rows that see up to 27 blocks of 50, the keys of the others being NaN."""
    launch = launch_of(
        qsa.random_inputs(200, "unseen"),
        range(200 - count, 200),
        [111 - 2 * row for row in range(count)],
    )
    keys = launch.block_keys.copy()
    keys[27:] = 0x7FC0
    return replace(launch, block_keys=keys, unseen=27)


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
        _case(
            "generated",
            str(seed),
            _NUMERICS,
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
