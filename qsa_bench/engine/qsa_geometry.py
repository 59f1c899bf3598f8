"""What a QSA indexer is sized for; decided once, checked before a byte is allocated."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from qsa_bench.engine.qsa_errors import QsaCapacityError, whole_number

RATIO = 4
HEAD_DIM = 128
FUSED = 640
ROTARY_DIM = 64
QUERY_HEADS = 16
KV_HEADS = 2
ATTENTION_DIM = 256
MOST_BUDGET = 2048
MOST_SLAB_ROWS = 2048
LEAST_PAGE_TOKENS = 8
MOST_WORDS = 2**31 - 1


@dataclass(frozen=True)
class QsaGeometry:
    """Capacities of an indexer and what the checkpoint fixes.

    `capacity` tokens a sequence; `budget` tokens of selected blocks; `slab_rows` rows that a
    prefill scores at a time; `dense_prefill` leaves every prefill row to dense attention, also past
    the bound (decode still selects); `scalar_scores` takes the scorer's scalar body in place of the
    tensor cores'. Raises QsaCapacityError.
    """

    capacity: int
    budget: int = MOST_BUDGET
    slab_rows: int = MOST_SLAB_ROWS
    page_tokens: int = 64
    eps: float = 1e-6
    dense_prefill: bool = False
    scalar_scores: bool = False

    def __post_init__(self) -> None:
        doing = "sizing a QSA indexer"
        for name in ("capacity", "budget", "slab_rows", "page_tokens"):
            value = whole_number(doing, name, getattr(self, name), QsaCapacityError)
            object.__setattr__(self, name, value)
        if not 1 <= self.capacity <= MOST_WORDS:
            raise QsaCapacityError(f"{doing}: capacity is {self.capacity}, expected 1 to 2^31 - 1")
        if self.budget < RATIO or self.budget % RATIO or self.budget > MOST_BUDGET:
            raise QsaCapacityError(
                f"{doing}: budget is {self.budget}, expected a multiple of {RATIO} up to {MOST_BUDGET}"
            )
        if not 1 <= self.slab_rows <= MOST_SLAB_ROWS:
            raise QsaCapacityError(
                f"{doing}: slab_rows is {self.slab_rows}, expected 1 to {MOST_SLAB_ROWS}"
            )
        if not LEAST_PAGE_TOKENS <= self.page_tokens <= MOST_WORDS:
            raise QsaCapacityError(
                f"{doing}: page_tokens is {self.page_tokens}, expected {LEAST_PAGE_TOKENS} to 2^31 - 1"
            )
        if not 0 <= self.eps < inf:
            raise QsaCapacityError(f"{doing}: eps is {self.eps}, expected a number from 0 on")
        # Whole numbers are passed to the kernels as such.
        object.__setattr__(self, "eps", float(self.eps))

    @property
    def score_entry(self) -> str:
        """The C entry that scores."""
        return "qsa_score_scalar" if self.scalar_scores else "qsa_score"

    @property
    def inert_bound(self) -> int:
        """First position whose selection leaves a token out."""
        return self.budget + RATIO - 1

    @property
    def block_capacity(self) -> int:
        """Complete blocks of a full sequence."""
        return self.capacity // RATIO

    @property
    def score_cols(self) -> int:
        """Row stride of the scores."""
        return max(1, self.block_capacity)

    @property
    def ids_stride(self) -> int:
        """Ids of a row: the budget and the longest tail."""
        return self.budget + RATIO - 1

    @property
    def scratch_tokens(self) -> int:
        """Slots of a row's gathered tokens, in whole pages."""
        return -(-self.ids_stride // self.page_tokens) * self.page_tokens
