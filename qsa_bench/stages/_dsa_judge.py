"""Judging pool keys and written regions of the DSA stages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from qsa_bench.bf16 import to_float32
from qsa_bench.compare import bitwise, coordinates
from qsa_bench.model import Evidence, Finding, Status
from qsa_bench.oracles.qsa_numerics import PooledKeys, illegal_keys
from qsa_bench.poison import POISON

Array = npt.NDArray[Any]

# An element is wrong by its distance from the nearest legal bfloat16; the bound is 2 ulp of f32, so
# that the least wrong rounding is wrong by 16,384 times its bound.
_WINDOW = 2.0**-22


def keys_finding(
    check: str, want: PooledKeys, got: Array, numbers: Mapping[str, float] | None = None
) -> Finding:
    """Hold pool keys `got` [pools, 128] to the legal range of every element."""
    counted = dict(numbers or {})
    illegal = np.flatnonzero(illegal_keys(got, want).reshape(-1))
    if illegal.size == 0:
        evidence = Evidence(0, got.size, error=0.0, bound=0.0, numbers=counted)
        return Finding(check, Status.PASS, evidence)
    low, high, wanted, given = (
        to_float32(bits).reshape(-1)[illegal] for bits in (want.low, want.high, want.value, got)
    )
    with np.errstate(invalid="ignore", over="ignore"):
        nearest = np.clip(given, low, high)
        error = np.abs(given.astype(np.float64) - nearest)
        bound = _WINDOW * np.maximum(np.abs(nearest), np.abs(given)).astype(np.float64)
        margin = np.where(np.isfinite(error / bound), error / bound, np.inf)
    worst = int(np.argmax(margin))
    finite = bool(np.isfinite(margin[worst]))
    evidence = Evidence(
        int(illegal.size),
        got.size,
        first=f"pool_keys{coordinates(got.shape, int(illegal[0]))}",
        want=f"{wanted[worst]:.9g}",
        got=f"{given[worst]:.9g}",
        error=float(error[worst]) if finite else float("inf"),
        bound=float(bound[worst]) if finite else 0.0,
        where=f"pool_keys{coordinates(got.shape, int(illegal[worst]))}",
        note=f"{illegal.size} of {got.size} elements of pool_keys have no legal value",
        numbers=counted,
    )
    return Finding(check, Status.WRONG, evidence)


def flip_numbers(want: PooledKeys, got: Array) -> dict[str, float]:
    """Count a golden's elements, those with two legal roundings, and those that took the other."""
    flagged = want.flagged()
    return {
        "elements": float(got.size),
        "may_flip": float(flagged.sum()),
        "flipped": float((flagged & (got != want.value)).sum()),
    }


def untouched(check: str, name: str, got: Array, written: Array) -> Finding:
    """Hold every byte of `got` outside `written` (bool, the leading axes of `got`) to the poison."""
    rest = np.ascontiguousarray(got[~written]).view(np.uint8)
    touched = int(np.count_nonzero(rest != POISON))
    if touched == 0:
        return Finding(check, Status.PASS, Evidence(0, rest.size, "bytes"))
    raw = np.ascontiguousarray(got).view(np.uint8).reshape(*written.shape, -1)
    wrong = (raw != POISON).any(axis=-1) & ~written
    place = f"{name}{coordinates(written.shape, int(np.flatnonzero(wrong.reshape(-1))[0]))}"
    note = f"{touched} bytes of {name} were written that are not the launch's to write"
    evidence = Evidence(touched, rest.size, "bytes", first=place, where=place, note=note)
    return Finding(check, Status.WRONG, evidence)


def partly(check: str, name: str, want: Array, got: Array, written: Array) -> Finding:
    """Compare bit by bit where `written`, and hold the rest to the poison, as one finding."""
    outside = untouched(check, name, got, written)
    if outside.status is not Status.PASS:
        return outside
    return bitwise(check, name, np.where(written, want, 0), np.where(written, got, 0))
