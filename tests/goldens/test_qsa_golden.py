from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from qsa_bench import goldens
from qsa_bench.errors import GoldenError
from qsa_bench.goldens import qsa
from tests.goldens.edited import Draft, draft, edited

BF16_NAN = 0x7FC0
BF16_INFINITY = 0x7F80
BF16_TWO = 0x4000


@pytest.fixture(scope="module")
def golden() -> goldens.Golden:
    return goldens.load(goldens.committed("qsa"), "qsa")


@pytest.fixture(scope="module")
def cases(golden: goldens.Golden) -> tuple[qsa.QsaCase, ...]:
    return qsa.cases(golden)


def refusal(folder: Path, change: Callable[[Draft], object]) -> str:
    with pytest.raises(GoldenError) as caught:
        goldens.load(edited(folder, change), "qsa")
    message = str(caught.value)
    assert "\n" not in message
    return message


def put(name: str, place: object, value: object) -> Callable[[Draft], object]:
    def change(contents: Draft) -> None:
        contents.tensors[name][place] = value

    return change


# The committed golden


def test_the_committed_golden_is_of_seed_0_and_the_contracts_reference(
    golden: goldens.Golden,
) -> None:
    assert golden.metadata["seed"] == "0"
    assert golden.metadata["transformers_version"] == "5.16.1"
    assert golden.metadata["config_sha256"] == qsa.CONFIG_SHA256


def test_the_config_hashes_to_the_contracts_digest() -> None:
    assert qsa.config_sha256(qsa.config_text(qsa.CONFIG)) == qsa.CONFIG_SHA256


def test_a_configs_text_does_not_follow_the_order_of_its_keys() -> None:
    backwards = dict(reversed(qsa.CONFIG.items()))
    assert qsa.config_text(backwards) == qsa.config_text(qsa.CONFIG)


def test_the_cases_are_the_contracts(cases: tuple[qsa.QsaCase, ...]) -> None:
    table = [(case.tokens, int(case.rows[0]), int(case.rows[-1]), case.budget) for case in cases]
    assert table == [
        (5, 0, 4, 2048),
        (8, 0, 7, 2048),
        (64, 0, 63, 2048),
        (14, 0, 13, 2048),
        (16, 0, 15, 2048),
        (20, 0, 19, 16),
        (2055, 2049, 2054, 2048),
    ]


def test_coverage_counts_are_the_contracts(golden: goldens.Golden) -> None:
    found = qsa.coverage(golden)
    assert (found.rows, found.scores) == (133, 3674)
    assert (found.all_kept, found.truncating) == (128, 5)
    assert found.tie_rows == 4
    assert found.incomplete_tail == 101


def test_case_6_cuts_inside_a_plateau_of_zeros_in_its_four_truncating_rows(
    cases: tuple[qsa.QsaCase, ...],
) -> None:
    case = cases[6]
    assert qsa.tie_rows(case) == (2, 3, 4, 5)
    assert [case.truncates(row) for row in range(6)] == [False, False, True, True, True, True]
    for row in qsa.tie_rows(case):
        assert np.count_nonzero(case.scores_of_row(row) == 0) > 1
        assert case.scores_of_row(row).min() == 0


def test_a_case_knows_each_rows_blocks_keep_and_tail(cases: tuple[qsa.QsaCase, ...]) -> None:
    small, long = cases[5], cases[6]
    assert small.blocks.tolist() == [0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5]
    assert small.keep.tolist() == [0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 4]
    assert small.tails.tolist() == [1, 2, 3, 0] * 5
    assert small.visible_len.tolist() == list(range(1, 21))
    assert long.blocks.tolist() == [512, 512, 513, 513, 513, 513]
    assert long.blocks_of_row(2) == 513
    assert long.scores_of_row(0).shape == (512,)
    assert long.score_cols == 513


def test_norm_weights_are_queries_then_keys(golden: goldens.Golden) -> None:
    query, key = qsa.norm_weights(golden)
    assert query is golden.tensors["q_norm_weight"]
    assert key is golden.tensors["k_norm_weight"]


def stable_mask(
    case: qsa.QsaCase,
    row: int,
    *,
    more: int = 0,
    tail: bool = True,
    invert: bool = False,
    causal: bool = True,
) -> np.ndarray:
    position, blocks = int(case.rows[row]), case.blocks_of_row(row)
    keep = min(max(min(case.budget // 4, blocks) + more, 0), blocks)
    scores = case.scores_of_row(row)
    mask = np.zeros(case.tokens, np.uint8)
    for block in np.argsort(scores if invert else -scores, kind="stable")[:keep]:
        mask[4 * block : 4 * block + 4] = 1
    if tail:
        mask[4 * blocks : position + 1] = 1
    if not causal:
        mask[position + 1 :] = 1
    return mask


@pytest.mark.parametrize(
    ("fault", "bits"),
    [
        ({"tail": False}, 201),
        ({"more": -1}, 460),
        ({"more": 1}, 20),
        ({"causal": False}, 2470),
        ({"invert": True}, 40),
    ],
)
def test_negative_controls_of_select_differ_in_the_contracts_bits(
    cases: tuple[qsa.QsaCase, ...], fault: dict[str, object], bits: int
) -> None:
    differing = 0
    for case in cases:
        for row in range(len(case.rows)):
            wrong = stable_mask(case, row, **fault)  # type: ignore[arg-type]
            differing += int(np.count_nonzero(stable_mask(case, row) != wrong))
    assert differing == bits


def test_the_stable_mask_is_the_goldens_but_for_tied_blocks(
    cases: tuple[qsa.QsaCase, ...],
) -> None:
    for case in cases:
        for row in range(len(case.rows)):
            differing = np.flatnonzero(stable_mask(case, row) != case.mask[row]) // 4
            if row not in qsa.tie_rows(case):
                assert differing.size == 0
            assert len(set(case.scores_of_row(row)[differing].tolist())) <= 1


# Goldens of other seeds


def test_a_tie_in_case_5_is_accepted_whichever_block_was_kept(tmp_path: Path) -> None:
    def tie(contents: Draft) -> None:
        contents.tensors["case5.scores"][19] = [0.0, 2.0, -0.0, 3.0, 1.0]

    for kept, dropped in ((0, 2), (2, 0)):

        def change(contents: Draft, kept: int = kept, dropped: int = dropped) -> None:
            tie(contents)
            mask = contents.tensors["case5.mask"][19]
            mask[:] = 1
            mask[4 * dropped : 4 * dropped + 4] = 0

        golden = goldens.load(edited(tmp_path, change), "qsa")
        assert qsa.coverage(golden).tie_rows == 5


def test_a_seed_without_any_tie_is_accepted(tmp_path: Path) -> None:
    def change(contents: Draft) -> None:
        for row in range(2, 6):
            contents.tensors["case6.scores"][row] = np.arange(513, 0, -1)
            contents.tensors["case6.mask"][row, : 512 * 4] = 1
            contents.tensors["case6.mask"][row, 512 * 4 : 513 * 4] = 0

    golden = goldens.load(edited(tmp_path, change), "qsa")
    assert qsa.coverage(golden).tie_rows == 0


def test_another_seed_and_platform_are_accepted(tmp_path: Path) -> None:
    change = {"seed": "1234", "platform": "Linux-aarch64", "torch_version": "2.8.0"}
    golden = goldens.load(edited(tmp_path, lambda made: made.metadata.update(change)), "qsa")
    assert golden.metadata["seed"] == "1234"


def test_a_tensor_of_another_name_is_accepted_and_said_not_to_be_read(tmp_path: Path) -> None:
    def change(contents: Draft) -> None:
        contents.tensors["case0.hidden_states"] = np.zeros((5, 2560), np.float32)
        contents.dtypes["case0.hidden_states"] = "f32"

    golden = goldens.load(edited(tmp_path, change), "qsa")
    assert any("not read: case0.hidden_states" in fact for fact in goldens.verify(golden))


# Goldens of another checkpoint


def rope(key: str, value: object) -> Callable[[Draft], object]:
    return lambda made: made.set_config(lambda c: c["rope_parameters"].update({key: value}))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (rope("rope_theta", 1e6), "rope_parameters.rope_theta is 1000000.0, expected 10000000.0"),
        (rope("mrope_section", [24, 20, 20]), "rope_parameters.mrope_section is [24, 20, 20]"),
        (rope("factor", 4.0), "has rope_parameters.factor 4.0, expected no such key"),
        (
            lambda made: made.set_config(lambda c: c.update(rms_norm_eps=1e-5)),
            "rms_norm_eps is 1e-05, expected 1e-06",
        ),
        (
            lambda made: made.set_config(lambda c: c.pop("hidden_size")),
            "lacks hidden_size, expected 2560",
        ),
        (
            lambda made: made.set_config(lambda c: c.update(rope_parameters=None)),
            "rope_parameters is None, expected {",
        ),
    ],
)
def test_a_golden_of_another_config_is_refused_by_name(
    tmp_path: Path, change: Callable[[Draft], object], reason: str
) -> None:
    message = refusal(tmp_path, change)
    assert "of another checkpoint: config " in message
    assert reason in message


def test_a_digest_that_is_not_its_configs_is_refused(tmp_path: Path) -> None:
    def change(contents: Draft) -> None:
        contents.metadata["config_sha256"] = "0" * 64

    message = refusal(tmp_path, change)
    assert f"config_sha256 is {'0' * 64}, its config's is {qsa.CONFIG_SHA256}" in message


def test_a_config_in_another_spelling_is_refused(tmp_path: Path) -> None:
    def change(contents: Draft) -> None:
        text = json.dumps(qsa.CONFIG, sort_keys=True, separators=(",", ":"))
        contents.metadata.update(config=text, config_sha256=qsa.config_sha256(text))

    assert f"expected {qsa.CONFIG_SHA256}" in refusal(tmp_path, change)


@pytest.mark.parametrize("text", ["{", "[]", "null", "3"])
def test_a_config_that_is_no_json_object_is_refused(tmp_path: Path, text: str) -> None:
    message = refusal(tmp_path, lambda made: made.metadata.update(config=text))
    assert "config is not a JSON object" in message


@pytest.mark.parametrize("key", ["config", "config_sha256"])
def test_a_golden_without_its_config_is_refused(tmp_path: Path, key: str) -> None:
    assert f"metadata lacks {key};" in refusal(tmp_path, lambda made: made.metadata.pop(key))


def test_a_foreign_digest_is_named_where_there_is_no_config(tmp_path: Path) -> None:
    def change(contents: Draft) -> None:
        del contents.metadata["config"]
        contents.metadata["config_sha256"] = "f" * 64

    assert f"and config_sha256 is {'f' * 64}" in refusal(tmp_path, change)


def test_tables_of_another_theta_are_refused_though_the_config_agrees(tmp_path: Path) -> None:
    def change(contents: Draft) -> None:
        cos = np.cos(np.arange(20)[:, None] * 1e6 ** (-np.arange(32) / 32)).astype(np.float32)
        bits = (cos.view(np.uint32) >> 16).astype(np.uint16)
        contents.tensors["case5.cos"] = np.concatenate([bits, bits], axis=1)

    message = refusal(tmp_path, change)
    assert "case 5: cos at position 1, column" in message
    assert "of rope_theta 1e+07" in message


# Goldens of another layout


@pytest.mark.parametrize("name", sorted(draft().tensors))
def test_a_golden_that_lacks_a_tensor_is_refused(tmp_path: Path, name: str) -> None:
    def change(contents: Draft) -> None:
        del contents.tensors[name], contents.dtypes[name]

    assert f"not of the qsa layout: it has no tensor {name}" in refusal(tmp_path, change)


def test_an_eighth_case_is_refused_as_nothing_would_run_it(tmp_path: Path) -> None:
    def change(contents: Draft) -> None:
        contents.tensors["case7.rows"] = np.arange(4, dtype=np.int32)
        contents.dtypes["case7.rows"] = "i32"

    assert "it has case7.rows, expected 7 cases" in refusal(tmp_path, change)


def test_a_tensor_of_another_shape_is_refused(tmp_path: Path) -> None:
    def change(contents: Draft) -> None:
        contents.tensors["case2.mask"] = contents.tensors["case2.mask"][:, :63]

    assert "tensor case2.mask is u8 [64, 63], expected u8 [64, 64]" in refusal(tmp_path, change)


def test_bf16_stored_as_u16_is_refused(tmp_path: Path) -> None:
    message = refusal(tmp_path, lambda made: made.dtypes.update({"case0.cos": "u16"}))
    assert "tensor case0.cos is u16 [5, 64], expected bf16 [5, 64]" in message


# Corrupted goldens

SCORE = "a finite number that is not negative"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (put("case2.scores", (9, 1), np.nan), f"case 2, row 9 (position 9): score 1 is nan, expected {SCORE}"),
        (put("case2.scores", (9, 0), np.inf), f"case 2, row 9 (position 9): score 0 is inf, expected {SCORE}"),
        (put("case6.scores", (5, 512), -1), f"case 6, row 5 (position 2054): score 512 is -1.0, expected {SCORE}"),
        (put("case2.scores", (9, 2), 0), "case 2, row 9 (position 9): score 2 is 0.0, expected NaN past the row's 2 blocks"),
        (put("case0.scores", (2, 0), 1), "case 0, row 2 (position 2): score 0 is 1.0, expected NaN past the row's 0 blocks"),
        (put("case3.rows", 13, 14), "case 3, row 13: position is 14, expected 13 of 14 tokens"),
        (put("case3.rows", 0, -1), "case 3, row 0: position is -1, expected 0 of 14 tokens"),
        (put("case6.rows", 0, 2048), "case 6, row 0: position is 2048, expected 2049 of 2055 tokens"),
        (put("case5.budget", 0, 20), "case 5: budget is 20, expected 16"),
        (put("case1.fused_qk", (7, 639), BF16_NAN), "case 1: fused_qk at [7, 639] is nan"),
        (put("case1.fused_qk", (0, 0), BF16_INFINITY), "case 1: fused_qk at [0, 0] is inf"),
        (put("k_norm_weight", 127, BF16_NAN), "k_norm_weight at [127] is nan, expected a finite"),
        (put("q_norm_weight", 0, BF16_NAN), "q_norm_weight at [0] is nan, expected a finite"),
        (put("case4.cos", (0, 0), BF16_TWO), "case 4: cos at position 0, column 0 is 2, expected 1 of"),
        (put("case4.sin", (3, 31), BF16_NAN), "case 4: sin at position 3, column 31 is nan"),
        (put("case4.sin", (3, 63), BF16_TWO), "case 4: sin at position 3, column 63 is 2, expected the first half's"),
    ],
)  # fmt: skip
def test_a_corrupted_number_is_refused_with_its_place_and_what_was_expected(
    tmp_path: Path, change: Callable[[Draft], object], reason: str
) -> None:
    assert reason in refusal(tmp_path, change)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (put("case2.mask", (9, 0), 2), "mask of token 0 is 2, expected 0 or 1"),
        (put("case2.mask", (9, 10), 1), "mask of token 10 is 1, expected 0 past the row's position"),
        (put("case2.mask", (9, 9), 0), "mask of token 9 is 0, expected 1 in the incomplete tail"),
        (put("case2.mask", (9, 5), 0), "mask keeps 3 tokens of block 1, expected all 4 or none"),
        (put("case2.mask", (9, slice(4, 8)), 0), "mask keeps 1 blocks, expected 2"),
    ],
)  # fmt: skip
def test_a_mask_of_another_structure_is_refused(
    tmp_path: Path, change: Callable[[Draft], object], reason: str
) -> None:
    assert f"case 2, row 9 (position 9): {reason}" in refusal(tmp_path, change)


def test_a_mask_that_keeps_more_than_the_budget_is_refused(tmp_path: Path) -> None:
    message = refusal(tmp_path, put("case5.mask", 19, 1))
    assert "case 5, row 19 (position 19): mask keeps 5 blocks, expected 4" in message


def test_a_mask_that_keeps_a_lower_score_than_it_drops_is_refused(
    tmp_path: Path, cases: tuple[qsa.QsaCase, ...]
) -> None:
    scores = cases[5].scores_of_row(19)
    highest, lowest = int(scores.argmax()), int(scores.argmin())
    message = refusal(tmp_path, lambda made: made.move_block(5, 19, highest, lowest))
    assert f"case 5, row 19 (position 19): mask keeps block {lowest} of score" in message
    assert f"expected block {highest} of score" in message


def test_coverage_that_is_not_the_layouts_is_refused(
    monkeypatch: pytest.MonkeyPatch, golden: goldens.Golden
) -> None:
    monkeypatch.setitem(qsa.EXPECTED_COVERAGE, "truncating", 6)
    with pytest.raises(GoldenError, match="truncating counts 5, expected 6"):
        goldens.verify(golden)
