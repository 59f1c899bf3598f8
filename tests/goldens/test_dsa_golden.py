"""What a DSA golden must be: its layout, and what it says of itself."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qsa_bench import goldens
from qsa_bench.errors import GoldenError
from qsa_bench.goldens import dsa
from tests.goldens.edited import Draft, edited

BF16_NAN = 0x7FC0


def refusal(folder: Path, change: Callable[[Draft], object]) -> str:
    with pytest.raises(GoldenError) as caught:
        goldens.load(edited(folder, change, "dsa"), "dsa")
    message = str(caught.value)
    assert "\n" not in message
    return message


def put(name: str, place: object, value: object) -> Callable[[Draft], object]:
    def change(contents: Draft) -> None:
        contents.tensors[name][place] = value

    return change


def test_the_committed_golden_covers_every_kind_of_row() -> None:
    golden = goldens.load(goldens.committed("dsa"), "dsa")
    cases = dsa.cases(golden)
    lengths = [case.tokens for case in cases]
    assert {case.kpool for case in cases} == {4, 16}
    assert {length % 4 for length in lengths[:5]} == {0, 1, 2, 3}
    assert min(lengths) < 4
    assert max(lengths) == 2070
    longest = cases[lengths.index(2070)]
    assert longest.topk == 2048
    assert dsa.truncating(longest).all()
    found = dsa.coverage(golden)
    assert min(found.truncating, found.tails, found.masked, found.padded) > 30
    # A key missing behind the first one, and a sequence without a key.
    assert any((np.diff(case.valid.astype(np.int8), axis=1) < 0).any() for case in cases)
    assert any((case.valid.sum(axis=1) == 0).any() for case in cases)


def test_the_reference_lists_a_token_twice_where_keys_are_missing() -> None:
    # Why ids are compared as sets with the reference, and in full with the oracle alone.
    cases = dsa.cases(goldens.load(goldens.committed("dsa"), "dsa"))
    twice = [
        case.index
        for case in cases
        for row in case.token_ids.reshape(-1, case.token_ids.shape[-1])
        if np.unique(row[row >= 0]).size < (row >= 0).sum()
    ]
    assert set(twice) == {8}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (put("case1.geometry", 0, 8), "case 1: kpool 8"),
        (put("case1.geometry", 1, 2050), "case 1: kpool 4, topk 2050"),
        (put("case2.gate", (0, 3, 5), BF16_NAN), "case 2: gate holds"),
        (put("case2.k_normed", (0, 3, 5), BF16_NAN), "case 2: k_normed holds"),
        (put("case2.weights", (0, 0, 1), np.inf), "case 2: weights hold"),
        (put("case6.valid", (1, 0), 2), "case 6: valid is 2"),
        (put("case2.q_pos", 1, 9), r"case 2: q_pos is 9, expected 0\.\.8"),
        (put("case6.pool_valid", (0, 1), 0), "case 6: pool_valid is not 1 exactly where"),
        (put("case2.scores", (0, 0, 1), 1.0), r"case 2: scores\[0, 0, 1\] is 1\.0, expected the"),
        (put("case2.scores", (0, 8, 1), np.nan), r"case 2: scores\[0, 8, 1\] is nan"),
        (put("case2.token_ids", (0, 2, 0), 3), "case 2, sequence 0, row 2 .* no visible key"),
        (put("case6.token_ids", (1, 12, 0), 1), "case 6, sequence 1, row 12 .* no visible key"),
    ],
)
def test_a_golden_that_breaks_a_rule_is_refused_by_case_and_value(
    tmp_path: Path, change: Callable[[Draft], object], said: str
) -> None:
    assert re.search(said, refusal(tmp_path, change))


def test_pools_off_the_grid_are_refused(tmp_path: Path) -> None:
    def change(contents: Draft) -> None:
        indices = contents.tensors["case6.pool_indices"]
        indices[1] += indices[1] >= 0

    assert "expected a multiple of 4 past the first valid key" in refusal(tmp_path, change)


def test_a_masked_row_that_selects_is_refused(tmp_path: Path) -> None:
    found = refusal(tmp_path, put("case6.token_ids", (2, 0, 0), 11))
    assert "a masked row selects token 11" in found


@pytest.mark.parametrize("name", ["case3.q", "case0.geometry", "case9.token_ids"])
def test_a_missing_tensor_is_named(tmp_path: Path, name: str) -> None:
    def change(contents: Draft) -> None:
        del contents.tensors[name], contents.dtypes[name]

    assert f"it has no tensor {name}" in refusal(tmp_path, change)


def test_another_shape_or_dtype_is_named_with_the_one_expected(tmp_path: Path) -> None:
    def shorter(contents: Draft) -> None:
        contents.tensors["case4.weights"] = contents.tensors["case4.weights"][:, :, :31].copy()

    assert "tensor case4.weights is f32 [1, 9, 31], expected f32 [1, 9, 32]" in refusal(
        tmp_path, shorter
    )

    def other(contents: Draft) -> None:
        contents.tensors["case4.ape"] = contents.tensors["case4.ape"].astype(np.float32)
        contents.dtypes["case4.ape"] = "f32"

    assert "tensor case4.ape is f32 [4, 128], expected bf16" in refusal(tmp_path, other)


def test_a_gap_between_cases_is_named(tmp_path: Path) -> None:
    def change(contents: Draft) -> None:
        for name in [name for name in contents.tensors if name.startswith("case3.")]:
            del contents.tensors[name], contents.dtypes[name]

    assert "3 is none" in refusal(tmp_path, change)


def test_any_number_of_cases_is_a_golden(tmp_path: Path) -> None:
    def change(contents: Draft) -> None:
        for name in [name for name in contents.tensors if not name.startswith("case0.")]:
            del contents.tensors[name], contents.dtypes[name]

    golden: Any = goldens.load(edited(tmp_path, change, "dsa"), "dsa")
    assert len(dsa.cases(golden)) == 1
