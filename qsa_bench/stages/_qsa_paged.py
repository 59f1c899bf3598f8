"""Paged caches for the stages that read one: pages in any order, NaN wherever no token lies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from qsa_bench.bf16 import round_to_bf16
from qsa_bench.families import seeded
from qsa_bench.model import Argument, Role
from qsa_bench.program import Buffer, Value

Array = npt.NDArray[Any]

# kernels/common/status.h
NULL_POINTER, BAD_EXTENT, BAD_BUDGET, BAD_STRIDE, UNSUPPORTED = 1, 2, 3, 4, 8
NAN_BF16 = 0x7FC1

POINTERS = (
    Argument("k_pages", "bf16", Role.INPUT, ("page_count", "page_tokens", "kv_heads", "head_dim")),
    Argument("v_pages", "bf16", Role.INPUT, ("page_count", "page_tokens", "kv_heads", "head_dim")),
    Argument("block_table", "i32", Role.INPUT, ("sequences", "table_pages"), doc="page ids"),
)
EXTENTS = (
    Argument("page_count", "i64", Role.SCALAR, doc="pages there are"),
    Argument("page_stride", "i64", Role.SCALAR, doc="elements from one page to the next"),
    Argument("page_tokens", "i64", Role.SCALAR, doc="tokens a page, 8 or more"),
    Argument("table_pages", "i64", Role.SCALAR, doc="entries of a sequence's block table"),
)


@dataclass(frozen=True)
class Paged:
    """Sequences in a paged cache, bf16 as uint16.

    `keys`, `values` [sequences, tokens, kv_heads, head_dim] are what the pages hold; `pages` are
    their ids [sequences, table_pages], `gap` elements lie between one page and the next.
    """

    keys: Array
    values: Array
    pages: Array
    page_tokens: int
    page_count: int
    gap: int = 0

    @property
    def page_stride(self) -> int:
        """Elements from one page to the next."""
        kv_heads, head_dim = map(int, self.keys.shape[2:])
        return self.page_tokens * kv_heads * head_dim + self.gap

    def buffers(self) -> list[Buffer]:
        """Return the pages of keys and values, and the block table.

        A cache of many GB is written only where pages are; a smaller one is NaN elsewhere.
        """
        size = self.page_count * self.page_stride
        table = Buffer("block_table", "i32", self.pages.shape, Role.INPUT, self.pages)
        found = [table]
        for name, tensor in (("k_pages", self.keys), ("v_pages", self.values)):
            places = self._places(tensor)
            if size > 1 << 28:
                found.append(Buffer(name, "bf16", (size,), Role.INPUT, segments=tuple(places)))
                continue
            data = np.full(size, NAN_BF16, dtype=np.uint16)
            for offset, page in places:
                data[offset : offset + page.size] = page
            found.append(Buffer(name, "bf16", (size,), Role.INPUT, data))
        return found

    def _places(self, tensor: Array) -> list[tuple[int, Array]]:
        places = []
        for sequence, pages in enumerate(self.pages):
            for slot, page in enumerate(pages):
                first = slot * self.page_tokens
                rows = tensor[sequence, first : first + self.page_tokens].reshape(-1)
                if page >= 0 and rows.size:
                    places.append((int(page) * self.page_stride, rows))
        return places

    def values_of(self) -> dict[str, Value]:
        """Return what an entry is given: buffers by name and the extents."""
        return {
            "k_pages": "k_pages",
            "v_pages": "v_pages",
            "block_table": "block_table",
            "page_count": self.page_count,
            "page_stride": self.page_stride,
            "page_tokens": self.page_tokens,
            "table_pages": int(self.pages.shape[1]),
        }


def random_tensor(shape: tuple[int, ...], *words: object, scale: float = 1.0) -> Array:
    """Return bf16 of N(0, scale), as uint16."""
    random = seeded("qsa-paged", *shape, *words)
    return round_to_bf16(scale * random.standard_normal(shape))


# A prime, so that tokens mixed up by a power of two show.
_DIFFERENT_TOKENS = 8191


def long_tensor(tokens: int, kv_heads: int, head_dim: int, *words: object) -> Array:
    """Return bf16 of N(0, 1) [1, tokens, kv_heads, head_dim], which repeats after a prime."""
    different = min(tokens, _DIFFERENT_TOKENS)
    few = random_tensor((1, different, kv_heads, head_dim), *words)
    return few[:, np.arange(tokens) % different]


def paged(
    keys: Array, values: Array, page_tokens: int, *words: object, spare: int = 3, gap: int = 0
) -> Paged:
    """Lay sequences [sequences, tokens, kv_heads, head_dim] out in pages of a random order.

    `spare` pages belong to no sequence.
    """
    sequences, tokens = keys.shape[:2]
    slots = -(-tokens // page_tokens)
    count = sequences * slots + spare
    order = seeded("qsa-pages", sequences, tokens, page_tokens, *words).permutation(count)
    pages = order[: sequences * slots].reshape(sequences, slots).astype(np.int32)
    return Paged(keys, values, pages, page_tokens, count, gap)
