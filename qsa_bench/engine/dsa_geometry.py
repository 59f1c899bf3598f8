"""Every count and capacity of a DSA selection, decided and checked before a pointer is touched.

Standard library only: an engine can take this file as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from itertools import chain
from operator import index

HEADS = 32
HEAD_DIM = 128
KPOOLS = (4, 16)
# What kernels/dsa/topk_pools.cu lists in shared memory.
MOST_KEPT = 512
# Tokens and their ids are int32; the select tile is rounded up within it.
MOST_TOKENS = 2**31 - 5
# gridDim.y of the key pooling.
MOST_SEQUENCES = 65535
GEOMETRY_WORDS = 5
TILE_SCORES = 4
# Static shared memory of a CTA at most, the same for every context: kMostSharedBytes of the sources.
SHARED_BYTES = {
    "dsa_kpool_compress": 256,
    "dsa_index_scores": 33 * 1024,
    "dsa_topk_pools": 32 * 1024,
}
# Allocations and regions begin here, which every vector load needs.
_ALIGNMENT = 256


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


class DsaGeometryError(ValueError):
    """Counts that the kernels do not serve; the message has the numbers."""


@dataclass(frozen=True)
class Region:
    """A part of the scratch: `offset` and `size` in bytes."""

    name: str
    offset: int
    size: int


@dataclass(frozen=True)
class DsaSelectGeometry:
    """One selection: B sequences of `tokens` live tokens, `query_rows` rows each.

    `context` and `most_rows` are what the scratch is laid out for and stay as they are while a
    sequence grows, so that cached pool keys keep their place. `padded` sequences have a mask of
    valid keys. `replayed` says that a graph holds the launches: tokens and rows are then its
    ceiling. `scratch_bytes` is what there is, `shared_limit` what a CTA may have. Raises
    DsaGeometryError at construction.
    """

    context: int
    tokens: int
    query_rows: int
    batch: int = 1
    most_rows: int = 1
    topk: int = 2048
    kpool: int = 4
    select_tail: bool = True
    padded: bool = False
    replayed: bool = False
    scratch_bytes: int | None = None
    shared_limit: int = 48 * 1024

    def __post_init__(self) -> None:
        # One after the other: a later rule counts on what an earlier one made sure of.
        rules = (
            self._refused_types(),
            self._refused_counts(),
            self._refused_lengths(),
            self._refused_memory(),
        )
        for refusal in chain.from_iterable(rules):
            raise DsaGeometryError(f"laying out a DSA selection: {refusal}")

    def _refused_types(self) -> Iterator[str]:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None and field.default is None:
                continue
            try:
                index(value)
            except TypeError:
                yield f"{field.name} is {value!r}, expected a whole number"

    def _refused_counts(self) -> Iterator[str]:
        if self.kpool not in KPOOLS:
            served = " or ".join(str(kpool) for kpool in KPOOLS)
            yield f"kpool is {self.kpool}, the kernels serve {served}"
        if self.topk < self.kpool or self.topk % self.kpool:
            yield f"topk is {self.topk}, expected a positive multiple of kpool {self.kpool}"
        if self.topk // self.kpool > MOST_KEPT:
            yield (
                f"topk {self.topk} keeps {self.topk // self.kpool} pools of {self.kpool}, "
                f"the kernel serves {MOST_KEPT}: topk may be {MOST_KEPT * self.kpool} at most"
            )
        if not 1 <= self.batch <= MOST_SEQUENCES:
            yield f"{self.batch} sequences, expected 1 to {MOST_SEQUENCES}"
        if self.query_rows < 1:
            yield f"{self.query_rows} query rows, expected 1 at least"
        if self.query_rows > self.most_rows:
            yield (
                f"{self.query_rows} query rows, the scratch is laid out for {self.most_rows}: "
                "lay it out again or take fewer rows at a time"
            )

    def _refused_lengths(self) -> Iterator[str]:
        if self.tokens < 1:
            yield f"{self.tokens} tokens, expected 1 at least"
        if self.context > MOST_TOKENS:
            yield f"a context of {self.context} tokens, token ids end at {MOST_TOKENS}"
        if self.tokens > self.context:
            yield (
                f"{self.tokens} tokens outgrew the scratch, which is laid out for a context of "
                f"{self.context}: lay it out again for a longer one"
            )
        if self.query_rows > self.tokens:
            yield f"{self.query_rows} query rows of {self.tokens} tokens: a row is a token's"
        if self.replayed and (self.batch, self.query_rows) != (1, 1):
            yield (
                f"{self.batch} sequences of {self.query_rows} query rows in a graph: its geometry "
                "is one sequence's and one row's; capture a launch for each row"
            )

    def _refused_memory(self) -> Iterator[str]:
        if self.batch * self.most_rows > 2**31 - 1:
            yield f"{self.batch} sequences of {self.most_rows} rows are more than a grid has blocks"
        for kernel, needed in SHARED_BYTES.items():
            if needed > self.shared_limit:
                yield (
                    f"{kernel} needs {needed} bytes of shared memory, the device gives a block "
                    f"{self.shared_limit}"
                )
        if self.scratch_bytes is not None and self.needed_bytes > self.scratch_bytes:
            largest = max(self.regions, key=lambda region: region.size)
            yield (
                f"{self.needed_bytes} bytes of scratch for {self.batch} sequences of "
                f"{self.context} tokens and {self.most_rows} rows, there are "
                f"{self.scratch_bytes}; the largest part is {largest.name} with {largest.size}"
            )

    # Of the live tokens

    @property
    def whole_pools(self) -> int:
        """Complete pools; fewer tokens than a pool have none, and are the tail alone."""
        return self.tokens // self.kpool

    @property
    def pools(self) -> int:
        """Pools, the incomplete one included."""
        return -(-self.tokens // self.kpool)

    @property
    def select_k(self) -> int:
        """Pools kept."""
        return min(self.most_kept, self.whole_pools)

    @property
    def select_tile(self) -> int:
        """Scores of a row that the selection reads, in whole vectors of four."""
        return -(-self.whole_pools // TILE_SCORES) * TILE_SCORES

    @property
    def words(self) -> tuple[int, int, int, int, int]:
        """The five words of the device's geometry."""
        return (self.tokens, self.pools, self.whole_pools, self.select_tile, self.select_k)

    # Of the layout

    @property
    def most_kept(self) -> int:
        """Pools kept at most: the width of a row of kept pools."""
        return self.topk // self.kpool

    @property
    def output_width(self) -> int:
        """Token ids of a row."""
        return self.topk + (self.kpool - 1 if self.select_tail else 0)

    @property
    def pool_capacity(self) -> int:
        """Pools a sequence can come to have: bounded by memory alone."""
        return self.context // self.kpool

    @property
    def score_cols(self) -> int:
        """Elements from one row of scores to the next: whole vectors, one at least."""
        return max(1, -(-self.pool_capacity // TILE_SCORES)) * TILE_SCORES

    @property
    def regions(self) -> tuple[Region, ...]:
        """The parts of the scratch, in order; pool keys and lists outlive a step."""
        rows, pools = self.batch * self.most_rows, self.batch * self.pool_capacity
        sizes = {
            "pool_keys": pools * HEAD_DIM * 2,
            "first_keys": self.batch * 4 if self.padded else 0,
            "slots": (pools + self.batch) * 8 if self.padded else 0,
            "pool_starts": pools * 4 if self.padded else 0,
            "geometry": GEOMETRY_WORDS * 4,
            "scores": rows * self.score_cols * 4,
            "visible_pools": rows * 4,
            "kept_pools": rows * self.most_kept * 4,
            "kept_counts": rows * 4,
        }
        found, offset = [], 0
        for name, size in sizes.items():
            found.append(Region(name, offset, size))
            offset += _aligned(size)
        return tuple(found)

    @property
    def needed_bytes(self) -> int:
        """Bytes of scratch, up to where a region behind the last one would begin."""
        last = self.regions[-1]
        return last.offset + _aligned(last.size)

    def offset(self, name: str) -> int:
        """Return where a region begins, in bytes; KeyError if there is none."""
        for region in self.regions:
            if region.name == name:
                return region.offset
        raise KeyError(name)

    def at(self, tokens: int, query_rows: int | None = None) -> DsaSelectGeometry:
        """Return the same layout with other live tokens (and rows), checked anew."""
        rows = self.query_rows if query_rows is None else query_rows
        return replace(self, tokens=tokens, query_rows=rows)
