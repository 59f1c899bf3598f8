"""The float64 oracle of `dsa_index_scores`, and the bound that judges a kernel.

Contract section 2, "scores". A score is a sum of heads of both signs, so the bound follows what is
added, not what is left of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from qsa_bench.bf16 import F32, F64, U16, to_float32
from qsa_bench.oracles.qsa_head_vector import Rounded
from qsa_bench.oracles.qsa_numerics import PooledKeys

Array = npt.NDArray[Any]

# A float32 sum of 128 exact products errs by units of roundoff of the sum of their magnitudes. Signs
# that alternate leave a third of a unit (the reference, and a serial sum, over four goldens); where all
# products have one sign, a tensor core that cuts instead of rounding errs to one side at each of its
# 8 steps, by 2 units at most: 16. The magnitudes of a row together are some 30 times a score, so this
# is about 6e-5 of a score; what errs by less and to one side, as a wrong scale does, is seen on all
# scores together.
_ROUNDOFFS = 16.0
_UNIT_ROUNDOFF = 2.0**-24


@dataclass(frozen=True)
class Scores:
    """Scores [rows, pools] of one sequence and how far a correct kernel may lie from each.

    `widened` marks bounds that are wider because a key they see has two legal roundings.
    """

    value: F64
    bound: F64
    widened: Array


def scores(q: U16, weights: F32, keys: PooledKeys) -> Scores:
    """Return the scores of q [rows, 32, 128] (bfloat16 bits) with weights [rows, 32] against keys."""
    query = to_float32(q).astype(np.float64)
    key = Rounded(to_float32(keys.value), to_float32(keys.low), to_float32(keys.high))
    factor = weights.astype(np.float64)[..., None] / math.sqrt(query.shape[-1])
    pools = key.value.astype(np.float64).T
    with np.errstate(invalid="ignore", over="ignore"):
        dot = query @ pools
        value = (factor * np.where(dot < 0, 0.0, dot)).sum(axis=1)
        magnitude = (np.abs(factor) * (np.abs(query) @ np.abs(pools))).sum(axis=1)
        reach = key.reach()
        spread = np.zeros_like(value)
        seen = np.flatnonzero(reach.any(axis=1))
        spread[:, seen] = (np.abs(factor) * (np.abs(query) @ reach[seen].T)).sum(axis=1)
    bound = _ROUNDOFFS * _UNIT_ROUNDOFF * magnitude + spread
    # A score that is NaN or infinite is compared as such.
    return Scores(value, np.where(np.isfinite(value), bound, 0.0), spread > 0)
