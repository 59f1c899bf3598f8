"""Rates of a sweep, worked out of its own rows: shares, times a peer, what capturing costs."""

from __future__ import annotations

from dataclasses import replace

from qsa_bench import limits, sweep_rates
from qsa_bench.limits import MATRIX, MATRIX_FLOPS
from qsa_bench.model import Measurement
from qsa_bench.tables import Table
from tests.made_sweeps import CALIBRATIONS, around, calibration, peer, timing

# 800 TFLOP/s.
PRODUCT = calibration(MATRIX, round(MATRIX_FLOPS / 800_000))
MIB = 1 << 20


def _tables(*timings: Measurement) -> dict[str, Table]:
    limit = limits.of((*CALIBRATIONS, PRODUCT))
    return {table.key: table for table in sweep_rates.tables(timings, limit)}


def _texts(table: Table) -> list[list[str]]:
    return [[cell.text for cell in cells] for cells in table.rows]


def _of(median: int, **fields: object) -> Measurement:
    return timing(around(median), context=65536, rows=64, **fields)  # type: ignore[arg-type]


def test_rates_are_of_the_runs_own_copy_and_product() -> None:
    made = _of(1000, bytes_read=MIB, bytes_written=MIB, bytes_requested=4 * MIB, flops=400_000_000)
    table = _tables(made)["rates"]
    assert [column.title for column in table.columns] == [
        "launch",
        "us",
        "TB/s moved",
        "of copy",
        "TB/s requested",
        "TFLOP/s",
        "of matrix rate",
    ]
    # 2.1 TB/s of 4.26, 400 TFLOP/s of 800.
    assert _texts(table) == [
        ["qsa_select, 64k, 64 rows, relu4", "1", "2.1", "49%", "4.19", "400", "50%"]
    ]


def test_a_peer_at_the_same_point_is_a_multiple_of_our_time() -> None:
    made = _of(1000, bytes_requested=MIB)
    title = {**made.axes, "title": "torch.topk + scatter"}
    other = peer(around(8300), case=made.case, axes=title)
    elsewhere = peer(around(99_000))
    table = _tables(made, other, elsewhere)["against"]
    launch = "qsa_select, 64k, 64 rows, relu4"
    assert _texts(table) == [[launch, "torch.topk + scatter", "8.3", "1", "8.30"]]


def test_launches_that_say_nothing_have_no_rates_and_unmeasured_ones_none_either() -> None:
    assert _tables(timing()) == {}
    assert _tables(_of(1000, samples_ns=(), verdict=None, flops=1, why="its gate failed")) == {}


def test_a_run_without_a_product_has_no_share_of_it() -> None:
    made = _of(1000, flops=400_000_000)
    tables = list(sweep_rates.tables([made], limits.of(CALIBRATIONS)))
    assert "of matrix rate" not in [column.title for column in tables[0].columns]


def test_entries_that_do_the_same_work_are_held_to_the_stages_own() -> None:
    own = replace(_of(60_000, flops=7), stage="qsa_score", entry="qsa_score")
    scalar = replace(own, entry="qsa_score_scalar", samples_ns=around(1_200_000))
    less = replace(scalar, entry="qsa_score_half", flops=3)
    table = _tables(own, scalar, less)["bodies"]
    assert _texts(table) == [["qsa_score_scalar, 64k, 64 rows, relu4", "1200", "60", "20.00"]]


def test_a_captured_pipeline_stands_beside_the_sum_of_its_kernels() -> None:
    alone = _of(20_000, kernels=("a", "b", "c"))
    captured = _of(23_000, timer="graph", kernels=())
    single = timing(around(2000)), timing(around(2500), timer="graph")
    table = _tables(alone, captured, *single)["captured"]
    assert _texts(table) == [["qsa_select, 64k, 64 rows, relu4", "3", "20", "23", "1.15"]]


def test_a_pipelines_time_is_told_kernel_by_kernel() -> None:
    said = (
        "void qsa::dsa::(anonymous namespace)::topk_kernel<512, 1, 8, true>(qsa::Arguments), grid 8x1x1",
        "qsa::dsa::score_decode::decode_kernel(qsa::dsa::ScoreArguments), grid 1x128x1",
    )
    step = _of(4000, kernels=said, parts_ns=(3000, 1000))
    single = _of(4000, kernels=said[:1], parts_ns=(4000,))
    unknown = _of(4000, kernels=said, parts_ns=())
    assert _texts(_tables(step, single, unknown)["steps"]) == [
        ["qsa_select, 64k, 64 rows, relu4", "topk_kernel", "3", "75%"],
        ["qsa_select, 64k, 64 rows, relu4", "decode_kernel", "1", "25%"],
    ]
    assert "steps" not in _tables(single, unknown)
