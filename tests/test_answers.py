"""How long the parent waits for a child's answers."""

from __future__ import annotations

import select
import threading
from pathlib import Path

import pytest

from qsa_bench import runner
from qsa_bench.child import Children, Ending
from qsa_bench.runner import Job


class SlowChild:
    """A child whose runs each take three seconds of a clock that only it turns."""

    def __init__(self, runs: int) -> None:
        self.now = 0.0
        self._answers = [{"case": "case", "run": _run(number)} for number in range(runs)]

    def receive(self, limit_s: float, _stopped: object) -> dict[str, object] | Ending:
        if limit_s < 3.0:
            return Ending.TIMED_OUT
        self.now += 3.0
        return self._answers.pop(0) if self._answers else {"case": "case", "lost": ""}


def _run(number: int) -> dict[str, object]:
    empty = ("statuses", "findings", "fences", "inputs_changed", "touched")
    return {"schedule": "device", "seed": number, "fuel": 0, **dict.fromkeys(empty, ())}


@pytest.mark.parametrize(
    ("each", "ending", "runs"), [(False, Ending.TIMED_OUT, 3), (True, Ending.RAN, 9)]
)
def test_a_limit_is_for_all_runs_together_or_for_each(
    monkeypatch: pytest.MonkeyPatch, each: bool, ending: Ending, runs: int
) -> None:
    child = SlowChild(9)
    monkeypatch.setattr(runner.time, "monotonic", lambda: child.now)
    job = Job("case", "0", Path("program"), (), limit_s=10.0, limits_each=each)
    seen = runner._await(child, job, threading.Event())  # type: ignore[arg-type]
    assert (seen.ending, len(seen.runs)) == (ending, runs)


def test_an_answer_that_waits_is_taken_however_late_it_is_asked_for() -> None:
    children = Children("host")
    child = children.take()
    assert child.process.stdout is not None
    assert select.select([child.process.stdout], [], [], 60)[0]
    assert child.receive(0.0) == {"ready": "host"}
    assert child.receive(0.0) is Ending.TIMED_OUT
    children.give(child)
    children.close()
