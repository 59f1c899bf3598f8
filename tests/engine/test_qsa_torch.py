"""The runtime on torch's CPU tensors, through the host libraries."""

from __future__ import annotations

import ctypes
from functools import cache

import numpy as np
import pytest
import torch

from qsa_bench import parity, resources
from qsa_bench.builder import Builder
from qsa_bench.engine.qsa_decode import QsaDecodeBatch
from qsa_bench.engine.qsa_errors import (
    QsaEngineError,
    QsaLaunchError,
    QsaOrderError,
    QsaReleasedError,
    QsaTensorError,
)
from qsa_bench.engine.qsa_geometry import QsaGeometry
from qsa_bench.engine.qsa_indexer import QsaCache, QsaIndexer
from qsa_bench.engine.qsa_launch import QsaKernels
from qsa_bench.engine.qsa_sequence import QsaSequence
from qsa_bench.engine.qsa_torch import TorchMemory, project
from qsa_bench.stages import load_stage

CAPACITY = 64


@cache
def libraries() -> dict[str, ctypes.CDLL]:
    stage = load_stage("qsa_engine")
    builder = Builder(resources.cache_root())
    root = resources.tree_root()
    builds = parity.build_stage(builder, stage.kernels, "host", root, (parity.PLAIN,))
    return {name: ctypes.CDLL(path) for name, path in builds.libraries(parity.PLAIN).items()}


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).bfloat16()


def indexer() -> QsaIndexer:
    memory = TorchMemory("cpu")
    geometry = QsaGeometry(CAPACITY, budget=16, slab_rows=8, page_tokens=8)
    kernels = QsaKernels(libraries(), memory.stream)
    weights = (random(128), random(128))
    return QsaIndexer(
        kernels, memory, geometry, *weights, random(CAPACITY, 64), random(CAPACITY, 64)
    )


def test_a_batch_decodes_what_a_sequence_selects() -> None:
    shared = indexer()
    first, second = QsaSequence(shared), QsaSequence(shared)
    rows = project(random(40, 2560), 0.02 * random(640, 2560))
    first.ingest(rows[:30], 0)
    second.ingest(rows[:13], 0)
    second.ingest(rows[13:30].contiguous(), 13)
    pages = [random(16, 8, 2, 256) for _ in range(2)]
    table = torch.arange(16, dtype=torch.int32).reshape(2, 8)
    batch = QsaDecodeBatch(shared, [None, second], QsaCache(*pages, table))
    batch.fused_qk[1] = rows[30]
    batch.q.copy_(random(2, 16, 256))
    batch.step([-1, 30])
    slab = first.decode(rows[30:31], 30)
    count = int(slab.counts[0])
    assert count == 16 + 3
    assert batch.ids[1].tolist() == slab.ids[0].tolist()
    assert batch.counts.tolist() == [0, count]
    assert not batch.context[0].any()
    ids = slab.ids[0, :count].long()
    keys, values = (page[8:].reshape(-1, 2, 256)[ids].float() for page in pages)
    heads = batch.q[1].float().reshape(2, 8, 256)
    weights = torch.softmax(torch.einsum("kgd,tkd->kgt", heads, keys) / 16, dim=-1)
    want = torch.einsum("kgt,tkd->kgd", weights, values).reshape(16, 256)
    assert (batch.context[1].float() - want).abs().max() < 2**-6


def test_what_is_no_row_of_the_sequence_is_refused() -> None:
    sequence = QsaSequence(indexer())
    sequence.ingest(random(5, 640), 0)
    with pytest.raises(QsaTensorError, match="float32, expected bfloat16"):
        sequence.ingest(random(1, 640).float(), 5)
    with pytest.raises(QsaTensorError, match="not contiguous"):
        sequence.ingest(random(640, 4).t(), 5)
    with pytest.raises(QsaOrderError, match="position 7, the sequence holds 5 tokens"):
        sequence.decode(random(1, 640), 7)
    sequence.ingest(random(0, 640), 0)
    assert sequence.tokens == 5


def test_positions_may_be_any_whole_numbers_and_nothing_else() -> None:
    sequence = QsaSequence(indexer())
    sequence.ingest(random(21, 640), np.int64(0))
    assert sequence.decode(random(1, 640), torch.tensor(21)).first == 21
    sequence.rewind(np.int32(21))
    for wrong in (21.0, 20.5, None, "21"):
        for step in (sequence.ingest, sequence.decode, sequence.prefill_select):
            with pytest.raises(QsaOrderError, match=f"{wrong!r}, expected a whole number"):
                step(random(1, 640), wrong)  # type: ignore[arg-type]
        with pytest.raises(QsaOrderError, match="expected a whole number"):
            sequence.rewind(wrong)  # type: ignore[arg-type]
    assert sequence.tokens == 21


def test_what_is_no_tensor_and_what_vector_loads_cannot_read_is_refused() -> None:
    sequence = QsaSequence(indexer())
    with pytest.raises(QsaTensorError, match="fused_qk is a NoneType, expected a tensor"):
        sequence.ingest(None, 0)  # type: ignore[arg-type]
    odd = torch.zeros(648, dtype=torch.bfloat16)[1:641].view(1, 640)
    with pytest.raises(QsaTensorError, match="fused_qk lies 2 bytes past a multiple of 16"):
        sequence.ingest(odd, 0)
    assert sequence.tokens == 0


def test_a_prefill_whose_selection_fails_leaves_the_sequence_as_it_was() -> None:
    sequence = QsaSequence(indexer())
    rows = random(40, 640)
    sequence.ingest(rows[:21], 0)
    broken = rows[21:].clone()
    broken[12] = torch.nan
    with pytest.raises(QsaLaunchError, match="QSA_HOST_TRAPPED"):
        list(sequence.prefill_select(broken, 21))
    assert sequence.tokens == 21
    again = [slab.ids[: slab.count].clone() for slab in sequence.prefill_select(rows[21:], 21)]
    fresh = QsaSequence(sequence.indexer)
    fresh.ingest(rows[:21], 0)
    wanted = [slab.ids[: slab.count].clone() for slab in fresh.prefill_select(rows[21:], 21)]
    assert torch.equal(torch.cat(again), torch.cat(wanted))


def test_slabs_of_tokens_that_are_gone_are_refused() -> None:
    sequence = QsaSequence(indexer())
    sequence.ingest(random(21, 640), 0)
    slabs = sequence.prefill_select(random(20, 640), 21)
    next(slabs)
    sequence.rewind(25)
    sequence.ingest(random(16, 640), 25)
    with pytest.raises(QsaOrderError, match="41 tokens were ingested, since .* holds 41"):
        next(slabs)
    slabs = sequence.prefill_select(random(20, 640), 41)
    sequence.release()
    with pytest.raises(QsaReleasedError, match="the sequence was released"):
        next(slabs)


def test_a_batch_that_no_grid_and_a_cache_that_no_token_holds_are_refused_with_the_numbers() -> (
    None
):
    pages = [random(16, 8, 2, 256) for _ in range(2)]
    cache = QsaCache(*pages, torch.zeros(65536, 8, dtype=torch.int32))
    empty = QsaCache(*(page[:0] for page in pages), cache.block_table[:1])
    with pytest.raises(QsaTensorError, match=r"k_pages is \[0, 8, 2, 256\], expected a page"):
        QsaDecodeBatch(indexer(), [None], empty)
    with pytest.raises(QsaEngineError, match="batch of 65536 slots: the kernels serve 65535"):
        QsaDecodeBatch(indexer(), [None] * 65536, cache)


def test_a_released_snapshot_gives_its_memory_back_and_is_not_restored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sequence = QsaSequence(indexer())
    sequence.ingest(random(21, 640), 0)
    kept, gone = sequence.snapshot(), sequence.snapshot()
    freed: list[object] = []

    def free(tensor: object) -> None:
        freed.append(tensor)
        if len(freed) == 1:
            raise MemoryError("the first free fails")

    monkeypatch.setattr(sequence.indexer.memory, "free", free)
    with pytest.raises(MemoryError, match="the first free fails"):
        gone.release()
    gone.release()
    assert [id(tensor) for tensor in freed] == [id(gone.raw_keys), id(gone.block_keys)]
    with pytest.raises(
        QsaReleasedError, match="a snapshot of 21 tokens: the snapshot was released"
    ):
        sequence.restore(gone)
    sequence.rewind(3)
    sequence.restore(kept)
    assert sequence.tokens == 21
