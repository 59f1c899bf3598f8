"""What of the QSA runtime is timed: a decode step, from the new token to its context.

The launches are the runtime's own: a batch is driven over tensors that are mere addresses, and what
it launches becomes the program. So a step is timed as an engine would capture it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from qsa_bench.bf16 import round_to_bf16
from qsa_bench.engine.qsa_decode import QsaDecodeBatch
from qsa_bench.engine.qsa_geometry import QsaGeometry
from qsa_bench.engine.qsa_indexer import QsaCache, QsaIndexer
from qsa_bench.engine.qsa_launch import KERNELS, Address, QsaKernels
from qsa_bench.engine.qsa_memory import WIDTHS, ArenaMemory, ArenaTensor, Tensor
from qsa_bench.engine.qsa_sequence import QsaSequence
from qsa_bench.families import seeded
from qsa_bench.model import Finding, Kernel, Role
from qsa_bench.oracles.qsa_numerics import FUSED_STRIDE, PooledKeys, ScoreOracle, score_oracle
from qsa_bench.oracles.select import kept_blocks
from qsa_bench.program import At, Buffer, Call, Program, Value
from qsa_bench.stages import _qsa_attention as attention
from qsa_bench.stages import _qsa_inputs as qsa
from qsa_bench.stages._qsa_step_judge import Step, all_keys, judge_step
from qsa_bench.stages.base import Outputs, SweepAxis, SweepPoint, SweepSpec

Array = npt.NDArray[Any]

_ENTRY = "qsa_decode_step"
_PAGE_TOKENS, _BUDGET, _BF16 = 64, 2048, 2
_CONTEXTS = ("8192", "65536", "262144")
INPUTS = {"normal": "N(0, 1) queries, keys and values"}
_TOKEN_BYTES = 2 * attention.KV_HEADS * attention.HEAD_DIM * _BF16
# Far enough apart that an address tells its tensor.
_APART = 1 << 44
_DTYPES = {"bfloat16": "bf16", "float32": "f32", "int32": "i32"}
_OUTPUTS = ("ids", "counts", "context")


class _Addresses(ArenaMemory):
    """Memory that there is none of: every tensor has an address far from all others."""

    def __init__(self) -> None:
        super().__init__(0, 0, cuda=False)
        self.tensors: list[ArenaTensor] = []

    def empty(self, shape: Sequence[int], dtype: str) -> ArenaTensor:
        """Return a tensor that must not be touched."""
        made = ArenaTensor((len(self.tensors) + 1) * _APART, tuple(shape), dtype)
        self.tensors.append(made)
        return made

    def write(self, target: Tensor, values: Sequence[int]) -> None:
        """Nothing: what a step writes from the host is written before it is captured."""


class _Recorder(QsaKernels):
    """Takes launches down instead of making them; a tensor is named by its first argument."""

    def __init__(self, memory: _Addresses, kernels: Sequence[Kernel]) -> None:
        self._memory = memory
        self._kernels = {kernel.name: kernel for kernel in kernels}
        self.calls: list[Call] = []
        self.names: dict[int, str] = {}

    def launch(self, entry: str, *arguments: Tensor | int | float | None) -> None:
        """Take a launch down."""
        kernel = self._kernels[KERNELS[entry]]
        words = [a for a in kernel.entry(entry).arguments if a.name != "stream"]
        values: dict[str, Value] = {}
        for word, given in zip(words, arguments, strict=True):
            if given is None or not word.is_pointer:
                values[word.name] = given if isinstance(given, int | float) else None
            else:
                values[word.name] = self._place(word.name, given)
        self.calls.append(Call(kernel.name, entry, values))

    def _place(self, name: str, given: Any) -> Value:
        address = int(given) if isinstance(given, Address) else given.data_ptr()
        number, offset = divmod(address, _APART)
        tensor = self._memory.tensors[number - 1]
        found = self.names.setdefault(number, name)
        return At(found, offset // WIDTHS[tensor.dtype])


@dataclass(frozen=True)
class _Recorded:
    """A step's calls, and its tensors by the names the calls use."""

    calls: tuple[Call, ...]
    tensors: Mapping[str, ArenaTensor]


def recorded_step(kernels: Sequence[Kernel], capacity: int) -> _Recorded:
    """Return what the runtime launches for one sequence of a full capacity."""
    memory = _Addresses()
    recorder = _Recorder(memory, kernels)
    weights = [memory.empty((qsa.HEAD_DIM,), "bfloat16") for _ in range(2)]
    tables = [memory.empty((capacity, qsa.ROTARY_DIM), "bfloat16") for _ in range(2)]
    geometry = QsaGeometry(capacity, _BUDGET, slab_rows=1, page_tokens=_PAGE_TOKENS)
    indexer = QsaIndexer(recorder, memory, geometry, *weights, *tables)
    pages = (capacity // _PAGE_TOKENS, _PAGE_TOKENS, attention.KV_HEADS, attention.HEAD_DIM)
    keys, values = (memory.empty(pages, "bfloat16") for _ in range(2))
    cache = QsaCache(keys, values, memory.empty((1, pages[0]), "int32"))
    QsaDecodeBatch(indexer, [QsaSequence(indexer)], cache).launch()
    tensors = {name: memory.tensors[number - 1] for number, name in recorder.names.items()}
    return _Recorded(tuple(recorder.calls), tensors)


@lru_cache(maxsize=1)
def _step(context: int) -> Step:
    """Return a step at a context's last position, whose token completes a block."""
    random = seeded("qsa-engine", "sweep", context)
    pages = context // _PAGE_TOKENS
    tables = [np.zeros((context, qsa.ROTARY_DIM), dtype=np.uint16) for _ in range(2)]
    angle = np.arange(context - qsa.RATIO, context)[:, None] * qsa.ROPE_THETA ** (
        -np.arange(0, qsa.ROTARY_DIM, 2, dtype=np.float64) / qsa.ROTARY_DIM
    )
    for table, function in zip(tables, (np.cos, np.sin), strict=True):
        table[-qsa.RATIO :] = round_to_bf16(np.tile(function(angle), 2))

    def normal(*shape: int, scale: float = 1.0) -> Array:
        return round_to_bf16(scale * random.standard_normal(shape))

    weights = [normal(qsa.HEAD_DIM, scale=0.2) for _ in range(2)]
    fused = normal(1, FUSED_STRIDE)
    keys = normal(context // qsa.RATIO, qsa.HEAD_DIM)
    made = Step(
        inputs=qsa.Inputs(fused, *weights, *tables),
        q=normal(1, attention.HEADS, attention.HEAD_DIM),
        raw_keys=normal(qsa.RATIO, qsa.HEAD_DIM),
        block_keys=keys,
        pages=random.permutation(pages).astype(np.int32),
        page_tokens=_PAGE_TOKENS,
        budget=_BUDGET,
        held={},
    )
    # Only what a right selection reads is filled: the rest of the cache stays untouched zeros.
    scores = oracle(made, all_keys(made)).value[0]
    blocks = kept_blocks(scores.astype(np.float32), _BUDGET // qsa.RATIO)
    slots = np.unique(blocks * qsa.RATIO // _PAGE_TOKENS)
    shape = (2, _PAGE_TOKENS, attention.KV_HEADS, attention.HEAD_DIM)
    for slot in slots:
        made.held[int(slot)] = normal(*shape)
    return made


def oracle(step: Step, keys: PooledKeys) -> ScoreOracle:
    """Return the scores of the step's row against block keys."""
    position = np.array([step.position], dtype=np.int32)
    inputs = step.inputs
    return score_oracle(
        inputs.fused_qk,
        inputs.q_norm_weight,
        inputs.cos,
        inputs.sin,
        keys,
        position,
        position + 1,
        qsa.EPS,
        step.position,
        step.position // qsa.RATIO + 1,
    )


def _program(kernels: Sequence[Kernel], step: Step) -> Program:
    recorded = recorded_step(kernels, step.context)
    filled = step.filled()
    made = []
    for name, tensor in recorded.tensors.items():
        dtype, segments = _DTYPES[tensor.dtype], filled.get(name)
        if name in ("raw_keys", "block_keys"):
            role = Role.INOUT
        elif name in _OUTPUTS:
            role = Role.OUTPUT
        else:
            role = Role.SCRATCH if segments is None else Role.INPUT
        made.append(Buffer(name, dtype, tensor.shape, role, segments=tuple(segments or ())))
    return Program(tuple(made), recorded.calls)


def sweep_of(kernels: Sequence[Kernel]) -> SweepSpec:
    """Return what is timed of the runtime over these kernels."""

    def point(entry: str, axes: Mapping[str, str]) -> SweepPoint:
        step = _step(int(axes["context"]))

        def judge(_program: Program, outputs: Outputs) -> Iterable[Finding]:
            return judge_step(step, outputs, oracle)

        blocks = step.context // qsa.RATIO
        kept = min(_BUDGET, step.context)
        # Block keys once; what is gathered once from the cache, then written and read again.
        read = blocks * qsa.HEAD_DIM * _BF16 + 2 * kept * _TOKEN_BYTES
        written = kept * _TOKEN_BYTES + attention.HEADS * attention.HEAD_DIM * _BF16
        made = _program(kernels, step)
        return SweepPoint(entry, dict(axes), made, judge, read, written)

    return SweepSpec(
        entries=(_ENTRY,),
        axes={
            "context": SweepAxis("size", "tokens of the sequence", _CONTEXTS),
            "input": SweepAxis("word", "kind of vectors", ("normal",), INPUTS),
        },
        standard=({"context": _CONTEXTS, "cache": ("warm", "cold")},),
        point=point,
        pipeline=True,
    )
