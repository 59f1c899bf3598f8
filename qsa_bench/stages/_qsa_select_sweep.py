"""What of select is timed: rows of one length, at every context, for every kind of input.

Every row sits at the last position of its context, as a batch of decoding sequences of one length
does, so that bytes and times are those of the context named.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from qsa_bench import families
from qsa_bench.compare import bitwise
from qsa_bench.model import Finding
from qsa_bench.oracles.select import RATIO, Selection, select
from qsa_bench.program import Program
from qsa_bench.stages._qsa_select_cases import BUDGET, STAGE_NAME, Launch, program
from qsa_bench.stages.base import Judge, Outputs, SweepAxis, SweepPoint, SweepSpec

Array = npt.NDArray[Any]

_ENTRIES = ("qsa_select", "qsa_select_ids")
# A point of many rows repeats so many different ones, the most whose scores are this many
# together: making and judging 2,048 rows of 64k tokens would take longer than timing them.
# Primes, so that rows mixed up by a power of two show.
_DIFFERENT_ROWS = (61, 31, 13, 7, 3)
_MOST_SCORES = 1 << 22

INPUTS = {
    "relu4": "sum of four relu(N(0, 1)), as four query heads give; 6% exact zeros",
    "quant": "N(0, 1) rounded to hundredths: hundreds of ties",
    "sparse": "nine in ten exact zeros",
    "equal": "one value everywhere: every block ties",
    "signed-zeros": "zeros of both signs, a few values around them",
    "narrow": "everything in one coarse bin of half precision",
    "low-bits": "bits that differ in the lowest byte alone",
    "random-bits": "any finite float, both signs, denormals",
    "ramp-up": "strictly ascending",
    "ramp-down": "strictly descending",
    "plateau": "half the row on one value that is no zero, with the cut inside",
}
_GENERATORS = {"quant": "quantised", "narrow": "one-half-bin", "low-bits": "low-byte"}
_GENERATORS |= {"plateau": "plateau-at-cut"}

_CONTEXTS = ("2048", "2052", "8192", "65536", "262144", "1048576")
_HOSTILE = tuple(name for name in INPUTS if name != "relu4")


def _different(count: int, blocks: int) -> int:
    """Return how many different rows a launch of `count` has."""
    fitting = (rows for rows in _DIFFERENT_ROWS if rows * blocks <= _MOST_SCORES)
    return min(count, next(fitting, _DIFFERENT_ROWS[-1]))


def _rows(name: str, count: int, blocks: int) -> list[Array]:
    generator = families.SCORE_ROWS[_GENERATORS.get(name, name)]
    different = [
        generator(families.seeded(STAGE_NAME, "sweep", name, blocks, row), blocks)
        for row in range(_different(count, blocks))
    ]
    return [different[row % len(different)] for row in range(count)]


@lru_cache(maxsize=1)
def _wanted(name: str, count: int, context: int) -> tuple[Launch, Selection]:
    """Return a launch and what it should give; the last is kept: both entries ask for it."""
    blocks = context // RATIO
    prefixes = _rows(name, count, blocks)
    cols = max(blocks, 1)
    launch = Launch(prefixes, [context - 1] * count, context, cols, BUDGET)
    distinct = _different(count, blocks)
    flat = np.zeros(distinct * cols, dtype=np.float32)
    for row, prefix in enumerate(prefixes[:distinct]):
        flat[row * cols : row * cols + blocks] = prefix
    few = select(flat, np.array(launch.rows[:distinct]), context, cols, BUDGET)
    places = np.arange(count) % distinct
    return launch, Selection(few.mask[places], few.ids[places], few.counts[places])


def point(entry: str, axes: Mapping[str, str]) -> SweepPoint:
    """Return one launch of an entry at a context, a number of rows and a kind of input."""
    context, count = int(axes["context"]), int(axes["rows"])
    launch, _ = _wanted(axes["input"], count, context)
    read = count * (context // RATIO * 4 + 4)
    written = count * (context if entry == "qsa_select" else (BUDGET + RATIO - 1) * 4 + 4)
    return SweepPoint(entry, dict(axes), program(launch, entry=entry), _judge(axes), read, written)


def _judge(axes: Mapping[str, str]) -> Judge:
    def judge(_program: Program, outputs: Outputs) -> Iterable[Finding]:
        _, want = _wanted(axes["input"], int(axes["rows"]), int(axes["context"]))
        if "mask" in outputs:
            yield bitwise("mask", "mask", want.mask, outputs["mask"], "bits")
        if "ids" in outputs:
            yield bitwise("ids", "ids", want.ids, outputs["ids"], "ids")
            yield bitwise("counts", "counts", want.counts, outputs["counts"], "rows")

    return judge


_SHAPES = ("auto", "128", "256", "512", "1024")

SWEEP = SweepSpec(
    entries=_ENTRIES,
    axes={
        "context": SweepAxis("size", "visible tokens of every row", _CONTEXTS),
        "rows": SweepAxis("count", "rows of a launch", ("1",)),
        "input": SweepAxis("word", "kind of scores", ("relu4",), INPUTS),
    },
    standard=(
        {
            "entry": ("qsa_select",),
            "context": _CONTEXTS,
            "rows": ("1", "8", "64"),
            "input": ("relu4",),
            "cache": ("warm", "cold"),
            "threads": _SHAPES,
        },
        # 2,048 rows of 256k tokens would be 1 GB; beyond the device's memory bandwidth they say
        # nothing that 64k does not.
        {
            "entry": ("qsa_select",),
            "context": ("2048", "2052", "8192", "65536"),
            "rows": ("2048",),
            "input": ("relu4",),
            "cache": ("warm", "cold"),
            "threads": _SHAPES,
        },
        {
            "entry": ("qsa_select_ids",),
            "context": _CONTEXTS,
            "rows": ("1", "64"),
            "input": ("relu4",),
            "cache": ("warm",),
            "threads": _SHAPES,
        },
        {
            "entry": ("qsa_select",),
            "context": ("2052", "65536", "262144"),
            "rows": ("1", "64"),
            "input": _HOSTILE,
            "cache": ("warm",),
            "threads": ("auto",),
        },
    ),
    point=point,
    peers={
        "qsa_select": (
            "qsa_bench.peers.select:topk",
            "qsa_bench.peers.select:sort",
            "qsa_bench.peers.select:cub_sort",
            "qsa_bench.peers.select:cub_topk",
        ),
        "qsa_select_ids": ("qsa_bench.peers.select:topk_blocks",),
    },
)
