"""The runtime on the golden of attention with a cache: other chunks than the reference's, its context.

Diagnostics that an engineer would ask for (what the selection keeps of the attention, how far it
is from dense attention) are counted on the long case.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from qsa_bench.bf16 import to_float32
from qsa_bench.compare import bounded
from qsa_bench.engine import qsa_script as script
from qsa_bench.goldens import Golden
from qsa_bench.goldens.qsa_attention import AttentionCase
from qsa_bench.model import Finding
from qsa_bench.oracles.qsa_attention import attend
from qsa_bench.stages import _qsa_inputs as qsa
from qsa_bench.stages import _qsa_paged
from qsa_bench.stages._qsa_engine import Batch, Operation, Script
from qsa_bench.stages.base import Outputs

Array = npt.NDArray[Any]

CHECKS = {
    "reference-context": "contexts are the reference's own, within the bounds of both and what blocks "
    "tied at the cut weigh",
}
# Rows past the bound that a prefill attends to; the rest is decoded.
_PREFILLED = 2

# A run prints counts: shares are in millionths, norms in thousandths.
NUMBERS = {
    "first_selective_row": "first position of the long golden case whose selection drops a token",
    "cosine_short_of_one": "most that the cosine between a head's selected context and its dense "
    "one lacks of 1, in millionths",
    "mass_dropped": "most of a head's attention that the selection drops, in millionths",
    "norm_inert_row": "norm of the context at the last row before the bound, in thousandths",
    "norm_first_selective": "norm of the context at the first selective row, in thousandths",
    "norm_last_row": "norm of the context at the last row, in thousandths",
}


def script_of(golden: Golden, case: AttentionCase) -> Script:
    """Return the golden's prompt in two uneven chunks, then token by token through a batch.

    Output row i is the i-th kept row; rows that are not kept lie behind them.
    """
    tokens, budget = case.tokens, case.shape.budget
    bound = budget + qsa.RATIO - 1
    prefilled = bound + _PREFILLED
    inputs = qsa.Inputs(
        case.fused_qk,
        golden.tensors["q_norm_weight"],
        golden.tensors["k_norm_weight"],
        case.cos,
        case.sin,
    )
    q = np.zeros((tokens, 16, 256), dtype=np.uint16)
    q[list(case.shape.rows)] = case.q
    cache = _qsa_paged.paged(case.keys[None], case.values[None], 64, "golden", case.index)
    split = bound - 3
    operations = [
        Operation(script.INGEST, 0, (0, split, 0)),
        Operation(script.PREFILL, 0, (split, prefilled - split, split, split - bound)),
    ]
    batches = []
    for step, position in enumerate(range(prefilled, tokens)):
        batches.append(Batch((position,), (position,)))
        operations.append(Operation(script.BATCH, 0, (step, position - bound)))
    return Script(
        inputs,
        q,
        cache,
        tuple(operations),
        1,
        tokens,
        budget,
        tokens - bound,
        tuple(batches),
        slab_rows=64,
    )


def judge_reference(case: AttentionCase, outputs: Outputs) -> Iterator[Finding]:
    """Hold the contexts of the kept selective rows to the reference's."""
    bound = case.shape.budget + qsa.RATIO - 1
    kept = [(row, p) for row, p in enumerate(case.shape.rows) if p >= bound]
    want, got, bounds = [], [], []
    for row, position in kept:
        ids = outputs["ids_out"][position - bound][: int(outputs["counts_out"][position - bound])]
        ours = np.zeros(case.tokens, dtype=bool)
        ours[ids[(ids >= 0) & (ids < case.tokens)]] = True
        want.append(to_float32(case.context[row]).astype(np.float64))
        got.append(to_float32(outputs["context_out"][position - bound]).astype(np.float64))
        bounds.append(_bound(case, row, ours))
    numbers = {}
    if case.index == 0:
        numbers = {**diagnostics(case), **row_diagnostics(case, outputs)}
    finding = bounded(
        "reference-context", "context", np.stack(want), np.stack(got), np.stack(bounds)
    )
    yield replace(finding, evidence=replace(finding.evidence, numbers=numbers))


def _bound(case: AttentionCase, row: int, ours: Array) -> Array:
    """Return how far our context may lie from the reference's: both bounds, and what differs."""
    theirs = case.mask[row].astype(bool)
    attended = attend(case.q[row], case.keys[theirs], case.values[theirs])
    either = ours | theirs
    together = attend(case.q[row], case.keys[either], case.values[either])
    odd = (ours != theirs)[either]
    weight = together.weights[:, odd].sum(axis=1)
    largest = np.abs(to_float32(case.values[either]).astype(np.float64)).max(axis=0)
    # A selection that has nothing in common with the reference's is held elsewhere.
    share = weight[:, None] / np.maximum(1 - weight[:, None], 1e-9)
    spread = 2 * share * np.repeat(largest, 8, axis=0)
    return np.asarray(2 * attended.bound + 2 * spread)


def diagnostics(case: AttentionCase) -> Mapping[str, float]:
    """Return what the selection costs on the reference's own rows."""
    bound = case.shape.budget + qsa.RATIO - 1
    cosines, masses = [], []
    for row, position in enumerate(case.shape.rows):
        if position < bound:
            continue
        seen = slice(0, position + 1)
        dense = attend(case.q[row], case.keys[seen], case.values[seen])
        kept = case.mask[row][seen].astype(bool)
        masses.append(dense.weights[:, kept].sum(axis=1).min())
        chosen = attend(case.q[row], case.keys[seen][kept], case.values[seen][kept]).value
        norms = np.linalg.norm(dense.value, axis=1) * np.linalg.norm(chosen, axis=1)
        cosines.append(((dense.value * chosen).sum(axis=1) / norms).min())

    def norm(position: int) -> float:
        return 1e3 * _norm(case.context[case.shape.rows.index(position)])

    selective = [p for row, p in enumerate(case.shape.rows) if case.mask[row].sum() < p + 1]
    return {
        "first_selective_row": float(min(selective)),
        "cosine_short_of_one": (1 - float(min(cosines))) * 1e6,
        "mass_dropped": (1 - float(min(masses))) * 1e6,
        "norm_inert_row": norm(bound - 1),
        "norm_first_selective": norm(bound),
        "norm_last_row": norm(case.tokens - 1),
    }


def row_diagnostics(case: AttentionCase, outputs: Outputs) -> dict[str, float]:
    """Return what our own selection costs each kept row, by "what@row".

    The cosine between a head's dense context and the one that came out, and the share of its
    attention that the selection keeps, of the worst head; the norm of the row's context.
    """
    bound = case.shape.budget + qsa.RATIO - 1
    inert = case.shape.rows.index(bound - 1)
    # Every token of this row is selected: its context is the dense one.
    found = {f"norm@{bound - 1}, inert": _norm(case.context[inert])}
    for row, position in enumerate(case.shape.rows):
        if position < bound:
            continue
        out = position - bound
        seen = slice(0, position + 1)
        dense = attend(case.q[row], case.keys[seen], case.values[seen])
        ids = outputs["ids_out"][out][: int(outputs["counts_out"][out])]
        ours = np.zeros(position + 1, dtype=bool)
        ours[ids[(ids >= 0) & (ids <= position)]] = True
        context = to_float32(outputs["context_out"][out]).astype(np.float64)
        # A mutant's context may be anything.
        with np.errstate(all="ignore"):
            norms = np.linalg.norm(dense.value, axis=1) * np.linalg.norm(context, axis=1)
            cosine = (dense.value * context).sum(axis=1) / np.maximum(norms, 1e-300)
        place = f"{position}{_place(out)}"
        found[f"cosine_with_dense@{place}"] = float(cosine.min())
        found[f"attention_kept@{place}"] = float(dense.weights[:, ours].sum(axis=1).min())
        found[f"norm@{place}"] = _norm(outputs["context_out"][out])
    return found


def _place(out: int) -> str:
    """Say which row past the bound is first, and which the last that the slab of a prefill has."""
    return {0: ", first selective", _PREFILLED - 1: ", last of its slab"}.get(out, "")


def _norm(context: Array) -> float:
    with np.errstate(all="ignore"):
        return float(np.linalg.norm(to_float32(context).astype(np.float64)))
