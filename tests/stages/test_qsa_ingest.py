"""What the ingest stage sees, and that its streams are what their names say."""

from __future__ import annotations

import numpy as np
import pytest

from qsa_bench.stages import _qsa_inputs as qsa
from qsa_bench.stages import load_stage, qsa_ingest
from qsa_bench.stages._qsa_ingest_launch import Chunk, Stream, in_order
from qsa_bench.stages.qsa_ingest import judge_ingest, wanted_of
from tests.stages.judged import POISON_BYTE, case_of, failed

STAGE = load_stage("qsa_ingest")


def right(stream: Stream) -> dict[str, np.ndarray]:
    want = wanted_of(stream)
    poison = np.uint16(POISON_BYTE * 0x0101)
    raw = np.where(want.kept[:, None], want.raw_keys, poison)
    keys = np.where(want.pooled[:, None], want.keys.value, poison)
    return {"raw_keys": raw, "block_keys": keys}


@pytest.mark.parametrize(
    ("output", "place", "check"),
    [
        ("raw_keys", (9, 127), "raw-keys"),
        ("raw_keys", (20, 0), "untouched"),
        ("block_keys", (1, 5), "block-keys"),
        ("block_keys", (3, 5), "untouched"),
    ],
)
def test_one_wrong_bit_is_seen_by_the_check_of_its_place(
    output: str, place: tuple[int, int], check: str
) -> None:
    stream = Stream(
        qsa.random_inputs(30, "judge"), in_order(qsa.random_inputs(30, "judge"), (6, 4)).chunks, 30
    )
    outputs = right(stream)
    assert failed(judge_ingest(stream, wanted_of(stream), outputs)) == set()
    outputs[output][place] ^= 0x4000
    assert failed(judge_ingest(stream, wanted_of(stream), outputs)) == {check}


def test_a_rewound_block_has_the_key_of_what_it_holds_in_the_end() -> None:
    inputs = qsa.random_inputs(30, "judge")
    plain = wanted_of(Stream(inputs, (Chunk(0, 8, 0),), 8))
    back = wanted_of(Stream(inputs, (Chunk(0, 8, 0), Chunk(6, 2, 20)), 8))
    assert (plain.keys.value[0] == back.keys.value[0]).all()
    assert (plain.keys.value[1] != back.keys.value[1]).any()


def test_the_splits_bring_every_token_once_and_the_same_keys() -> None:
    wants = []
    for size in (1, 2, 3, 4, 5, 7, 45):
        case = case_of(STAGE, f"split/by-{size}")
        chunks = [call.values for call in case.build().calls]
        assert sum(int(str(chunk["row_count"])) for chunk in chunks) == 45
        wants.append(
            wanted_of(in_order(qsa.random_inputs(45, "ingest"), qsa_ingest._split(45, size)))
        )
    assert all((want.keys.value == wants[0].keys.value).all() for want in wants)
