"""Dump the golden of attention with a cache from `qwen4_exp.Qwen4ExpTextAttention`, unmodified.

It runs in bfloat16 with a cache, chunk by chunk. A hook on the indexer's projection gives fused_qk;
a torch function mode sees queries, keys, values, mask and context as they pass through
`scaled_dot_product_attention`.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np

from qsa_bench import goldens, tensor_file
from qsa_bench.errors import GoldenError, UsageError
from qsa_bench.goldens import Golden, qsa, qsa_attention, reference
from qsa_bench.tensor_file import Array, TensorFile

_MODELING = "transformers.models.qwen4_exp.modeling_qwen4_exp"
_CONFIGURATION = "transformers.models.qwen4_exp.configuration_qwen4_exp"
_PROJECTION_STD = 0.02
_NORM_STD = 0.1


def dump(
    out: Path,
    seed: int,
    weights: Path | None = None,
    hidden: Path | None = None,
    force: bool = False,
) -> Golden:
    """Write the golden to `out`, whole or not at all, and return it verified.

    Weights and hidden states come from `seed` alone. Raises UsageError when `out` exists and not
    `force`, or files are given; EnvironmentMissingError where the reference is not installed.
    """
    if weights is not None or hidden is not None:
        raise UsageError(f"a {qsa_attention.KIND} golden takes no files: its inputs are random")
    if out.exists() and not force:
        raise UsageError(f"{out}: exists already; give --force to overwrite it")
    if not out.parent.is_dir():
        raise UsageError(f"{out}: its folder does not exist")
    if seed < 0:
        raise UsageError(f"seed {seed} is negative")
    reference.require(qsa_attention.KIND)
    contents = _compute(seed)
    goldens.verify_contents(contents, qsa_attention.KIND, out)
    tensor_file.write(out, contents.tensors, contents.dtypes, contents.metadata)
    return goldens.load(out, qsa_attention.KIND)


def _compute(seed: int) -> TensorFile:
    import torch

    configuration = importlib.import_module(_CONFIGURATION)
    modeling = importlib.import_module(_MODELING)
    config = configuration.Qwen4ExpTextConfig(**qsa_attention.CONFIG)
    config._attn_implementation = "sdpa"
    attention = modeling.Qwen4ExpTextAttention(config, layer_idx=0)
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in attention.parameters():
            deviation = _PROJECTION_STD if weight.dim() == 2 else _NORM_STD
            weight.copy_(deviation * torch.randn(weight.shape, generator=draw))
    attention = attention.to(torch.bfloat16).eval()
    rotary = modeling.Qwen4ExpTextRotaryEmbedding(config)
    tensors: dict[str, Array] = {
        "q_norm_weight": reference.bits(attention.indexer.q_layernorm.weight),
        "k_norm_weight": reference.bits(attention.indexer.k_layernorm.weight),
    }
    longest = max(shape.tokens for shape in qsa_attention.CASES)
    with reference.one_thread(), torch.inference_mode():
        states = torch.zeros(1, longest, qsa.HIDDEN, dtype=torch.bfloat16)
        cos, sin = rotary(states, torch.arange(longest)[None])
        tensors |= {"cos": reference.bits(cos[0]), "sin": reference.bits(sin[0])}
        for index, shape in enumerate(qsa_attention.CASES):
            hidden = torch.randn(1, shape.tokens, qsa.HIDDEN, generator=draw).to(torch.bfloat16)
            for name, array in _case(attention, hidden, cos, sin, shape).items():
                tensors[f"case{index}.{name}"] = array
    dtypes = {name: "u8" if array.dtype == np.uint8 else "bf16" for name, array in tensors.items()}
    text = qsa.config_text({key: getattr(config, key) for key in qsa_attention.CONFIG})
    return TensorFile(tensors, dtypes, {**reference.provenance(seed), "config": text})


def _case(
    attention: Any, hidden: Any, cos: Any, sin: Any, shape: qsa_attention.CaseShape
) -> dict[str, Array]:
    import torch
    from torch.overrides import TorchFunctionMode

    seen: list[tuple[Any, ...]] = []
    fused: list[Any] = []

    class AttentionWatch(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            found = func(*args, **(kwargs or {}))
            if func is torch.nn.functional.scaled_dot_product_attention:
                mask = (kwargs or {})["attn_mask"]
                seen.append((*(tensor[0].clone() for tensor in args[:3]), mask[0, 0], found[0]))
            return found

    # The budget is the module's, not the config's, so that both cases are of one checkpoint.
    attention.indexer.token_budget = shape.budget
    attention.indexer.block_topk = shape.budget // qsa.RATIO
    cache_module = importlib.import_module("transformers.cache_utils")
    cache = cache_module.Cache(layers=[cache_module.DynamicIndexedLayer()])
    hook = attention.indexer.index_qk_proj.register_forward_hook(
        lambda _module, _args, output: fused.append(output[0].clone())
    )
    try:
        end = 0
        for chunk in shape.chunks:
            start, end = end, end + chunk
            causal = torch.ones(end, end, dtype=torch.bool).tril()[start:][None, None]
            with AttentionWatch():
                tables = (cos[:, :end], sin[:, :end])
                attention(hidden[:, start:end], tables, causal, past_key_values=cache)
    finally:
        hook.remove()
    if len(seen) != len(shape.chunks):
        raise GoldenError(f"the reference attended {len(seen)} times, not {len(shape.chunks)}")
    return _kept(seen, fused, shape)


def _kept(
    seen: list[tuple[Any, ...]], fused: list[Any], shape: qsa_attention.CaseShape
) -> dict[str, Array]:
    """Return the rows that are kept, and the cache as the last chunk saw it."""
    import torch

    rows: dict[str, list[Array]] = {"q": [], "context": [], "mask": []}
    start = 0
    for (q, _, _, mask, context), chunk in zip(seen, shape.chunks, strict=True):
        for position in (row for row in shape.rows if start <= row < start + chunk):
            row = position - start
            rows["q"].append(reference.bits(q[:, row]))
            rows["context"].append(reference.bits(context[:, row]))
            whole = np.zeros(shape.tokens, dtype=np.uint8)
            whole[: mask.shape[1]] = mask[row].numpy()
            rows["mask"].append(whole)
        start += chunk
    _, keys, values, _, _ = seen[-1]
    # The reference may have repeated the KV heads for its query heads.
    step = keys.shape[0] // qsa_attention.KV_HEADS
    return {
        "fused_qk": reference.bits(torch.cat(fused)),
        "keys": reference.bits(keys[::step].transpose(0, 1)),
        "values": reference.bits(values[::step].transpose(0, 1)),
        **{name: np.stack(found) for name, found in rows.items()},
    }
