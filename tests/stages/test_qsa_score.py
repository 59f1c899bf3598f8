"""What the score stage sees and what it lets pass: each family does what it is there for."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from qsa_bench import baseline, mutants, resources
from qsa_bench.bf16 import to_float32
from qsa_bench.compare import bitwise
from qsa_bench.model import Status
from qsa_bench.oracles.qsa_numerics import ScoreOracle, pool_oracle, query_heads
from qsa_bench.program import OK, TRAP
from qsa_bench.stages import _qsa_inputs as qsa
from qsa_bench.stages import load_stage, qsa_score
from qsa_bench.stages._qsa_score_case import launch_case
from qsa_bench.stages._qsa_score_judge import judge_scores
from qsa_bench.stages._qsa_score_launch import (
    AUTOMATIC,
    SCALAR,
    Launch,
    launch_of,
    oracle_of,
    program,
)
from qsa_bench.stages._qsa_score_shapes import mixed_rows
from qsa_bench.stages.base import Case
from tests.stages.judged import (
    as_f32,
    by_check,
    case_of,
    failed,
    gated,
    golden,
    golden_cases,
    judged,
    untouched,
    written,
)

Array = npt.NDArray[Any]
STAGE = load_stage("qsa_score")


def golden_launch(index: int) -> Launch:
    case = golden_cases()[index]
    return launch_of(qsa.of_golden(golden(), case), case.rows.tolist())


def exact(launch: Launch) -> tuple[ScoreOracle, Array]:
    """Return the oracle of a launch and scores as a kernel without any error leaves them."""
    want = oracle_of(launch)
    return want, written(as_f32(want.value), want.written)


def dots(launch: Launch) -> Array:
    """Return the dot products [rows, heads, blocks] of a launch in float64."""
    inputs = launch.inputs
    rows = np.array(launch.rows, dtype=np.int32)
    query, _ = query_heads(
        inputs.fused_qk, inputs.q_norm_weight, inputs.cos, inputs.sin, rows, qsa.EPS, 0
    )
    keys = to_float32(launch.block_keys).astype(np.float64)
    return np.asarray(query.value.astype(np.float64) @ keys.T)


def test_scores_without_error_pass_every_check() -> None:
    for index in range(7):
        want, got = exact(golden_launch(index))
        assert failed(judge_scores(want, got, golden=True)) == set()


def test_bounds_are_widened_only_where_an_element_may_flip() -> None:
    widened = 0
    for index in range(7):
        launch = golden_launch(index)
        want = oracle_of(launch)
        tight = want.written & ~want.flagged
        np.testing.assert_array_equal(
            want.bound[tight], 2e-6 + 2e-6 * np.abs(want.value[tight]), strict=True
        )
        # The keys are given, so only a query can flip: it widens its own row and no other.
        inputs, rows = launch.inputs, np.array(launch.rows, dtype=np.int32)
        query, _ = query_heads(
            inputs.fused_qk, inputs.q_norm_weight, inputs.cos, inputs.sin, rows, qsa.EPS, 0
        )
        uncertain = query.uncertain().any(axis=(1, 2))
        assert not want.flagged[~uncertain].any()
        assert (want.bound[want.flagged] > want.unwidened()[want.flagged]).all()
        widened += int(want.flagged.sum())
    assert widened > 0


def test_tight_and_widened_scores_are_held_by_two_checks_with_places_of_their_own() -> None:
    want, got = exact(golden_launch(2))
    row, block = (int(part) for part in np.argwhere(want.flagged)[0])
    got[row, block] += np.float32(10 * want.bound[row, block])
    found = by_check(judge_scores(want, got))
    assert found["widened"].status is Status.WRONG
    assert found["widened"].evidence.where == f"scores[{row}, {block}]"
    assert found["score"].status is Status.PASS
    assert found["score"].evidence.total + found["widened"].evidence.total == want.written.sum()


def test_a_tight_score_is_held_at_2e_6_absolute_plus_relative() -> None:
    want, got = exact(golden_launch(2))
    place = tuple(np.argwhere(want.written & ~want.flagged & (want.value > 4))[0])
    for factor, seen in ((0.7, False), (1.5, True)):
        moved = got.copy()
        moved[place] += np.float32(factor * 2e-6 * (1 + want.value[place]))
        assert ("score" in failed(judge_scores(want, moved))) is seen


def test_opposed_heads_owe_exact_zeros() -> None:
    inputs = qsa.opposed_heads(60)
    launch = launch_of(inputs, (59, 33))
    assert dots(launch).max() < -1.0
    want = oracle_of(launch)
    assert (want.value[want.written] == 0).all()
    assert want.written.sum() == 15 + 8


def test_the_poison_is_no_zero_though_no_bound_tells_them_apart() -> None:
    case = case_of(STAGE, "zeros/opposed")
    assert failed(judged(case, **untouched(case))) == {"not-negative"}


@pytest.mark.parametrize("token", [0, 21, 39])
def test_a_poisoned_key_is_nan_exactly_in_the_rows_that_see_its_block(token: int) -> None:
    rows = (43, 19, 22, 38, 39)
    want = oracle_of(launch_of(qsa.poisoned_key(44, token), rows))
    for row, position in enumerate(rows):
        nan = np.flatnonzero(np.isnan(want.value[row]) & want.written[row])
        sees = (position + 1) // 4 > token // 4
        assert nan.tolist() == ([token // 4] if sees else [])


def test_a_number_in_place_of_a_nan_is_infinitely_wrong_and_so_is_a_nan_in_place_of_a_number() -> (
    None
):
    want, got = exact(launch_of(qsa.poisoned_key(44, 21), (43, 19)))
    for place, value in (((0, 5), 0.0), ((0, 4), np.nan)):
        wrong = got.copy()
        wrong[place] = value
        finding = by_check(judge_scores(want, wrong))["score"]
        assert finding.evidence.margin == math.inf
        assert finding.evidence.where == f"scores[{place[0]}, {place[1]}]"


def test_small_queries_show_eps_which_one_loose_bound_passes() -> None:
    def without_eps(launch: Launch) -> Array:
        inputs, rows = launch.inputs, np.array(launch.rows, dtype=np.int32)
        query, _ = query_heads(
            inputs.fused_qk, inputs.q_norm_weight, inputs.cos, inputs.sin, rows, 0.0, 0
        )
        keys = to_float32(launch.block_keys).astype(np.float64)
        heads = np.maximum(query.value.astype(np.float64) @ keys.T, 0)
        return as_f32(heads.sum(axis=1) / math.sqrt(128))

    small = launch_of(qsa.random_inputs(64, "scale", scale=3e-3), (63, 40, 61))
    want = oracle_of(small)
    finding = by_check(judge_scores(want, written(without_eps(small), want.written)))["score"]
    assert finding.evidence.error is not None
    assert finding.evidence.error > 0.05
    for index in range(2, 7):
        launch = golden_launch(index)
        want = oracle_of(launch)
        found = judge_scores(want, written(without_eps(launch), want.written), golden=True)
        assert by_check(found)["single-bound"].status is Status.PASS


@pytest.mark.parametrize("index", [2, 6])
def test_a_scale_error_of_a_thousandth_is_seen_and_passes_the_single_bound(index: int) -> None:
    want = oracle_of(golden_launch(index))
    wrong = written(as_f32(want.value * 1.001), want.written)
    found = by_check(judge_scores(want, wrong, golden=True))
    assert found["single-bound"].status is Status.PASS
    assert found["scale"].evidence.margin == pytest.approx(1e-3 / 4e-7, rel=0.01)
    # A pure scale error is no lean.
    assert found["lean"].status is Status.PASS


def test_a_scale_error_of_a_millionth_is_seen_though_every_score_is_inside_its_bound() -> None:
    want, _ = exact(golden_launch(2))
    wrong = written(as_f32(want.value * (1 + 1e-6)), want.written)
    assert failed(judge_scores(want, wrong, golden=True)) == {"scale"}


@pytest.mark.parametrize("nudge", [1e-6, -1e-6])
def test_a_lean_of_a_millionth_is_seen_though_every_score_is_inside_its_bound(nudge: float) -> None:
    want, _ = exact(golden_launch(2))
    wrong = written(as_f32(want.value + nudge), want.written)
    found = failed(judge_scores(want, wrong, golden=True))
    assert found - {"scale", "not-negative"} == {"lean"}


def test_every_figure_names_the_score_that_moves_it_most() -> None:
    want, got = exact(golden_launch(2))
    tight = want.written & ~want.flagged & (want.value > 1)
    first, last = (tuple(int(p) for p in np.argwhere(tight)[i]) for i in (0, -1))
    got[first] *= np.float32(1.01)
    got[last] *= np.float32(1.0001)
    found = by_check(judge_scores(want, got, golden=True))
    for check in ("score", "scale"):
        assert found[check].evidence.where == f"scores[{first[0]}, {first[1]}]"
        assert found[check].evidence.got == f"{got[first]:.9g}"


def test_a_sum_in_any_order_stays_far_inside_every_bound() -> None:
    worst: dict[str, float] = {}
    for seed in range(10):
        launch = launch_of(qsa.random_inputs(200, "order", seed), (199, 130, 197))
        want = oracle_of(launch)
        inputs, rows = launch.inputs, np.array(launch.rows, dtype=np.int32)
        query, _ = query_heads(
            inputs.fused_qk, inputs.q_norm_weight, inputs.cos, inputs.sin, rows, qsa.EPS, 0
        )
        keys = to_float32(launch.block_keys)
        # One after the other: of all orders the one that errs most.
        total = np.zeros((rows.size, 4, keys.shape[0]), np.float32)
        for dim in range(128):
            total += query.value[:, :, None, dim] * keys[None, None, :, dim]
        scores = np.maximum(total, 0).sum(axis=1) * np.float32(1 / math.sqrt(128))
        for finding in judge_scores(want, written(scores, want.written)):
            assert finding.status is Status.PASS
            worst[finding.check] = max(
                worst.get(finding.check, 0.0), finding.evidence.margin or 0.0
            )
    for check in ("score", "scale", "lean"):
        assert 0 < worst[check] < 0.25


@pytest.mark.parametrize("length", range(6))
def test_each_visible_length_owes_its_whole_blocks_and_no_more(length: int) -> None:
    case = case_of(STAGE, f"visible/{length}")
    built = case.build()
    assert built.array("visible_len").tolist() == [length, 5 - length]
    launch = launch_of(qsa.random_inputs(24, "visible"), (20, 9), (length, 5 - length))
    want, got = exact(launch)
    assert want.written.sum(axis=1).tolist() == [length // 4, (5 - length) // 4]
    assert failed(judged(case, scores=got)) == set()
    first_free = length // 4
    got.view(np.uint8).reshape(2, -1)[0, 4 * first_free + 3] ^= 1
    found = by_check(judged(case, scores=got))
    assert found["untouched"].status is Status.WRONG
    assert found["untouched"].evidence.where == f"scores[0, {first_free}]"


def test_padding_rows_have_positions_that_no_table_holds_and_must_succeed() -> None:
    built = case_of(STAGE, "visible/padding-rows").build()
    padding = built.array("visible_len") == 0
    outside = (built.array("rows") < 0) | (built.array("rows") >= built.calls[0].values["tokens"])
    assert padding.tolist() == outside.tolist()
    assert padding.sum() == 3
    assert built.calls[0].expect == OK


def test_the_starts_cover_every_position_modulo_four() -> None:
    starts = set()
    for first in (0, 1, 2, 3, 33):
        built = case_of(STAGE, f"start/first{first}").build()
        values = built.calls[0].values
        assert values["first_position"] == first
        assert values["fused_rows"] == built.buffer("fused_qk").shape[0] == 72 - first
        assert first in built.array("rows")
        starts.add(first % 4)
    assert starts == {0, 1, 2, 3}


def test_the_long_row_tells_block_32768_from_its_neighbours() -> None:
    built = case_of(STAGE, "long/blocks-past-32768").build()
    keys = built.array("block_keys")
    assert keys.shape[0] > 32768 + 16
    near = to_float32(keys[32766:32771])
    assert (np.abs(np.diff(near, axis=0)).max(axis=1) > 0.5).all()


def test_a_trap_of_one_capacity_has_the_data_that_the_others_allow() -> None:
    """Only the check under test stands between the row and what it would read."""
    for label, name, least in (
        ("row-past-tables", "tokens", "rows"),
        ("row-past-fused", "fused_rows", "rows"),
    ):
        built = case_of(STAGE, f"trap/{label}").build()
        assert built.calls[0].expect == TRAP
        limit = int(str(built.calls[0].values[name]))
        assert built.array(least).max() == limit
        assert limit < built.buffer("fused_qk").shape[0]
        assert limit < built.buffer("cos").shape[0]


def test_spare_columns_make_the_row_stride_differ_from_the_grid() -> None:
    for extra in (1, 3, 40):
        values = case_of(STAGE, f"spare-cols/{extra}").build().calls[0].values
        assert values["score_cols"] == 52 // 4 + extra


def test_some_row_off_16_bytes_lies_on_a_multiple_of_15_wherever_the_scores_begin() -> None:
    built = case_of(STAGE, "spare-cols/tile-2").build()
    row = np.flatnonzero(built.array("visible_len") >= 16)
    for base in range(0, 15 * 16, 16):
        address = base + 4 * built.buffer("scores").shape[1] * row
        assert ((address % 15 == 0) & (address % 16 != 0)).any()
    # The other one leaves rows on 8 bytes.
    assert 4 * case_of(STAGE, "spare-cols/tile-1").build().buffer("scores").shape[1] % 16 == 8


@pytest.mark.parametrize("rows", [3, 34])
def test_the_halves_of_a_rows_tables_differ_in_a_case_of_every_body(rows: int) -> None:
    built = case_of(STAGE, f"tables/halves-apart-rows{rows}").build()
    assert built.array("rows").size == rows
    for name in ("cos", "sin"):
        table = built.array(name)
        assert (table[:, :32] != table[:, 32:]).any(axis=1).all()


def test_the_rows_of_a_launch_come_in_every_number_that_is_served_differently() -> None:
    counts = {}
    for case in STAGE.cases(golden()):
        if case.family == "rows" and "cuda" in case.targets and "host" in case.targets:
            built = case.build()
            counts[built.array("rows").size] = built.array("visible_len")
    assert {1, 2, 8, 9, 30, 33, 129, 131} == set(counts)
    # One row more than a tile of 128, and it sees something.
    assert counts[129][128] >= qsa.RATIO
    # Inside every group of eight rows of the tiles: other lengths, and rows that see nothing.
    for first in range(0, 128, 8):
        lengths = counts[131][first : first + 8]
        assert 0 in lengths
        assert np.unique(lengths // 4).size > 5


def test_the_keys_are_shared_out_over_ctas_and_walked_by_one() -> None:
    for family, least in (("split", 128), ("walk", 512), ("tiles", 192)):
        for processors in (1, 132):
            built = case_of(STAGE, f"{family}/multiprocessors{processors}").build()
            assert built.device == {"multiprocessors": processors}
            assert built.array("visible_len").max() // 4 > least
            assert built.array("visible_len").max() > 1.9 * built.array("visible_len").min() or (
                built.array("visible_len").size == 1
            )
    # Of one or two rows a CTA takes 128 keys.
    assert case_of(STAGE, "split/one-key-more").build().array("visible_len").max() // 4 == 129
    # Of more rows than eight one CTA of 256 keys walks them all; two ranges have seven tiles of 64.
    walk, ranges = (
        case_of(STAGE, name).build() for name in ("walk/rows9", "tiles/multiprocessors2")
    )
    assert (walk.device, walk.array("rows").size) == ({"multiprocessors": 1}, 9)
    assert walk.array("visible_len").max() // 4 > 256
    assert (ranges.device, ranges.array("rows").size) == ({"multiprocessors": 2}, 34)
    assert 6 * 64 < ranges.array("visible_len").max() // 4 <= 7 * 64
    # On a device: more keys than 188 multiprocessors have in flight, 512 each of one row and 256 shared by
    # four groups of eight rows; 34 and more of tiles are walked where five row tiles share 188 CTAs.
    for name, least in (("device-rows1", 188 * 512), ("device-rows32", 188 * 256 // 4)):
        for ending in ("", "-mma"):
            case = case_of(STAGE, f"walk/{name}{ending}")
            assert case.targets == ("cuda",)
            assert case.build().array("visible_len").max() // 4 > least
    tiles = case_of(STAGE, "tiles/device-rows600").build().array("visible_len")
    assert tiles.size > 4 * 128
    assert tiles.min() // 4 > 64 * 2 * 188 // 5
    # More stages than a tile has, seen by the access checker too.
    assert case_of(STAGE, "tiles/multiprocessors1").checked
    assert case_of(STAGE, "split/multiprocessors132").checked


@pytest.mark.parametrize("rows", [2, 40])
def test_keys_that_no_row_sees_are_nan_and_nothing_initialised_them(rows: int) -> None:
    case = case_of(STAGE, f"unseen/rows{rows}")
    built = case.build()
    keys = built.buffer("block_keys")
    ((start, stop),) = keys.uninitialised
    assert case.checked
    assert built.array("visible_len").max() // 4 == start // 128 == 27
    assert stop == keys.elements
    assert np.isnan(to_float32(built.array("block_keys")[27:])).all()
    assert not np.isnan(to_float32(built.array("block_keys")[:27])).any()


@pytest.mark.parametrize("entry", [AUTOMATIC, SCALAR])
def test_the_kernel_that_writes_nothing_is_silent_by_every_entry(
    entry: str, tmp_path: Path
) -> None:
    control = baseline.writes_nothing(baseline.read_mutants(STAGE), STAGE)
    tree = mutants.apply(control, resources.tree_root(), tmp_path)
    launches = {rows: mixed_rows(140, rows) for rows in (1, 2, 8, 9, 33)}
    cases = [
        Case("qsa_score", "silent", str(rows), (), functools.partial(program, launch, OK, (entry,)),
             lambda _program, outputs: [bitwise("score", "scores", *same(outputs))])
        for rows, launch in launches.items()
    ]  # fmt: skip
    verdicts = gated(STAGE, cases, tree.root)
    assert [verdict for verdict in verdicts if not verdict.passed] == []
    assert len([v for v in verdicts if v.check == "score"]) == len(launches)


def same(outputs: Mapping[str, Array]) -> tuple[Array, Array]:
    """Return the one output as nothing wrote it, and as it is."""
    (got,) = outputs.values()
    return written(got, np.zeros(got.shape, dtype=np.bool_)), got


def test_the_kernel_passes_fifty_fresh_seeds() -> None:
    cases = [
        next(
            launch_case(
                "fresh",
                str(seed),
                (),
                lambda seed=seed: launch_of(qsa.random_inputs(260, "fresh", seed), (259, 203, 128)),
            )
        )
        for seed in range(50)
    ]
    verdicts = gated(STAGE, cases)
    assert [verdict for verdict in verdicts if not verdict.passed] == []
    assert {verdict.case for verdict in verdicts} == {case.id for case in cases}


def test_a_key_rounded_the_other_way_moves_scores_by_more_than_the_tight_bound() -> None:
    """Why a flat 2e-6 is not sound: one legal flip of a key is seen as a wrong score."""
    launch = golden_launch(6)
    inputs = launch.inputs
    keys = pool_oracle(inputs.fused_qk, inputs.k_norm_weight, inputs.cos, inputs.sin, qsa.EPS)
    assert keys.flagged().any()
    other = np.where(keys.value == keys.low, keys.high, keys.low)
    flipped = np.where(keys.flagged(), other, keys.value).astype(np.uint16)
    wrong = oracle_of(Launch(inputs, flipped, launch.rows, launch.visible_len))
    want = oracle_of(launch)
    found = by_check(judge_scores(want, written(as_f32(wrong.value), want.written)))
    assert found["score"].status is Status.WRONG
    assert (found["score"].evidence.margin or 0) > 10


def test_generated_launches_pass_and_have_every_shape() -> None:
    """Evidence that reached no body, or one tile alone, would say nothing of the others."""
    made = [qsa_score.generated(seed) for seed in range(16)]
    assert [
        verdict for verdict in gated(STAGE, [case for case, _ in made]) if not verdict.passed
    ] == []
    shapes = set()
    for case, rows in made:
        built = case.build()
        assert built.buffer("rows").elements == rows
        blocks = int(built.array("visible_len").max()) // 4
        shape = next(most for most in (2, 8, 32, 250) if rows <= most)
        shapes.add((shape, blocks > 64))
    # Two rows and eight at most, up to 32, and tiles of rows; each over one tile of keys or more.
    assert {(2, True), (8, True), (32, False), (250, False), (250, True)} <= shapes
