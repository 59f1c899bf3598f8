"""A timed decode step of the QSA runtime: what it is given, and its outputs held to the oracles."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from qsa_bench.bf16 import to_float32
from qsa_bench.compare import bitwise, bounded
from qsa_bench.model import Evidence, Finding, Status
from qsa_bench.oracles.qsa_attention import attend
from qsa_bench.oracles.qsa_numerics import (
    FUSED_STRIDE,
    KEY_COLUMN,
    Flips,
    PooledKeys,
    ScoreOracle,
    pool_oracle,
)
from qsa_bench.stages import _qsa_inputs as qsa
from qsa_bench.stages._qsa_pool_launch import judge_keys
from qsa_bench.stages.base import Outputs
from qsa_bench.stages.qsa_chain import against_reference, stable_mask

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Step:
    """One sequence's step at its last position, whose token completes a block.

    `inputs.fused_qk` [1, 640] is the token's; `raw_keys` [4, 128] are those of its block, of which
    the step brings the last; `block_keys` [blocks, 128] lie there before. `held` has keys and values
    [2, page_tokens, 2, 256] by slot of the block table `pages`; other slots hold zeros.
    """

    inputs: qsa.Inputs
    q: Array
    raw_keys: Array
    block_keys: Array
    pages: Array
    page_tokens: int
    budget: int
    held: dict[int, Array]

    @property
    def context(self) -> int:
        """Tokens with the step's."""
        return int(self.inputs.cos.shape[0])

    @property
    def position(self) -> int:
        """The token's position."""
        return self.context - 1

    def filled(self) -> dict[str, list[tuple[int, Array]]]:
        """Return what the tensors hold before the step: arrays at elements, by name."""
        inputs, first = self.inputs, self.context - qsa.RATIO
        page = self.page_tokens * 2 * 256
        whole = {
            "fused_qk": inputs.fused_qk,
            "k_norm_weight": inputs.k_norm_weight,
            "q_norm_weight": inputs.q_norm_weight,
            "block_keys": self.block_keys,
            "block_table": self.pages,
            "q": self.q,
            "position": np.array([self.position], dtype=np.int32),
        }
        return {
            **{name: [(0, tensor.reshape(-1))] for name, tensor in whole.items()},
            **{
                name: [(first * table.shape[1], table[first:].reshape(-1))]
                for name, table in (("cos", inputs.cos), ("sin", inputs.sin))
            },
            "raw_keys": [(first * qsa.HEAD_DIM, self.raw_keys.reshape(-1))],
            **{
                name: [
                    (int(self.pages[slot]) * page, held[place].reshape(-1))
                    for slot, held in self.held.items()
                ]
                for place, name in enumerate(("k_pages", "v_pages"))
            },
        }

    def tokens(self, ids: Array) -> tuple[Array, Array]:
        """Return keys and values [ids, 2, 256] of tokens."""
        nothing = np.zeros((2, self.page_tokens, 2, 256), dtype=np.uint16)
        rows = [
            self.held.get(int(token) // self.page_tokens, nothing)[:, token % self.page_tokens]
            for token in ids
        ]
        stacked = np.stack(rows, axis=1)
        return stacked[0], stacked[1]


def newest_keys(step: Step) -> tuple[Array, PooledKeys]:
    """Return the raw keys of the step's block and the block's key."""
    raw = step.raw_keys.copy()
    raw[-1] = step.inputs.fused_qk[0, KEY_COLUMN:]
    image = np.zeros((qsa.RATIO, FUSED_STRIDE), dtype=np.uint16)
    image[:, KEY_COLUMN:] = raw
    inputs = step.inputs
    tables = (inputs.cos[-qsa.RATIO :], inputs.sin[-qsa.RATIO :])
    return raw, pool_oracle(image, inputs.k_norm_weight, *tables, qsa.EPS)


def all_keys(step: Step) -> PooledKeys:
    """Return the keys of all blocks after the step."""
    _, newest = newest_keys(step)
    old = step.block_keys[:-1]
    value, low, high = (
        np.concatenate([old, part]) for part in (newest.value, newest.low, newest.high)
    )
    return PooledKeys(value, low, high, Flips())


def judge_step(
    step: Step, outputs: Outputs, oracle: Callable[[Step, PooledKeys], ScoreOracle]
) -> Iterator[Finding]:
    """Yield the findings on the new keys, the selection and the context."""
    raw, newest = newest_keys(step)
    yield bitwise("raw-keys", "raw_keys", raw, outputs["raw_keys"][-qsa.RATIO :])
    block = np.array([step.context // qsa.RATIO - 1])
    yield from judge_keys(newest, outputs["block_keys"][-1:], block)
    count = int(outputs["counts"][0])
    ids = outputs["ids"][0]
    fault = _ids_fault(step, ids, count)
    yield Finding(
        "ids",
        Status.WRONG if fault else Status.PASS,
        Evidence(int(bool(fault)), 1, "rows", note=fault),
    )
    if fault:
        return
    listed = ids[:count]
    scores = oracle(step, all_keys(step))
    mask = np.zeros((1, step.context), dtype=np.uint8)
    mask[0, listed] = 1
    reference = stable_mask(scores.value, (step.position,), step.context, step.budget)
    yield against_reference(scores, mask, reference, (step.position,), step.budget)
    want = attend(step.q[0], *step.tokens(listed))
    got = to_float32(outputs["context"][0]).astype(np.float64)
    yield bounded("context", "context", want.value, got, want.bound)


def _ids_fault(step: Step, ids: Array, count: int) -> str:
    wanted = min(step.budget, step.context)
    if count != wanted:
        return f"{count} ids are counted, {wanted} are due"
    listed = ids[:count]
    if (np.diff(listed) <= 0).any() or listed[0] < 0 or listed[-1] >= step.context:
        return "ids do not ascend within the context"
    return "" if (ids[count:] == -1).all() else "ids past the count are not -1"
