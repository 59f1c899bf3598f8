"""What the QSA reference is run on: one layer's indexer weights, and hidden states for each case.

Random inputs hide two faults. Their keys are large against eps, so a missing eps moves scores by a
millionth; and RMSNorm divides out any scale, so pooling by sum looks like pooling by mean. Hidden
states scaled down (3e-3 is enough) show both, and so may those of a real checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from qsa_bench import bf16, tensor_file
from qsa_bench.errors import UsageError
from qsa_bench.goldens import qsa
from qsa_bench.tensor_file import Array, TensorFile

# The checkpoint's names within a layer's indexer, and their shapes.
WEIGHTS: dict[str, tuple[int, ...]] = {
    "index_qk_proj.weight": (qsa.FUSED, qsa.HIDDEN),
    "q_layernorm.weight": (qsa.HEAD_DIM,),
    "k_layernorm.weight": (qsa.HEAD_DIM,),
}

# The reference's initializer_range. With hidden states of unit variance, as a norm leaves them,
# queries and keys get a standard deviation of 0.02 * sqrt(2560) = 1.01, and scores a mean of 1.6
# with a sixteenth of them exactly 0 (all four heads negative).
_PROJECTION_STD = 0.02
# The reference starts norm weights at 0, where a kernel that left them out would look right.
_NORM_STD = 0.1

_FLOATS = ("bf16", "f16", "f32", "f64")


@dataclass(frozen=True)
class Input:
    """An array as read or drawn.

    `dtype` is as in tensor_file; `origin` is "random" or the digest of the file it is from.
    """

    array: Array
    dtype: str
    origin: str


def seeded_weights(seed: int) -> dict[str, Input]:
    """Return random weights of one layer by name: normal, of the deviations above."""
    drawn = {}
    for stream, (name, shape) in enumerate(WEIGHTS.items()):
        deviation = _PROJECTION_STD if len(shape) == 2 else _NORM_STD
        drawn[name] = _normal((seed, 0, stream), shape, deviation)
    return drawn


def seeded_hidden(seed: int) -> tuple[Input, ...]:
    """Return random hidden states [T, 2560] of unit variance, drawn for each case by itself."""
    return tuple(
        _normal((seed, 1, index), (shape.tokens, qsa.HIDDEN), 1.0)
        for index, shape in enumerate(qsa.CASES)
    )


def read_weights(path: Path) -> dict[str, Input]:
    """Read one layer's indexer weights from a safetensors file, under the checkpoint's names.

    A prefix ("model.layers.3.self_attn.indexer.") and other tensors are allowed, a second layer's
    indexer is not: which one is meant would be a guess. Raises UsageError.
    """
    file = tensor_file.read(path)
    origin = f"sha256:{tensor_file.sha256(path)}"
    found = {}
    for name, shape in WEIGHTS.items():
        full = [key for key in file.tensors if key == name or key.endswith(f".indexer.{name}")]
        if not full:
            raise UsageError(f"{path}: no tensor is named {name} or ends with .indexer.{name}")
        if len(full) > 1:
            raise UsageError(
                f"{path}: {len(full)} layers have an indexer ({full[0]}, {full[1]}); "
                "give a file with one of them"
            )
        if file.tensors[full[0]].shape != shape:
            raise UsageError(
                f"{path}: {full[0]} has shape {list(file.tensors[full[0]].shape)}, "
                f"expected {list(shape)}"
            )
        found[name] = _floats(path, file, full[0], file.tensors[full[0]], origin)
    return found


def read_hidden(path: Path) -> tuple[Input, ...]:
    """Read hidden states for every case from a safetensors file. Raises UsageError.

    Either one `hidden_states` [T, 2560] (or [1, T, 2560]), of which each case takes the first
    tokens, so T must reach the longest case; or a `case{c}.hidden_states` for every case. They are
    what enters the indexer, position 0 first; more tokens than a case has are left unread.
    """
    file = tensor_file.read(path)
    origin = f"sha256:{tensor_file.sha256(path)}"
    common = "hidden_states"
    states = []
    for index, shape in enumerate(qsa.CASES):
        own = f"case{index}.{common}"
        name = common if common in file.tensors else own
        if name not in file.tensors:
            raise UsageError(f"{path}: it has neither a tensor {common} nor {own}")
        array = file.tensors[name]
        if array.ndim == 3 and array.shape[0] == 1:
            array = array[0]
        if array.ndim != 2 or array.shape[1] != qsa.HIDDEN:
            raise UsageError(
                f"{path}: {name} has shape {list(array.shape)}, expected [tokens, {qsa.HIDDEN}]"
            )
        if array.shape[0] < shape.tokens:
            raise UsageError(
                f"{path}: {name} has {array.shape[0]} tokens, case {index} needs {shape.tokens}"
            )
        states.append(_floats(path, file, name, array[: shape.tokens], origin))
    return tuple(states)


def _normal(stream: tuple[int, int, int], shape: tuple[int, ...], deviation: float) -> Input:
    """Draw from a stream of its own, so that no array's size moves another array's numbers."""
    draw = np.random.default_rng(stream).standard_normal(shape, np.float32)
    return Input(draw * np.float32(deviation), "f32", "random")


def _floats(path: Path, file: TensorFile, name: str, values: Array, origin: str) -> Input:
    dtype = file.dtypes[name]
    if dtype not in _FLOATS:
        raise UsageError(f"{path}: {name} is {dtype}, expected one of {', '.join(_FLOATS)}")
    numbers = bf16.to_float32(values) if dtype == "bf16" else values
    if not np.isfinite(numbers).all():
        raise UsageError(f"{path}: {name} holds a number that is not finite")
    return Input(values, dtype, origin)
