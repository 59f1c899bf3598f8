"""What the gather stage sees: each output's own check, and inputs that can show what they are for."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from qsa_bench.program import Program
from qsa_bench.stages import load_stage
from qsa_bench.stages.base import Case
from tests.stages.judged import POISON_BYTE, case_of, failed, judged

STAGE = load_stage("qsa_gather")
RAGGED = "batch/ragged"


def right(case: Case) -> dict[str, npt.NDArray[Any]]:
    """Return what a gather leaves, token by token and by its contract alone."""
    built = case.build()
    values = built.calls[0].values
    ids, counts, table = (built.array(name) for name in ("ids", "counts", "block_table"))
    page, stride = int(str(values["page_tokens"])), int(str(values["page_stride"]))
    found = {}
    for name in ("k", "v"):
        shape = built.buffer(f"{name}_scratch").shape
        pages = built.array(f"{name}_pages").reshape(-1)
        size = shape[2] * shape[3]
        scratch = np.full((*shape[:2], size), POISON_BYTE * 0x0101, dtype=np.uint16)
        for row, count in enumerate(counts):
            for slot, token in enumerate(ids[row, :count]):
                at = int(table[row, token // page]) * stride + int(token % page) * size
                scratch[row, slot] = pages[at : at + size]
        found[f"{name}_scratch"] = scratch.reshape(shape)
    pages_of = built.buffer("identity").shape
    found["identity"] = np.arange(np.prod(pages_of), dtype=np.int32).reshape(pages_of)
    found["lengths"] = counts.copy()
    return found


def unreadable(built: Program) -> set[int]:
    return {at for span in built.buffer("ids").uninitialised for at in range(*span)}


@pytest.mark.parametrize("name", [RAGGED, "page-size/13", "page-stride/spaced", "geometry/3x24"])
def test_a_gather_by_the_contracts_words_passes(name: str) -> None:
    case = case_of(STAGE, name)
    assert failed(judged(case, **right(case))) == set()


@pytest.mark.parametrize(
    ("output", "place", "check"),
    [
        ("k_scratch", (0, 3, 1, 15), "k"),
        ("v_scratch", (0, 3, 1, 15), "v"),
        ("k_scratch", (4, 1, 0, 0), "past-the-count"),
        ("v_scratch", (1, 0, 0, 0), "past-the-count"),
        ("identity", (2, 1), "identity"),
        ("lengths", (1,), "lengths"),
    ],
)
def test_one_wrong_bit_is_seen_by_the_check_of_its_place(
    output: str, place: tuple[int, ...], check: str
) -> None:
    case = case_of(STAGE, RAGGED)
    outputs = right(case)
    outputs[output][place] ^= 1
    assert failed(judged(case, **outputs)) == {check}


def test_ids_past_a_rows_count_are_there_and_no_kernel_may_read_them() -> None:
    built = case_of(STAGE, RAGGED).build()
    ids, counts = built.array("ids"), built.array("counts")
    past = np.arange(ids.shape[1])[None, :] >= counts[:, None]
    assert unreadable(built) == set(np.flatnonzero(past))
    assert set(counts) >= {0, 1}


def test_whatever_is_no_token_of_a_sequence_is_nan_in_the_pages() -> None:
    built = case_of(STAGE, "page-stride/spaced").build()
    values = built.calls[0].values
    page, stride = int(str(values["page_tokens"])), int(str(values["page_stride"]))
    pages = built.array("k_pages").reshape(-1, stride)
    assert (pages[:, page * 2 * 16 :] == 0x7FC1).all()
    unused = set(range(len(pages))) - set(built.array("block_table").reshape(-1))
    assert unused
    assert all((pages[number] == 0x7FC1).all() for number in unused)


def test_the_far_pages_lie_where_neither_bytes_nor_elements_fit_32_bits() -> None:
    built = case_of(STAGE, "far-pages/2^26").build()
    stride = int(str(built.calls[0].values["page_stride"]))
    elements = built.array("block_table").astype(np.int64) * stride
    assert (elements > 2**32 - 200).any()
    assert ((elements > 2**31) & (elements < 2**32)).any()


def test_a_wider_token_than_a_warps_loads_is_there() -> None:
    shape = case_of(STAGE, "geometry/9x128").build().buffer("k_scratch").shape
    assert shape[2] * shape[3] > 4 * 32 * 8
