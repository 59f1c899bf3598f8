"""What of decode attention is timed: rows of one length over gathered tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

import numpy as np

from qsa_bench.model import Finding
from qsa_bench.program import Program
from qsa_bench.stages import _qsa_attention as attention
from qsa_bench.stages import _qsa_decode_attention_launch as decode
from qsa_bench.stages import _qsa_paged as paged
from qsa_bench.stages.base import Outputs, SweepAxis, SweepPoint, SweepSpec

_PAGE_TOKENS, _BF16 = 64, 2
# Rows repeat so many different ones, each in pages of its own. A prime, as for the selection.
_DIFFERENT_ROWS = 7
_TOKEN_BYTES = 2 * attention.KV_HEADS * attention.HEAD_DIM * _BF16
INPUTS = {"normal": "N(0, 1) queries, keys and values"}
_LENGTHS = ("64", "512", "2051")


@lru_cache(maxsize=1)
def _rows(length: int, count: int) -> attention.Rows:
    different = min(count, _DIFFERENT_ROWS)
    places = np.arange(count) % different
    slots = -(-length // _PAGE_TOKENS) * _PAGE_TOKENS
    q, few = attention.random_rows((different, different, slots), "sweep")
    cache = paged.paged(few.keys[places], few.values[places], _PAGE_TOKENS, "sweep")
    tokens = (tuple(range(length)),) * count
    return attention.Rows(q[places], cache, tuple(range(count)), tokens)


def point(entry: str, axes: Mapping[str, str]) -> SweepPoint:
    """Return one launch over so many tokens a row."""
    length, count = int(axes["context"]), int(axes["rows"])
    rows = _rows(length, count)

    def judge(_program: Program, outputs: Outputs) -> Iterable[Finding]:
        return attention.judge_context(rows, outputs["context"])

    read = count * length * _TOKEN_BYTES
    width = count * attention.HEADS * attention.HEAD_DIM
    flops = 4 * width * length
    made = decode.program(rows)
    return SweepPoint(
        entry, dict(axes), made, judge, read + width * _BF16, width * _BF16, read, flops
    )


SWEEP = SweepSpec(
    entries=("qsa_decode_attention",),
    axes={
        "context": SweepAxis("size", "tokens that every row attends to", ("2051",)),
        "rows": SweepAxis("count", "rows of a batch", ("1",)),
        "input": SweepAxis("word", "kind of vectors", ("normal",), INPUTS),
    },
    standard=(
        {"context": _LENGTHS, "rows": ("1",), "cache": ("warm", "cold")},
        {"context": ("2051",), "rows": ("8", "64")},
    ),
    point=point,
    peers={"qsa_decode_attention": ("qsa_bench.peers.attention:sdpa_decode",)},
)
