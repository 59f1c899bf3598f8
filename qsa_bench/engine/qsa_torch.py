"""The QSA runtime on torch tensors: memory, the projection, and a decode step in a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from qsa_bench.engine.qsa_decode import QsaCapturedDecode, QsaDecodeBatch

if TYPE_CHECKING:
    import torch


class TorchMemory:
    """Tensors of one torch device; `cpu` goes with the host libraries, `cuda` with the GPU's."""

    def __init__(self, device: str) -> None:
        import torch

        self._torch = torch
        # With its index: that is how tensors spell their device.
        self.device = torch.empty(0, device=device).device

    def empty(self, shape: Sequence[int], dtype: str) -> Any:
        """Return a new tensor."""
        element = getattr(self._torch, dtype)
        return self._torch.empty(tuple(shape), dtype=element, device=self.device)

    def free(self, tensor: Any) -> None:
        """Drop nothing: torch frees a tensor with its last reference."""

    def copy(self, target: Any, source: Any, elements: int) -> None:
        """Copy the first `elements` elements on the current stream."""
        target.view(-1)[:elements].copy_(source.view(-1)[:elements])

    def write(self, target: Any, values: Sequence[int]) -> None:
        """Write int32 values on the current stream."""
        words = self._torch.tensor(list(values), dtype=self._torch.int32)
        target.view(-1)[: len(words)].copy_(words)

    def stream(self) -> int | None:
        """Return torch's current stream; None on the CPU."""
        if self.device.type != "cuda":
            return None
        return int(self._torch.cuda.current_stream(self.device).cuda_stream)


def project(hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return fused_qk [n, 640] of hidden states [n, 2560] and `index_qk_proj.weight` [640, 2560]."""
    import torch

    return torch.nn.functional.linear(hidden, weight)


class CapturedDecode(QsaCapturedDecode):
    """A decode batch's step, captured once in a CUDA graph and replayed at every length."""

    def __init__(self, batch: QsaDecodeBatch) -> None:
        super().__init__(batch, _capture)


def _capture(launch: Callable[[], None]) -> Callable[[], None]:
    import torch

    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch()
    replay: Callable[[], None] = graph.replay
    return replay
