"""The QSA indexer of one layer: weights, tables and scratch, shared by all of its sequences."""

from __future__ import annotations

from dataclasses import dataclass

from qsa_bench.engine.qsa_errors import QsaCapacityError, QsaReleasedError, QsaTensorError
from qsa_bench.engine.qsa_geometry import (
    ATTENTION_DIM,
    HEAD_DIM,
    KV_HEADS,
    QUERY_HEADS,
    ROTARY_DIM,
    QsaGeometry,
)
from qsa_bench.engine.qsa_launch import FUSED_SCALARS, QsaKernels, row
from qsa_bench.engine.qsa_memory import Memory, Tensor, require


@dataclass(frozen=True)
class QsaCache:
    """A paged cache: k_pages and v_pages [pages, page_tokens, 2, 256] bf16, and block tables.

    `block_table` i32 [table_pages] of one sequence, or [slots, table_pages] of a batch.
    """

    k_pages: Tensor
    v_pages: Tensor
    block_table: Tensor

    @property
    def pages(self) -> int:
        """Pages there are."""
        return int(self.k_pages.shape[0])

    @property
    def table_pages(self) -> int:
        """Entries of a sequence's block table."""
        return int(self.block_table.shape[-1])


@dataclass(frozen=True)
class QsaSlab:
    """Selected rows of a prefill, in the indexer's scratch until the next slab is selected.

    Rows `first` .. `first + count - 1` of a chunk that began at position `start`; `ids`
    [slab_rows, budget + 3] i32 ascending then -1, `counts` [slab_rows] i32.
    """

    start: int
    first: int
    count: int
    ids: Tensor
    counts: Tensor
    number: int


class QsaIndexer:
    """What sequences share: norm weights and tables, geometry, kernels, and scratch sized once.

    `q_norm_weight` and `k_norm_weight` [128] bf16; `cos` and `sin` bf16 by absolute position, 64
    wide and `capacity` long at least. Raises QsaTensorError.
    """

    def __init__(
        self,
        kernels: QsaKernels,
        memory: Memory,
        geometry: QsaGeometry,
        q_norm_weight: Tensor,
        k_norm_weight: Tensor,
        cos: Tensor,
        sin: Tensor,
    ) -> None:
        doing = "making a QSA indexer"
        for name, weight in (("q_norm_weight", q_norm_weight), ("k_norm_weight", k_norm_weight)):
            require(doing, name, weight, "bfloat16", (HEAD_DIM,), memory.device)
        for name, table in (("cos", cos), ("sin", sin)):
            require(doing, name, table, "bfloat16", (None, ROTARY_DIM), memory.device)
            if int(table.shape[0]) < geometry.capacity:
                raise QsaTensorError(
                    f"{doing}: {name} has {int(table.shape[0])} positions, a sequence may have "
                    f"{geometry.capacity}: give longer tables or a smaller capacity"
                )
        self.kernels = kernels
        self.memory = memory
        self.geometry = geometry
        self.q_norm_weight, self.k_norm_weight = q_norm_weight, k_norm_weight
        self.cos, self.sin = cos, sin
        rows = geometry.slab_rows
        self._scores = memory.empty((rows, geometry.score_cols), "float32")
        self._rows = memory.empty((rows,), "int32")
        self._visible = memory.empty((rows,), "int32")
        self._ids = memory.empty((rows, geometry.ids_stride), "int32")
        self._counts = memory.empty((rows,), "int32")
        self._slab = 0

    def select_slab(
        self, block_keys: Tensor, fused_qk: Tensor, start: int, first: int, count: int
    ) -> QsaSlab:
        """Score and select `count` rows from position `first` on, of a chunk that began at `start`.

        Takes the scratch over: slabs before this one are void.
        """
        geometry = self.geometry
        self._slab += 1
        self.memory.write(self._rows, range(first, first + count))
        self.memory.write(self._visible, range(first + 1, first + count + 1))
        self.kernels.launch(
            geometry.score_entry,
            *(fused_qk, self.q_norm_weight, self.cos, self.sin, block_keys),
            *(self._rows, self._visible, self._scores),
            *(count, geometry.capacity, start, int(fused_qk.shape[0])),
            *(geometry.block_capacity, geometry.score_cols),
            *FUSED_SCALARS,
            geometry.eps,
        )
        self.kernels.launch(
            "qsa_select_ids",
            *(self._scores, self._rows, None, self._ids, self._counts),
            *(count, geometry.capacity, geometry.score_cols, geometry.budget),
        )
        return QsaSlab(start, first, count, self._ids, self._counts, self._slab)

    def prefill_attention(self, slab: QsaSlab, q: Tensor, cache: QsaCache, context: Tensor) -> None:
        """Overwrite the context of a slab's rows; `q` and `context` [chunk rows, 16, 256] bf16.

        Raises QsaReleasedError for a slab whose scratch was taken over, QsaCapacityError for a
        block table shorter than the slab's last position.
        """
        doing = f"attending from positions {slab.first} to {slab.first + slab.count - 1}"
        if slab.number != self._slab:
            raise QsaReleasedError(
                f"{doing}: the scratch holds slab {self._slab} by now, this is slab {slab.number}: "
                "attend to a slab before the next one is selected"
            )
        offset = slab.first - slab.start
        for name, tensor in (("q", q), ("context", context)):
            shape = (None, QUERY_HEADS, ATTENTION_DIM)
            require(doing, name, tensor, "bfloat16", shape, self.memory.device)
            if int(tensor.shape[0]) < offset + slab.count:
                raise QsaTensorError(
                    f"{doing}: {name} has {int(tensor.shape[0])} rows, the chunk has "
                    f"{offset + slab.count}"
                )
        self.require_cache(doing, cache, (None,))
        self.require_pages(doing, cache, slab.first + slab.count)
        geometry = self.geometry
        self.kernels.launch(
            "qsa_prefill_attention",
            *(row(q, offset), self._rows, cache.k_pages, cache.v_pages, cache.block_table),
            *(self._ids, self._counts, row(context, offset), slab.count),
            *self.cache_scalars(cache),
            *(QUERY_HEADS, KV_HEADS, ATTENTION_DIM, geometry.ids_stride, geometry.budget),
        )

    def require_cache(self, doing: str, cache: QsaCache, table: tuple[int | None, ...]) -> None:
        """Raise QsaTensorError unless the cache has this geometry and a table of this shape."""
        pages = (None, self.geometry.page_tokens, KV_HEADS, ATTENTION_DIM)
        device = self.memory.device
        require(doing, "k_pages", cache.k_pages, "bfloat16", pages, device)
        require(doing, "v_pages", cache.v_pages, "bfloat16", (cache.pages, *pages[1:]), device)
        require(doing, "block_table", cache.block_table, "int32", table, device)
        if not cache.pages:
            raise QsaTensorError(
                f"{doing}: k_pages is {list(cache.k_pages.shape)}, expected a page"
            )

    def require_pages(self, doing: str, cache: QsaCache, tokens: int) -> None:
        """Raise QsaCapacityError unless a block table reaches over `tokens` tokens."""
        reach = cache.table_pages * self.geometry.page_tokens
        if reach < tokens:
            raise QsaCapacityError(
                f"{doing}: the block table reaches over {reach} tokens, the context has {tokens}: "
                "give the table of all its pages"
            )

    def cache_scalars(self, cache: QsaCache) -> tuple[int, int, int, int]:
        """Return page_count, page_stride, page_tokens and table_pages as the entries take them."""
        page_tokens = self.geometry.page_tokens
        stride = page_tokens * KV_HEADS * ATTENTION_DIM
        return cache.pages, stride, page_tokens, cache.table_pages
