"""In how many orders of threads a mutant shows, and that no case is asked for nothing."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from qsa_bench import races
from qsa_bench.model import TARGETS
from qsa_bench.parity import PLAIN, Limits, Seen
from qsa_bench.races import SCHEDULES, Races, Seldom

CLEAN = ("clean",) * SCHEDULES
# Case by case the steps it takes; the largest stands first.
FUEL = {"large": 30, "small": 10, "middle": 20}


class _Workload:
    """Says of each case what a mutant's runs of it give, and notes which were asked."""

    def __init__(self, told: dict[str, tuple[str, ...]]) -> None:
        self.told = told
        self.asked: list[str] = []

    def __call__(self, *_: object) -> _Workload:
        return self

    def program(self, case: Any) -> Any:
        return SimpleNamespace(bytes=0)

    def gate(
        self, builds: Any, limits: Any = None, cases: Sequence[Any] | None = None, **_: object
    ) -> Seen:
        if cases is None:
            fuel = {(PLAIN, case): steps for case, steps in FUEL.items()}
            return Seen([], dict.fromkeys(FUEL, CLEAN), Limits(fuel))
        self.asked += [case.id for case in cases]
        return Seen([], {case.id: self.told.get(case.id, CLEAN) for case in cases}, Limits())


def _seen(monkeypatch: pytest.MonkeyPatch, told: dict[str, tuple[str, ...]]) -> tuple[Seldom, Any]:
    workload = _Workload(told)
    monkeypatch.setattr(races, "Workload", workload)
    monkeypatch.setattr(races, "expects_output", lambda _: True)
    monkeypatch.setattr(races, "replace", lambda case, **_: case)
    # A case that no host runs stands among the others, and is not waited for.
    cases: Any = [
        SimpleNamespace(id=name, checked=True, writes=True, targets=targets, build=lambda: None)
        for name, targets in (("device", ("cuda",)), *((name, TARGETS) for name in FUEL))
    ]
    nothing: Any = None
    return Races(nothing, cases, nothing).seen(nothing), workload.asked


def test_an_order_counts_once_in_whatever_cases_it_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {
        "small": (*CLEAN[:-2], "other", "other"),
        "large": (*CLEAN[:-3], "other", "other", "clean"),
    }
    seen, asked = _seen(monkeypatch, told)
    assert seen == Seldom(3, SCHEDULES)
    assert asked == ["small", "middle", "large"]


def test_no_case_is_asked_after_every_order_has_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"small": CLEAN[:5], "middle": ("other",) * 5 + CLEAN[5:]}
    seen, asked = _seen(monkeypatch, told)
    assert (seen, asked) == (Seldom(20, SCHEDULES), ["small", "middle"])
