"""A decode step of a batch: ingest, score, select, gather and attend, without a host read-back.

`launch` reads positions, queries and rows from the device alone, so it can be captured in a CUDA
graph once and replayed at every length: `begin` and `commit` go around it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import SupportsIndex

from qsa_bench.engine.qsa_errors import QsaEngineError, QsaOrderError, whole_number
from qsa_bench.engine.qsa_geometry import (
    ATTENTION_DIM,
    FUSED,
    KV_HEADS,
    QUERY_HEADS,
    ROTARY_DIM,
)
from qsa_bench.engine.qsa_indexer import QsaCache, QsaIndexer
from qsa_bench.engine.qsa_launch import FUSED_SCALARS, Address, row
from qsa_bench.engine.qsa_memory import WIDTHS
from qsa_bench.engine.qsa_sequence import QsaSequence

EMPTY = -1
# gridDim.y of the gather.
MOST_SLOTS = 65535
# Words of a slot's step, as qsa_ingest_step leaves them.
_VISIBLE, _LIVE, _POSITION, _ROW, _WORDS = 0, 1, 2, 3, 4


class QsaDecodeBatch:
    """Slots for one token of up to `len(sequences)` sequences; None is a slot that stays empty.

    The caller fills `fused_qk` [slots, 640] and `q` [slots, 16, 256] (roped) bf16, and has the
    tokens' keys and values in the cache before the step; `ids` [slots, budget + 3], `counts`
    [slots] i32 and `context` [slots, 16, 256] bf16 are the step's. `cache` has a block table a
    slot. Sequences and cache are fixed: a captured step holds their addresses.
    """

    def __init__(
        self, indexer: QsaIndexer, sequences: Sequence[QsaSequence | None], cache: QsaCache
    ) -> None:
        slots = len(sequences)
        doing = f"making a decode batch of {slots} slots"
        live = [sequence for sequence in sequences if sequence is not None]
        if not slots or len({id(sequence) for sequence in live}) != len(live):
            raise QsaEngineError(f"{doing}: expected one slot or more, each with its own sequence")
        for sequence in live:
            sequence.require_live(doing)
            if sequence.indexer is not indexer:
                raise QsaEngineError(f"{doing}: a sequence belongs to another indexer")
        if slots > MOST_SLOTS:
            raise QsaEngineError(f"{doing}: the kernels serve {MOST_SLOTS}: make several batches")
        indexer.require_cache(doing, cache, (slots, None))
        self.indexer, self.sequences, self.cache = indexer, tuple(sequences), cache
        geometry, empty = indexer.geometry, indexer.memory.empty
        self.fused_qk = empty((slots, FUSED), "bfloat16")
        self.q = empty((slots, QUERY_HEADS, ATTENTION_DIM), "bfloat16")
        self.context = empty((slots, QUERY_HEADS, ATTENTION_DIM), "bfloat16")
        self.ids = empty((slots, geometry.ids_stride), "int32")
        self.counts = empty((slots,), "int32")
        self._positions = empty((slots,), "int32")
        self._step = empty((slots, _WORDS), "int32")
        self._cos = empty((slots, ROTARY_DIM), "bfloat16")
        self._sin = empty((slots, ROTARY_DIM), "bfloat16")
        self._scores = empty((slots, geometry.score_cols), "float32")
        tokens = (slots, geometry.scratch_tokens, KV_HEADS, ATTENTION_DIM)
        self._k = empty(tokens, "bfloat16")
        self._v = empty(tokens, "bfloat16")
        self._identity = empty((slots, geometry.scratch_tokens // geometry.page_tokens), "int32")
        self._lengths = empty((slots,), "int32")
        # A slot without a sequence has no launch of its own that would say so.
        indexer.memory.write(self.counts, (0,) * slots)
        self._begun: tuple[int, ...] = (EMPTY,) * slots

    def begin(self, positions: Sequence[SupportsIndex]) -> None:
        """Check and hand over the position of each slot's token, `EMPTY` for none.

        Raises QsaEngineError when any is refused; then no slot begins.
        """
        if len(positions) != len(self.sequences):
            raise QsaOrderError(
                f"beginning a decode step: {len(positions)} positions for "
                f"{len(self.sequences)} slots"
            )
        begun = tuple(
            whole_number(f"decoding slot {slot}", "position", position)
            for slot, position in enumerate(positions)
        )
        for slot, (position, sequence) in enumerate(zip(begun, self.sequences, strict=True)):
            if position == EMPTY:
                continue
            doing = f"decoding slot {slot}"
            if sequence is None:
                raise QsaOrderError(f"{doing}: position {position}, but the slot has no sequence")
            sequence.require_next(doing, position, 1)
            self.indexer.require_pages(doing, self.cache, position + 1)
        self.indexer.memory.write(self._positions, begun)
        self._begun = begun

    def launch(self) -> None:
        """Launch the step; nothing but what the device holds decides what it does."""
        for slot, sequence in enumerate(self.sequences):
            if sequence is not None:
                self._select(slot, sequence)
        self._attend()

    def commit(self) -> None:
        """Note that the step's tokens are in their sequences."""
        for position, sequence in zip(self._begun, self.sequences, strict=True):
            if position != EMPTY and sequence is not None:
                sequence.advance(position, 1)
        self._begun = (EMPTY,) * len(self.sequences)

    def step(
        self, positions: Sequence[SupportsIndex], launch: Callable[[], None] | None = None
    ) -> None:
        """Begin, launch and commit; a failing launch leaves every sequence's tokens.

        `launch` is a captured launch's replay; left out, the step is launched eagerly.
        """
        self.begin(positions)
        before = [0 if sequence is None else sequence.tokens for sequence in self.sequences]
        try:
            (launch or self.launch)()
        except BaseException:
            for position, held, sequence in zip(self._begun, before, self.sequences, strict=True):
                if position != EMPTY and sequence is not None:
                    sequence.fail(position, held)
            raise
        self.commit()

    def _select(self, slot: int, sequence: QsaSequence) -> None:
        indexer, geometry = self.indexer, self.indexer.geometry
        step = row(self._step, slot)
        indexer.kernels.launch(
            "qsa_ingest_step",
            *(row(self.fused_qk, slot), indexer.k_norm_weight, indexer.cos, indexer.sin),
            *(row(self._positions, slot), sequence.raw_keys, sequence.block_keys, step),
            *(row(self._cos, slot), row(self._sin, slot), geometry.capacity),
            *FUSED_SCALARS,
            geometry.eps,
        )
        word = WIDTHS["int32"]
        indexer.kernels.launch(
            geometry.score_entry,
            *(row(self.fused_qk, slot), indexer.q_norm_weight),
            *(row(self._cos, slot), row(self._sin, slot), sequence.block_keys),
            *(Address(step + _ROW * word), Address(step + _VISIBLE * word)),
            *(row(self._scores, slot), 1, geometry.capacity, 0, 1),
            *(geometry.block_capacity, geometry.score_cols),
            *FUSED_SCALARS,
            geometry.eps,
        )
        indexer.kernels.launch(
            "qsa_select_ids",
            *(row(self._scores, slot), Address(step + _POSITION * word)),
            *(Address(step + _LIVE * word), row(self.ids, slot), row(self.counts, slot)),
            *(1, geometry.capacity, geometry.score_cols, geometry.budget),
        )

    def _attend(self) -> None:
        indexer, geometry, slots = self.indexer, self.indexer.geometry, len(self.sequences)
        cache, page_tokens = self.cache, self.indexer.geometry.page_tokens
        indexer.kernels.launch(
            "qsa_gather",
            *(cache.k_pages, cache.v_pages, cache.block_table, self.ids, self.counts),
            *(self._k, self._v, self._identity, self._lengths, slots),
            *indexer.cache_scalars(cache),
            *(KV_HEADS, ATTENTION_DIM, geometry.ids_stride, geometry.scratch_tokens),
        )
        pages = geometry.scratch_tokens // page_tokens
        stride = page_tokens * KV_HEADS * ATTENTION_DIM
        indexer.kernels.launch(
            "qsa_decode_attention",
            *(self.q, self._k, self._v, self._identity, self._lengths, self.context, slots),
            *(slots * pages, stride, page_tokens, pages),
            *(QUERY_HEADS, KV_HEADS, ATTENTION_DIM),
        )


class QsaCapturedDecode:
    """A batch's step, captured once and replayed at every length.

    `capture` takes down what a call launches, launches nothing, and returns what replays it: a CUDA
    graph's, as of torch (`qsa_torch.CapturedDecode`) or of the driver alone.
    """

    def __init__(
        self, batch: QsaDecodeBatch, capture: Callable[[Callable[[], None]], Callable[[], None]]
    ) -> None:
        self.batch = batch
        # Empty slots touch nothing, but load every kernel: a capture can't.
        batch.begin([EMPTY] * len(batch.sequences))
        batch.launch()
        self._replay = capture(batch.launch)

    def step(self, positions: Sequence[SupportsIndex]) -> None:
        """Replay the step for these positions; refused as by `QsaDecodeBatch.begin`."""
        self.batch.step(positions, self._replay)
