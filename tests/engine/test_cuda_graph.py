"""A captured graph over a driver that only takes down what is asked of it."""

from __future__ import annotations

from typing import Any

import pytest

from qsa_bench.engine import cuda_graph
from qsa_bench.engine.cuda_graph import CapturedGraph, GraphError

_STREAM, _GRAPH, _EXECUTABLE = 7, 8, 9
_MADE = {
    "cuStreamCreate": (0, _STREAM),
    "cuStreamEndCapture": (1, _GRAPH),
    "cuGraphInstantiateWithFlags": (0, _EXECUTABLE),
}


class Driver:
    """Answers 0, and hands out handles; `fails` answers 700."""

    def __init__(self, fails: str = "", handles: bool = True) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self._fails, self._handles = fails, handles

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> int:
            plain = tuple(getattr(argument, "value", argument) for argument in arguments)
            self.calls.append((name, plain))
            if name in _MADE and (self._handles or name == "cuStreamCreate"):
                place, handle = _MADE[name]
                arguments[place]._obj.value = handle
            return 700 if name == self._fails else 0

        return call

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.calls]


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver()
    monkeypatch.setattr(cuda_graph.ctypes, "CDLL", lambda _: made)
    return made


def test_launches_replays_and_copies_go_to_one_stream_in_order(driver: Driver) -> None:
    streams: list[int] = []
    graph = CapturedGraph(lambda stream: streams.append(stream) or 0)
    assert streams == [graph.stream] == [_STREAM]
    begun = driver.names.index("cuStreamBeginCapture_v2")
    assert driver.names[begun + 1 :] == [
        "cuStreamEndCapture",
        "cuGraphInstantiateWithFlags",
        "cuGraphDestroy",
    ]
    driver.calls.clear()
    graph.copy(256, 512, 64)
    graph.replay()
    graph.copy(1024, 256, 32)
    graph.wait()
    assert driver.calls == [
        ("cuMemcpyDtoDAsync_v2", (256, 512, 64, _STREAM)),
        ("cuGraphLaunch", (_EXECUTABLE, _STREAM)),
        ("cuMemcpyDtoDAsync_v2", (1024, 256, 32, _STREAM)),
        ("cuStreamSynchronize", (_STREAM,)),
    ]


def test_a_refused_launch_ends_the_capture_and_is_told(driver: Driver) -> None:
    with pytest.raises(GraphError, match="a launch was refused with status 2"):
        CapturedGraph(lambda _: 2)
    assert driver.names[-1] == "cuStreamEndCapture"

    def breaks(_: int) -> int:
        raise ValueError("not this one")

    driver.calls.clear()
    with pytest.raises(ValueError, match="not this one"):
        CapturedGraph(breaks)
    assert driver.names[-1] == "cuStreamEndCapture"


def test_a_capture_that_left_no_graph_and_a_call_that_failed_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cuda_graph.ctypes, "CDLL", lambda _: Driver(handles=False))
    with pytest.raises(GraphError, match="a launch did what no graph can hold"):
        CapturedGraph(lambda _: 0)
    monkeypatch.setattr(cuda_graph.ctypes, "CDLL", lambda _: Driver("cuMemcpyDtoDAsync_v2"))
    with pytest.raises(GraphError, match="cuMemcpyDtoDAsync_v2: the driver says 700"):
        CapturedGraph(lambda _: 0).copy(0, 0, 1)
