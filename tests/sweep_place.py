"""Where tests sweep: on the host's builds and a timer whose times are made up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from qsa_bench import store
from qsa_bench.commands import sweep
from qsa_bench.model import Measurement
from qsa_bench.requests import NullProgress, SweepRequest
from qsa_bench.stages import load_stage
from qsa_bench.stages.base import Case, Stage
from qsa_bench.store import StoredRun
from qsa_bench.timing import Rule
from tests.local_timer import LocalTimer

SELECT = load_stage("qsa_select")


def _few(golden: Any) -> list[Case]:
    wanted = ("qsa_select/distribution/equal-61-budget64", "qsa_select/ragged/mixed-lengths")
    return [case for case in SELECT.cases(None) if case.id in wanted]


SMALL = replace(SELECT, cases=_few)
AXES = {"context": ("2052", "4096"), "rows": ("1", "3"), "threads": ("auto", "128")}
RULE = Rule(least=20, most=30)


class Place:
    """Where a test's sweeps run: the stage, the timers they were given, the results folder."""

    def __init__(self, folder: Path) -> None:
        self.results = folder / "results"
        self.stage: Stage = SMALL
        self.make: Callable[[], LocalTimer] = LocalTimer
        self.timers: list[LocalTimer] = []

    def open(self) -> LocalTimer:
        self.timers.append(self.make())
        return self.timers[-1]

    def request(self, **fields: Any) -> SweepRequest:
        given: dict[str, Any] = {
            "stages": ("qsa_select",),
            "axes": AXES,
            "timers": ("cupti",),
            "builtin_peers": False,
            "rule": RULE,
            "results": self.results,
            "jobs": 2,
            **fields,
        }
        return SweepRequest(**given)

    def run(self, **fields: Any) -> StoredRun:
        return sweep.run(self.request(**fields), NullProgress())


@pytest.fixture(name="place")
def sweep_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """Return a place where the host stands in for a GPU."""
    made = Place(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sweep, "_TARGET", "host")
    monkeypatch.setattr(sweep, "require_gpu", lambda: None)
    monkeypatch.setattr(sweep, "_stages", lambda *_, **__: [made.stage])
    monkeypatch.setattr(sweep, "open_timer", made.open)
    yield made
    assert all(timer.closed for timer in made.timers)


def rows_of(run: StoredRun, kind: str = "kernel") -> list[Measurement]:
    return [timing for timing in run.timings if timing.kind == kind]


def finished(at: Place) -> Path:
    writer = store.RunWriter.create(at.results, "sweep", ("qsa-bench",), "host", "device")
    folder = writer.finish(0, 0, 0).folder
    assert folder is not None
    return folder
