"""From asked axes to points: sizes, refusals, the standard grids, what is timed how."""

from __future__ import annotations

import pytest

from qsa_bench import sweeps
from qsa_bench.errors import NothingSelectedError, UsageError
from qsa_bench.model import Axis, Entry, Kernel
from qsa_bench.stages import load_stage
from qsa_bench.stages.base import Stage, SweepAxis, SweepSpec
from qsa_bench.timers import COLD, CUPTI, EVENT, GRAPH, WARM

KERNEL = Kernel(
    "made",
    "kernels/made.cu",
    (Entry("first", ()), Entry("second", ())),
    axes={"threads": Axis("MADE_THREADS", (128, 256))},
)
SPEC = SweepSpec(
    entries=("first", "second"),
    axes={
        "context": SweepAxis("size", "tokens", ("2048",)),
        "rows": SweepAxis("count", "rows", ("1",)),
        "input": SweepAxis("word", "scores", ("flat",), {"flat": "one value", "steep": "many"}),
    },
    standard=(
        {"context": ("2048", "8192"), "rows": ("1",), "threads": ("auto", "128")},
        {"context": ("8192",), "rows": ("1", "8"), "cache": ("cold",), "input": ("flat", "steep")},
    ),
    point=lambda entry, axes: pytest.fail("planning makes no program"),
)
STAGE = Stage("made", "", (KERNEL,), {}, {}, lambda _: (), sweep=SPEC)


def _plan(**asked: tuple[str, ...]) -> list[sweeps.Point]:
    return sweeps.plan(STAGE, KERNEL, asked)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("2052", 2052),
        ("2k", 2048),
        ("64k", 65536),
        ("256K", 262144),
        ("1M", 1 << 20),
        ("1m", 1 << 20),
    ],
)
def test_a_size_is_a_number_or_binary_k_and_m(text: str, size: int) -> None:
    assert sweeps.parse_size(text) == size


@pytest.mark.parametrize("text", ["", "k", "2.5k", "-1", "0", "0k", "1G", "2 k", "0x10", "²"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="a size is"):
        sweeps.parse_size(text)


@pytest.mark.parametrize("size", [1, 2048, 2052, 65536, 1 << 20, 3 << 20, (1 << 20) + 1])
def test_a_size_reads_as_it_is_written(size: int) -> None:
    assert sweeps.parse_size(sweeps.size_text(size)) == size


def test_asked_axes_are_crossed_and_the_others_have_their_defaults() -> None:
    points = _plan(context=("2k", "8k"), rows=("1", "64"))
    assert [(p.axes["context"], p.axes["rows"], p.axes["input"]) for p in points] == [
        ("2048", "1", "flat"),
        ("2048", "64", "flat"),
        ("8192", "1", "flat"),
        ("8192", "64", "flat"),
    ]
    assert {point.entry for point in points} == {"first"}
    assert {point.caches for point in points} == {(WARM,)}
    assert {tuple(v.name for v in point.variants) for point in points} == {("auto",)}


def test_equal_sizes_are_one_point() -> None:
    assert len(_plan(context=("2k", "2048", "2K"))) == 1


def test_nothing_asked_is_the_standard_grids_each_point_once() -> None:
    points = _plan()
    assert len({point.case for point in points}) == len(points) == 5
    shared = next(p for p in points if p.axes == {"context": "8192", "rows": "1", "input": "flat"})
    assert [variant.name for variant in shared.variants] == ["auto", "threads=128"]
    assert shared.caches == (WARM, COLD)


def test_points_of_one_input_stand_side_by_side() -> None:
    points = _plan(entry=("first", "second"), context=("2k", "8k"))
    assert [(p.entry, p.axes["context"]) for p in points] == [
        ("first", "2048"),
        ("second", "2048"),
        ("first", "8192"),
        ("second", "8192"),
    ]


def test_a_case_id_is_readable_and_holds_every_axis() -> None:
    assert _plan()[0].case == "made/sweep/first,context=2048,rows=1,input=flat"


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"input": ("odd",)}, "--input odd: there is no such input; use flat, steep"),
        ({"rows": ("0",)}, "--rows 0: a whole number"),
        ({"rows": ("1.5",)}, "--rows 1.5: a whole number"),
        ({"context": ("far",)}, "a size is 'far'"),
        ({"threads": ("96",)}, "--threads 96: made is built for auto, 128, 256"),
        ({"cache": ("hot",)}, "--cache hot: use warm or cold"),
        ({"entry": ("third",)}, "--entry third: made times no such entry; use first, second"),
        ({"heads": ("4",)}, "--heads: made has no such axis; it has --cache, --context"),
    ],
)
def test_what_an_axis_does_not_hold_is_refused_in_one_line(
    asked: dict[str, tuple[str, ...]], said: str
) -> None:
    with pytest.raises(UsageError) as caught:
        _plan(**asked)
    assert said in str(caught.value)


def test_a_stage_without_a_sweep_is_refused() -> None:
    bare = Stage("bare", "", (KERNEL,), {}, {}, lambda _: ())
    with pytest.raises(UsageError, match="nothing of this stage can be timed"):
        sweeps.plan(bare, KERNEL, {})


def test_a_grid_without_a_point_is_no_success() -> None:
    with pytest.raises(NothingSelectedError):
        sweeps.points(STAGE, [])


def test_a_variant_is_its_defines() -> None:
    assert sweeps.Variant({"threads": "256"}).defines(KERNEL) == {"MADE_THREADS": "256"}
    assert sweeps.Variant().defines(KERNEL) == {}


def test_a_graph_is_timed_warm_only() -> None:
    pairs = sweeps.timings((CUPTI, GRAPH, EVENT), (WARM, COLD))
    assert pairs == [
        (CUPTI, WARM),
        (CUPTI, COLD),
        (GRAPH, WARM),
        (EVENT, WARM),
        (EVENT, COLD),
    ]
    with pytest.raises(UsageError, match="warm cache"):
        sweeps.timings((GRAPH,), (COLD,))
    with pytest.raises(UsageError, match="--timer clock: there is no such timer"):
        sweeps.timings(("clock",), (WARM,))


def test_the_published_sweep_of_select_is_small_enough_to_run() -> None:
    stage = load_stage("qsa_select")
    points = sweeps.plan(stage, stage.kernels[0], {})
    asked = sum(len(p.variants) * len(sweeps.timings((CUPTI, GRAPH), p.caches)) for p in points)
    # At 2 to 4 s a point it fits into eight minutes with its gates.
    assert 60 <= len(points) <= 120
    assert asked <= 700
    contexts = {point.axes["context"] for point in points}
    assert {"2048", "2052", "8192", "65536", "262144", "1048576"} <= contexts
    assert {point.axes["rows"] for point in points} == {"1", "8", "64", "2048"}
    assert len({point.axes["input"] for point in points}) >= 10
    most = max(int(p.axes["context"]) * int(p.axes["rows"]) for p in points)
    assert most <= 1 << 27
