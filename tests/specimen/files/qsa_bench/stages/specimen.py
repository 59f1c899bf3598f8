"""Specimen: a decaying sum and its ranks, a pipeline of two kernels with Python between them.

Kernels: kernels/specimen/; mutants: mutations/specimen/.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from qsa_bench.captured import Captured
from qsa_bench.compare import bitwise, bounded
from qsa_bench.goldens import Golden
from qsa_bench.model import STREAM, Argument, Entry, Finding, Kernel, Role
from qsa_bench.program import OK, TRAP, At, Buffer, Call, Program, Value
from qsa_bench.stages.base import ONE_SCHEDULE, Capture, Case, Outputs, Stage, no_judge

Array = npt.NDArray[Any]

NAME = "specimen"
DECAY = 0.5
NULL_POINTER, BAD_EXTENT = 1, 2
# Four roundings a step (a fused multiply-add, |x|, an addition, a division), each half an ulp; the
# errors of earlier steps are halved by every step after them.
BOUND = 4 * 2.0**-24
COUNT = Argument("count", "i64", Role.SCALAR, doc="elements")
SMOOTH = Kernel(
    "smooth",
    "kernels/specimen/smooth.cu",
    (
        Entry(
            "specimen_smooth",
            (
                Argument("values", "f32", Role.INPUT, ("count",)),
                Argument("state", "f32", Role.INOUT, ("count",)),
                Argument("level", "f32", Role.OUTPUT, ("count",)),
                COUNT,
                Argument("decay", "f32", Role.SCALAR),
                STREAM,
            ),
        ),
    ),
)
RANK = Kernel(
    "rank",
    "kernels/specimen/rank.cu",
    (
        Entry(
            "specimen_rank",
            (
                Argument("level", "f32", Role.INPUT, ("count",)),
                Argument("rank", "i32", Role.OUTPUT, ("count",)),
                COUNT,
                STREAM,
            ),
        ),
    ),
)
CLAUSES = {
    "decay": "what was is halved before what comes is added",
    "squash": "a level is its sum over one more than the sum's size",
    "order": "a rank is the number of levels below",
    "steps": "every step is counted once",
    "finite": "a value that is not finite traps",
    "refusals": "an entry refuses malformed arguments by code and launches nothing",
    "memory": "no access outside a buffer, no race, no input changed",
    "termination": "every launch ends",
}
CHECKS = {
    "level": "the levels are within four roundings of the exact ones",
    "golden-level": "the levels are within four roundings of the golden's",
    "rank": "the ranks are those of the levels given",
    "steps": "the steps are counted",
}
NUMBERS = {
    "elements": "golden elements judged",
    "differing_bits": "golden levels whose bits differ from the golden's",
}


def program(values: Array, expect: str | int = OK) -> Program:
    """Return the pipeline over `values` f32 [steps, count]: smooth and count a step, then rank."""
    steps, count = values.shape
    buffers = (
        Buffer("values", "f32", (steps, count), Role.INPUT, values),
        Buffer("state", "f32", (count,), Role.INOUT, np.zeros(count, np.float32)),
        Buffer("level", "f32", (count,), Role.OUTPUT),
        Buffer("steps", "i32", (1,), Role.INOUT, np.zeros(1, np.int32)),
        Buffer("rank", "i32", (count,), Role.OUTPUT),
    )
    calls: list[Call] = []
    for step in range(steps):
        here: dict[str, Value] = {
            "values": At("values", step * count),
            "state": "state",
            "level": "level",
            "count": count,
            "decay": DECAY,
        }
        last = step == steps - 1
        calls.append(Call("smooth", "specimen_smooth", here, expect if last else OK))
        surface = "qsa_bench.specimen_surface:count_step"
        calls.append(Call("smooth", "count_step", {"steps": "steps"}, python=surface))
    if expect != OK:
        return Program(buffers, tuple(calls[:-1]))
    ranking: dict[str, Value] = {"level": "level", "rank": "rank", "count": count}
    return Program(buffers, (*calls, Call("rank", "specimen_rank", ranking)))


def levels(values: Array) -> Array:
    """Return the exact levels f64 [count] after all steps of `values` [steps, count]."""
    state = np.zeros(values.shape[1])
    for step in values.astype(np.float64):
        state = DECAY * state + step
    return np.asarray(state / (1 + np.abs(state)))


def judge(built: Program, outputs: Outputs) -> Iterable[Finding]:
    """Hold a program's outputs to the oracle."""
    values = built.array("values")
    want = levels(values)
    yield bounded("level", "level", want, outputs["level"], np.full(want.shape, BOUND))
    given = outputs["level"]
    ranks = (given[None, :] < given[:, None]).sum(axis=1, dtype=np.int32)
    yield bitwise("rank", "rank", ranks, outputs["rank"])
    yield bitwise("steps", "steps", np.array([len(values)], np.int32), outputs["steps"])


def _golden_judge(golden: Golden) -> Callable[[Program, Outputs], Iterable[Finding]]:
    def against_golden(built: Program, outputs: Outputs) -> Iterable[Finding]:
        want, got = golden.tensors["level"], outputs["level"]
        found = bounded("golden-level", "level", want, got, np.full(want.shape, BOUND))
        differing = int((want.view(np.uint32) != got.view(np.uint32)).sum())
        numbers = {"elements": want.size, "differing_bits": differing}
        yield replace(found, evidence=replace(found.evidence, numbers=numbers))
        yield from judge(built, outputs)

    return against_golden


def _values(steps: int, count: int) -> Array:
    random = np.random.default_rng([steps, count])
    return random.standard_normal((steps, count)).astype(np.float32)


def _case(family: str, label: str, clauses: tuple[str, ...], built: Program, **fields: Any) -> Case:
    return Case(NAME, family, label, clauses, lambda: built, fields.pop("judge", judge), **fields)


def _cases(golden: Golden | None) -> Iterator[Case]:
    every = ("decay", "squash", "order", "steps", "memory", "termination")
    if golden is not None:
        built = program(golden.tensors["values"])
        against = _golden_judge(golden)
        yield _case("golden", "case0", every, built, judge=against, counts_bits=True)
    for steps, count in ((1, 1), (2, 33), (3, 64)):
        built = program(_values(steps, count))
        yield _case("steps", f"{steps}x{count}", every, built, checked=True)
    yield _case("steps", "one-order", every, program(_values(2, 20)), schedules=ONE_SCHEDULE)
    wrong = _values(2, 40)
    wrong[1, 39] = np.inf
    traps = program(wrong, TRAP)
    yield _case("traps", "infinity", ("finite",), traps, judge=no_judge, writes=False)
    yield from _refusals()


def _refusals() -> Iterator[Case]:
    buffers = (
        Buffer("level", "f32", (8,), Role.INPUT, np.zeros(8, np.float32)),
        Buffer("rank", "i32", (8,), Role.OUTPUT),
    )
    for label, changed, status in (
        ("null-level", {"level": None}, NULL_POINTER),
        ("no-element", {"count": 0}, BAD_EXTENT),
        ("too-many", {"count": 65}, BAD_EXTENT),
    ):
        values: dict[str, Value] = {"level": "level", "rank": "rank", "count": 8, **changed}
        built = Program(buffers, (Call("rank", "specimen_rank", values, status),))
        yield _case(
            "refusals",
            label,
            ("refusals",),
            built,
            judge=no_judge,
            schedules=ONE_SCHEDULE,
            writes=False,
        )


def cases(golden: Golden | None) -> Sequence[Case]:
    """Return every case: the golden's, steps, traps and refusals."""
    return list(_cases(golden))


def replay(captured: Captured) -> Case:
    """Turn captured `values` f32 [steps, count] into a case."""
    captured.only(("values",))
    values = captured.tensor("values", "f32", (2,))
    if not 1 <= values.shape[1] <= 64 or len(values) < 1:
        raise captured.error(f"tensor 'values' has shape {list(values.shape)}; 1 to 64 elements")
    if not np.isfinite(values).all():
        faulty = int(np.flatnonzero(~np.isfinite(values).all(axis=1))[0])
        built = program(values[: faulty + 1], TRAP)
        return _case("replay", "captured", ("finite",), built, judge=no_judge)
    return _case("replay", "captured", ("decay",), program(values))


def captures(built: Program) -> list[Capture]:
    """Return the values of a program: each element alone, then all."""
    if built.calls[0].entry != "specimen_smooth":
        return []
    values = built.array("values")
    alone = [values[:, place : place + 1] for place in range(values.shape[1])]
    return [Capture({"values": part}, {"values": "f32"}, {}) for part in (*alone, values)]


STAGE = Stage(
    name=NAME,
    summary="a decaying sum and its ranks",
    kernels=(SMOOTH, RANK),
    clauses=CLAUSES,
    checks=CHECKS,
    cases=cases,
    golden_kind="specimen",
    replay=replay,
    captures=captures,
    numbers=NUMBERS,
)
