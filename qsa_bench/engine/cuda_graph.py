"""A captured CUDA graph by the driver alone, for the replay of launches; ctypes, nothing else."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING


class GraphError(RuntimeError):
    """A call of the driver that failed while a graph was made or run."""


class CapturedGraph:
    """What `record(stream)` launched, in the present context; replayed on the same stream.

    `record` returns a status, 0 for success; any other raises GraphError, as does a driver's call.
    """

    def __init__(self, record: Callable[[int], int]) -> None:
        self._driver = ctypes.CDLL("libcuda.so.1")
        self._stream = ctypes.c_void_p()
        self._do("cuStreamCreate", ctypes.byref(self._stream), ctypes.c_uint(_NON_BLOCKING))
        self._do("cuStreamBeginCapture_v2", self._stream, ctypes.c_int(_RELAXED))
        graph = ctypes.c_void_p()
        try:
            status = record(self.stream)
        finally:
            self._driver.cuStreamEndCapture(self._stream, ctypes.byref(graph))
        if status:
            raise GraphError(f"capturing a graph: a launch was refused with status {status}")
        if not graph.value:
            raise GraphError("capturing a graph: a launch did what no graph can hold")
        self._graph = ctypes.c_void_p()
        self._do(
            "cuGraphInstantiateWithFlags", ctypes.byref(self._graph), graph, ctypes.c_ulonglong(0)
        )
        self._do("cuGraphDestroy", graph)

    @property
    def stream(self) -> int:
        """The stream that the graph was captured on, for launches that go before it."""
        return int(self._stream.value or 0)

    def replay(self) -> None:
        """Launch the graph once more."""
        self._do("cuGraphLaunch", self._graph, self._stream)

    def copy(self, target: int, source: int, size: int) -> None:
        """Copy bytes from one device address to another, after what is on the stream already."""
        addresses = (ctypes.c_uint64(target), ctypes.c_uint64(source))
        self._do("cuMemcpyDtoDAsync_v2", *addresses, ctypes.c_size_t(size), self._stream)

    def wait(self) -> None:
        """Wait until everything on the stream is done."""
        self._do("cuStreamSynchronize", self._stream)

    def close(self) -> None:
        """Give graph and stream back."""
        self._driver.cuGraphExecDestroy(self._graph)
        self._driver.cuStreamDestroy_v2(self._stream)

    def _do(self, name: str, *arguments: Any) -> None:
        code = int(getattr(self._driver, name)(*arguments))
        if code:
            raise GraphError(f"{name}: the driver says {code}")
