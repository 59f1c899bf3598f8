"""The QSA pipeline: fused rows to block keys to scores to mask, judged as one.

A gate over recorded scores never sees a wrong score, and a gate of scores never sees what becomes
of them; here one kernel's output is the next one's input. Mutants: mutations/qsa_chain/.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from qsa_bench.compare import bitwise, bounded
from qsa_bench.goldens import Golden
from qsa_bench.goldens import qsa as qsa_golden
from qsa_bench.model import Evidence, Finding, Role, Status
from qsa_bench.oracles.qsa_flips import explain_scores
from qsa_bench.oracles.qsa_numerics import (
    PooledKeys,
    ScoreOracle,
    pool_oracle,
    score_oracle,
)
from qsa_bench.oracles.select import select
from qsa_bench.program import At, Buffer, Call, Program, Value
from qsa_bench.stages import _qsa_inputs as qsa
from qsa_bench.stages import (
    _qsa_pool_launch,
    _qsa_score_judge,
    _qsa_score_launch,
    qsa_pool,
    qsa_select,
)
from qsa_bench.stages._qsa_chain_sweep import SWEEP
from qsa_bench.stages.base import FEW_SCHEDULES, ONE_SCHEDULE, Case, Outputs, Stage

Array = npt.NDArray[Any]

STAGE_NAME = "qsa_chain"
_SEEDS = 20
_CHECKED_BYTES = 300_000

CLAUSES = {
    "keys-once": "keys pooled once serve every row, those that complete later are added to them",
    "scores": "scores computed from fused rows lie within the bound that both roundings span",
    "selection": "the mask is the stable selection of the computed scores",
    "reference": "the mask is the reference's, except where scores lie within their bound of the cut",
    "hand-over": "every stage reads what the one before it wrote, and nothing else",
}
CHECKS = {
    "block-keys": qsa_pool.CHECKS["block-keys"],
    **_qsa_score_judge.CHECKS,
    "reference-scores": "the golden's recorded scores and the computed ones lie within the sum of "
    "their bounds",
    "mask": "the mask equals the stable oracle's on the computed scores, bit by bit",
    "reference-mask": "the mask equals the reference's (of generated inputs: the float64 oracle's) "
    "except at blocks within the bound of the cut",
}
NUMBERS = {
    **_qsa_score_judge.NUMBERS,
    "reference_beyond": "recorded scores more than 2e-6 from the float64 oracle",
    "reference_flips": "elements which the reference rounded the other legal way",
    "reference_unexplained": "recorded scores that those flips leave more than 2e-6 away",
    "near_cut": "blocks whose score lies within its bound of the cut, where either pick is right",
    "differing_blocks": "of them picked otherwise than the reference did",
}


@dataclass(frozen=True)
class Step:
    """One pass through the pipeline: blocks to pool, then rows to score and select.

    `pooled` is (first block, count). `fused_first` cuts the fused rows that the score reads at a
    position, as decode does. Steps share the block keys.
    """

    pooled: tuple[int, int]
    rows: tuple[int, ...]
    fused_first: int = 0


@dataclass(frozen=True)
class Pipeline:
    """A sequence, its steps and the selection's budget.

    `extra_cols` widens the rows of scores; `reused` gives every step the same rows of scores, so
    that a later step finds what an earlier one left.
    """

    inputs: qsa.Inputs
    steps: tuple[Step, ...]
    budget: int
    extra_cols: int = 0
    reused: bool = False

    @property
    def rows(self) -> tuple[int, ...]:
        """Positions of all steps, in the order of the mask's rows."""
        return tuple(row for step in self.steps for row in step.rows)

    @property
    def score_cols(self) -> int:
        """Row stride of the scores."""
        return max(1, self.inputs.blocks) + self.extra_cols


def whole(inputs: qsa.Inputs, rows: Sequence[int], budget: int, extra_cols: int = 0) -> Pipeline:
    """Return the pipeline that pools every block and then serves all rows in one step."""
    return Pipeline(inputs, (Step((0, inputs.blocks), tuple(rows)),), budget, extra_cols)


def program(pipeline: Pipeline) -> Program:
    """Return the program: pool, score and select, once a step."""
    inputs = pipeline.inputs
    launch = _qsa_score_launch.Launch(
        inputs,
        np.zeros((inputs.blocks, qsa.HEAD_DIM), dtype=np.uint16),
        pipeline.rows,
        [row + 1 for row in pipeline.rows],
        extra_cols=pipeline.extra_cols,
    )
    rows, visible, scores = _qsa_score_launch.row_buffers(launch)
    if pipeline.reused:
        most = max(len(step.rows) for step in pipeline.steps)
        scores = replace(scores, shape=(most, pipeline.score_cols))
    calls: list[Call] = []
    done = 0
    for step in pipeline.steps:
        calls += _step_calls(pipeline, launch, step, done)
        done += len(step.rows)
    mask = Buffer("mask", "u8", (len(pipeline.rows), inputs.tokens), Role.OUTPUT)
    names = ("fused_qk", "q_norm_weight", "k_norm_weight", "cos", "sin")
    buffers = (
        *inputs.buffers(*names),
        _qsa_pool_launch.keys_buffer(inputs),
        rows,
        visible,
        scores,
        mask,
    )
    return Program(buffers, tuple(calls))


def _step_calls(
    pipeline: Pipeline, launch: _qsa_score_launch.Launch, step: Step, done: int
) -> Iterator[Call]:
    """Yield the calls of a step whose rows follow `done` rows of earlier ones."""
    inputs, cols = pipeline.inputs, pipeline.score_cols
    count = len(step.rows)
    width = int(inputs.fused_qk.shape[1])
    scores = At("scores", 0 if pipeline.reused else done * cols)
    rows = At("rows", done)
    if step.pooled[1]:
        yield _qsa_pool_launch.pool_call(inputs, *step.pooled)
    whole_call = _qsa_score_launch.score_call(launch)
    values: dict[str, Value] = {
        **whole_call.values,
        "fused_qk": At("fused_qk", step.fused_first * width),
        "rows": rows,
        "visible_len": At("visible_len", done),
        "scores": scores,
        "row_count": count,
        "first_position": step.fused_first,
        "fused_rows": inputs.tokens - step.fused_first,
    }
    yield replace(whole_call, values=values)
    yield Call(
        qsa_select.KERNEL.name,
        "qsa_select",
        {
            "scores": scores,
            "rows": rows,
            "mask": At("mask", done * inputs.tokens),
            "row_count": count,
            "tokens": inputs.tokens,
            "score_cols": cols,
            "budget": pipeline.budget,
        },
    )


def _oracles(pipeline: Pipeline) -> tuple[PooledKeys, ScoreOracle]:
    inputs = pipeline.inputs
    keys = pool_oracle(inputs.fused_qk, inputs.k_norm_weight, inputs.cos, inputs.sin, qsa.EPS)
    positions = np.array(pipeline.rows, dtype=np.int32)
    scores = score_oracle(
        inputs.fused_qk,
        inputs.q_norm_weight,
        inputs.cos,
        inputs.sin,
        keys,
        positions,
        positions + 1,
        qsa.EPS,
        score_cols=pipeline.score_cols,
    )
    return keys, scores


def last_written(pipeline: Pipeline, want: ScoreOracle) -> ScoreOracle:
    """Return what rows of scores that every step writes anew hold at the end: each column's last."""
    shape = (max(len(step.rows) for step in pipeline.steps), pipeline.score_cols)
    left = replace(
        want,
        value=np.full(shape, np.nan),
        bound=np.full(shape, np.nan),
        written=np.zeros(shape, dtype=bool),
        flagged=np.zeros(shape, dtype=bool),
    )
    done = 0
    for step in pipeline.steps:
        for row in range(len(step.rows)):
            fresh = want.written[done + row]
            left.value[row, fresh] = want.value[done + row, fresh]
            left.bound[row, fresh] = want.bound[done + row, fresh]
            left.flagged[row, fresh] = want.flagged[done + row, fresh]
            left.written[row, fresh] = True
        done += len(step.rows)
    return left


def _stable_mask(pipeline: Pipeline, scores: Array) -> Array:
    """Return the stable selection of the pipeline's rows by `scores` [rows, score_cols]."""
    return stable_mask(scores, pipeline.rows, pipeline.inputs.tokens, pipeline.budget)


def stable_mask(scores: Array, rows: Sequence[int], tokens: int, budget: int) -> Array:
    """Return the stable selection by `scores` [rows, score_cols]; what is not finite counts as 0."""
    usable = np.where(np.isfinite(scores), scores, 0).astype(np.float32)
    return select(usable.reshape(-1), np.array(rows), tokens, scores.shape[1], budget).mask


def against_reference(
    want: ScoreOracle, mask: Array, reference: Array, rows: Sequence[int], budget: int
) -> Finding:
    """Hold a mask to the reference's, both [rows, tokens] u8.

    A block may differ only where scores within their bounds can put it on either side of the cut;
    it has to be kept or dropped whole, and as many have to be kept.
    """
    near, differing, wrong, first = 0, 0, 0, ""
    for row, position in enumerate(rows):
        blocks = (position + 1) // qsa.RATIO
        keep = min(budget // qsa.RATIO, blocks)
        at_cut = _at_cut(want.value[row, :blocks], want.bound[row, :blocks], keep)
        odd = mask[row] != reference[row]
        by_block = odd[: blocks * qsa.RATIO].reshape(blocks, qsa.RATIO)
        changed = by_block.any(axis=1)
        near += int(at_cut.sum())
        differing += int((changed & at_cut).sum())
        kept = int(mask[row, : blocks * qsa.RATIO].sum())
        wrong += int((changed & ~at_cut).sum()) + int((changed & ~by_block.all(axis=1)).sum())
        wrong += int(odd[blocks * qsa.RATIO :].sum()) + int(kept != keep * qsa.RATIO)
        if wrong and not first:
            first = f"row {row} (position {position})"
    evidence = Evidence(
        wrong,
        mask.size,
        "blocks",
        first=first,
        where=first,
        note=f"{wrong} blocks differ from the reference away from the cut" if wrong else "",
        numbers={"near_cut": float(near), "differing_blocks": float(differing)},
    )
    return Finding("reference-mask", Status.WRONG if wrong else Status.PASS, evidence)


def _at_cut(value: Array, bound: Array, keep: int) -> Array:
    """Return which blocks [blocks] a correct kernel may keep or drop; none where all are kept.

    A block must stay when fewer than `keep` others can reach it, and must go when `keep` others
    lie above it whatever their errors.
    """
    low, high = value - bound, value + bound
    can_reach = value.size - np.searchsorted(np.sort(high), low, side="left") - 1
    surely_above = value.size - np.searchsorted(np.sort(low), high, side="right")
    return np.asarray((can_reach >= keep) & (surely_above < keep))


def _case(
    family: str,
    label: str,
    pipeline: Pipeline,
    recorded: qsa_golden.QsaCase | None = None,
    schedules: str = ONE_SCHEDULE,
) -> Case:
    oracles = functools.cache(lambda: _oracles(pipeline))
    recorded_finding = functools.cache(lambda: _explained(pipeline, recorded, oracles()[0]))
    built = program(pipeline)
    golden = recorded is not None

    def judge(_program: Program, outputs: Outputs) -> Iterable[Finding]:
        keys, want = oracles()
        scores, mask = outputs["scores"], outputs["mask"]
        yield from _qsa_pool_launch.judge_keys(keys, outputs["block_keys"])
        left = last_written(pipeline, want) if pipeline.reused else want
        yield from _qsa_score_judge.judge_scores(left, scores, golden)
        # Of scores that every step writes anew, those of the last one are left.
        rows = pipeline.steps[-1].rows if pipeline.reused else pipeline.rows
        computed = np.where(left.written, scores, 0)[: len(rows)]
        selected = stable_mask(computed, rows, pipeline.inputs.tokens, pipeline.budget)
        yield bitwise("mask", "mask", selected, mask[-len(rows) :], "bits")
        if recorded is not None:
            finding = _against_recorded(want, recorded.scores, scores)
            yield replace(finding, evidence=replace(finding.evidence, numbers=recorded_finding()))
        reference = recorded.mask if recorded is not None else _stable_mask(pipeline, want.value)
        held = against_reference(want, mask, reference, pipeline.rows, pipeline.budget)
        # A run prints the counts of the golden alone.
        yield held if golden else replace(held, evidence=replace(held.evidence, numbers={}))

    return Case(
        STAGE_NAME,
        family,
        label,
        tuple(CLAUSES),
        lambda: built,
        judge,
        checked=built.bytes <= _CHECKED_BYTES,
        schedules=schedules,
    )


def _explained(
    pipeline: Pipeline, recorded: qsa_golden.QsaCase | None, keys: PooledKeys
) -> dict[str, float]:
    """Count which of the reference's own scores flips explain, and what they leave."""
    assert recorded is not None
    inputs = pipeline.inputs
    found = explain_scores(
        recorded.scores,
        inputs.fused_qk,
        inputs.q_norm_weight,
        inputs.cos,
        inputs.sin,
        keys,
        recorded.rows,
        recorded.rows + np.int32(1),
        qsa.EPS,
    )
    return {
        "reference_beyond": float(found.beyond),
        "reference_flips": float(found.taken),
        "reference_unexplained": float(found.left),
    }


def _against_recorded(want: ScoreOracle, recorded: Array, got: Array) -> Finding:
    """Hold computed scores to the reference's own: both may lie within their bound of the oracle."""
    return bounded(
        "reference-scores",
        "scores",
        np.where(want.written, recorded, 0.0),
        np.where(want.written, got, 0.0),
        np.where(want.written, 2 * want.bound, 1.0),
        "scores",
    )


def cases(golden: Golden | None) -> Sequence[Case]:
    """Return every case: the golden's (if given) and generated sequences."""
    return [*(_golden_cases(golden) if golden is not None else ()), *_families()]


def _golden_cases(golden: Golden) -> Iterator[Case]:
    for case in qsa_golden.cases(golden):
        yield _case(
            "golden",
            f"case{case.index}",
            whole(qsa.of_golden(golden, case), case.rows.tolist(), case.budget),
            case,
            schedules=ONE_SCHEDULE if case.tokens > 1000 else FEW_SCHEDULES,
        )


def _families() -> Iterator[Case]:
    for seed in range(_SEEDS):
        inputs = qsa.random_inputs(120, "chain", seed)
        yield _case("seeds", str(seed), whole(inputs, (119, 90, 64, 3), 32))
    for scale in (3e-3, 30.0):
        inputs = qsa.random_inputs(80, "chain", scale=scale)
        yield _case("scale", f"{scale:g}", whole(inputs, (79, 66, 41), 16), schedules=FEW_SCHEDULES)
    yield _case("zeros", "opposed", whole(qsa.opposed_heads(60), (59, 38), 16))
    spare = whole(qsa.random_inputs(52, "chain", "spare"), (51, 10, 33), 16, extra_cols=3)
    yield _case("spare-cols", "3", spare, schedules=FEW_SCHEDULES)
    for label, reused in (("kept", False), ("reused", True)):
        yield _case("decode", label, _decode(reused), schedules=FEW_SCHEDULES)


def _decode(reused: bool) -> Pipeline:
    """Return a prefill of 70 tokens, a chunk of 9 and then token by token, one row of scores each.

    A block is pooled when its last token comes. The rows of a later step may see less than those
    of an earlier one saw, as after a rewind.
    """
    inputs = qsa.random_inputs(88, "chain", "decode")
    steps = [Step((0, 17), (69,)), Step((17, 2), (78,), 70)]
    for position in range(79, 88):
        completes = (position + 1) % qsa.RATIO == 0
        steps.append(Step(((position + 1) // qsa.RATIO - 1, int(completes)), (position,), position))
    steps.append(Step((0, 0), (37,), 30))
    return Pipeline(inputs, tuple(steps), 24, extra_cols=2, reused=reused)


STAGE = Stage(
    name=STAGE_NAME,
    summary="QSA pipeline: fused rows to block keys to scores to mask",
    kernels=(_qsa_pool_launch.KERNEL, _qsa_score_launch.KERNEL, qsa_select.KERNEL),
    clauses=CLAUSES,
    checks=CHECKS,
    cases=cases,
    sweep=SWEEP,
    golden_kind="qsa",
    numbers=NUMBERS,
)
