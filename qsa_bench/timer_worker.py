"""The child that times: it owns a CUDA context through torch, launches, and judges nothing.

`python -m qsa_bench.timer_worker` answers each JSON line on stdin with one on stdout. It says
{"ready": ...} first; then, whatever is asked,

load       make a program's buffers and subjects, run each once over poisoned outputs, write what
           it gave (equal outputs once)
time       sample subjects interleaved by one timer and cache state; afterwards each must still
           give what it gave
calibrate  an empty kernel, copies, reads and writes, as subjects of their own
unload     give the memory back

A fault of a kernel costs this process: it answers {"lost": why} and ends.
"""

from __future__ import annotations

import json
import os
import random
import signal
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from qsa_bench.telemetry import Nvml, Reading, Telemetry, clocks
from qsa_bench.timers import CUPTI, EVENT, GRAPH
from qsa_bench.timers.activity import LostRecordsError
from qsa_bench.timers.clocks import CuptiClock, EventClock, GraphClock, Watch
from qsa_bench.timers.session import Profiler, Session, SubjectError
from qsa_bench.timing import Clock, Rule, Sampled, Stop, measure
from qsa_bench.worker import die_with_parent, read_program

Message = dict[str, Any]
_EXPECTING_CALLS = 5


class Unread:
    """Telemetry of a device that NVML does not show: nothing is known, nothing is claimed."""

    def read(self) -> Reading:
        """Return an empty reading."""
        return Reading()


class Server:
    """Answers messages; one program at a time."""

    def __init__(
        self,
        session: Session,
        telemetry: Telemetry,
        profiler: Profiler,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        """Take what it works with; `wake` raises the clocks before anything is sampled."""
        self._session = session
        self._wake = wake
        self._telemetry = telemetry
        self._profiler = profiler
        self._given: dict[str, dict[str, Any]] = {}
        self._names: dict[str, tuple[str, ...]] = {}
        self._peers: set[str] = set()

    def answer(self, message: Message) -> Message:
        """Carry out one message."""
        actions: Mapping[str, Callable[[Message], Message]] = {
            "load": self._load,
            "time": self._time,
            "calibrate": self._calibrate,
            "unload": self._unload,
        }
        return actions[message["do"]](message)

    def _unload(self, _message: Message) -> Message:
        self._session.unload()
        self._given.clear()
        self._names.clear()
        self._peers.clear()
        return {"done": "unload"}

    def _load(self, message: Message) -> Message:
        self._unload(message)
        program, blob, spans = read_program(message["program"])
        self._session.load(program, blob, spans)
        if message.get("flush"):
            self._session.set_flush(message["flush"])
        written: list[tuple[dict[str, Any], dict[str, str]]] = []
        answers: dict[str, Message] = {}
        for asked in message["subjects"]:
            name = asked["name"]
            try:
                title = self._add(asked, program)
                files = self._first_run(name, Path(message["out"]), written)
            except Exception as error:
                # Where the device itself is lost, this raises again and ends the process.
                self._session.synchronize()
                self._session.subjects.pop(name, None)
                answers[name] = {"error": _reason(error)}
                continue
            form = self._session.subjects[name].form
            answers[name] = {"error": "", "title": title, "form": form, "files": files}
        return {"done": "load", "subjects": answers}

    def _add(self, asked: Message, program: Mapping[str, Any]) -> str:
        if "pipeline" in asked:
            self._session.add_pipeline(asked["name"], asked["pipeline"], program["calls"])
            return str(asked["name"])
        call = program["calls"][asked["call"]]
        if "peer" in asked:
            self._peers.add(asked["name"])
            return self._session.add_peer(
                asked["name"], asked["peer"], asked["names"], call, asked["libraries"]
            )
        self._session.add_call(asked["name"], asked["library"], call)
        return str(asked["name"])

    def _run_poisoned(self, name: str) -> dict[str, Any]:
        self._session.poison()
        self._session.subjects[name].call()
        self._session.synchronize()
        return self._session.outputs(name)

    def _first_run(
        self, name: str, out: Path, written: list[tuple[dict[str, Any], dict[str, str]]]
    ) -> dict[str, str]:
        outputs = self._run_poisoned(name)
        for kept, files in written:
            if _equal(kept, outputs):
                self._given[name] = kept
                return files
        kept = {key: tensor.clone() for key, tensor in outputs.items()}
        files = {}
        for key, tensor in kept.items():
            path = out / f"{len(written)}.{key}"
            tensor.cpu().numpy().tofile(path)
            files[key] = str(path)
        written.append((kept, files))
        self._given[name] = kept
        return files

    def _time(self, message: Message) -> Message:
        subjects: list[str] = list(message["subjects"])
        results, going = self._known(subjects)
        watch = Watch(self._telemetry)
        rule = Rule(**message["rule"])
        shuffle = random.Random(message["seed"])  # noqa: S311 - an order, no secret
        calls: dict[str, int] = {}
        parts: Mapping[str, Sequence[tuple[int, ...]]] = {}
        if going:
            clock = self._clock(message, going, watch)
            # While a point was made ready the clocks may have fallen to those of an idle device.
            self._wake()
            results.update(measure(clock, going, rule, shuffle))
            if isinstance(clock, GraphClock):
                calls = clock.calls
            if isinstance(clock, CuptiClock):
                parts = clock.parts
        for name in self._changed(going):
            why = "its output was another after it was timed than before"
            results[name] = Sampled((), {}, Stop.REFUSED, why)
        described = self._described(going) if message.get("describe") and going else {}
        return {
            "done": "time",
            "results": {name: _sampled(results[name], calls.get(name, 1)) for name in subjects},
            "clocks": clocks(watch.readings),
            "kernels": described,
            "parts": {name: _medians(each) for name, each in parts.items()},
        }

    def _changed(self, names: Sequence[str]) -> list[str]:
        """Return the subjects that no longer give what they gave before they were timed.

        A peer may keep another of equal scores every time: that is no sign of anything.
        """
        return [
            name
            for name in names
            if name in self._given
            and name not in self._peers
            and not _equal(self._given[name], self._run_poisoned(name))
        ]

    def _described(self, names: Sequence[str]) -> dict[str, list[str]]:
        """Describe what each subject launches; a description that fails costs no measurement."""
        try:
            return self._profiler.describe(self._calls(names), self._names)
        except Exception:
            self._session.synchronize()
            return {}

    def _calls(self, names: Sequence[str]) -> dict[str, Callable[[], Any]]:
        return {name: self._session.subjects[name].call for name in names}

    def _known(self, subjects: Sequence[str]) -> tuple[dict[str, Sampled], list[str]]:
        """Find out what a call of each subject does; those where that fails are refused."""
        refused: dict[str, Sampled] = {}
        for name in subjects:
            if name in self._names:
                continue
            try:
                self._names[name] = self._profiler.names(self._session.subjects[name].call)
            except KeyError:
                refused[name] = Sampled((), {}, Stop.REFUSED, "it was not loaded")
            except Exception as error:
                self._session.synchronize()
                refused[name] = Sampled((), {}, Stop.REFUSED, _reason(error))
        return refused, [name for name in subjects if name not in refused]

    def _clock(self, message: Message, going: Sequence[str], watch: Watch) -> Clock:
        timer, cache = message["timer"], message["cache"]
        if timer == CUPTI:
            names = {name: self._names[name] for name in going}
            return CuptiClock(self._session, watch, cache, names, profiler=self._profiler)
        if timer == GRAPH:
            return GraphClock(self._session, watch, {name: self._expected(name) for name in going})
        if timer == EVENT:
            return EventClock(self._session, watch, cache)
        raise ValueError(f"there is no timer {timer!r}")

    def _expected(self, name: str) -> float:
        """Return about how long a call takes, in ns."""
        call = self._session.subjects[name].call

        def several() -> None:
            for _ in range(_EXPECTING_CALLS):
                call()

        recorded = self._profiler.record(several)
        return sum(activity.duration_ns for activity in recorded) / _EXPECTING_CALLS

    def _calibrate(self, message: Message) -> Message:
        self._unload(message)
        traffic = self._session.add_calibration(message["library"])
        return {
            "done": "calibrate",
            "subjects": {name: list(each) for name, each in traffic.items()},
        }


def _equal(left: Mapping[str, Any], right: Mapping[str, Any]) -> bool:
    return left.keys() == right.keys() and all(
        left[key].shape == right[key].shape and bool((left[key] == right[key]).all())
        for key in left
    )


def _medians(calls: Sequence[tuple[int, ...]]) -> list[int]:
    """Return the median duration of each activity of a call, in ns."""
    return [round(statistics.median(each)) for each in zip(*calls, strict=True)]


def _sampled(sampled: Sampled, calls: int) -> Message:
    return {
        "samples": list(sampled.samples_ns),
        "dropped": dict(sampled.dropped),
        "stopped": str(sampled.stopped),
        "why": sampled.why,
        "calls": calls,
    }


def open_device() -> tuple[Server, Message]:
    """Return a server on the first CUDA device, awake, and what it says of the device."""
    import torch

    session = Session()
    properties = torch.cuda.get_device_properties(session.device)
    uuid = str(getattr(properties, "uuid", "") or "")
    telemetry: Telemetry = Unread()
    unread = ""
    for candidate in (f"GPU-{uuid}" if uuid else None, None):
        try:
            telemetry, unread = Nvml(candidate), ""
            break
        except Exception as error:
            unread = f"NVML says: {error}"
    device = {
        "name": properties.name,
        "capability": properties.major * 10 + properties.minor,
        "multiprocessors": properties.multi_processor_count,
        "l2_bytes": properties.L2_cache_size,
        "memory_bytes": properties.total_memory,
        "torch": torch.__version__,
        "cuda": torch.version.cuda or "",
        "telemetry": unread or "nvml",
    }
    profiler = Profiler(session)
    wake = _waker(session)
    # The profiler's first start takes seconds.
    profiler.record(wake)
    return Server(session, telemetry, profiler, wake), device


def _waker(session: Session) -> Callable[[], None]:
    """Return what keeps the device busy for some 20 ms, so that its clocks rise.

    Plain traffic: matrix products would draw so much power that the device throttles.
    """
    import torch

    held = torch.zeros(1 << 24, device=session.device)

    def wake() -> None:
        for _ in range(500):
            held.add_(1.0)
        session.synchronize()

    return wake


def main() -> int:
    """Serve messages until stdin closes."""
    die_with_parent()
    # An interrupt is the parent's to answer: it ends this process when it is done.
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    # What libraries print must not come between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def say(message: Message) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    try:
        server, device = open_device()
    except Exception as error:
        say({"lost": f"opening the device: {_reason(error)}"})
        return 0
    say({"ready": device})
    for line in sys.stdin:
        try:
            answer = server.answer(json.loads(line))
        except Exception as error:
            say({"lost": _reason(error)})
            return 0
        say(answer)
    return 0


def _reason(error: Exception) -> str:
    """Return an error in one line; ours say it all, others need their type."""
    lines = str(error).strip().splitlines()
    text = lines[0] if lines else "no message"
    ours = isinstance(error, SubjectError | LostRecordsError)
    return text if ours else f"{type(error).__name__}: {text}"


if __name__ == "__main__":
    sys.exit(main())
