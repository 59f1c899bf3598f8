"""What the runtime's scripts are, and that their simulation says what the rules say."""

from __future__ import annotations

import numpy as np
import pytest

from qsa_bench import goldens
from qsa_bench.engine import qsa_script as script
from qsa_bench.engine.qsa_errors import QsaCapacityError, QsaTensorError
from qsa_bench.engine.qsa_geometry import QsaGeometry
from qsa_bench.engine.qsa_memory import ArenaMemory, ArenaTensor, require
from qsa_bench.goldens import qsa_attention
from qsa_bench.stages import qsa_engine
from qsa_bench.stages._qsa_engine import simulate
from qsa_bench.stages._qsa_engine_golden import diagnostics

SCRIPTS = {f"{family}/{label}": make for family, label, _, make in qsa_engine._SCRIPTS}


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


@pytest.mark.parametrize(
    ("field", "value"),
    [("capacity", 0), ("budget", 18), ("budget", 2052), ("slab_rows", 2049), ("page_tokens", 7)],
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
