"""Dumps DSA goldens from the unmodified reference, `glm5_next.Glm5NextTextIndexer`.

The reference is watched, not changed: forward hooks on `k_norm`, `wq_b` and `weights_proj`, a torch
function mode that sees the gate's projection and the scores as they enter `topk`, and the pool
states from its own method. Its forward returns the token ids.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from qsa_bench import goldens, tensor_file
from qsa_bench.errors import GoldenError, UsageError
from qsa_bench.goldens import Golden, dsa, reference
from qsa_bench.tensor_file import Array, TensorFile

if TYPE_CHECKING:
    import torch

_MODELING = "transformers.models.glm5_next.modeling_glm5_next"
_CONFIGURATION = "transformers.models.glm5_next.configuration_glm5_next"

# The reference's initializer_range; the embeddings of positions, which it starts at zero, are drawn
# wide enough to matter beside a gate of deviation 1.3.
_PROJECTION_STD = 0.02
_APE_STD = 0.5


@dataclass(frozen=True)
class CaseShape:
    """What is drawn of one case: slots, padding in front of each sequence, rows, geometry.

    `holes` are (sequence, slot) that are no keys though they lie behind the padding; padding of
    `tokens` slots leaves a sequence without a key. `first_row` is the first query row kept.
    """

    tokens: int
    kpool: int = 4
    topk: int = 2048
    padding: tuple[int, ...] = (0,)
    holes: tuple[tuple[int, int], ...] = ()
    first_row: int = 0

    @property
    def valid(self) -> Array:
        """Which slots hold a key, [B, T] u8."""
        slots = np.arange(self.tokens)
        mask = (slots[None, :] >= np.array(self.padding)[:, None]).astype(np.uint8)
        for sequence, slot in self.holes:
            mask[sequence, slot] = 0
        return mask


CASES = (
    CaseShape(3),  # no pool at all
    CaseShape(4),  # exactly one
    CaseShape(9),  # tails of 1, 2 and 3
    CaseShape(22, first_row=12),
    CaseShape(31, first_row=22),
    CaseShape(47, topk=16, first_row=30),  # fewer pools kept than there are
    CaseShape(34, topk=16, padding=(0, 5, 11), first_row=9),  # left padding
    CaseShape(100, kpool=16, topk=64, padding=(0, 7), first_row=80),
    CaseShape(34, topk=16, padding=(0, 6, 34), holes=((0, 9), (0, 33), (1, 17)), first_row=4),
    CaseShape(2070, first_row=2060),  # the real budget, cut by 5 pools of 517
)


def dump(
    out: Path,
    seed: int,
    weights: Path | None = None,
    hidden: Path | None = None,
    force: bool = False,
) -> Golden:
    """Write a DSA golden to `out`, whole or not at all, and return it verified.

    Weights and hidden states are drawn from `seed`: the same seed gives the same bytes on the same
    machine. Raises UsageError when `out` exists and not `force`, or for a file of weights or hidden
    states; EnvironmentMissingError when torch or the reference's release is not installed.
    """
    if out.exists() and not force:
        raise UsageError(f"{out}: exists already; give --force to overwrite it")
    if not out.parent.is_dir():  # said now rather than after the reference has run
        raise UsageError(f"{out}: its folder does not exist")
    if seed < 0:
        raise UsageError(f"seed {seed} is negative")
    given = weights or hidden
    if given is not None:
        raise UsageError(f"{given}: a dsa golden is dumped from a seed alone")
    reference.require(dsa.KIND)
    contents = _compute(seed)
    goldens.verify_contents(contents, dsa.KIND, out)
    tensor_file.write(out, contents.tensors, contents.dtypes, contents.metadata)
    return goldens.load(out, dsa.KIND)


@dataclass(frozen=True)
class Capture:
    """What one forward of the indexer over [B, T] slots computed, in its own shapes and dtypes.

    `weights` as `weights_proj` gives them; `scores` as they enter topk.
    """

    k_normed: torch.Tensor
    gate: torch.Tensor
    q: torch.Tensor
    weights: torch.Tensor
    pool_keys: torch.Tensor
    pool_indices: torch.Tensor
    pool_valid: torch.Tensor
    scores: torch.Tensor
    token_ids: torch.Tensor


def capture(
    indexer: torch.nn.Module, hidden: torch.Tensor, q_resid: torch.Tensor, valid: torch.Tensor
) -> Capture:
    """Run `indexer` on hidden [B, T, hidden], q_resid [B, T, rank] and valid [B, T] bool.

    The indexer is left as it was.
    """
    import torch
    from torch.overrides import TorchFunctionMode

    seen: dict[str, list[torch.Tensor]] = {}
    gate_weight = indexer.get_parameter("index_kpool_compress_gate")

    class Watch(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            result = func(*args, **(kwargs or {}))
            if func is torch.Tensor.topk:
                seen.setdefault("scores", []).append(args[0].clone())
            elif func is torch.nn.functional.linear and args[1] is gate_weight:
                seen.setdefault("gate", []).append(result.clone())
            return result

    def keep(name: str) -> Any:
        def hook(_module: torch.nn.Module, _args: Any, output: torch.Tensor) -> None:
            seen.setdefault(name, []).append(output.clone())

        return indexer.get_submodule(name).register_forward_hook(hook)

    hooks = [keep(name) for name in ("k_norm", "wq_b", "weights_proj")]
    try:
        with torch.inference_mode(), Watch():
            token_ids = indexer(hidden, q_resid, valid, None)
    finally:
        for hook in hooks:
            hook.remove()
    for name in ("k_norm", "wq_b", "weights_proj", "gate", "scores"):
        if len(seen.get(name, ())) != 1:
            raise GoldenError(
                f"the reference gave {name} {len(seen.get(name, ()))} times, not once"
            )
    k_normed, gate = seen["k_norm"][0], seen["gate"][0]
    channel = valid.to(k_normed.dtype)[..., None]
    with torch.inference_mode():
        packed = torch.cat([k_normed, gate, channel], dim=-1)
        pool_keys, pool_indices, pool_valid = cast(Any, indexer).get_pooled_states(packed)
    return Capture(
        k_normed=k_normed,
        gate=gate,
        q=seen["wq_b"][0],
        weights=seen["weights_proj"][0],
        pool_keys=pool_keys,
        pool_indices=pool_indices,
        pool_valid=pool_valid,
        scores=seen["scores"][0],
        token_ids=token_ids,
    )


def _compute(seed: int) -> TensorFile:
    tensors: dict[str, Array] = {}
    dtypes: dict[str, str] = {}
    with reference.one_thread():
        for index, shape in enumerate(CASES):
            for name, (dtype, array) in _case(seed, index, shape).items():
                tensors[f"case{index}.{name}"], dtypes[f"case{index}.{name}"] = array, dtype
    return TensorFile(tensors, dtypes, reference.provenance(seed))


def _case(seed: int, index: int, shape: CaseShape) -> dict[str, tuple[str, Array]]:
    import torch

    configuration = importlib.import_module(_CONFIGURATION)
    modeling = importlib.import_module(_MODELING)
    config = configuration.Glm5NextTextConfig(index_topk=shape.topk, index_kpool=shape.kpool)
    indexer = modeling.Glm5NextTextIndexer(config, layer_idx=0).to(torch.bfloat16).eval()
    # A stream for every array, so that no array's size moves another array's numbers. Weights are
    # those of one checkpoint, but for the rows of ape, of which there is one a slot of a pool.
    for stream, (name, parameter) in enumerate(sorted(indexer.named_parameters())):
        deviation = _APE_STD if name == "index_kpool_compress_ape" else _PROJECTION_STD
        drawn = _normal((seed, 0, stream), tuple(parameter.shape), deviation)
        if name == "k_norm.weight":
            drawn = drawn + 1
        with torch.no_grad():
            parameter.copy_(drawn)
    valid = torch.from_numpy(shape.valid).bool()
    batch, tokens = valid.shape
    seen = capture(
        indexer,
        _normal((seed, 1, index), (batch, tokens, config.hidden_size), 1.0),
        _normal((seed, 2, index), (batch, tokens, config.q_lora_rank), 1.0),
        valid,
    )
    rows = slice(shape.first_row, None)
    weights = seen.weights[:, rows].float() * dsa.HEADS**-0.5
    queries = seen.q[:, rows].reshape(batch, -1, dsa.HEADS, dsa.HEAD_DIM)
    return {
        "k_normed": ("bf16", reference.bits(seen.k_normed)),
        "gate": ("bf16", reference.bits(seen.gate)),
        "valid": ("u8", shape.valid),
        "ape": ("bf16", reference.bits(indexer.index_kpool_compress_ape)),
        "q_pos": ("i32", np.arange(shape.first_row, tokens, dtype=np.int32)),
        "q": ("bf16", reference.bits(queries)),
        "weights": ("f32", weights.numpy()),
        "geometry": ("i32", np.array([shape.kpool, shape.topk], np.int32)),
        "pool_keys": ("bf16", reference.bits(seen.pool_keys)),
        "pool_indices": ("i32", seen.pool_indices.numpy().astype(np.int32)),
        "pool_valid": ("u8", seen.pool_valid.numpy().astype(np.uint8)),
        "scores": ("f32", np.ascontiguousarray(seen.scores[:, rows].numpy())),
        "token_ids": ("i32", np.ascontiguousarray(seen.token_ids[:, rows].numpy())),
    }


def _normal(stream: tuple[int, int, int], shape: tuple[int, ...], deviation: float) -> torch.Tensor:
    import torch

    draw = np.random.default_rng(stream).standard_normal(shape, np.float32)
    return torch.from_numpy(draw * np.float32(deviation)).to(torch.bfloat16)
