"""One sequence of a QSA indexer: its raw keys, its block keys and how many tokens it has.

Raw keys of every token are kept, so that a sequence can be rewound into a block and go on: the
block is pooled again when it is complete again, and no other block is touched.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import SupportsIndex

from qsa_bench.engine.qsa_errors import (
    QsaCapacityError,
    QsaEngineError,
    QsaOrderError,
    QsaReleasedError,
    whole_number,
)
from qsa_bench.engine.qsa_geometry import FUSED, HEAD_DIM, RATIO
from qsa_bench.engine.qsa_indexer import QsaIndexer, QsaSlab
from qsa_bench.engine.qsa_launch import FUSED_SCALARS
from qsa_bench.engine.qsa_memory import Memory, Tensor, require


def _free(memory: Memory, held: list[Tensor]) -> None:
    """Give all tensors of a list back, whichever fails; raises the first failure at the end."""
    failures = []
    while held:
        try:
            memory.free(held.pop(0))
        except Exception as failure:
            failures.append(failure)
    if failures:
        raise failures[0]


class QsaSnapshot:
    """A sequence's tokens and keys at one moment; of the indexer that it was taken from."""

    def __init__(
        self, indexer: QsaIndexer, tokens: int, raw_keys: Tensor, block_keys: Tensor
    ) -> None:
        self.indexer, self.tokens = indexer, tokens
        self.raw_keys, self.block_keys = raw_keys, block_keys
        self._held = [raw_keys, block_keys]
        self.released = False

    def release(self) -> None:
        """Give the memory back, as `QsaSequence.release`; it can't be restored any more."""
        self.released = True
        _free(self.indexer.memory, self._held)


@dataclass(frozen=True)
class _Chunk:
    """Rows of a prefill: tokens before it, from where to where, and replacements up to then."""

    before: int
    start: int
    end: int
    replaced: int


class QsaSequence:
    """The state of one sequence. Steps raise QsaEngineError when refused and change nothing then.

    Positions come in order: the next one is `tokens`; 0 begins anew; `rewind` goes back. A launch
    that fails leaves `tokens` as they were, but for one that began anew: its tokens are gone, and
    the sequence is empty.
    """

    def __init__(self, indexer: QsaIndexer) -> None:
        geometry, memory = indexer.geometry, indexer.memory
        self.indexer = indexer
        self.raw_keys = memory.empty((geometry.capacity, HEAD_DIM), "bfloat16")
        self.block_keys = memory.empty((max(geometry.block_capacity, 1), HEAD_DIM), "bfloat16")
        self._held = [self.raw_keys, self.block_keys]
        self._tokens = 0
        # Counts what takes the place of tokens that were there.
        self._replaced = 0
        self._released = False

    @property
    def tokens(self) -> int:
        """Tokens ingested, and the next position."""
        return self._tokens

    def ingest(self, fused_qk: Tensor, start: SupportsIndex) -> None:
        """Take the rows [n, 640] bf16 of the tokens from position `start` on; no rows, no effect."""
        start = whole_number("ingesting rows", "start", start)
        count = self._require_rows(fused_qk, start)
        if count:
            self._ingest(fused_qk, start, count)

    def decode(self, fused_row: Tensor, position: SupportsIndex) -> QsaSlab:
        """Ingest one row [1, 640] and return its selection, a slab of one row; eager.

        A batch, a captured step and attention over gathered tokens are `QsaDecodeBatch`.
        """
        position = whole_number("decoding a row", "position", position)
        doing = f"decoding position {position}"
        self.require_live(doing)
        require(doing, "fused_row", fused_row, "bfloat16", (1, FUSED), self.indexer.memory.device)
        self.require_next(doing, position, 1)
        before = self._tokens
        self._ingest(fused_row, position, 1)
        try:
            return self.indexer.select_slab(self.block_keys, fused_row, position, position, 1)
        except BaseException:
            self.fail(position, before)
            raise

    def prefill_select(self, fused_qk: Tensor, start: SupportsIndex) -> Iterator[QsaSlab]:
        """Ingest rows [n, 640], then yield the selection of those past the bound, slab by slab.

        Rows are taken before this returns. A slab is void when the next one is asked for, from
        whatever sequence. With `dense_prefill` there are none. Raises QsaOrderError for a slab of
        tokens that others took the place of meanwhile. A slab that fails takes the chunk back.
        """
        start = whole_number("ingesting rows", "start", start)
        before = self._tokens
        self.ingest(fused_qk, start)
        end = start + int(fused_qk.shape[0])
        geometry = self.indexer.geometry
        first = max(start, geometry.inert_bound)
        stop = first if geometry.dense_prefill else end
        return self._slabs(fused_qk, _Chunk(before, start, end, self._replaced), first, stop)

    def rewind(self, position: SupportsIndex) -> None:
        """Forget the tokens from `position` on, as after speculation that was not accepted."""
        position = whole_number("rewinding", "position", position)
        self.require_live(f"rewinding to position {position}")
        if not 0 <= position <= self._tokens:
            raise QsaOrderError(
                f"rewinding to position {position}: the sequence holds {self._tokens} tokens"
            )
        self._replaced += position != self._tokens
        self._tokens = position

    def snapshot(self) -> QsaSnapshot:
        """Return a copy of the state, which later steps don't touch."""
        self.require_live("taking a snapshot")
        memory, blocks = self.indexer.memory, self._tokens // RATIO
        raw = memory.empty((max(self._tokens, 1), HEAD_DIM), "bfloat16")
        keys = memory.empty((max(blocks, 1), HEAD_DIM), "bfloat16")
        memory.copy(raw, self.raw_keys, self._tokens * HEAD_DIM)
        memory.copy(keys, self.block_keys, blocks * HEAD_DIM)
        return QsaSnapshot(self.indexer, self._tokens, raw, keys)

    def restore(self, snapshot: QsaSnapshot) -> None:
        """Return to a snapshot, taken from this sequence or another one of the indexer."""
        doing = f"restoring a snapshot of {snapshot.tokens} tokens"
        self.require_live(doing)
        if snapshot.indexer is not self.indexer:
            raise QsaEngineError(f"{doing}: it was taken from another indexer")
        if snapshot.released:
            raise QsaReleasedError(f"{doing}: the snapshot was released")
        memory, blocks = self.indexer.memory, snapshot.tokens // RATIO
        memory.copy(self.raw_keys, snapshot.raw_keys, snapshot.tokens * HEAD_DIM)
        memory.copy(self.block_keys, snapshot.block_keys, blocks * HEAD_DIM)
        self._replaced += 1
        self._tokens = snapshot.tokens

    def release(self) -> None:
        """Give the memory back; again is no error, and a failed free does not stop the next one.

        Raises the first failure, after everything was tried.
        """
        self._released = True
        _free(self.indexer.memory, self._held)

    def require_live(self, doing: str) -> None:
        """Raise QsaReleasedError after a release."""
        if self._released:
            raise QsaReleasedError(f"{doing}: the sequence was released")

    def require_next(self, doing: str, start: int, count: int) -> None:
        """Raise unless `count` tokens may come at position `start`."""
        self.require_live(doing)
        if start not in (0, self._tokens):
            raise QsaOrderError(
                f"{doing}: it starts at position {start}, the sequence holds {self._tokens} tokens: "
                f"go on at {self._tokens}, rewind first, or begin anew at 0"
            )
        capacity = self.indexer.geometry.capacity
        if start + count > capacity:
            raise QsaCapacityError(
                f"{doing}: {start + count} tokens, the capacity is {capacity}: "
                "make the indexer for more"
            )

    def advance(self, start: int, count: int) -> None:
        """Note that `count` tokens from `start` on are in the keys."""
        self._replaced += start != self._tokens
        self._tokens = start + count

    def fail(self, start: int, before: int) -> None:
        """Take back what a failed launch behind an ingest left: it held `before` tokens."""
        self._replaced += 1
        self._tokens = before if start or not before else 0

    def _require_rows(self, fused_qk: Tensor, start: int) -> int:
        doing = f"ingesting rows at position {start}"
        self.require_live(doing)
        require(doing, "fused_qk", fused_qk, "bfloat16", (None, FUSED), self.indexer.memory.device)
        count = int(fused_qk.shape[0])
        if count:
            self.require_next(f"ingesting {count} rows", start, count)
        return count

    def _ingest(self, fused_qk: Tensor, start: int, count: int) -> None:
        indexer = self.indexer
        indexer.kernels.launch(
            "qsa_ingest",
            *(fused_qk, indexer.k_norm_weight, indexer.cos, indexer.sin),
            *(self.raw_keys, self.block_keys, start, count, indexer.geometry.capacity),
            *FUSED_SCALARS,
            indexer.geometry.eps,
        )
        self.advance(start, count)

    def _slabs(self, fused_qk: Tensor, chunk: _Chunk, first: int, stop: int) -> Iterator[QsaSlab]:
        rows = self.indexer.geometry.slab_rows
        for begin in range(first, stop, rows):
            doing = f"selecting from position {begin} on"
            self.require_live(doing)
            if self._replaced != chunk.replaced:
                raise QsaOrderError(
                    f"{doing}: {chunk.end} tokens were ingested, since then the sequence was "
                    f"rewound, restored or begun anew and holds {self._tokens}: prefill again"
                )
            count = min(rows, stop - begin)
            try:
                keys = self.block_keys
                slab = self.indexer.select_slab(keys, fused_qk, chunk.start, begin, count)
            except BaseException:
                if self._tokens == chunk.end:
                    self.fail(chunk.start, chunk.before)
                raise
            yield slab
