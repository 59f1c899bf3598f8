"""Dump a QSA golden from the unmodified reference, `qwen4_exp.Qwen4ExpTextQSAIndexer`.

The reference is watched, not changed: a forward hook on `index_qk_proj` gives `fused_qk`, a torch
function mode sees each row's scores as they enter `Tensor.topk`, and the forward returns the mask.
cos and sin are those of the reference's own rotary embedding.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qsa_bench import goldens, tensor_file
from qsa_bench.errors import GoldenError, UsageError
from qsa_bench.goldens import Golden, qsa, reference
from qsa_bench.goldens.qsa_inputs import (
    Input,
    read_hidden,
    read_weights,
    seeded_hidden,
    seeded_weights,
)
from qsa_bench.tensor_file import Array, TensorFile

if TYPE_CHECKING:
    import torch

_MODELING = "transformers.models.qwen4_exp.modeling_qwen4_exp"
_CONFIGURATION = "transformers.models.qwen4_exp.configuration_qwen4_exp"


@dataclass(frozen=True)
class Capture:
    """What one forward of the indexer over T tokens computed.

    `fused_qk` [T, 640]; `scores` one [blocks] tensor for each row that has a block, in row order;
    `mask` [T, T] bool.
    """

    fused_qk: torch.Tensor
    scores: tuple[torch.Tensor, ...]
    mask: torch.Tensor


def dump(
    out: Path,
    seed: int,
    weights: Path | None = None,
    hidden: Path | None = None,
    force: bool = False,
) -> Golden:
    """Write a QSA golden to `out`, whole or not at all, and return it verified.

    Inputs come from `seed` unless given: `weights`, a safetensors file with one layer's
    index_qk_proj.weight, q_layernorm.weight and k_layernorm.weight; `hidden`, one with hidden
    states (see `qsa_inputs`). The same inputs give the same bytes on the same machine.

    Raises UsageError when `out` exists and not `force`, or an input is unusable;
    EnvironmentMissingError when torch or the reference's release is not installed.
    """
    if out.exists() and not force:
        raise UsageError(f"{out}: exists already; give --force to overwrite it")
    if not out.parent.is_dir():  # said now rather than after the reference has run
        raise UsageError(f"{out}: its folder does not exist")
    if seed < 0:
        raise UsageError(f"seed {seed} is negative")
    layer = seeded_weights(seed) if weights is None else read_weights(weights)
    states = seeded_hidden(seed) if hidden is None else read_hidden(hidden)
    reference.require(qsa.KIND)
    contents = _compute(layer, states, seed)
    goldens.verify_contents(contents, qsa.KIND, out)
    tensor_file.write(out, contents.tensors, contents.dtypes, contents.metadata)
    return goldens.load(out, qsa.KIND)


def capture(
    indexer: torch.nn.Module, hidden: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> Capture:
    """Run `indexer` causally over `hidden` [1, T, hidden] and return what it computed.

    `cos` and `sin` are [1, T, rotary]. The indexer is left as it was.
    """
    import torch
    from torch.overrides import TorchFunctionMode

    fused: list[torch.Tensor] = []
    scores: list[torch.Tensor] = []

    class TopkWatch(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func is torch.Tensor.topk:
                scores.append(args[0].clone())
            return func(*args, **(kwargs or {}))

    def keep(_module: torch.nn.Module, _args: Any, output: torch.Tensor) -> None:
        fused.append(output[0].clone())

    tokens = hidden.shape[1]
    causal = torch.ones(1, 1, tokens, tokens, dtype=torch.bool).tril()
    hook = indexer.get_submodule("index_qk_proj").register_forward_hook(keep)
    try:
        with torch.inference_mode(), TopkWatch():
            mask = indexer(hidden, (cos, sin), causal, None)
    finally:
        hook.remove()
    if len(fused) != 1:
        raise GoldenError(f"the reference projected {len(fused)} times, expected once")
    blocks = [position // qsa.RATIO for position in range(1, tokens + 1)]
    expected = [count for count in blocks if count > 0]
    if [row.numel() for row in scores] != expected:
        raise GoldenError("the reference's topk did not see one score for each row's block")
    return Capture(fused[0], tuple(scores), mask[0, 0])


def _compute(layer: dict[str, Input], states: tuple[Input, ...], seed: int) -> TensorFile:
    import torch

    configuration = importlib.import_module(_CONFIGURATION)
    modeling = importlib.import_module(_MODELING)
    config = configuration.Qwen4ExpTextConfig(**qsa.CONFIG)
    indexer = modeling.Qwen4ExpTextQSAIndexer(config, layer_idx=0).to(torch.bfloat16).eval()
    indexer.load_state_dict({name: _tensor(value) for name, value in layer.items()})
    # Not cast to bfloat16: a loaded model keeps its inverse frequencies in float32 too.
    rotary = modeling.Qwen4ExpTextRotaryEmbedding(config)
    tensors: dict[str, Array] = {
        "q_norm_weight": reference.bits(indexer.q_layernorm.weight),
        "k_norm_weight": reference.bits(indexer.k_layernorm.weight),
    }
    dtypes = dict.fromkeys(tensors, "bf16")
    with reference.one_thread():
        for index, (shape, state) in enumerate(zip(qsa.CASES, states, strict=True)):
            for name, (dtype, array) in _case(indexer, rotary, shape, _tensor(state)).items():
                tensors[f"case{index}.{name}"], dtypes[f"case{index}.{name}"] = array, dtype
    return TensorFile(tensors, dtypes, _metadata(config, layer, states, seed))


def _case(
    indexer: Any, rotary: Any, shape: qsa.CaseShape, hidden: torch.Tensor
) -> dict[str, tuple[str, Array]]:
    import torch

    # The budget is the module's, not the config's, so that all cases are of one checkpoint.
    indexer.token_budget = shape.budget
    indexer.block_topk = shape.budget // qsa.RATIO
    states = hidden[None]
    cos, sin = rotary(states, torch.arange(shape.tokens)[None])
    seen = capture(indexer, states, cos, sin)
    scores = np.full((len(shape.rows), shape.score_cols), np.nan, np.float32)
    first_with_block = qsa.RATIO - 1
    for row, position in enumerate(shape.rows):
        if position >= first_with_block:
            of_row = seen.scores[position - first_with_block].numpy()
            scores[row, : of_row.size] = of_row
    return {
        "fused_qk": ("bf16", reference.bits(seen.fused_qk)),
        "cos": ("bf16", reference.bits(cos[0])),
        "sin": ("bf16", reference.bits(sin[0])),
        "rows": ("i32", shape.rows),
        "scores": ("f32", scores),
        "mask": ("u8", seen.mask[shape.first_row :].numpy().astype(np.uint8)),
        "budget": ("i32", np.array([shape.budget], np.int32)),
    }


def _metadata(
    config: Any, layer: dict[str, Input], states: tuple[Input, ...], seed: int
) -> dict[str, str]:
    # Read back from the reference's config, so that what it made of the values is what is named.
    text = qsa.config_text({key: getattr(config, key) for key in qsa.CONFIG})
    return {
        **reference.provenance(seed),
        "config": text,
        "config_sha256": qsa.config_sha256(text),
        "weights": layer["index_qk_proj.weight"].origin,
        "hidden": states[0].origin,
    }


def _tensor(value: Input) -> torch.Tensor:
    """Return an input as a bfloat16 tensor of its own memory."""
    import torch

    array = np.array(value.array)  # inputs may be read-only views of a file
    if value.dtype == "bf16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array).to(torch.bfloat16)
