"""DSA key pooling: one key a pool of tokens, weighed by a learned gate; and where the pools lie.

Contract section 2, "compress". Kernel: kernels/dsa/kpool_compress.cu; mutants:
mutations/dsa_kpool_compress/.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy.typing as npt

from qsa_bench.goldens import Golden
from qsa_bench.goldens import dsa as dsa_golden
from qsa_bench.model import Finding
from qsa_bench.program import OK, TRAP, At, Program
from qsa_bench.stages import _dsa_inputs as dsa
from qsa_bench.stages._dsa_compress_launch import (
    KERNEL,
    STAGE_NAME,
    Launch,
    Step,
    judge_pools,
    program,
    reference_finding,
    wanted_of,
)
from qsa_bench.stages._dsa_compress_sweep import SWEEP
from qsa_bench.stages._dsa_faults import Change, nothing, refusals
from qsa_bench.stages.base import FEW_SCHEDULES, ONE_SCHEDULE, Case, Outputs, Stage

Array = npt.NDArray[Any]

_SEEDS = 12
_CHECKED_TOKENS = 100

CLAUSES = {
    "softmax-over-the-pool": "a channel's weights sum to one over the tokens of its pool",
    "ape": "each token of a pool adds its own embedding to the gate, in f32 as it is given",
    "rounding": "probabilities and products are rounded to bf16, the f32 sum once more",
    "first-valid-key": "the grid of slots begins at each sequence's first valid key",
    "invalid-key-no-pool": "a slot with an invalid key is no pool",
    "compacted-list": "pools are listed without gaps, each sequence by itself",
    "whole-pools": "only complete pools have a key; fewer tokens than a pool are legal",
    "fresh-pools": "only pools that the fresh tokens complete are written; others are cached",
    "live-geometry": "with a geometry the live length is the device's, not the launch's",
    "geometry-holds-together": "a geometry that contradicts itself or the ceiling traps",
    "nan-stays": "a NaN in a key or the gate makes that channel of its pool NaN, and no other",
    "refusals": "the C entry refuses malformed arguments by code and launches nothing",
    "memory": "no race, no access outside a buffer, no read of what nothing wrote",
}
CHECKS = {
    "pool-keys": "every element has the oracle's bits, or a legal neighbour's where it may flip",
    "lists": "first keys, slots and starts are the oracle's, and nothing past them is written",
    "untouched": "keys of pools that are not fresh keep every bit",
    "reference-keys": "the reference's own keys have the oracle's bits, or a legal neighbour's",
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
    make: Callable[[], Launch],
    schedules: str = FEW_SCHEDULES,
    recorded: dsa_golden.DsaCase | None = None,
) -> Case:
    launch = functools.cache(make)
    want = functools.cache(lambda: wanted_of(launch()))

    def judge(_program: Program, outputs: Outputs) -> Iterable[Finding]:
        yield from judge_pools(launch(), want(), outputs, golden=recorded is not None)
        if recorded is not None:
            yield reference_finding(recorded, want().keys)

    return Case(
        STAGE_NAME,
        family,
        label,
        tuple(clauses),
        lambda: program(launch()),
        judge,
        checked=launch().inputs.tokens * launch().inputs.batch <= _CHECKED_TOKENS,
        schedules=schedules,
        writes=launch().inputs.valid is not None or any(fresh.any() for fresh in want().fresh),
    )


_NUMERICS = ("softmax-over-the-pool", "ape", "rounding")
_LISTS = ("first-valid-key", "compacted-list", "invalid-key-no-pool")


def _whole(inputs: dsa.Inputs, spare: int = 0) -> Launch:
    return Launch(inputs, (Step(inputs.tokens, inputs.tokens),), spare=spare)


def _golden_cases(golden: Golden) -> Iterator[Case]:
    for case in dsa_golden.cases(golden):
        inputs = dsa.of_golden(case)
        yield _case(
            "golden",
            f"case{case.index}",
            (*_NUMERICS, *_LISTS, "whole-pools"),
            lambda inputs=inputs: _whole(inputs),  # type: ignore[misc]
            schedules=ONE_SCHEDULE if case.tokens > 1000 else FEW_SCHEDULES,
            recorded=case,
        )


def _families() -> Iterator[Case]:
    def inputs_of(*args: Any, **more: Any) -> Callable[[], Launch]:
        return lambda: _whole(dsa.random_inputs(*args, **more))

    for seed in range(_SEEDS):
        kpool = (4, 16)[seed % 2]
        yield _case(
            "seeds",
            str(seed),
            _NUMERICS,
            inputs_of(96, "seed", seed, kpool=kpool),
            schedules=ONE_SCHEDULE,
        )
    for scale in (0.01, 12.0, 60.0):
        yield _case("gates", f"{scale:g}", _NUMERICS, inputs_of(48, "gates", gate_scale=scale))
    for tokens in (1, 3, 4, 5, 7, 8, 15, 16, 17):
        for kpool in (4, 16):
            yield _case(
                "tokens",
                f"{tokens}-kpool{kpool}",
                ("whole-pools",),
                inputs_of(tokens, "tokens", kpool=kpool),
                schedules=ONE_SCHEDULE,
            )
    masks: Mapping[str, Mapping[str, Any]] = {
        "left": {"batch": 3, "padding": (0, 5, 18)},
        "all-padding": {"batch": 2, "padding": (23, 2)},
        "holes": {"batch": 2, "padding": (1, 0), "holes": ((0, 6), (1, 8), (1, 15), (1, 22))},
        "kpool16": {"batch": 2, "padding": (3, 0), "kpool": 16, "holes": ((1, 20),)},
    }
    for label, mask in masks.items():
        tokens = 61 if "kpool" in mask else 23
        yield _case("padding", label, _LISTS, inputs_of(tokens, "padding", label, **mask))
    # More slots than one pass of a CTA takes.
    yield _case(
        "padding",
        "two-passes",
        _LISTS,
        inputs_of(1041, "long", padding=(6,), holes=((0, 300), (0, 777), (0, 778))),
        schedules=ONE_SCHEDULE,
    )
    for label, launch in _step_launches().items():
        yield _case("steps", label, ("fresh-pools", "live-geometry"), launch)
    yield _case("spare", "capacity", ("whole-pools",), _spare)
    for label in ("key", "gate"):
        yield _case("nan", label, ("nan-stays",), functools.partial(_poisoned, label))


def _spare() -> Launch:
    return Launch(dsa.random_inputs(26, "spare", batch=2), (Step(21, 21),), spare=3)


def _poisoned(label: str) -> Launch:
    inputs = dsa.random_inputs(24, "nan")
    name = "keys" if label == "key" else "gate"
    array = getattr(inputs, name).copy()
    array[0, 9, 70] = 0x7FC0
    return _whole(replace(inputs, **{name: array}))


def _step_launches() -> Mapping[str, Callable[[], Launch]]:
    def decode(mask: Mapping[str, Any], by_geometry: bool) -> Launch:
        inputs = dsa.random_inputs(31, "steps", **mask)
        steps = [Step(10, 10, by_geometry)]
        steps += [Step(live, 1, by_geometry) for live in range(11, 24)]
        # A speculative step of five tokens, rewound by three, then two more chunks.
        steps += [Step(28, 5, by_geometry), Step(26, 1, by_geometry), Step(31, 6, by_geometry)]
        return Launch(inputs, tuple(steps))

    def alone(mask: Mapping[str, Any], live: int, fresh: int, by_geometry: bool = False) -> Launch:
        inputs = dsa.random_inputs(31, "alone", **mask)
        before = live - fresh if mask else None
        return Launch(inputs, (Step(live, fresh, by_geometry),), before)

    left: Mapping[str, Any] = {"padding": (12,), "holes": ((0, 18),)}
    return {
        "decode": lambda: decode({}, False),
        "decode-padded": lambda: decode(left, False),
        "replayed": lambda: decode({}, True),
        "replayed-padded": lambda: decode(left, True),
        "completes": lambda: alone({}, 20, 1),
        "completes-none": lambda: alone({}, 22, 1),
        "chunk": lambda: alone({}, 30, 9),
        "chunk-padded": lambda: alone(left, 30, 11),
        "ceiling": lambda: alone({}, 20, 1, True),
        "below-a-pool": lambda: alone({}, 3, 1, True),
        "nothing-live": lambda: alone({}, 0, 1, True),
    }


def _traps() -> Iterator[Case]:
    right = dsa.geometry_words(29, 4, 2048)
    wrong = {"past-the-ceiling": dsa.geometry_words(33, 4, 2048)}
    for label, (word, value) in {
        "negative": (0, -1),
        "pools": (1, 9),
        "whole": (2, 6),
        "tile": (3, 7),
    }.items():
        wrong[label] = right.copy()
        wrong[label][word] = value
    for label, words in wrong.items():

        def build(words: Array = words) -> Program:
            inputs = dsa.random_inputs(32, "trap")
            base = program(Launch(inputs, (Step(29, 29, True),)))
            call = replace(base.calls[0], expect=TRAP)
            return Program(dsa.with_geometry(base.buffers, words), (call,))

        yield nothing(STAGE_NAME, "trap", label, "geometry-holds-together", build)


def _refusals() -> Iterator[Case]:
    pointers = ("keys", "gate", "ape", "pool_keys")
    lists = ("valid", "first_keys", "slots", "pool_starts")
    extents = ("batch", "tokens", "fresh_tokens", "token_capacity", "pool_capacity")
    changes: list[Change] = [
        *((f"null-{name}", {name: None}, dsa.NULL_POINTER) for name in (*pointers, *lists)),
        *((f"unaligned-{name}", {name: At(name, 4)}, dsa.UNSUPPORTED) for name in pointers[:2]),
        *((f"negative-{name}", {name: -1}, dsa.BAD_EXTENT) for name in extents),
        ("more-tokens-than-rows", {"tokens": 25}, dsa.BAD_EXTENT),
        ("too-few-pools", {"pool_capacity": 5}, dsa.BAD_EXTENT),
        ("kpool-8", {"kpool": 8}, dsa.BAD_BUDGET),
        ("kpool-0", {"kpool": 0}, dsa.BAD_BUDGET),
        ("too-many-sequences", {"batch": 65536}, dsa.BAD_EXTENT),
        ("geometry-of-two", {"geometry": "valid"}, dsa.BAD_EXTENT),
        ("no-sequences", {"batch": 0}, OK),
        ("no-tokens", {"tokens": 0}, OK),
        ("nothing-fresh", {"fresh_tokens": 0}, OK),
    ]
    inputs = dsa.random_inputs(24, "refusal", batch=2, padding=(0, 3))
    yield from refusals(STAGE_NAME, lambda: program(_whole(inputs)), changes)


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
    summary="DSA key pooling: keys and gates to pool keys",
    kernels=(KERNEL,),
    clauses=CLAUSES,
    checks=CHECKS,
    cases=cases,
    sweep=SWEEP,
    golden_kind="dsa",
    numbers=NUMBERS,
)
