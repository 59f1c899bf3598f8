"""The golden of attention with a cache: what the reference's attention computes, chunk by chunk.

Two cases, fixed by the layout: a prompt past the inert bound at the real budget, and a short one at
a budget of 16 in awkward chunks. Context is that before gate and output projection.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from qsa_bench.bf16 import to_float32
from qsa_bench.errors import GoldenError
from qsa_bench.goldens import Golden, qsa
from qsa_bench.tensor_file import TensorFile

Array = npt.NDArray[Any]

KIND = "qsa_attention"
HEADS, KV_HEADS, HEAD_DIM = 16, 2, 256
CONFIG: dict[str, Any] = {
    **qsa.CONFIG,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
}


@dataclass(frozen=True)
class CaseShape:
    """Chunks the reference was run in, rows that are kept, and the budget in tokens."""

    chunks: tuple[int, ...]
    rows: tuple[int, ...]
    budget: int

    @property
    def tokens(self) -> int:
        """Tokens of the case."""
        return sum(self.chunks)


CASES = (
    CaseShape((2049, 2, 1, 1, 1, 1, 1), (2047, 2050, 2051, 2052, 2053, 2054, 2055), 2048),
    CaseShape(
        (1, 3, 4, 5, 1, 1, 20, 13, 22),
        (2, 13, 18, 19, 20, 22, 34, 35, 48, 51, 69),
        16,
    ),
)


@dataclass(frozen=True)
class AttentionCase:
    """One case, T tokens and R rows; bfloat16 as uint16.

    `fused_qk` [T, 640]; `keys`, `values` [T, 2, 256] as cached; `q` (roped) and `context`
    [R, 16, 256]; `mask` [R, T] u8, the tokens that a row attends to; `cos`, `sin` [T, 64].
    """

    index: int
    shape: CaseShape
    fused_qk: Array
    cos: Array
    sin: Array
    keys: Array
    values: Array
    q: Array
    context: Array
    mask: Array

    @property
    def tokens(self) -> int:
        """Tokens of the case."""
        return self.shape.tokens


def cases(source: Golden | TensorFile) -> tuple[AttentionCase, ...]:
    """Return the two cases."""
    found = []
    names = ("fused_qk", "keys", "values", "q", "context", "mask")
    for index, shape in enumerate(CASES):
        own = {name: source.tensors[f"case{index}.{name}"] for name in names}
        tables = {name: source.tensors[name][: shape.tokens] for name in ("cos", "sin")}
        found.append(AttentionCase(index=index, shape=shape, **own, **tables))
    return tuple(found)


def expected_tensors() -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return dtype and shape of every tensor by name."""
    longest = max(shape.tokens for shape in CASES)
    found: dict[str, tuple[str, tuple[int, ...]]] = {
        "q_norm_weight": ("bf16", (qsa.HEAD_DIM,)),
        "k_norm_weight": ("bf16", (qsa.HEAD_DIM,)),
        "cos": ("bf16", (longest, qsa.ROTARY_DIM)),
        "sin": ("bf16", (longest, qsa.ROTARY_DIM)),
    }
    for index, shape in enumerate(CASES):
        rows, tokens = len(shape.rows), shape.tokens
        found |= {
            f"case{index}.fused_qk": ("bf16", (tokens, qsa.FUSED)),
            f"case{index}.keys": ("bf16", (tokens, KV_HEADS, HEAD_DIM)),
            f"case{index}.values": ("bf16", (tokens, KV_HEADS, HEAD_DIM)),
            f"case{index}.q": ("bf16", (rows, HEADS, HEAD_DIM)),
            f"case{index}.context": ("bf16", (rows, HEADS, HEAD_DIM)),
            f"case{index}.mask": ("u8", (rows, tokens)),
        }
    return found


def verify(contents: TensorFile) -> list[str]:
    """Return the facts checked; raise GoldenError at the first violation."""
    expected = expected_tensors()
    for name in sorted(set(expected) ^ set(contents.tensors)):
        raise GoldenError(f"tensor {name} is {'missing' if name in expected else 'unknown'}")
    for name, (dtype, shape) in expected.items():
        held = (contents.dtypes[name], tuple(contents.tensors[name].shape))
        if held != (dtype, shape):
            raise GoldenError(
                f"{name} is {held[0]} {list(held[1])}, expected {dtype} {list(shape)}"
            )
        if dtype == "bf16" and not np.isfinite(to_float32(contents.tensors[name])).all():
            raise GoldenError(f"{name} holds values that are not finite")
    text = contents.metadata.get("config", "")
    if text != config_text():
        raise GoldenError("metadata config is not this geometry's")
    for case in cases(contents):
        _check_masks(case)
    rows = sum(len(shape.rows) for shape in CASES)
    return [
        f"{len(expected)} tensors of the expected types and shapes, all finite",
        f"{rows} masks of budget and tail",
    ]


def config_text() -> str:
    """Return the config as the metadata spells it."""
    return qsa.config_text(CONFIG)


def _check_masks(case: AttentionCase) -> None:
    for row, position in enumerate(case.shape.rows):
        blocks, tail = divmod(position + 1, qsa.RATIO)
        kept = min(case.shape.budget // qsa.RATIO, blocks) * qsa.RATIO
        mask = case.mask[row]
        whole = mask[: blocks * qsa.RATIO].reshape(blocks, qsa.RATIO)
        right = (
            int(mask.sum()) == kept + tail
            and bool((whole == whole[:, :1]).all())
            and bool(mask[blocks * qsa.RATIO : position + 1].all())
        )
        if not right:
            raise GoldenError(
                f"case {case.index}, row {row} (position {position}): its mask is no selection of "
                f"{kept // qsa.RATIO} blocks and {tail} tokens"
            )
