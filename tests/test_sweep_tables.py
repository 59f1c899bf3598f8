"""A sweep's tables from runs made by hand: what a reader must be told, stands there."""

from __future__ import annotations

from dataclasses import replace

from qsa_bench import gate_tables, pages, sweep_tables
from qsa_bench.model import Evidence, Measurement, Status, Verdict
from qsa_bench.store import StoredRun
from qsa_bench.tables import Mark, Table
from tests.made_sweeps import CALIBRATIONS, around, peer, sweep, timing, usage


def _run(*timings: Measurement, **notes: object) -> StoredRun:
    made = sweep(None, (*timings, *CALIBRATIONS))
    return replace(made, run=replace(made.run, notes=notes))


def _table(run: StoredRun, key: str) -> Table:
    return next(table for table in sweep_tables.tables(run) if table.key == key)


def _texts(table: Table) -> list[list[str]]:
    return [[cell.text for cell in cells] for cells in table.rows]


def _said(run: StoredRun) -> dict[str, str]:
    return {cells[0].text: cells[1].text for cells in _table(run, "device").rows}


def test_a_row_is_held_to_the_floor_or_to_its_bytes() -> None:
    run = _run(
        timing(around(2000), context=65536),
        timing(around(1000), context=65536, name="threads=256"),
        timing(around(70_000), context=65536, rows=2048),
        timing(around(63_002), context=65536, rows=2048, name="threads=256"),
    )
    small, large = (table for table in sweep_tables.tables(run) if table.key == "pivot")
    assert _texts(small) == [["64k", "2", "1 *", "0.64", "1.56"]]
    assert _texts(large) == [["64k", "70", "63 *", "63", "1.00"]]


def test_a_build_that_was_not_timed_is_a_dash_and_never_the_best() -> None:
    refused = timing((), name="threads=256", verdict=None, why="its gate failed")
    run = _run(timing(), refused, timing(around(3000), name="threads=512"))
    cells = _table(run, "pivot").rows[0]
    assert [cell.text for cell in cells][:3] == ["2052", "2 *", "3"]
    assert [cell.text for cell in _table(run, "refused").rows[0]] == [
        "threads=256",
        "cupti",
        "1",
        "its gate failed",
    ]


def test_only_one_build_has_no_best() -> None:
    assert _texts(_table(_run(timing()), "pivot"))[0][1] == "2"


def test_the_graph_timer_is_shown_on_request() -> None:
    tables = [t for t in sweep_tables.tables(_run(timing(timer="graph"))) if t.key == "pivot"]
    assert [table.detail for table in tables] == [True]


def test_hostile_inputs_stand_beside_the_usual_one() -> None:
    kinds = ("relu4", "equal", "quant")
    rows = [
        timing(around(base + 1000 * place), context=context, kind_of_input=kind)
        for place, kind in enumerate(kinds)
        for base, context in ((2000, 2052), (4000, 65536))
    ]
    table = _table(_run(*rows, timing(around(9000), context=8192)), "inputs")
    assert [column.title for column in table.columns] == ["input", "2052", "64k"]
    assert _texts(table) == [["relu4", "2", "4"], ["equal", "3", "5"], ["quant", "4", "6"]]


def _of_peer(case: str, check: str, status: Status, note: str = "") -> Verdict:
    family = case.partition("/")[0]
    name = "peer:qsa_bench.peers.select:topk"
    evidence = Evidence(1, 1, "rows", note=note)
    return Verdict(name, "qsa_select", f"qsa_select/{case}", family, check, status, evidence)


def test_what_a_peer_breaks_is_said_with_the_inputs_and_an_example() -> None:
    verdicts = (
        _of_peer("distribution/equal", "ties", Status.WRONG, "row 0: 3 are not the lowest"),
        _of_peer("distribution/zeros", "zeros", Status.WRONG, "row 0: +0.0 before -0.0"),
        _of_peer("long/equal", "ties", Status.WRONG, "row 0: 9 are not the lowest"),
        _of_peer("long/relu4", "ties", Status.PASS),
    )
    run = replace(_run(timing(), peer()), verdicts=verdicts)
    assert _texts(_table(run, "peers")) == [
        [
            "qsa_bench.peers.select:topk",
            "4",
            "ties in 2 cases (distribution, long); zeros in 1 case (distribution)",
            "qsa_select/distribution/equal: row 0: 3 are not the lowest",
        ]
    ]


def test_verdicts_on_timed_points_are_no_gate_of_a_peer() -> None:
    verdict = replace(_of_peer("sweep/x", "ties", Status.WRONG), family="sweep")
    run = replace(_run(timing()), verdicts=(verdict,))
    assert [t for t in sweep_tables.tables(run) if t.key == "peers"] == []


def test_a_shared_device_and_dropped_samples_are_said() -> None:
    clocks = {"sm_mhz": 1500.0, "others": 2.0}
    run = _run(timing(clocks=clocks), timing(context=8192, dropped={"software power cap": 24}))
    said = _said(run)
    assert said["other processes on it"] == "up to 2: the device was shared"
    assert said["samples"].endswith("kept, 24 for software power cap dropped")
    assert said["SM clock"] == "1500 to 1980 MHz"


def test_what_nobody_could_read_is_unknown() -> None:
    assert _said(_run(timing(clocks={})))["other processes on it"] == "unknown"


def test_cold_is_verified_or_said_not_to_be() -> None:
    cold = timing(cache="cold")
    assert _said(_run(cold))["cold"].startswith("verified")
    bare = replace(_run(cold), timings=(cold,))
    assert _said(bare)["cold"] == "no empty kernel was timed in both cache states"
    assert "cold" not in _said(replace(bare, timings=(timing(),)))


def test_a_peer_that_is_not_to_be_had_is_named() -> None:
    run = _run(timing(), peers_unavailable={"qsa_bench.peers.select:cub_topk": "no such header"})
    said = _said(run)
    assert said["peer qsa_bench.peers.select:cub_topk"] == "unavailable: no such header"


def test_a_point_all_of_whose_samples_were_dropped_says_so() -> None:
    run = _run(timing((), dropped={"low clock": 400}, stopped_because="time-limit"))
    assert _texts(_table(run, "refused"))[0][3] == "every sample was dropped (400 low clock)"


def test_changes_against_a_published_run_are_listed() -> None:
    row = {"key": "a|auto|cupti|warm", "old_ns": 2000.0, "new_ns": 2500.0, "low": 1.2, "high": 1.3}
    found = {
        "run": "old",
        "counts": {"slower": 1, "same": 9},
        "rows": [{**row, "change": "slower"}],
    }
    table = _table(_run(timing(), published=found), "published")
    assert table.title == "against the published run old: 1 slower, 9 same"
    assert _texts(table) == [["a, auto, cupti, warm", "2", "2.5", "1.200 to 1.300", "slower"]]
    assert table.rows[0][4].mark is Mark.BAD
    none = _table(_run(timing(), published={"why": "there is none"}), "published")
    assert [note.text for note in none.notes] == ["there is none"]


def test_a_summary_is_sorted_by_total_and_adds_up() -> None:
    rows = (timing(around(1000)), timing(around(3000), context=8192))
    table = next(sweep_tables.summaries(rows))  # type: ignore[call-overload]
    assert [cells[0] for cells in _texts(table)] == ["75.0", "25.0"]
    assert _texts(table)[0][1:4] == ["150000", "50", "3000.0"]


def test_a_build_page_shows_what_kernels_use() -> None:
    spilling = usage(name="select_mask_kernel<1024, 8>", spill_stores=20, spill_loads=28)
    table = next(sweep_tables.resources([usage(), spilling, usage(architecture=80)]))  # type: ignore[call-overload]
    assert table.title == "resources, sm_90"
    assert [cells[3] for cells in _texts(table)] == ["0 / 0", "20 / 28"]
    assert table.rows[1][3].mark is Mark.WARN
    assert _texts(table)[0][6] == "32 / 64 (50%)"


def test_a_gate_of_a_users_kernel_says_whose_it_was() -> None:
    notes = {"library": {"entry": "topk_mask", "ties": "exact", "only": {}}}
    table = gate_tables.library(notes)[0]
    assert _texts(table) == [["entry", "topk_mask"], ["ties", "exact"]]
    assert gate_tables.library({}) == ()


def test_a_sweeps_headline_counts_what_was_timed() -> None:
    run = _run(timing(), timing(context=8192), timing((), rows=8, verdict=None), peer())
    assert sweep_tables.counts(run) == "2 measurements of 1 build at 2 points"
    assert pages.of_run(run).headline.text.startswith("sweep ok: 2 measurements of 1 build")
