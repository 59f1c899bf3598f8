"""DSA geometry: five words that say how long a sequence is now, for launches that a graph holds.

Contract section 2, "Replay". Kernel: kernels/dsa/write_geom.cu; mutants: mutations/dsa_write_geom/.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from qsa_bench.compare import bitwise
from qsa_bench.goldens import Golden
from qsa_bench.model import STREAM, Argument, Entry, Finding, Kernel, Role
from qsa_bench.program import OK, At, Buffer, Call, Program, Value
from qsa_bench.stages import _dsa_inputs as dsa
from qsa_bench.stages._dsa_faults import Change, refusals
from qsa_bench.stages.base import FEW_SCHEDULES, Case, Outputs, Stage

Array = npt.NDArray[Any]

STAGE_NAME = "dsa_write_geom"

KERNEL = Kernel(
    STAGE_NAME,
    "kernels/dsa/write_geom.cu",
    (
        Entry(
            STAGE_NAME,
            (
                Argument("geometry", "i32", Role.OUTPUT, ("5",)),
                Argument("tokens", "i64", Role.SCALAR, doc="live tokens of this step"),
                Argument("topk", "i64", Role.SCALAR, doc="tokens kept at most, beside the tail"),
                Argument("kpool", "i64", Role.SCALAR, doc="tokens a pool: 4 or 16"),
                STREAM,
            ),
            "tokens, pools, whole pools, select tile and select_k",
        ),
    ),
)

CLAUSES = {
    "words": "tokens, pools with the incomplete one, whole pools, select tile, select_k, in this order",
    "this-steps-length": "the length is this launch's, none that an earlier step left",
    "refusals": "the C entry refuses malformed arguments by code and launches nothing",
    "memory": "no race, no access outside a buffer, no read of what nothing wrote",
}
CHECKS = {"geometry": "every word is the oracle's"}


def geometry_call(
    tokens: int, topk: int, kpool: int, place: int = 0, expect: str | int = OK
) -> Call:
    """Return the call that writes five words from element `place` of the buffer geometry on."""
    values: dict[str, Value] = {
        "geometry": At("geometry", place),
        "tokens": tokens,
        "topk": topk,
        "kpool": kpool,
    }
    return Call(STAGE_NAME, STAGE_NAME, values, expect)


def _case(label: str, kpool: int, topk: int, lengths: Sequence[int], reused: bool = False) -> Case:
    """Return a case that writes a geometry of every length; `reused` all into the same words."""
    count = 1 if reused else len(lengths)

    def build() -> Program:
        buffer = Buffer("geometry", "i32", (count, 5), Role.OUTPUT)
        calls = tuple(
            geometry_call(tokens, topk, kpool, 0 if reused else 5 * number)
            for number, tokens in enumerate(lengths)
        )
        return Program((buffer,), calls)

    def judge(_program: Program, outputs: Outputs) -> Iterable[Finding]:
        wanted = [dsa.geometry_words(tokens, kpool, topk) for tokens in lengths[-count:]]
        yield bitwise("geometry", "geometry", np.stack(wanted), outputs["geometry"], "words")

    clauses = ("words", "this-steps-length")
    return Case(
        STAGE_NAME, "lengths", label, clauses, build, judge, checked=True, schedules=FEW_SCHEDULES
    )


def _refusals() -> Iterator[Case]:
    changes: list[Change] = [
        ("null-geometry", {"geometry": None}, dsa.NULL_POINTER),
        ("negative-tokens", {"tokens": -1}, dsa.BAD_EXTENT),
        ("tokens-past-int32", {"tokens": 2**31 - 1}, dsa.BAD_EXTENT),
        ("kpool-8", {"kpool": 8}, dsa.BAD_BUDGET),
        ("kpool-0", {"kpool": 0}, dsa.BAD_BUDGET),
        ("topk-0", {"topk": 0}, dsa.BAD_BUDGET),
        ("topk-negative", {"topk": -4}, dsa.BAD_BUDGET),
        ("topk-66", {"topk": 66}, dsa.BAD_BUDGET),
        ("topk-past-int32", {"topk": 2**31}, dsa.BAD_BUDGET),
    ]
    buffer = Buffer("geometry", "i32", (5,), Role.OUTPUT)
    base = Program((buffer,), (geometry_call(100, 64, 4),))
    yield from refusals(STAGE_NAME, lambda: base, changes)


def cases(_golden: Golden | None) -> Sequence[Case]:
    """Return every case; geometry has no golden."""
    return [
        _case("kpool4", 4, 2048, (*range(10), 2047, 2048, 2051, 2052, 65537, 1 << 20)),
        _case("kpool16", 16, 64, (0, 1, 15, 16, 17, 31, 63, 64, 65, 79, 80, 1 << 20)),
        _case("longest", 4, 4, (2**31 - 5, 2**31 - 6)),
        _case("one-after-the-other", 4, 16, (40, 41, 44, 12, 0, 3), reused=True),
        *_refusals(),
    ]


STAGE = Stage(
    name=STAGE_NAME,
    summary="DSA geometry: a length to five words on the device",
    kernels=(KERNEL,),
    clauses=CLAUSES,
    checks=CHECKS,
    cases=cases,
)
