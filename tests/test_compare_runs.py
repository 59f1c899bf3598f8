"""Comparing runs: verdicts from intervals, and what can't be compared is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from qsa_bench.compare_runs import Change, Comparison, change, compare
from qsa_bench.errors import NotComparableError
from qsa_bench.exit_codes import ExitCode
from qsa_bench.model import Measurement
from qsa_bench.store import StoredRun
from tests.made_sweeps import CALIBRATIONS, around, build, peer, sweep, timing, usage


def _compare(old: StoredRun, new: StoredRun, slowdown: float = 0.05) -> Comparison:
    return compare(old, new, slowdown, 0.0)


def _of(*timings: Measurement, **more: object) -> StoredRun:
    return sweep(None, timings, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        (around(4000), around(4000), Change.SAME),
        (around(4000), around(4100), Change.SAME),
        (around(4000), around(4300), Change.SLOWER),
        (around(4000), around(3700), Change.FASTER),
        (around(4000), around(4220), Change.UNDECIDED),
        (around(4000), around(3790), Change.UNDECIDED),
        (around(4000), around(4300, spread=400), Change.UNDECIDED),
        # One step of CUPTI's clock, 32 ns, is 5% of an empty kernel: nothing can be said.
        (around(640), around(672), Change.UNDECIDED),
    ],
)
def test_a_verdict_follows_from_where_the_ratios_interval_lies(
    old: tuple[int, ...], new: tuple[int, ...], found: Change
) -> None:
    assert change(old, new, 32, 0.05)[0] is found


def test_a_narrower_allowance_sees_a_smaller_change() -> None:
    assert change(around(4000), around(4100), 32, 0.01)[0] is Change.SLOWER
    assert change(around(4000), around(3900), 32, 0.01)[0] is Change.FASTER


def test_too_few_samples_decide_nothing() -> None:
    found, ratio, why = change((4000,) * 5, (9000,) * 50, 32, 0.05)
    assert (found, ratio) == (Change.UNDECIDED, None)
    assert why == "5 and 50 samples give no interval"


def test_slower_than_allowed_is_exit_12_whatever_else_is_open() -> None:
    old = _of(timing(), timing(around(640), context=2048))
    new = _of(timing(around(2400)), timing(around(672), context=2048))
    found = _compare(old, new)
    assert {row.change for row in found.rows} == {Change.SLOWER, Change.UNDECIDED}
    assert found.exit_code is ExitCode.SLOWER


def test_what_is_open_is_no_success() -> None:
    assert _compare(_of(timing(around(640))), _of(timing(around(672)))).exit_code is (
        ExitCode.INCOMPLETE
    )


def test_the_same_and_the_faster_are_a_success() -> None:
    old = _of(timing(), timing(context=8192))
    new = _of(timing(), timing(around(1500), context=8192))
    assert _compare(old, new).exit_code is ExitCode.OK


def test_a_kernel_that_was_refused_in_the_new_run_is_undecided_and_says_why() -> None:
    refused = timing((), stopped_because="refused", why="its gate failed", verdict=None)
    row = _compare(_of(timing()), _of(refused)).rows[0]
    assert (row.change, row.why, row.new_ns) == (Change.UNDECIDED, "its gate failed", None)


def test_peers_and_calibration_are_no_verdict_but_tell_the_drift() -> None:
    old = _of(timing(), peer(), *CALIBRATIONS)
    slower = [replace(row, samples_ns=around(660)) for row in CALIBRATIONS[:1]]
    found = _compare(old, _of(timing(), peer(around(12_360)), *slower))
    assert len(found.rows) == 1
    assert found.drift == pytest.approx((660 / 640 + 1.03) / 2)


def test_what_stands_in_one_run_only_is_counted() -> None:
    found = _compare(_of(timing(), timing(rows=8)), _of(timing(), timing(rows=64)))
    assert len(found.rows) == len(found.only_old) == len(found.only_new) == 1
    assert "rows=8" in found.only_old[0]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (_of(timing()), _of(timing(), device="NVIDIA B200"), "devices differ"),
        (_of(timing()), _of(timing(timer="graph")), "the timers differ (cupti and graph)"),
        (_of(timing()), _of(timing(cache="cold")), "the cache states differ (warm and cold)"),
        (_of(timing()), _of(timing(rows=8)), "no measurement in common"),
        (_of(*CALIBRATIONS), _of(timing()), "the old run holds no times of kernels"),
        (_of(timing()), _of(timing(), command="nsys"), "a sweep run with a nsys run"),
        (_of(command="gate"), _of(command="gate"), "gate runs: they hold nothing to compare"),
        (build(None, [usage()]), build(None, []), "share no kernel"),
    ],
)
def test_runs_that_differ_in_what_matters_are_not_compared(
    old: StoredRun, new: StoredRun, said: str
) -> None:
    with pytest.raises(NotComparableError) as caught:
        _compare(old, new)
    assert said in str(caught.value)
    assert caught.value.exit_code == 13


def test_an_interrupted_run_is_compared_and_said_to_be_one() -> None:
    found = _compare(_of(timing()), _of(timing(), exit_code=130))
    assert found.notes == ("the new run was not finished (exit 130)",)


def test_another_driver_is_said() -> None:
    old, new = _of(timing()), _of(timing())
    newer = replace(new.run, versions={**new.run.versions, "driver": "590.1"})
    found = _compare(old, replace(new, run=newer))
    assert "the drivers differ" in found.notes[0]


@pytest.mark.parametrize(
    ("changed", "growth", "code"),
    [
        ({}, 0.0, ExitCode.OK),
        ({"registers": 53}, 0.0, ExitCode.SLOWER),
        ({"registers": 53}, 0.05, ExitCode.OK),
        ({"registers": 40}, 0.0, ExitCode.OK),
        ({"spill_stores": 8}, 1.0, ExitCode.SLOWER),
        ({"shared": 9617}, 0.0, ExitCode.SLOWER),
        ({"warps": 24}, 0.0, ExitCode.SLOWER),
        ({"warps": 48}, 0.0, ExitCode.OK),
    ],
)
def test_a_kernel_that_grows_past_the_limit_fails(
    changed: dict[str, int], growth: float, code: ExitCode
) -> None:
    old, new = build(None, [usage()]), build(None, [usage(**changed)])
    found = compare(old, new, 0.05, growth)
    assert found.exit_code is code
    assert len(found.growths) == len(changed)


def test_a_run_reads_back_with_every_sample(tmp_path: Path) -> None:
    timings = (timing(around(2000, 40)), peer(), *CALIBRATIONS)
    assert sweep(tmp_path, timings).timings == timings
    assert build(tmp_path, [usage()]).usages == (usage(),)
