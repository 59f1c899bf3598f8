"""DSA expansion: kept pools to token ids, and the tail.

Contract section 2, "expand". Kernel: kernels/dsa/expand_selection.cu; mutants:
mutations/dsa_expand_selection/.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from qsa_bench.compare import bitwise
from qsa_bench.goldens import Golden
from qsa_bench.goldens import dsa as dsa_golden
from qsa_bench.model import Finding
from qsa_bench.program import OK, TRAP, Program
from qsa_bench.stages import _dsa_inputs as dsa
from qsa_bench.stages._dsa_expand_launch import (
    KERNEL,
    STAGE_NAME,
    Launch,
    launch_of,
    program,
    wanted_ids,
)
from qsa_bench.stages._dsa_expand_sweep import SWEEP
from qsa_bench.stages._dsa_faults import Change, nothing, refusals
from qsa_bench.stages.base import FEW_SCHEDULES, ONE_SCHEDULE, Case, Outputs, Stage

Array = npt.NDArray[Any]

_CHECKED_IDS = 6000

CLAUSES = {
    "pools-to-tokens": "each kept pool gives its kpool tokens, in ascending order",
    "tail": "the visible incomplete tail follows, up to kpool - 1 tokens, where it is asked for",
    "tail-from-the-first-key": "tail and pools count from the sequence's first valid key",
    "no-token-twice": "a token of a kept pool is not listed as tail again",
    "fill": "what follows is -1, to the end of the row",
    "masked-row": "a row whose own token is no key is all -1",
    "padding": "a padded row's ids are the unpadded row's, shifted by the padding",
    "live-geometry": "with a geometry length and position are the device's, not the launch's",
    "range-traps": "a position, a count or a kept pool out of range traps",
    "refusals": "the C entry refuses malformed arguments by code and launches nothing",
    "memory": "no race, no access outside a buffer, no read of what nothing wrote",
}
CHECKS = {
    "token-ids": "every row's ids equal the oracle's, in order",
    "reference-ids": "the ids are the reference's, as sets (of the reference's own scores: without "
    "a tie at the cut)",
}
NUMBERS = {
    "rows": "golden rows judged",
    "masked": "of them rows without a token",
    "truncating": "of them rows that drop a pool",
}


def _case(
    family: str,
    label: str,
    clauses: Sequence[str],
    make: Callable[[], Launch],
    schedules: str = FEW_SCHEDULES,
    recorded: dsa_golden.DsaCase | None = None,
) -> Case:
    launch = functools.cache(make)
    built = functools.cache(lambda: program(launch()))

    def judge(_program: Program, outputs: Outputs) -> Iterable[Finding]:
        given = launch()
        pools, counts = given.kept()
        tail = given.select_tail
        want = wanted_ids(given.inputs, pools, counts, given.positions, given.live, tail)
        found = bitwise("token-ids", "token_ids", want, outputs["token_ids"], "ids")
        if recorded is None:
            yield found
            return
        numbers = {
            "rows": float(want.shape[0] * want.shape[1]),
            "masked": float((want < 0).all(axis=2).sum()),
            "truncating": float(dsa_golden.truncating(recorded).sum()),
        }
        yield replace(found, evidence=replace(found.evidence, numbers=numbers))
        yield as_sets(recorded.token_ids, outputs["token_ids"])

    return Case(
        STAGE_NAME,
        family,
        label,
        tuple(clauses),
        built,
        judge,
        checked=built().buffer("token_ids").elements <= _CHECKED_IDS,
        schedules=schedules,
    )


def as_sets(reference: Array, got: Array) -> Finding:
    """Hold every row's ids to the reference's, both [B, Q, width], without order, fill and repeats."""
    return bitwise("reference-ids", "token_ids", _unique_rows(reference), _unique_rows(got), "ids")


def _unique_rows(ids: Array) -> Array:
    """Return every row sorted, descending, with a token listed twice listed once: -1 ends it."""
    ordered = np.sort(ids, axis=2)
    ordered[..., 1:][ordered[..., 1:] == ordered[..., :-1]] = -1
    return np.asarray(np.sort(ordered, axis=2)[..., ::-1])


_ORDER = ("pools-to-tokens", "tail", "fill")


def _golden_cases(golden: Golden) -> Iterator[Case]:
    for case in dsa_golden.cases(golden):
        inputs = dsa.of_golden(case)
        own = np.zeros((case.batch, case.q_pos.size, inputs.pool_capacity), dtype=np.float32)
        for row in range(case.batch):
            listed = case.scores[row][:, case.pool_valid[row] == 1]
            own[row, :, : listed.shape[1]] = listed
        yield _case(
            "golden",
            f"case{case.index}",
            (*_ORDER, "tail-from-the-first-key", "masked-row"),
            lambda inputs=inputs, own=own: Launch(inputs, own, inputs.tokens),  # type: ignore[misc]
            schedules=ONE_SCHEDULE,
            recorded=case,
        )


def _families() -> Iterator[Case]:
    def random(*args: Any, live: int | None = None, **more: Any) -> Callable[[], Launch]:
        tail = more.pop("select_tail", True)
        return lambda: launch_of(dsa.random_inputs(*args, **more), live, select_tail=tail)

    for kpool, topk in ((4, 16), (16, 32), (4, 2048)):
        for tail in (True, False):
            yield _case(
                "lengths",
                f"kpool{kpool}-topk{topk}-{'tail' if tail else 'no-tail'}",
                _ORDER,
                random(
                    66,
                    "lengths",
                    kpool=kpool,
                    topk=topk,
                    rows=(0, 2, 3, 4, 14, 15, 16, 30, 31, 62, 63, 64, 65),
                    select_tail=tail,
                ),
            )
    masks: Mapping[str, Mapping[str, Any]] = {
        "left": {"batch": 3, "padding": (0, 5, 18), "rows": (2, 5, 7, 8, 17, 18, 21, 22)},
        "all-padding": {"batch": 2, "padding": (23, 2), "rows": (1, 22)},
        "hole-in-the-tail": {"holes": ((0, 21),), "rows": (19, 20, 21, 22)},
        "hole-in-a-pool": {"holes": ((0, 5),), "rows": (4, 5, 6, 7, 8, 11, 12, 22)},
        # The tail's rule counts keys, so it may point into a pool that is kept.
        "tail-in-a-kept-pool": {"holes": ((0, 1), (0, 2)), "rows": tuple(range(23))},
        "kpool16": {"kpool": 16, "holes": ((0, 3), (0, 18)), "rows": (16, 17, 20, 22)},
    }
    for label, mask in masks.items():
        clauses = ("tail-from-the-first-key", "masked-row", "no-token-twice", "padding")
        yield _case("padding", label, clauses, random(23, "padding", label, topk=64, **mask))
    yield _shifted_case()
    for live in (0, 1, 3, 4, 5, 31, 64):
        yield _case(
            "replay",
            str(live),
            ("live-geometry", "fill"),
            lambda live=live: launch_of(  # type: ignore[misc]
                dsa.random_inputs(70, "replay", topk=32), live, by_geometry=True
            ),
        )
    yield _case(
        "replay",
        "padded",
        ("live-geometry", "tail-from-the-first-key"),
        lambda: launch_of(
            dsa.random_inputs(70, "replay", topk=32, padding=(9,)), 51, by_geometry=True
        ),
    )


def _shifted_case() -> Case:
    """A padded sequence whose wanted ids are the unpadded one's, shifted: not the padded oracle's."""
    padding = 6
    inputs = dsa.random_inputs(41, "shift", topk=16, padding=(padding,), rows=(6, 9, 20, 39, 40))
    padded = launch_of(inputs)
    alone = replace(padded, inputs=inputs.unpadded(0, padding), live=inputs.tokens - padding)

    def judge(_program: Program, outputs: Outputs) -> Iterable[Finding]:
        pools, counts = alone.kept()
        ids = wanted_ids(alone.inputs, pools, counts, alone.positions, alone.live)
        shifted = np.where(ids < 0, ids, ids + padding).astype(np.int32)
        yield bitwise("token-ids", "token_ids", shifted, outputs["token_ids"], "ids")

    return Case(
        STAGE_NAME, "padding", "shifted", ("padding",), lambda: program(padded), judge, checked=True
    )


def _traps() -> Iterator[Case]:
    inputs = dsa.random_inputs(32, "trap", topk=16, rows=(30, 20))
    wrong: Mapping[str, tuple[str, tuple[int, ...], int]] = {
        "position-negative": ("q_pos", (1,), -1),
        "position-past-the-end": ("q_pos", (1,), 32),
        "count-negative": ("kept_counts", (0, 1), -1),
        "count-past-the-list": ("kept_counts", (0, 0), 5),
        "pool-negative": ("kept_pools", (0, 0, 2), -1),
        "pool-past-the-row": ("kept_pools", (0, 1, 3), 5),
    }
    for label, (name, place, value) in wrong.items():

        def build(name: str = name, place: tuple[int, ...] = place, value: int = value) -> Program:
            base = program(launch_of(inputs), TRAP)
            changed = base.array(name).copy()
            changed[place] = value
            buffers = tuple(
                replace(buffer, data=changed) if buffer.name == name else buffer
                for buffer in base.buffers
            )
            return Program(buffers, base.calls)

        yield nothing(STAGE_NAME, "trap", label, "range-traps", build)

    def contradicting() -> Program:
        base = program(
            launch_of(dsa.random_inputs(40, "trap", topk=16), 30, by_geometry=True), TRAP
        )
        words = base.array("geometry").copy()
        words[1] = 9
        return Program(dsa.with_geometry(base.buffers, words), base.calls)

    yield nothing(STAGE_NAME, "trap", "geometry", "range-traps", contradicting)


def _refusals() -> Iterator[Case]:
    pointers = ("kept_pools", "kept_counts", "q_pos", "token_ids")
    lists = ("valid", "first_keys", "slots", "pool_starts")
    extents = ("batch", "query_rows", "tokens", "token_capacity", "pool_capacity")
    changes: list[Change] = [
        *((f"null-{name}", {name: None}, dsa.NULL_POINTER) for name in (*pointers, *lists)),
        *((f"negative-{name}", {name: -1}, dsa.BAD_EXTENT) for name in extents),
        ("too-few-pools", {"pool_capacity": 5}, dsa.BAD_EXTENT),
        ("kpool-8", {"kpool": 8}, dsa.BAD_BUDGET),
        ("topk-0", {"topk": 0}, dsa.BAD_BUDGET),
        ("topk-18", {"topk": 18}, dsa.BAD_BUDGET),
        ("tail-2", {"select_tail": 2}, dsa.BAD_BUDGET),
        ("tail-negative", {"select_tail": -1}, dsa.BAD_BUDGET),
        ("geometry-of-two-rows", {"batch": 1, "geometry": "q_pos"}, dsa.BAD_EXTENT),
        ("geometry-of-two-sequences", {"query_rows": 1, "geometry": "q_pos"}, dsa.BAD_EXTENT),
        ("no-sequences", {"batch": 0}, OK),
        ("no-rows", {"query_rows": 0}, OK),
    ]
    inputs = dsa.random_inputs(24, "refusal", topk=16, batch=2, padding=(0, 3), rows=(23, 9))
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
    summary="DSA expansion: kept pools to token ids",
    kernels=(KERNEL,),
    clauses=CLAUSES,
    checks=CHECKS,
    cases=cases,
    sweep=SWEEP,
    golden_kind="dsa",
    numbers=NUMBERS,
)
