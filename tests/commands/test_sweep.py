"""A sweep from the gate to its tables, on the host's builds and a timer whose times are made up."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from qsa_bench import limits, results, store
from qsa_bench.commands import sweep
from qsa_bench.errors import NotComparableError, UsageError
from qsa_bench.exit_codes import ExitCode
from qsa_bench.model import Evidence, Finding, Status
from qsa_bench.requests import ForeignRequest
from qsa_bench.stages import load_stage
from qsa_bench.stages.base import Case, SweepPoint
from qsa_bench.timer_client import Loaded
from tests.conftest import Qsa
from tests.local_timer import LocalTimer
from tests.sweep_place import (  # noqa: F401 - a fixture
    AXES,
    SMALL,
    Place,
    finished,
    rows_of,
    sweep_place,
)
from tests.test_nsys import KERNELS, export

FOREIGN = Path(__file__).parents[1] / "foreign"
TOPK = "qsa_bench.peers.select:topk"


def test_a_sweep_times_every_build_at_every_point_and_says_what_on(place: Place) -> None:
    run = place.run(timers=("cupti", "graph"))
    assert run.run.exit_code == ExitCode.OK
    rows = rows_of(run)
    assert run.run.asked == run.run.done == len(rows) == 2 * 2 * 2 * 2
    assert {(row.name, row.timer, row.cache) for row in rows} == {
        (name, timer, "warm") for name in ("auto", "threads=128") for timer in ("cupti", "graph")
    }
    assert {(row.axes["context"], row.axes["rows"]) for row in rows} == {
        (context, count) for context in ("2052", "4096") for count in ("1", "3")
    }
    assert all(len(row.samples_ns) >= 10 for row in rows)
    assert all("verdicts on 2 cases passed" in str(row.verdict) for row in rows)
    assert {row.calls for row in rows if row.timer == "graph"} == {750}
    assert len({row.build for row in rows}) == 2
    ids = next(
        row for row in rows if row.axes == {"context": "4096", "rows": "3", "input": "relu4"}
    )
    assert (ids.bytes_read, ids.bytes_written) == (3 * (4096 + 4), 3 * 4096)


def test_every_point_is_judged_before_it_is_timed(place: Place) -> None:
    run = place.run()
    judged = [v for v in run.verdicts if v.family == "sweep"]
    assert {(v.case, v.check) for v in judged} == {(row.case, "mask") for row in rows_of(run)}
    assert all(v.passed for v in judged)
    assert len(judged) == len(rows_of(run))


def test_floor_bandwidths_and_the_flush_are_measured_in_the_same_run(place: Place) -> None:
    run = place.run()
    found = {(row.name, row.timer, row.cache) for row in rows_of(run, "calibration")}
    warm = {(name, "cupti", "warm") for name in ("copy", "read", "write")}
    assert found >= warm | {("empty kernel", "graph", "warm"), ("read 16 MiB", "cupti", "cold")}
    assert {("empty kernel", "cupti", cache) for cache in ("warm", "cold")} <= found


def test_all_subjects_of_a_point_are_timed_in_one_go(place: Place) -> None:
    place.run(axes={"context": ("2052",), "threads": ("auto", "128"), "cache": ("warm", "cold")})
    asked = [names for timer in place.timers for names in timer.asked if "auto" in names[0]]
    assert [(names, cache) for names, _, cache in asked] == [
        (("auto", "threads=128"), "warm"),
        (("auto", "threads=128"), "cold"),
    ]


def test_a_build_whose_gate_fails_has_no_time(place: Place) -> None:
    def wrong(*_: object) -> list[Finding]:
        return [Finding("mask", Status.WRONG, Evidence(3, 9, "bits", note="3 bits differ"))]

    place.stage = replace(
        SMALL, cases=lambda golden: [replace(c, judge=wrong) for c in SMALL.cases(golden)]
    )
    run = place.run()
    assert run.run.exit_code == ExitCode.TIMING_REFUSED
    assert run.run.done == 0
    rows = rows_of(run)
    assert rows
    assert all(not row.samples_ns and row.verdict is None for row in rows)
    assert all("its gate failed: " in row.why and "3 bits differ" in row.why for row in rows)


def test_a_subject_whose_output_is_wrong_at_a_point_has_no_time_there(place: Place) -> None:
    spec = SMALL.sweep
    assert spec is not None

    def point(entry: str, axes: Any) -> SweepPoint:
        made = spec.point(entry, axes)
        if axes["context"] != "4096":
            return made
        bad = Finding("mask", Status.WRONG, Evidence(1, 9, "bits", note="1 bit differs"))
        return replace(made, judge=lambda *_: [bad])

    place.stage = replace(SMALL, sweep=replace(spec, point=point))
    run = place.run()
    assert run.run.exit_code == ExitCode.TIMING_REFUSED
    for row in rows_of(run):
        right = row.axes["context"] == "2052"
        assert bool(row.samples_ns) is right
        assert row.why == ("" if right else "its output is wrong: mask: 1 bit differs")


def test_a_blind_gate_times_nothing(place: Place) -> None:
    blind = [replace(case, judge=lambda *_: ()) for case in SMALL.cases(None)]
    place.stage = replace(SMALL, cases=lambda golden: blind)
    run = place.run()
    assert run.run.exit_code == ExitCode.BLIND_GATE
    assert run.run.notes["blind_cases"]["qsa_select"]
    assert all(row.why == "the gate is blind" for row in rows_of(run))
    assert run.run.done == 0


def test_a_pipeline_is_gated_whole_and_timed_as_one_launch(place: Place) -> None:
    stage = load_stage("dsa")

    def few(golden: Any) -> list[Case]:
        return [case for case in stage.cases(golden) if case.family == "replay"][:1]

    place.stage = replace(stage, cases=few)
    run = place.run(stages=("dsa",), axes={"context": ("4096",)}, timers=("cupti", "graph"))
    assert run.run.exit_code == ExitCode.OK
    rows = rows_of(run)
    assert {(row.entry, row.name, row.timer) for row in rows} == {
        ("dsa_decode_step", "auto", timer) for timer in ("cupti", "graph")
    }
    assert len({row.build for row in rows}) == 1
    judged = {v.check for v in run.verdicts if v.family == "sweep"}
    assert {"pool-keys", "score", "kept-pools", "token-ids"} <= judged


def test_the_matrix_product_is_sampled_by_itself_after_everything_else(place: Place) -> None:
    place.make = lambda: _Product()
    place.run()
    asked = [names for timer in place.timers for names, _, _ in timer.asked]
    assert [names for names in asked if limits.MATRIX in names] == [(limits.MATRIX,)]


class _Product(LocalTimer):
    """A timer whose device multiplies matrices, too."""

    def calibrate(self, library: str) -> dict[str, tuple[int, int]]:
        return {limits.MATRIX: (0, 0), **super().calibrate(library)}


class _Stops(LocalTimer):
    """A timer during whose n-th point the user stops the sweep."""

    points = 2

    def load(self, program: Path, subjects: Any, out: Path, flush: Any) -> dict[str, Loaded]:
        if subjects and subjects[0].name == "auto":
            _Stops.points -= 1
            if _Stops.points < 0:
                raise KeyboardInterrupt
        return super().load(program, subjects, out, flush)


def _interrupted(place: Place, points: int) -> Path:
    _Stops.points = points
    place.make = _Stops
    with pytest.raises(KeyboardInterrupt):
        place.run()
    place.make = LocalTimer
    return store.run_folders(place.results)[-1]


def test_an_interrupted_sweep_keeps_its_points_and_goes_on_with_the_others(place: Place) -> None:
    folder = _interrupted(place, points=2)
    before = store.read_run(folder)
    assert before.run.exit_code == ExitCode.INTERRUPTED
    assert before.run.done == len(rows_of(before)) == 4
    gated = sum(verdict.family != "sweep" for verdict in before.verdicts)
    place.timers.clear()
    run = place.run(resume="latest")
    assert run.folder == folder
    assert run.run.exit_code == ExitCode.OK
    assert run.run.done == run.run.asked == 8
    keys = [row.key for row in run.timings]
    assert len(keys) == len(set(keys))
    asked = [names for timer in place.timers for names in timer.asked]
    assert len(asked) == 2, "two points were left; calibration was there"
    assert sum(verdict.family != "sweep" for verdict in run.verdicts) == gated, "gated once"


def test_peers_are_put_through_the_gate_once(place: Place) -> None:
    _Stops.points, place.make = 1, _Stops
    with pytest.raises(KeyboardInterrupt):
        place.run(peers=(TOPK,))
    place.make = LocalTimer
    run = place.run(peers=(TOPK,), resume="latest")
    assert run.run.exit_code == ExitCode.OK
    gated = [v for v in run.verdicts if v.build == f"peer:{TOPK}" and v.family != "sweep"]
    assert len(gated) == 2 * 3, "two cases, three checks"


def test_what_a_resumed_run_holds_is_what_it_had(place: Place) -> None:
    folder = _interrupted(place, points=2)
    before = {row.key: row.samples_ns for row in store.read_run(folder).timings}
    place.make = lambda: LocalTimer({"auto": 9000, "threads=128": 9000})
    run = place.run(resume=folder.name)
    after = {row.key: row.samples_ns for row in run.timings}
    assert {key: after[key] for key in before} == before
    assert {max(after[key]) for key in after if key not in before} == {9000}


def test_a_run_is_resumed_neither_elsewhere_nor_after_its_end(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = _interrupted(place, points=1)
    monkeypatch.setattr(sweep, "device_name", lambda _: "another device")
    with pytest.raises(NotComparableError, match="not another device"):
        place.run(resume=str(folder))
    monkeypatch.undo()
    monkeypatch.setattr(sweep, "require_gpu", lambda: None)
    with pytest.raises(UsageError, match="this run ended by itself"):
        store.RunWriter.resume(finished(place), ())


def test_other_builds_than_the_runs_own_are_not_mixed_in(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = _interrupted(place, points=1)
    stored = store.read_run(folder)
    other = tuple(replace(row, build="f" * 32) for row in stored.timings)
    monkeypatch.setattr("qsa_bench.store.writer.read_run", lambda _: replace(stored, timings=other))
    with pytest.raises(NotComparableError, match="begin a new sweep"):
        place.run(resume=str(folder))


def test_a_point_that_costs_the_device_leaves_the_others(place: Place) -> None:
    lost = iter([True])
    place.make = lambda: LocalTimer(loses=lambda _: next(lost, False))
    run = place.run()
    assert run.run.exit_code == ExitCode.INCOMPLETE
    assert (run.run.asked, run.run.done) == (8, 6)
    assert "illegal memory access" in next(iter(run.run.notes["lost"].values()))
    assert len(place.timers) == 2


def test_out_of_time_the_rest_is_left_and_said(place: Place) -> None:
    run = place.run(stop_after_s=0.0)
    assert run.run.exit_code == ExitCode.INCOMPLETE
    assert (run.run.asked, run.run.done) == (8, 0)
    assert run.run.notes["stopped"] == "out of time with 4 points to go"
    assert rows_of(run, "calibration")


class _Reads(LocalTimer):
    """A timer that looks into the run folder before every point."""

    seen: ClassVar[list[int]] = []

    def load(self, program: Path, subjects: Any, out: Path, flush: Any) -> dict[str, Loaded]:
        folder = store.run_folders(Path("results"))[-1]
        _Reads.seen.append(len(rows_of(store.read_run(folder))))
        return super().load(program, subjects, out, flush)


def test_results_are_on_the_disk_after_each_point(place: Place) -> None:
    _Reads.seen = []
    place.make = _Reads
    place.run()
    assert _Reads.seen == [0, 2, 4, 6]


def test_peers_are_timed_beside_with_what_they_break(place: Place) -> None:
    run = place.run(peers=(TOPK, "no_such:peer"), axes={"context": ("2052",)})
    assert run.run.exit_code == ExitCode.OK
    assert (run.run.asked, run.run.done) == (1, 1), "peers are beside what was asked for"
    found = {row.name: row for row in rows_of(run, "peer")}
    assert found[TOPK].samples_ns
    assert str(found[TOPK].verdict).startswith("breaks ties: row 0: ")
    assert found[TOPK].axes["title"] == "torch.topk + scatter"
    assert "loading the peer no_such:peer" in found["no_such:peer"].why
    broken = [v for v in run.verdicts if v.build == f"peer:{TOPK}" and v.family == "distribution"]
    assert {v.check for v in broken if not v.passed} == {"ties"}


def test_a_users_kernel_is_gated_and_timed_beside(place: Place, tmp_path: Path) -> None:
    library = tmp_path / "libtopk.so"
    words = ["g++", "-std=c++17", "-O2", "-fPIC", "-shared", str(FOREIGN / "topk_mask.cpp")]
    subprocess.run([*words, "-o", str(library)], check=True, timeout=120)
    own = ForeignRequest(library, "topk_mask", FOREIGN / "topk_mask.toml")
    axes = {"context": ("2052",), "rows": ("3",), "entry": ("qsa_select", "qsa_select_ids")}
    run = place.run(foreign=own, timers=("cupti", "graph"), axes=axes)
    assert run.run.exit_code == ExitCode.OK
    rows = rows_of(run, "library")
    assert [(row.name, row.timer) for row in rows] == [("topk_mask of libtopk.so", "cupti")]
    assert "passed" in str(rows[0].verdict)
    # Its entry takes no stream, so no graph is asked of it; it gives a mask and no ids.
    assert (run.run.asked, run.run.done) == (5, 5)
    judged = [v for v in run.verdicts if v.build == rows[0].build and v.family == "sweep"]
    assert {v.check for v in judged} == {"selection", "ties", "zeros"}


def test_a_users_kernel_that_fails_the_gate_has_no_time(place: Place, tmp_path: Path) -> None:
    library = tmp_path / "libwrong.so"
    words = ["g++", "-std=c++17", "-fPIC", "-shared", "-DTIES_TO_HIGHEST"]
    source = str(FOREIGN / "topk_mask.cpp")
    subprocess.run([*words, source, "-o", str(library)], check=True, timeout=120)
    own = ForeignRequest(library, "topk_mask", FOREIGN / "topk_mask.toml")
    run = place.run(foreign=own, axes={"context": ("2052",)})
    assert run.run.exit_code == ExitCode.TIMING_REFUSED
    row = rows_of(run, "library")[0]
    assert not row.samples_ns
    assert "its gate failed: " in row.why
    assert rows_of(run)[0].samples_ns, "ours passed and is timed"


def test_the_page_marks_the_best_and_names_the_timer(place: Place) -> None:
    place.make = lambda: LocalTimer({"auto": 4000, "threads=128": 2500, TOPK: 12_000})
    run = place.run(peers=(TOPK,), axes={**AXES, "cache": ("warm", "cold")})
    page = results.page(run)
    pivots = [table for table in page.tables if table.key == "pivot"]
    assert [table.title for table in pivots] == [
        f"qsa_select, {rows}, relu4, {cache}, cupti: median us"
        for rows in ("1 row", "3 rows")
        for cache in ("warm", "cold")
    ]
    titles = [column.title for column in pivots[0].columns]
    assert titles == [
        "context",
        "auto",
        "threads=128",
        "limit",
        "best / limit",
        "torch.topk + scatter",
    ]
    assert [cell.text for cell in pivots[0].rows[0]] == ["2052", "4", "2.5 *", "0.64", "3.91", "12"]
    assert [table.key for table in page.tables if table.key in ("peers", "device")] == [
        "peers",
        "device",
    ]
    said = {
        cells[0].text: cells[1].text
        for table in page.tables
        if table.key == "device"
        for cells in table.rows
    }
    assert said["other processes on it"] == "none"
    assert said["copy bandwidth"] == "4.26 TB/s"
    assert page.headline.text.startswith("sweep ok: 16 measurements of 2 builds at 4 points")


def test_a_summary_has_nsyss_columns(place: Place) -> None:
    run = place.run(axes={"context": ("2052",)})
    table = next(t for t in results.page(run).tables if t.key == "summary")
    assert [column.title for column in table.columns] == [
        "Time (%)",
        "Total Time (ns)",
        "Instances",
        "Avg (ns)",
        "Med (ns)",
        "Min (ns)",
        "Max (ns)",
        "StdDev (ns)",
        "Name",
    ]


def test_without_a_gpu_a_sweep_is_exit_7_and_says_where_times_are(qsa_bench: Qsa) -> None:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PATH": "/usr/bin:/bin"}
    done = qsa_bench("sweep", "--stage", "qsa_select", env=environment)
    assert done.returncode == 7, done.stderr
    assert "nvcc on the PATH" in done.stderr
    assert "emulation is never timed" in done.stderr
    assert "results/published" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--context", "far"), "a size is 'far'"),
        (("--timer", "clock"), "--timer clock: there is no such timer"),
        (("--timer", "graph", "--cache", "cold"), "goes with a warm cache"),
        (("--peer", "nothing"), "--peer nothing: give module:function"),
        (("--library", "x.so"), "--library, --entry and --map go together"),
        (("--half-width", "much"), "a share is 'much'"),
        (("--least", "0"), "at least 0"),
        (("--axis", "heads"), "--axis heads: give a name"),
        (("--stage", "dsa_write_geom"), "nothing of this stage can be timed"),
        (("--from-nsys", "x", "--rows", "1"), "it goes with no axis"),
    ],
)
def test_what_makes_no_sense_is_refused_before_a_gpu_is_looked_for(
    qsa_bench: Qsa, words: tuple[str, ...], said: str
) -> None:
    stage = () if "--stage" in words else ("--stage", "qsa_select")
    done = qsa_bench("sweep", *stage, *words)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr


def test_an_nsys_export_becomes_a_run_that_compare_reads(qsa_bench: Qsa, tmp_path: Path) -> None:
    many = [kernel for kernel in KERNELS for _ in range(20)]
    slower = [(start, end + 400, *rest) for start, end, *rest in many]
    for name, kernels in (("old", many), ("new", slower)):
        export(tmp_path / f"{name}.sqlite", kernels)
        done = qsa_bench("sweep", "--from-nsys", f"{name}.sqlite", "-o", name)
        assert done.returncode == 0, done.stderr
        assert "kernel summary, nsys, as-run" in done.stdout
        assert "nsys ok: 2 kernels, 60 launches" in done.stdout
    runs = [str(next((tmp_path / name).iterdir())) for name in ("old", "new")]
    done = qsa_bench("compare", *runs)
    assert done.returncode == 12, done.stderr
    assert "slower" in done.stdout
