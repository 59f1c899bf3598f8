"""DSA scores: query heads against pool keys, weighed and summed.

Contract section 2, "scores". Kernel: kernels/dsa/index_scores.cu; mutants:
mutations/dsa_index_scores/.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from qsa_bench.bf16 import round_to_bf16
from qsa_bench.compare import bitwise
from qsa_bench.goldens import Golden
from qsa_bench.goldens import dsa as dsa_golden
from qsa_bench.model import TARGETS, Finding
from qsa_bench.program import OK, TRAP, At, Program
from qsa_bench.stages import _dsa_inputs as dsa
from qsa_bench.stages import _dsa_score_judge
from qsa_bench.stages._dsa_faults import Change, nothing, refusals
from qsa_bench.stages._dsa_score_judge import NUMBERS, judge_scores
from qsa_bench.stages._dsa_score_launch import (
    KERNEL,
    STAGE_NAME,
    Launch,
    launch_of,
    program,
    reference_finding,
    wanted_of,
)
from qsa_bench.stages._dsa_score_sweep import SWEEP
from qsa_bench.stages.base import FEW_SCHEDULES, ONE_SCHEDULE, Case, Outputs, Stage

_SEEDS = 8
_CHECKED_BYTES = 200_000

CLAUSES = {
    "relu-per-head": "each head's dot product is cut at zero before it is weighed and added",
    "head-weight": "each head counts by its own weight, of either sign, once",
    "scale": "dot products are divided by sqrt(128), once",
    "visible-by-last-token": "a row sees a pool whose last token it sees",
    "masked": "pools that a row does not see hold the least f32, below every score",
    "zero-pools": "a row that sees no pool counts none; no pool at all is legal",
    "row-stride": "rows lie score_cols apart, whatever the live length",
    "untouched-tail": "columns past a sequence's live pools are left untouched",
    "padding": "a padded row's scores are the unpadded row's",
    "nan-stays": "a NaN stays NaN in the scores that see it, and reaches no other",
    "live-geometry": "with a geometry length and position are the device's, not the launch's",
    "position-traps": "a position outside the live tokens traps",
    "geometry-holds-together": "a geometry that contradicts itself or the ceiling traps",
    "refusals": "the C entry refuses malformed arguments by code and launches nothing",
    "memory": "no race, no access outside a buffer, no read of what nothing wrote",
}
CHECKS = {
    **_dsa_score_judge.CHECKS,
    "reference-scores": "the reference's own scores lie within the bound of the float64 oracle",
    "padded-equals-unpadded": "a padded sequence's scores have the unpadded one's bits",
}


def _case(
    family: str,
    label: str,
    clauses: Sequence[str],
    make: Callable[[], Launch],
    schedules: str = FEW_SCHEDULES,
    recorded: dsa_golden.DsaCase | None = None,
    device_alone: bool = False,
) -> Case:
    """Return a case; what is too large for the emulation is made when a device runs it."""
    launch = functools.cache(make)
    want = functools.cache(lambda: wanted_of(launch()))
    built = functools.cache(lambda: program(launch()))

    def judge(_program: Program, outputs: Outputs) -> Iterable[Finding]:
        golden = recorded is not None
        yield from judge_scores(want(), outputs["scores"], outputs["visible_pools"], golden)
        if recorded is not None:
            yield reference_finding(recorded, want())

    return Case(
        STAGE_NAME,
        family,
        label,
        tuple(clauses),
        built,
        judge,
        checked=not device_alone and built().bytes <= _CHECKED_BYTES,
        schedules=schedules,
        targets=("cuda",) if device_alone else TARGETS,
    )


_NUMERICS = ("relu-per-head", "head-weight", "scale")


def _golden_cases(golden: Golden) -> Iterator[Case]:
    for case in dsa_golden.cases(golden):
        inputs = dsa.of_golden(case)
        own = tuple(dsa.listed_pool_keys(case, row) for row in range(case.batch))
        yield _case(
            "golden",
            f"case{case.index}",
            (*_NUMERICS, "visible-by-last-token", "masked", "padding"),
            lambda inputs=inputs, own=own: Launch(inputs, own, inputs.tokens),  # type: ignore[misc]
            schedules=ONE_SCHEDULE,
            recorded=case,
        )


def _families() -> Iterator[Case]:
    def random(*args: Any, live: int | None = None, **more: Any) -> Callable[[], Launch]:
        return lambda: launch_of(dsa.random_inputs(*args, **more), live)

    for seed in range(_SEEDS):
        rows = tuple(range(60, 60 + (1, 4, 5, 11)[seed % 4]))
        yield _case(
            "seeds",
            str(seed),
            _NUMERICS,
            random(80, "seed", seed, rows=rows, kpool=(4, 16)[seed // 4]),
            schedules=ONE_SCHEDULE,
        )
    for scale in (1e-3, 40.0):
        yield _case("keys", f"{scale:g}", _NUMERICS, random(140, "keys", key_scale=scale))
    for tokens in (1, 3, 4, 5, 8, 17):
        yield _case(
            "tokens",
            str(tokens),
            ("zero-pools", "visible-by-last-token"),
            random(tokens, "tokens", rows=tuple(range(tokens))),
            schedules=ONE_SCHEDULE,
        )
    yield _case(
        "causal",
        "tiles",
        ("visible-by-last-token", "masked", "row-stride"),
        random(530, "causal", rows=(0, 3, 100, 254, 255, 256, 300, 523, 529)),
        schedules=ONE_SCHEDULE,
    )
    yield _case(
        "causal",
        "rows-of-the-front",
        ("masked",),
        random(530, "causal", rows=(5, 9)),
        schedules=ONE_SCHEDULE,
    )
    yield _case(
        "causal",
        "many-rows-of-the-front",
        ("masked",),
        random(530, "causal", rows=(5, 9, 14, 30, 41)),
        schedules=ONE_SCHEDULE,
    )
    # Few processors: a warp takes several turns, and a CTA of many rows goes through both buffers and again.
    few, many = (1559, 1200, 700, 90), (1559, 1200, 700, 90, 1, 1300, 1301, 1400, 800)
    for label, rows, processors in (("", few, 1), ("", few, 40), ("many-rows-", many, 1)):
        yield _case(
            "ranges",
            f"{label}multiprocessors{processors}",
            ("row-stride",),
            lambda rows=rows, processors=processors: replace(  # type: ignore[misc]
                launch_of(dsa.random_inputs(1560, "ranges", rows=rows)),
                multiprocessors=processors,
            ),
            schedules=ONE_SCHEDULE,
        )
    # The same on a device of up to 188 multiprocessors, which have 12 ranges of 128 pools each for a row.
    yield _case(
        "ranges",
        "device-rows32",
        ("row-stride",),
        random(6800, "device-ranges", batch=8, rows=(6799, 6500, 6400, 90)),
        schedules=ONE_SCHEDULE,
        device_alone=True,
    )
    masks: Mapping[str, Mapping[str, Any]] = {
        "left": {"batch": 3, "padding": (0, 5, 18), "rows": (3, 9, 21, 22)},
        "all-padding": {"batch": 2, "padding": (23, 2), "rows": (22,)},
        "holes": {"batch": 1, "holes": ((0, 6), (0, 15)), "rows": tuple(range(5, 23, 2))},
    }
    for label, mask in masks.items():
        yield _case("padding", label, ("padding", "masked"), random(23, "padding", label, **mask))
    yield _padded_case()
    yield _case(
        "spare-cols",
        "3",
        ("row-stride", "untouched-tail"),
        lambda: replace(
            launch_of(dsa.random_inputs(40, "spare", rows=(30, 20), batch=2), 34), extra_cols=3
        ),
    )
    for live in (0, 1, 3, 4, 5, 70, 280, 300):
        yield _case(
            "replay",
            str(live),
            ("live-geometry", "zero-pools", "untouched-tail"),
            lambda live=live: replace(  # type: ignore[misc]
                launch_of(dsa.random_inputs(300, "replay"), live), by_geometry=True
            ),
            schedules=ONE_SCHEDULE if live > 5 else FEW_SCHEDULES,
        )
    yield _case("nan", "key", ("nan-stays",), lambda: _poisoned("key"))
    yield _case("nan", "query", ("nan-stays",), lambda: _poisoned("query"))
    yield _case("sign", "one-sign", ("relu-per-head",), lambda: _one_sign(1.0))
    yield _case("sign", "opposed", ("relu-per-head",), lambda: _one_sign(-1.0))


def _padded_case() -> Case:
    """A padded sequence and the same without its padding, in one program: equal bits."""
    padding = 7
    inputs = dsa.random_inputs(33, "shift", padding=(padding,), rows=(6, 20, 32), holes=((0, 14),))
    alone = inputs.unpadded(0, padding)
    first, second = launch_of(inputs), launch_of(alone)
    twin = program(second)
    renamed = tuple(replace(buffer, name=f"{buffer.name}_alone") for buffer in twin.buffers)
    values = {
        name: f"{value}_alone" if isinstance(value, str) else value
        for name, value in twin.calls[0].values.items()
    }
    built = program(first)
    both = Program(
        (*built.buffers, *renamed), (built.calls[0], replace(twin.calls[0], values=values))
    )

    def judge(_program: Program, outputs: Outputs) -> Iterable[Finding]:
        yield from judge_scores(wanted_of(first), outputs["scores"], outputs["visible_pools"])
        rows = inputs.q_pos >= padding
        got, alone_got = outputs["scores"][:, rows], outputs["scores_alone"]
        pools = inputs.lists()[0].starts.size
        shown = got[..., :pools], alone_got[..., :pools]
        yield bitwise("padded-equals-unpadded", "scores", *shown, "scores")

    return Case(STAGE_NAME, "padding", "shifted", ("padding",), lambda: both, judge, checked=True)


def _poisoned(label: str) -> Launch:
    launch = launch_of(dsa.random_inputs(40, "nan", rows=(39, 12, 20, 33, 35, 8)))
    if label == "key":
        keys = launch.pool_keys[0].copy()
        keys[4, 77] = 0x7FC0
        return replace(launch, pool_keys=(keys,))
    q = launch.inputs.q.copy()
    q[0, 2, 19, 100] = 0x7FC0
    return replace(launch, inputs=replace(launch.inputs, q=q))


def _one_sign(sign: float) -> Launch:
    """All products of one sign: the sums of f32 lean as far as they can, or every head is cut."""
    inputs = dsa.random_inputs(48, "sign", rows=(47, 30))
    launch = launch_of(inputs)
    positive = np.uint16(0x7FFF)
    keys = tuple(np.asarray(given & positive) for given in launch.pool_keys)
    q = round_to_bf16(np.full(inputs.q.shape, sign)) & np.uint16(0x8000) | (inputs.q & positive)
    return replace(launch, pool_keys=keys, inputs=replace(inputs, q=q))


def _traps() -> Iterator[Case]:
    for label, rows in (("negative", (20, -1)), ("past-the-end", (20, 32)), ("least", (-(2**31),))):

        def build(rows: tuple[int, ...] = rows) -> Program:
            inputs = dsa.random_inputs(32, "trap", rows=(5,) * len(rows))
            moved = replace(inputs, q_pos=np.array(rows, dtype=np.int32))
            return program(launch_of(moved), TRAP)

        yield nothing(STAGE_NAME, "trap", f"position-{label}", "position-traps", build)
    for word, value in ((0, 41), (1, 7), (2, 9)):

        def build_geometry(word: int = word, value: int = value) -> Program:
            launch = replace(launch_of(dsa.random_inputs(40, "trap"), 30), by_geometry=True)
            built = program(launch, TRAP)
            words = built.array("geometry").copy()
            words[word] = value
            return Program(dsa.with_geometry(built.buffers, words), built.calls)

        yield nothing(
            STAGE_NAME, "trap", f"geometry-{word}", "geometry-holds-together", build_geometry
        )


def _refusals() -> Iterator[Case]:
    inputs = dsa.random_inputs(24, "refusal", batch=2, padding=(0, 3), rows=(23, 9))
    required = ("q", "weights", "pool_keys", "scores", "visible_pools", "q_pos")
    lists = ("valid", "first_keys", "slots")
    extents = ("batch", "query_rows", "tokens", "token_capacity", "pool_capacity", "score_cols")
    changes: list[Change] = [
        *((f"null-{name}", {name: None}, dsa.NULL_POINTER) for name in (*required, *lists)),
        *((f"unaligned-{name}", {name: At(name, 2)}, dsa.UNSUPPORTED) for name in required[:3]),
        *((f"negative-{name}", {name: -1}, dsa.BAD_EXTENT) for name in extents),
        ("too-few-pools", {"pool_capacity": 5}, dsa.BAD_EXTENT),
        ("short-score-cols", {"score_cols": 5}, dsa.BAD_STRIDE),
        ("kpool-8", {"kpool": 8}, dsa.BAD_BUDGET),
        ("geometry-of-two-rows", {"batch": 1, "geometry": "q_pos"}, dsa.BAD_EXTENT),
        ("geometry-of-two-sequences", {"query_rows": 1, "geometry": "q_pos"}, dsa.BAD_EXTENT),
        ("no-sequences", {"batch": 0}, OK),
        ("no-rows", {"query_rows": 0}, OK),
        ("no-tokens", {"tokens": 0}, OK),
    ]
    yield from refusals(STAGE_NAME, lambda: program(launch_of(inputs)), changes)


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
    summary="DSA scores: query heads and pool keys to scores",
    kernels=(KERNEL,),
    clauses=CLAUSES,
    checks=CHECKS,
    cases=cases,
    golden_kind="dsa",
    numbers=NUMBERS,
    sweep=SWEEP,
)
