"""A timer without a GPU: the child's own server on CPU tensors, its durations made up.

What it runs it runs (buffers, calls, peers, outputs); what it says of time is invention, so it
lives among the tests alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from qsa_bench.telemetry import Reading
from qsa_bench.timer_client import Asked, Loaded, Timed, TimerLostError
from qsa_bench.timer_worker import Server
from qsa_bench.timers.activity import Activity
from qsa_bench.timers.session import Session
from qsa_bench.timing import Rule

DEVICE = {"name": "made up", "multiprocessors": 132, "telemetry": "nvml"}


class _Still:
    def read(self) -> Reading:
        return Reading(sm_mhz=1980, power_w=200.0, temperature_c=40, others=0)


class _OneKernel:
    """A profiler for which every call is one kernel of a made-up duration."""

    def names(self, call: Callable[[], Any], calls: int = 3) -> tuple[str, ...]:
        call()
        return ("kernel",)

    def record(self, launch: Callable[[], Any]) -> list[Activity]:
        launch()
        return [Activity("kernel", 0, 2000)]


class LocalTimer:
    """Loads for real; times are `durations` by subject, else 2,000 ns."""

    def __init__(
        self,
        durations: Mapping[str, int] | None = None,
        loses: Callable[[str], bool] = lambda _: False,
    ) -> None:
        session = Session("cpu")
        self._server = Server(session, _Still(), _OneKernel())  # type: ignore[arg-type]
        self._durations = dict(durations or {})
        self._loses = loses
        self.asked: list[tuple[tuple[str, ...], str, str]] = []
        self.closed = False

    @property
    def device(self) -> Mapping[str, Any]:
        return DEVICE

    def load(
        self, program: Path, subjects: Sequence[Asked], out: Path, flush: str | None
    ) -> dict[str, Loaded]:
        for subject in subjects:
            if self._loses(subject.name):
                self.closed = True
                raise TimerLostError(f"an illegal memory access ended {subject.name}")
        answer = self._server.answer(
            {
                "do": "load",
                "program": str(program),
                "out": str(out),
                "subjects": [subject.message() for subject in subjects],
            }
        )
        return {
            name: Loaded(
                said.get("title", name),
                said.get("form"),
                {key: Path(path) for key, path in said.get("files", {}).items()},
                said["error"],
            )
            for name, said in answer["subjects"].items()
        }

    def calibrate(self, library: str) -> dict[str, tuple[int, int]]:
        gib = 1 << 30
        self._durations |= {"empty kernel": 640, "copy": 504_000, "read": 227_000}
        self._durations |= {"write": 228_000, "read 16 MiB": 4200}
        return {
            "empty kernel": (0, 0),
            "copy": (gib, gib),
            "read": (gib, 0),
            "write": (0, gib),
            "read 16 MiB": (1 << 24, 0),
        }

    def time(
        self,
        subjects: Sequence[str],
        timer: str,
        cache: str,
        rule: Rule,
        seed: int,
        describe: bool,
    ) -> dict[str, Timed]:
        self.asked.append((tuple(subjects), timer, cache))
        return {
            name: Timed(
                (self._durations.get(name, 2000) + (300 if cache == "cold" else 0),) * rule.least,
                {},
                "precise",
                "",
                750 if timer == "graph" else 1,
                (f"kernel of {name}",) if describe else (),
                {"sm_mhz": 1980.0, "others": 0.0},
            )
            for name in subjects
        }

    def close(self) -> None:
        self.closed = True
