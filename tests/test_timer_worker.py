"""The timing child's part that needs no GPU: buffers, calls, peers, answers; times are made up."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from qsa_bench import program
from qsa_bench.model import STREAM, Argument, Entry, Kernel, Role
from qsa_bench.peers import PeerUnavailableError, Problem, describe
from qsa_bench.program import At, Buffer, Call, Program
from qsa_bench.telemetry import Reading
from qsa_bench.timer_client import Asked, TimerChild, TimerLostError
from qsa_bench.timer_worker import Server
from qsa_bench.timers import CUPTI
from qsa_bench.timers.activity import Activity
from qsa_bench.timers.clocks import (
    CuptiClock,
    EventClock,
    GraphClock,
    Watch,
    checked_event_ns,
    graph_calls,
)
from qsa_bench.timers.session import Session, Subject

SCALE = Entry(
    "scale",
    (
        Argument("source", "f32", Role.INPUT, ("count",)),
        Argument("target", "f32", Role.OUTPUT, ("count",)),
        Argument("count", "i64", Role.SCALAR),
        Argument("factor", "f32", Role.SCALAR),
        STREAM,
    ),
)
KERNEL = Kernel("scale", "kernels/scale.cu", (SCALE,))
SOURCE = """
#include <cstdint>
static int calls = 0;
extern "C" int32_t scale(const float* s, float* t, int64_t n, float f, void*) {
  if (n < 0) return 2;
  for (int64_t i = 0; i < n; ++i) t[i] = s[i] * f;
  return 0;
}
extern "C" int32_t refuses(const float*, float*, int64_t, float, void*) { return 7; }
extern "C" int32_t drifts(const float* s, float* t, int64_t n, float f, void*) {
  for (int64_t i = 0; i < n; ++i) t[i] = s[i] * f + ++calls;
  return 0;
}
extern "C" int32_t bench_read(const unsigned*, unsigned*, int64_t, void*) { return 0; }
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a library of plain C++ in place of a kernel's."""
    folder = tmp_path_factory.mktemp("scale")
    (folder / "scale.cpp").write_text(SOURCE)
    words = ["g++", "-fPIC", "-shared", str(folder / "scale.cpp"), "-o", str(folder / "scale.so")]
    subprocess.run(words, check=True, timeout=120)
    return str(folder / "scale.so")


class Still:
    """Telemetry of a device that is never throttled."""

    def __init__(self, throttled: tuple[str, ...] = ()) -> None:
        self.throttled = throttled

    def read(self) -> Reading:
        return Reading(sm_mhz=1980, throttled=self.throttled, others=0)


class FakeProfiler:
    """A profiler that makes up one activity a call, 2 us long, and runs what it is given."""

    def __init__(self, session: Session, loses: bool = False) -> None:
        self.session = session
        self.loses = loses
        self.launched = 0

    def names(self, call: Callable[[], Any], calls: int = 3) -> tuple[str, ...]:
        call()
        return ("kernel",)

    def record(self, launch: Callable[[], Any]) -> list[Activity]:
        counted = {"calls": 0}
        subjects = dict(self.session.subjects)
        for name, subject in subjects.items():

            def run(call: Callable[[], Any] = subject.call) -> None:
                counted["calls"] += 1
                call()

            self.session.subjects[name] = Subject(name, run, subject.form)
        launch()
        self.session.subjects.update(subjects)
        self.launched += counted["calls"]
        due = counted["calls"] - (1 if self.loses else 0)
        return [Activity("kernel", place, 2000) for place in range(due)]

    def describe(self, calls: Any, names: Any) -> dict[str, list[str]]:
        return {name: [f"kernel of {name}"] for name in calls}


def _program(entry: str = "scale", data: Sequence[float] = (1.0, 2.0, 3.0)) -> Program:
    values = np.array(data, dtype=np.float32)
    return Program(
        (
            Buffer("source", "f32", (values.size,), Role.INPUT, values),
            Buffer("target", "f32", (values.size,), Role.OUTPUT),
        ),
        (
            Call(
                "scale",
                entry,
                {"source": "source", "target": "target", "count": values.size, "factor": 2.0},
            ),
        ),
    )


def _server(loses: bool = False, throttled: tuple[str, ...] = ()) -> Server:
    session = Session("cpu")
    return Server(session, Still(throttled), FakeProfiler(session, loses))  # type: ignore[arg-type]


def _load(
    server: Server, folder: Path, subjects: Sequence[Asked], entries: Sequence[str] = ("scale",)
) -> dict[str, Any]:
    kernel = Kernel(
        "scale", "", tuple(Entry(name, SCALE.arguments) for name in dict.fromkeys(entries))
    )
    base = _program(entries[0])
    calls = tuple(_program(name).calls[0] for name in entries)
    path = folder / "program.safetensors"
    program.write(path, Program(base.buffers, calls), [kernel])
    answer = server.answer(
        {
            "do": "load",
            "program": str(path),
            "out": str(folder),
            "subjects": [subject.message() for subject in subjects],
        }
    )
    found: dict[str, Any] = answer["subjects"]
    return found


def _output(answer: dict[str, Any], name: str = "target") -> list[float]:
    return np.fromfile(answer["files"][name], dtype=np.float32).tolist()  # type: ignore[no-any-return]


RULE = {"half_width": 0.01, "confidence": 0.95, "least": 20, "most": 40, "limit_s": 5.0}


def _time(server: Server, *names: str, timer: str = CUPTI, **more: Any) -> dict[str, Any]:
    return server.answer(
        {
            "do": "time",
            "subjects": list(names),
            "timer": timer,
            "cache": "warm",
            "rule": RULE,
            "seed": 1,
            **more,
        }
    )


def test_a_call_is_made_with_the_programs_buffers_and_its_output_is_written(
    tmp_path: Path, library: str
) -> None:
    answer = _load(_server(), tmp_path, [Asked("a", library=library)])
    assert answer["a"]["error"] == ""
    assert _output(answer["a"]) == [2.0, 4.0, 6.0]


def test_equal_outputs_are_written_once(tmp_path: Path, library: str) -> None:
    answer = _load(_server(), tmp_path, [Asked("a", library=library), Asked("b", library=library)])
    assert answer["a"]["files"] == answer["b"]["files"]


def test_outputs_are_poisoned_before_every_subject(tmp_path: Path, library: str) -> None:
    where = f"{__name__}:writes_nothing"
    asked = [Asked("a", library=library), Asked(where, peer=where, names=_names())]
    answer = _load(_server(), tmp_path, asked)
    raw = Path(answer[where]["files"]["target"]).read_bytes()
    assert raw == b"\xa5" * 12


def test_a_refusing_entry_is_said_and_the_others_go_on(tmp_path: Path, library: str) -> None:
    asked = [Asked("bad", library=library, call=1), Asked("good", library=library)]
    answer = _load(_server(), tmp_path, asked, ("scale", "refuses"))
    assert answer["bad"]["error"] == "refuses answers status 7"
    assert _output(answer["good"]) == [2.0, 4.0, 6.0]


def test_an_offset_pointer_is_an_offset_in_bytes(tmp_path: Path, library: str) -> None:
    base = _program(data=(1.0, 2.0, 3.0, 4.0))
    values = {**base.calls[0].values, "source": At("source", 2), "count": 2}
    path = tmp_path / "program.safetensors"
    program.write(path, Program(base.buffers, (Call("scale", "scale", values),)), [KERNEL])
    server = _server()
    message = {"do": "load", "program": str(path), "out": str(tmp_path)}
    answer = server.answer({**message, "subjects": [Asked("a", library=library).message()]})
    assert _output(answer["subjects"]["a"])[:2] == [6.0, 8.0]


@describe("doubles in torch")
def doubles(problem: Problem) -> Callable[[], Any]:
    """A peer that fills the entry's own output."""
    source, target = problem.tensors["source"], problem.tensors["target"]
    return lambda: torch.mul(source, problem.scalars["factor"], out=target)


@describe("gives a list", form="blocks")
def lists(problem: Problem) -> Callable[[], Any]:
    """A peer that returns a list."""
    return lambda: torch.argsort(problem.tensors["source"], descending=True).to(torch.int32)


def writes_nothing(problem: Problem) -> Callable[[], Any]:
    """A peer that writes nothing."""
    return lambda: None


def unavailable(problem: Problem) -> Callable[[], Any]:
    """A peer that can't do it."""
    raise PeerUnavailableError("three elements are too many")


def fails(problem: Problem) -> Callable[[], Any]:
    """A peer that raises when it is called."""

    def run() -> None:
        raise IndexError("out of range\nin two lines")

    return run


def _names() -> tuple[str, ...]:
    return tuple(argument.name for argument in SCALE.arguments)


def _peer(name: str) -> Asked:
    where = f"{__name__}:{name}"
    return Asked(where, peer=where, names=_names())


def test_a_peer_is_given_tensors_and_scalars_by_name(tmp_path: Path, library: str) -> None:
    asked = [_peer("doubles"), Asked("ours", library=library)]
    answer = _load(_server(), tmp_path, asked)
    peer = answer[asked[0].name]
    assert (peer["title"], peer["form"], peer["error"]) == ("doubles in torch", None, "")
    assert peer["files"] == answer["ours"]["files"]


def test_a_peer_that_returns_a_list_has_it_written_as_64_bit(tmp_path: Path) -> None:
    asked = _peer("lists")
    answer = _load(_server(), tmp_path, [asked])[asked.name]
    assert answer["form"] == "blocks"
    assert np.fromfile(answer["files"]["blocks"], dtype=np.int64).tolist() == [2, 1, 0]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("unavailable", "three elements are too many"),
        ("fails", "IndexError: out of range"),
        ("missing", "loading the peer tests.test_timer_worker:missing"),
    ],
)
def test_a_peer_that_cant_is_left_out_with_its_reason(
    tmp_path: Path, library: str, name: str, said: str
) -> None:
    asked = [_peer(name), Asked("ours", library=library)]
    answer = _load(_server(), tmp_path, asked)
    assert answer[asked[0].name]["error"].startswith(said)
    assert answer["ours"]["error"] == ""


def test_timing_gives_samples_clocks_and_what_was_launched(tmp_path: Path, library: str) -> None:
    server = _server()
    _load(server, tmp_path, [Asked("a", library=library), Asked("b", library=library)])
    answer = _time(server, "a", "b", describe=True)
    for name in ("a", "b"):
        assert answer["results"][name]["stopped"] == "precise"
        assert answer["results"][name]["samples"] == [2000] * 24
        assert answer["results"][name]["calls"] == 1
    assert answer["clocks"]["sm_mhz"] == 1980.0
    assert answer["kernels"] == {"a": ["kernel of a"], "b": ["kernel of b"]}
    assert answer["parts"] == {"a": [2000], "b": [2000]}


def test_a_subject_whose_output_changes_while_it_is_timed_has_no_time(
    tmp_path: Path, library: str
) -> None:
    server = _server()
    asked = [Asked("a", library=library), Asked("drifts", library=library, call=1)]
    _load(server, tmp_path, asked, ("scale", "drifts"))
    results = _time(server, "a", "drifts")["results"]
    assert results["a"]["samples"]
    assert results["drifts"]["samples"] == []
    assert results["drifts"]["why"] == "its output was another after it was timed than before"


def picks_another(problem: Problem) -> Callable[[], Any]:
    """A peer that gives something else at every call."""
    target = problem.tensors["target"]
    return lambda: target.copy_(torch.rand(3))


def test_a_peer_may_pick_another_of_equals_every_time(tmp_path: Path) -> None:
    server, asked = _server(), _peer("picks_another")
    _load(server, tmp_path, [asked])
    assert _time(server, asked.name)["results"][asked.name]["samples"]


def test_a_description_that_fails_costs_no_measurement(
    tmp_path: Path, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise OSError("no trace")

    monkeypatch.setattr(FakeProfiler, "describe", fails)
    server = _server()
    _load(server, tmp_path, [Asked("a", library=library)])
    answer = _time(server, "a", describe=True)
    assert answer["results"]["a"]["samples"]
    assert answer["kernels"] == {}


def test_rounds_with_lost_records_are_dropped_and_named(tmp_path: Path, library: str) -> None:
    server = _server(loses=True)
    _load(server, tmp_path, [Asked("a", library=library)])
    rule = {**RULE, "limit_s": 0.2}
    found = _time(server, "a", rule=rule)["results"]["a"]
    assert found["samples"] == []
    assert set(found["dropped"]) == {"the profiler lost records"}
    assert found["stopped"] == "time-limit"


def test_a_throttled_device_gives_no_sample(tmp_path: Path, library: str) -> None:
    server = _server(throttled=("low clock",))
    _load(server, tmp_path, [Asked("a", library=library)])
    found = _time(server, "a", rule={**RULE, "limit_s": 0.2})["results"]["a"]
    assert found["samples"] == []
    assert set(found["dropped"]) == {"low clock"}


def test_the_device_is_woken_up_before_anything_is_sampled(tmp_path: Path, library: str) -> None:
    session, seen = Session("cpu"), []

    class Watching(Still):
        def read(self) -> Reading:
            seen.append("read")
            return super().read()

    profiler = FakeProfiler(session)
    server = Server(session, Watching(), profiler, lambda: seen.append("woken"))  # type: ignore[arg-type]
    _load(server, tmp_path, [Asked("a", library=library)])
    assert seen == []
    _time(server, "a")
    assert seen[:2] == ["woken", "read"]
    assert seen.count("woken") == 1


def test_what_was_not_loaded_is_refused(tmp_path: Path, library: str) -> None:
    server = _server()
    _load(server, tmp_path, [Asked("a", library=library)])
    server.answer({"do": "unload"})
    found = _time(server, "a")["results"]["a"]
    assert (found["stopped"], found["why"]) == ("refused", "it was not loaded")


def test_a_cold_launch_follows_a_flush_and_a_warm_one_its_own_kind(library: str) -> None:
    session = Session("cpu")
    session.set_flush(library)
    seen: list[str] = []
    for name in ("a", "b"):
        session.subjects[name] = Subject(name, lambda name=name: seen.append(name))  # type: ignore[misc]
    session._flush = lambda: seen.append("flush")
    profiler = FakeProfiler(session)
    names = {"a": ("kernel",), "b": ("kernel",)}
    watch = Watch(Still())
    warm = CuptiClock(session, watch, "warm", names, 2, profiler)  # type: ignore[arg-type]
    warm.round(["a", "b"])
    assert seen == ["a", "a", "a", "b", "b", "b"]
    seen.clear()
    cold = CuptiClock(session, watch, "cold", names, 2, profiler)  # type: ignore[arg-type]
    assert seen == ["flush"]
    seen.clear()
    cold._block("a")
    assert seen == ["flush", "a", "flush", "a"]
    assert len(watch.readings) == 2


def test_a_flush_reads_an_l2s_worth_and_more(library: str) -> None:
    session = Session("cpu")
    with pytest.raises(RuntimeError, match="nothing to flush"):
        session.flush()
    session.set_flush(library)
    session.flush()


def test_events_are_refused_below_fifty_microseconds() -> None:
    assert checked_event_ns(50_000.0) == 50_000
    with pytest.raises(ValueError, match=r"reads 20\.0 us"):
        checked_event_ns(20_000.0)


def test_an_event_timer_refuses_a_short_kernel_and_keeps_a_long_one() -> None:
    session = Session("cpu")
    session.subjects.update({n: Subject(n, lambda: None) for n in ("short", "long")})
    durations = iter([20_000, *[80_000] * 6])
    clock = EventClock(
        session, Watch(Still()), "warm", timed=lambda run: checked_event_ns(next(durations))
    )
    seen = clock.round(["short", "long"])
    assert list(seen.samples["long"]) == [80_000] * 6
    assert not seen.samples["short"]
    assert "20.0 us" in seen.refused["short"]


def test_a_graph_holds_calls_for_a_millisecond_and_a_half() -> None:
    assert graph_calls(2000.0) == 750
    assert graph_calls(640.0) == 2000
    assert graph_calls(5_000_000.0) == 1
    assert graph_calls(0.0) == 2000


def test_a_graphs_sample_is_its_mean_call(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session("cpu")
    session.subjects["a"] = Subject("a", lambda: None)
    session.subjects["b"] = Subject("b", lambda: None, capturable=False, why_not="no stream")

    class Graph:
        def replay(self) -> None:
            pass

    monkeypatch.setattr("qsa_bench.timers.clocks.capture", lambda *_: Graph())
    clock = GraphClock(session, Watch(Still()), {"a": 2000.0, "b": 2000.0}, lambda _: 1_650_000)
    seen = clock.round(["a", "b", "a"])
    assert seen.samples["a"] == [2200, 2200]
    assert seen.refused == {"b": "no stream"}


def test_a_graph_that_cant_be_captured_is_refused_with_its_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Fails:
        def __enter__(self) -> None:
            raise RuntimeError("operation not permitted when stream is capturing\nmore")

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: None)
    monkeypatch.setattr(torch.cuda, "graph", lambda _: Fails())
    session = Session("cpu")
    session.subjects["a"] = Subject("a", lambda: None)
    clock = GraphClock(session, Watch(Still()), {"a": 2000.0})
    assert clock.round(["a"]).refused["a"] == (
        "it can't be captured in a graph: operation not permitted when stream is capturing"
    )


def test_the_child_says_why_it_can_open_no_device() -> None:
    # No test machine has a GPU to spare: with the devices hidden every one is like the others.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        with pytest.raises(TimerLostError, match="opening the device: "):
            TimerChild()
