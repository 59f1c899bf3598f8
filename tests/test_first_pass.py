"""What a group's build says of an argued mutant: cleared where it lives through everything, else left open."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from types import SimpleNamespace
from typing import Any

import pytest

from qsa_bench import first_pass
from qsa_bench.equivalence import Argument, Said
from qsa_bench.first_pass import FirstPass
from qsa_bench.model import Evidence, Expect, Mutant, Outcome, Status, Verdict
from qsa_bench.parity import CHECKED, PLAIN, Limits, Seen, StageBuilds

MUTANT = Mutant("s/auto/x", "s", "it is seen", "", Expect.KILLED, "", operator="index")
ARGUMENT = Argument(MUTANT.id, "0", "so", date(2026, 1, 31), 100_000, "bits")
FAILED = Verdict("", "s", "s/a", "f", "mask", Status.WRONG, Evidence(1, 1, "bytes"), 1, "")


def seen(*verdicts: Verdict, by_clock: bool = False) -> Seen:
    """Return what a gate saw."""
    return Seen(list(verdicts), {}, Limits(), by_clock)


class _Shared:
    """A group's build, of which one mutant is chosen after none."""

    def has(self, _: Mutant) -> bool:
        return True

    @contextmanager
    def chosen(self, _: Mutant | None) -> Iterator[StageBuilds]:
        yield StageBuilds({PLAIN: {}})


def ended(monkeypatch: pytest.MonkeyPatch, first: Seen, rest: Seen, checked: Seen) -> list[Any]:
    """Return the trials of one argued mutant up to its first kill; each gate sees what is given."""
    asked = iter((seen(), rest))

    def gate(*_: object, modes: tuple[str, ...], **__: object) -> Seen:
        return checked if modes == (CHECKED,) else next(asked)

    workload: Any = SimpleNamespace(
        gate=gate,
        cases=[],
        stage=SimpleNamespace(),
        stopped=SimpleNamespace(is_set=lambda: False),
    )
    order: Any = SimpleNamespace(
        cheap=lambda _: [],
        first_kill=lambda *_: (first, bool(first.failures) and not first.by_clock),
    )
    said = Said(Outcome.EQUIVALENT, "argued")
    monkeypatch.setattr(first_pass.equivalence, "said_of", lambda *_: said)
    monkeypatch.setattr(
        first_pass, "SharedBuilds", lambda *_: SimpleNamespace(of=lambda _: _Shared())
    )
    nothing: Any = None
    made = FirstPass(nothing, nothing, workload, {MUTANT.id: ARGUMENT}, Limits(), order)
    group: Any = (SimpleNamespace(mutant=MUTANT),)
    return [trial.result for trial in made.run(group)]


def test_an_argued_mutant_that_lives_through_everything_is_equivalent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (result,) = ended(monkeypatch, seen(), seen(), seen())
    assert (result.outcome, result.as_expected) == (Outcome.EQUIVALENT, True)


def test_an_argued_mutant_that_dies_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    (result,) = ended(monkeypatch, seen(FAILED), seen(), seen())
    assert (result.outcome, result.as_expected) == (Outcome.KILLED, False)
    assert "take the argument out" in result.why


@pytest.mark.parametrize(
    ("first", "rest", "checked"),
    [
        (seen(FAILED, by_clock=True), seen(), seen()),
        (seen(by_clock=True), seen(), seen()),
        (seen(), seen(FAILED), seen()),
        (seen(), seen(by_clock=True), seen()),
        (seen(), seen(), seen(FAILED)),
    ],
)
def test_what_a_clock_ended_or_the_rest_of_the_gate_fails_is_left_open(
    monkeypatch: pytest.MonkeyPatch, first: Seen, rest: Seen, checked: Seen
) -> None:
    assert ended(monkeypatch, first, rest, checked) == []
