"""A sweep that stands on the passes of a gate run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from qsa_bench import store
from qsa_bench.commands import gate, sweep
from qsa_bench.errors import NotComparableError, UsageError
from qsa_bench.exit_codes import ExitCode
from qsa_bench.requests import GateRequest, NullProgress
from tests.sweep_place import (  # noqa: F401 - a fixture
    Place,
    finished,
    rows_of,
    sweep_place,
)


def _gated(place: Place, *globs: str) -> str:
    """Return the folder of a gate run of the shipped build on some cases."""
    asked = tuple(f"qsa_select/{glob}" for glob in globs)
    made = gate.run(
        GateRequest(("qsa_select",), case_globs=asked, results=place.results, seeds=0, jobs=2),
        NullProgress(),
    )
    assert made.run.exit_code == ExitCode.OK
    return str(made.folder)


BOTH = ("distribution/equal-61-budget64", "ragged/mixed-lengths")


def test_a_build_that_a_gate_run_passed_whole_is_not_gated_again(place: Place) -> None:
    run = place.run(gate=_gated(place, *BOTH))
    assert run.run.exit_code == ExitCode.OK
    rows = {row.name: row.build for row in rows_of(run)}
    assert {v.build for v in run.verdicts if v.family != "sweep"} == {rows["threads=128"]}
    assert all("on 2 cases passed" in str(row.verdict) for row in rows_of(run))


def test_a_gate_run_of_some_cases_is_no_pass(place: Place) -> None:
    run = place.run(gate=_gated(place, BOTH[0]))
    gated = {v.build for v in run.verdicts if v.family != "sweep"}
    assert gated == {row.build for row in rows_of(run)}
    assert len(gated) == 2


def test_a_blind_gate_is_no_pass(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = _gated(place, *BOTH)
    seen = store.read_run(Path(folder))
    notes = {**seen.run.notes, "blind_cases": {"qsa_select": ["qsa_select/ragged/mixed-lengths"]}}
    blind = replace(seen, run=replace(seen.run, notes=notes))
    monkeypatch.setattr(sweep.store, "read_run", lambda _: blind)
    run = place.run(gate=folder)
    gated = {v.build for v in run.verdicts if v.family != "sweep"}
    assert gated == {row.build for row in rows_of(run)}
    assert len(gated) == 2


def test_what_is_no_gate_run_of_this_device_is_refused(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match="is a sweep run on host"):
        place.run(gate=str(finished(place)))
    folder = _gated(place, BOTH[0])
    monkeypatch.setattr(sweep, "device_name", lambda _: "another device")
    with pytest.raises(NotComparableError, match="this is another device"):
        place.run(gate=folder)
