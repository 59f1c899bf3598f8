"""What the runtime's scripts are, and that their simulation says what the rules say."""

from __future__ import annotations

import re

import numpy as np
import pytest

from qsa_bench import goldens, resources
from qsa_bench.engine import qsa_script as script
from qsa_bench.engine.qsa_errors import (
    STATUS_NAMES,
    QsaCapacityError,
    QsaLaunchError,
    QsaTensorError,
)
from qsa_bench.engine.qsa_geometry import QsaGeometry
from qsa_bench.engine.qsa_memory import ArenaMemory, ArenaTensor, require
from qsa_bench.goldens import qsa_attention
from qsa_bench.stages import qsa_engine
from qsa_bench.stages._qsa_engine import simulate
from qsa_bench.stages._qsa_engine_captured import captured_bound
from qsa_bench.stages._qsa_engine_golden import diagnostics

SCRIPTS = {
    **{f"{family}/{label}": make for family, label, _, make in qsa_engine._SCRIPTS},
    "decode/captured-bound": captured_bound,
}


def test_the_long_prompt_is_split_on_both_sides_of_a_slab_and_of_the_bound() -> None:
    given = SCRIPTS["split/2048"]()
    counts = {op.words[1] for op in given.operations if op.kind == script.PREFILL}
    assert {1, 2047, 2048, 2049} <= counts
    assert len(given.equal) == 2
    assert all(len(group) == 5 for group in given.equal)


def test_a_refused_operation_leaves_the_tokens() -> None:
    given = SCRIPTS["rules/refusals"]()
    tokens = 0
    for operation, code in zip(given.operations, simulate(given).codes, strict=True):
        if operation.kind != script.MISUSE and operation.code != script.OK:
            assert code[1] == tokens
        tokens = int(code[1])


def test_decode_meets_every_length_around_blocks_and_the_bound() -> None:
    given = SCRIPTS["decode/every-length"]()
    assert [batch.positions[0] for batch in given.batches] == list(range(40))
    assert all(batch.positions[2] == -1 for batch in given.batches)


@pytest.mark.parametrize("label", ["decode/captured", "decode/captured-bound"])
def test_a_captured_step_is_held_to_an_eager_one_on_both_sides_of_blocks_and_of_the_bound(
    label: str,
) -> None:
    given = SCRIPTS[label]()
    rows = simulate(given).rows
    lengths = {len(rows[replayed].fused) for _, replayed in given.equal}
    bound = given.budget + 3
    assert {bound, bound + 1} <= lengths
    assert {bound // 4 * 4 + step for step in (-1, 0, 1)} <= lengths
    assert {op.kind for op in given.operations} >= {script.BATCH, script.REPLAY}
    for eager, replayed in given.equal:
        assert rows[eager].fused == rows[replayed].fused
        assert rows[eager].sequence != rows[replayed].sequence


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("capacity", 0),
        ("capacity", 2**31),
        ("capacity", 64.5),
        ("budget", 18),
        ("budget", 2052),
        ("slab_rows", 2049),
        ("page_tokens", 7),
        ("page_tokens", 2**31),
        ("eps", -1e-6),
        ("eps", float("nan")),
    ],
)
def test_a_geometry_that_no_kernel_serves_is_refused(field: str, value: int) -> None:
    with pytest.raises(QsaCapacityError, match=f"{field} is {value}"):
        QsaGeometry(**{"capacity": 64, field: value})


def test_a_used_up_arena_is_refused_with_what_is_left() -> None:
    memory = ArenaMemory(256, 512, cuda=False)
    memory.empty((100,), "bfloat16")
    with pytest.raises(QsaCapacityError, match="allocating 800 bytes: 256 are left"):
        memory.empty((200,), "float32")


def test_a_wrong_tensor_is_told_in_one_line() -> None:
    tensor = ArenaTensor(0, (3, 640), "float32")
    with pytest.raises(QsaTensorError) as caught:
        require("ingesting", "fused_qk", tensor, "bfloat16", (None, 640), "arena")
    assert str(caught.value) == ("ingesting: fused_qk is float32, expected bfloat16: convert it")


def test_a_launch_that_failed_is_told_by_its_status_as_the_headers_name_it() -> None:
    named = {}
    for header in ("kernels/include/qsa.h", "kernels/common/status.h"):
        text = (resources.tree_root() / header).read_text()
        named |= {int(code): name for name, code in re.findall(r"#define (QSA_\w+) +(\d+)", text)}
    assert named == {0: "QSA_OK", **STATUS_NAMES}
    assert str(QsaLaunchError("qsa_score", 8)) == (
        "launching qsa_score: it returned 8, QSA_UNSUPPORTED: see kernels/include/qsa.h"
    )


def test_the_golden_has_dense_and_selective_rows_and_drops_attention_only_past_the_bound() -> None:
    path = goldens.committed("qsa_attention")
    assert path.stat().st_size <= 8_000_000
    for case in qsa_attention.cases(goldens.load(path, "qsa_attention")):
        bound = case.shape.budget + 3
        dropped = [p for row, p in enumerate(case.shape.rows) if case.mask[row, : p + 1].sum() <= p]
        assert dropped
        assert min(dropped) == bound
        assert any(p < bound for p in case.shape.rows)
        starts = np.cumsum(case.shape.chunks)
        assert any(start % 4 for start in starts)


def test_the_diagnostics_are_of_the_long_case() -> None:
    golden = goldens.load(goldens.committed("qsa_attention"), "qsa_attention")
    found = diagnostics(qsa_attention.cases(golden)[0])
    assert found["first_selective_row"] == 2051
    assert 0 < found["mass_dropped"] < 1e6
