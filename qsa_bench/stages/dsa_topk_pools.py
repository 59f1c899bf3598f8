"""DSA pool selection: scores to the kept pools of each row.

Contract section 2, "top pools". Kernel: kernels/dsa/topk_pools.cu, over the engine of
kernels/common that qsa_select has; mutants: mutations/dsa_topk_pools/.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from qsa_bench import families
from qsa_bench.goldens import Golden
from qsa_bench.goldens import dsa as dsa_golden
from qsa_bench.model import Finding
from qsa_bench.program import OK, TRAP, Program
from qsa_bench.stages import _dsa_inputs as dsa
from qsa_bench.stages._dsa_faults import Change, nothing, refusals
from qsa_bench.stages._dsa_topk_launch import KERNEL, STAGE_NAME, Launch, judge_kept, program
from qsa_bench.stages._dsa_topk_plants import FAULTS
from qsa_bench.stages._dsa_topk_sweep import SWEEP
from qsa_bench.stages.base import FEW_SCHEDULES, ONE_SCHEDULE, Case, Outputs, Stage

Array = npt.NDArray[Any]

_CHECKED_SCORES = 2000
_NAN = np.float32("nan")

CLAUSES = {
    "score-order": "the kept pools are those with the highest scores, of either sign",
    "ties-ascending": "equal scores are kept in ascending pool index",
    "zeros-equal": "-0.0 and +0.0 are the same score",
    "keep": "min(topk / kpool, visible) pools are kept, no more and no fewer",
    "zero-pools": "a row that sees no pool keeps none",
    "ascending": "kept pools are listed in ascending order, -1 fills the rest of the row",
    "prefix-only": "what lies past a row's visible pools is never read",
    "row-stride": "row r of scores begins at r * score_cols",
    "long-rows": "rows of 1M tokens are exact",
    "any-distribution": "every row is exact whatever its distribution",
    "live-geometry": "with a geometry the number kept is the device's, not the launch's",
    "non-finite-traps": "a visible score that is not finite traps",
    "visible-range-traps": "a visible count past the pools, or past the live ones, traps",
    "refusals": "the C entry refuses malformed arguments by code and launches nothing",
    "memory": "no race, no access outside a buffer, no read of what nothing wrote",
}
CHECKS = {
    "kept-pools": "the list equals the stable oracle's",
    "kept-counts": "the counts equal the stable oracle's",
}


def _case(
    family: str,
    label: str,
    clauses: Sequence[str],
    make: Callable[[], Launch],
    schedules: str = FEW_SCHEDULES,
) -> Case:
    launch = functools.cache(make)
    built = functools.cache(lambda: program(launch()))

    def judge(_program: Program, outputs: Outputs) -> Iterable[Finding]:
        visible = np.array([len(row) for row in launch().rows])
        yield from judge_kept(built().array("scores"), visible, launch().keep, outputs)

    return Case(
        STAGE_NAME,
        family,
        label,
        tuple(clauses),
        built,
        judge,
        checked=sum(len(row) for row in launch().rows) <= _CHECKED_SCORES,
        schedules=schedules,
    )


def _golden_cases(golden: Golden) -> Iterator[Case]:
    for case in dsa_golden.cases(golden):
        yield _case(
            "golden",
            f"case{case.index}",
            ("score-order", "keep", "ascending"),
            lambda case=case: _recorded(case),  # type: ignore[misc]
            schedules=ONE_SCHEDULE,
        )


def _recorded(case: dsa_golden.DsaCase) -> Launch:
    rows = [
        case.scores[row, query][case.scores[row, query] > dsa_golden.MASKED]
        for row in range(case.batch)
        for query in range(case.q_pos.size)
    ]
    return Launch(tuple(rows), case.topk, case.kpool, spare_pools=1)


def _row(generator: str, pools: int, *words: object) -> Array:
    random = families.seeded(STAGE_NAME, generator, pools, *words)
    return families.SCORE_ROWS[generator](random, pools)


def _families() -> Iterator[Case]:
    order = ("score-order", "ties-ascending", "any-distribution")
    for name in families.SCORE_ROWS:
        yield _case(
            "distribution",
            name,
            (*order, "zeros-equal") if "zero" in name else order,
            lambda name=name: Launch((_row(name, 61), -_row(name, 45)), 64),  # type: ignore[misc]
            schedules=ONE_SCHEDULE,
        )
    for name in ("normal", "equal", "quantised"):
        yield _case(
            "full-budget",
            name,
            (*order, "keep"),
            lambda name=name: Launch((_row(name, 517), -_row(name, 530)), 2048),  # type: ignore[misc]
            schedules=ONE_SCHEDULE,
        )
    # A row that CTAs share, as marks; rows longer than a CTA holds, as a list.
    for name in ("normal", "equal", "quantised"):
        yield _case(
            "shared-row",
            name,
            (*order, "ascending"),
            lambda name=name: Launch((_row(name, 1801),), 2048),  # type: ignore[misc]
        )
    yield _case(
        "long",
        "rows-of-two-tiles",
        (*order, "ascending"),
        lambda: Launch((_row("normal", 1300), _row("equal", 1030), -_row("quantised", 1500)), 2048),
        schedules=ONE_SCHEDULE,
    )
    for kpool, topk in ((4, 4), (4, 8), (16, 16), (16, 64), (16, 2048), (4, 2048)):
        keep = topk // kpool
        rows = tuple(_row("normal", pools) for pools in (max(keep - 1, 0), keep, keep + 1, 0))
        yield _case(
            "budget",
            f"kpool{kpool}-topk{topk}",
            ("keep", "zero-pools"),
            lambda rows=rows, topk=topk, kpool=kpool: Launch(rows, topk, kpool),  # type: ignore[misc]
            schedules=ONE_SCHEDULE,
        )
    yield _case(
        "rows",
        "ragged",
        ("row-stride", "prefix-only"),
        lambda: Launch(
            tuple(_row("normal", pools, "ragged") for pools in (40, 3, 0, 57, 21, 17)),
            64,
            spare_pools=3,
            spare_cols=5,
        ),
    )
    yield _case(
        "long",
        "normal",
        ("long-rows",),
        lambda: Launch((_row("normal", 262144),), 2048),
        schedules=ONE_SCHEDULE,
    )
    yield _case(
        "long",
        "short-row-of-a-long-capacity",
        ("prefix-only",),
        lambda: Launch((_row("quantised", 700),), 2048, spare_pools=200000),
        schedules=ONE_SCHEDULE,
    )
    for live, seen in ((0, 0), (3, 0), (4, 1), (64, 16), (68, 17), (303, 75)):
        yield _case(
            "replay",
            str(live),
            ("live-geometry", "zero-pools"),
            lambda live=live, seen=seen: Launch(  # type: ignore[misc]
                (_row("normal", seen, "replay"),), 64, spare_pools=200 - seen, live=live
            ),
        )


def _traps() -> Iterator[Case]:
    for label, value in (
        ("nan", _NAN),
        ("infinity", np.float32("inf")),
        ("minus", -np.float32("inf")),
    ):
        for pools, which in ((40, "searched"), (12, "all-kept")):

            def build(value: np.float32 = value, pools: int = pools) -> Program:
                row = _row("normal", pools).copy()
                row[pools - 2] = value
                return program(Launch((_row("normal", 20), row), 64), TRAP)

            yield nothing(STAGE_NAME, "trap", f"{label}-{which}", "non-finite-traps", build)
    # Of a row that sees one more than there are, the next row's first score is the one.
    launch = Launch((_row("normal", 20), _row("normal", 20, "next")), 64)
    for label, seen in (("negative", -1), ("past-the-pools", 21)):

        def build_visible(seen: int = seen) -> Program:
            base = program(launch, TRAP)
            buffers = tuple(
                replace(buffer, data=np.array([seen, 20], dtype=np.int32))
                if buffer.name == "visible_pools"
                else buffer
                for buffer in base.buffers
            )
            return Program(buffers, base.calls)

        yield nothing(STAGE_NAME, "trap", f"visible-{label}", "visible-range-traps", build_visible)
    words = {
        "keeps-fewer": (4, 15),
        "keeps-more": (4, 18),
        "contradicts-itself": (2, 16),
        "of-another-tile": (3, 24),
    }
    for label, (word, number) in words.items():

        def build_words(word: int = word, value: int = number) -> Program:
            base = program(Launch((_row("normal", 17),), 64, spare_pools=3, live=69), TRAP)
            changed = base.array("geometry").copy()
            changed[word] = value
            return Program(dsa.with_geometry(base.buffers, changed), base.calls)

        yield nothing(STAGE_NAME, "trap", f"geometry-{label}", "visible-range-traps", build_words)

    def stale() -> Program:
        return program(Launch((_row("normal", 17),), 64, spare_pools=3, live=67), TRAP)

    yield nothing(STAGE_NAME, "trap", "geometry-of-the-step-before", "live-geometry", stale)


def _refusals() -> Iterator[Case]:
    pointers = ("scores", "visible_pools", "kept_pools", "kept_counts")
    changes: list[Change] = [
        *((f"null-{name}", {name: None}, dsa.NULL_POINTER) for name in pointers),
        *(
            (f"negative-{name}", {name: -1}, dsa.BAD_EXTENT)
            for name in ("row_count", "score_cols", "pools")
        ),
        ("short-score-cols", {"score_cols": 19}, dsa.BAD_STRIDE),
        ("kpool-8", {"kpool": 8}, dsa.BAD_BUDGET),
        ("topk-0", {"topk": 0}, dsa.BAD_BUDGET),
        ("topk-66", {"topk": 66}, dsa.BAD_BUDGET),
        ("wider-than-served", {"topk": 2052}, dsa.BAD_BUDGET),
        ("geometry-of-two-rows", {"geometry": "visible_pools"}, dsa.BAD_EXTENT),
        ("no-rows", {"row_count": 0}, OK),
    ]
    launch = Launch((_row("normal", 20), _row("normal", 17)), 2048)
    yield from refusals(STAGE_NAME, lambda: program(launch), changes)


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
    summary="DSA pool selection: scores to kept pools",
    kernels=(KERNEL,),
    clauses=CLAUSES,
    checks=CHECKS,
    cases=cases,
    golden_kind="dsa",
    sweep=SWEEP,
    faults=FAULTS,
)
