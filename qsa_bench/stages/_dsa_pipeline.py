"""Programs of the DSA pipeline: four kernels a step over one scratch, live or replayed.

Every call goes through the launches of qsa_bench/engine, so what an engine would decide (offsets,
strides, capacities) is decided here too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from qsa_bench.engine.dsa_geometry import DsaSelectGeometry
from qsa_bench.model import Role
from qsa_bench.oracles.dsa_pools import compress
from qsa_bench.oracles.qsa_numerics import Flips, PooledKeys
from qsa_bench.program import OK, At, Buffer, Call, Program, Value
from qsa_bench.stages import _dsa_inputs as dsa
from qsa_bench.stages import _dsa_score_judge
from qsa_bench.stages._dsa_score_judge import Wanted

Array = npt.NDArray[Any]

_SURFACE = "qsa_bench.engine.dsa_select"
_KERNELS = {
    "write_geometry": "dsa_write_geom",
    "compress": "dsa_kpool_compress",
    "score": "dsa_index_scores",
    "select": "dsa_topk_pools",
    "expand": "dsa_expand_selection",
}


@dataclass(frozen=True)
class Step:
    """One pass: live tokens, how many are fresh, and how many of the inputs' next rows it serves.

    A step of no rows selects nothing. The rows' positions are the inputs' q_pos.
    """

    live: int
    fresh: int
    rows: int


@dataclass(frozen=True)
class Pipeline:
    """Inputs, whose rows are those of all steps in order, and the steps.

    `replayed` launches at the ceiling of all tokens, a row a step. More steps than one need one
    sequence: rows of a batch would not lie side by side.
    """

    inputs: dsa.Inputs
    steps: tuple[Step, ...]
    replayed: bool = False
    select_tail: bool = True

    @property
    def layout(self) -> DsaSelectGeometry:
        """The scratch of all steps."""
        inputs = self.inputs
        return DsaSelectGeometry(
            context=inputs.tokens,
            tokens=inputs.tokens,
            query_rows=1,
            batch=inputs.batch,
            most_rows=max(step.rows for step in self.steps),
            topk=inputs.topk,
            kpool=inputs.kpool,
            select_tail=self.select_tail,
            padded=inputs.valid is not None,
            replayed=self.replayed,
        )

    def of_step(self, number: int) -> dsa.Inputs:
        """Return the inputs with a step's own rows alone."""
        first = sum(step.rows for step in self.steps[:number])
        rows = slice(first, first + self.steps[number].rows)
        inputs = self.inputs
        return replace(
            inputs,
            q=inputs.q[:, rows],
            weights=inputs.weights[:, rows],
            q_pos=inputs.q_pos[rows],
        )


def whole(inputs: dsa.Inputs, select_tail: bool = True) -> Pipeline:
    """Return the pipeline that pools everything and then serves all rows in one step."""
    step = Step(inputs.tokens, inputs.tokens, inputs.query_rows)
    return Pipeline(inputs, (step,), select_tail=select_tail)


def values_of(pipeline: Pipeline, **more: Value) -> dict[str, Value]:
    """Return what every launch is given: buffers by name and the layout's scalars."""
    layout = pipeline.layout
    names = ("keys", "gate", "ape", "valid", "q", "weights", "scratch", "token_ids")
    values: dict[str, Value] = {
        **dsa.names_of(*names, inputs=pipeline.inputs),
        "context": layout.context,
        "tokens": layout.tokens,
        "query_rows": layout.query_rows,
        "batch": layout.batch,
        "most_rows": layout.most_rows,
        "topk": layout.topk,
        "kpool": layout.kpool,
        "select_tail": int(layout.select_tail),
        "replayed": int(layout.replayed),
        "scratch_bytes": layout.needed_bytes,
    }
    return {**values, **more}


def program(pipeline: Pipeline) -> Program:
    """Return the program of all steps."""
    calls: list[Call] = []
    done = 0
    for step in pipeline.steps:
        calls += _calls(pipeline, step, done)
        done += step.rows
    return Program(tuple(buffers(pipeline)), tuple(calls))


def buffers(pipeline: Pipeline) -> Iterator[Buffer]:
    """Yield inputs, the scratch and the ids of all rows."""
    inputs, layout = pipeline.inputs, pipeline.layout
    names = ("keys", "gate", "ape", "valid", "q", "weights", "q_pos")
    yield from inputs.buffers(*(name for name in names if name != "q_pos" or not pipeline.replayed))
    yield Buffer("scratch", "u8", (layout.needed_bytes,), Role.OUTPUT)
    shape = (inputs.batch, inputs.query_rows, layout.output_width)
    yield Buffer("token_ids", "i32", shape, Role.OUTPUT)


def _calls(pipeline: Pipeline, step: Step, done: int) -> Iterator[Call]:
    """Yield a step's calls, whose rows follow `done` rows of earlier ones."""
    heads = dsa.HEADS * dsa.HEAD_DIM
    values = values_of(
        pipeline,
        fresh=step.fresh,
        q=At("q", done * heads),
        weights=At("weights", done * dsa.HEADS),
        token_ids=At("token_ids", done * pipeline.layout.output_width),
    )
    if pipeline.replayed:
        yield call("write_geometry", {**values, "live": step.live})
    else:
        values |= {"tokens": step.live, "query_rows": max(1, step.rows), "q_pos": At("q_pos", done)}
    yield call("compress", values)
    if step.rows:
        yield from (call(name, values) for name in ("score", "select", "expand"))


def call(name: str, values: Mapping[str, Value], expect: str | int = OK) -> Call:
    """Return a call of one of the engine's launches."""
    kernel = _KERNELS[name]
    return Call(kernel, kernel, values, expect, python=f"{_SURFACE}:{name}")


# --- oracle


@dataclass(frozen=True)
class StepWanted:
    """What a step should leave: its rows' scores, and each sequence's pool keys."""

    inputs: dsa.Inputs
    live: int
    positions: Array
    scores: Wanted
    keys: Sequence[PooledKeys]


def wanted_of(pipeline: Pipeline) -> list[StepWanted]:
    """Return the oracle of every step with rows."""
    longest = max(step.live for step in pipeline.steps)
    inputs = pipeline.inputs
    keys = [
        compress(inputs.keys[row], inputs.gate[row], inputs.ape, lists.starts)
        for row, lists in enumerate(inputs.lists(longest))
    ]
    wanted = []
    for number, step in enumerate(pipeline.steps):
        if not step.rows:
            continue
        own = pipeline.of_step(number)
        positions = np.array([step.live - 1]) if pipeline.replayed else own.q_pos
        live_keys = [
            _first(found, lists.starts.size)
            for found, lists in zip(keys, inputs.lists(step.live), strict=True)
        ]
        columns = pipeline.layout.score_cols
        scores = _dsa_score_judge.wanted(own, live_keys, positions, step.live, columns)
        wanted.append(StepWanted(own, step.live, positions, scores, live_keys))
    return wanted


def _first(keys: PooledKeys, count: int) -> PooledKeys:
    return PooledKeys(keys.value[:count], keys.low[:count], keys.high[:count], Flips())


def region_of(pipeline: Pipeline, scratch: Array, name: str) -> Array:
    """Return a region of the scratch after a run, in its dtype and shape."""
    layout = pipeline.layout
    rows = layout.batch * layout.most_rows
    dtypes: Mapping[str, tuple[str, tuple[int, ...]]] = {
        "pool_keys": ("uint16", (layout.batch, layout.pool_capacity, dsa.HEAD_DIM)),
        "scores": ("float32", (rows, layout.score_cols)),
        "visible_pools": ("int32", (rows,)),
        "kept_pools": ("int32", (rows, layout.most_kept)),
        "kept_counts": ("int32", (rows,)),
    }
    dtype, shape = dtypes[name]
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    offset = layout.offset(name)
    return scratch[offset : offset + size].view(dtype).reshape(shape)
