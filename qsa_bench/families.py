"""Seeded generators of adversarial score rows that stages share.

Each names the class of fault it comes from: coarse bins that overflow, ties at the cut, both
zeros, digits that a radix pass might skip. All return f32 [blocks], finite unless said otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Generator = Callable[[np.random.Generator, int], Array]


def relu4(random: np.random.Generator, blocks: int) -> Array:
    """Sum of four relu(N(0, 1)): what four query heads give, about 6% exact zeros."""
    heads: Array = np.maximum(random.standard_normal((4, blocks)), 0)
    return np.asarray(heads.sum(axis=0), dtype=np.float32)


def normal(random: np.random.Generator, blocks: int) -> Array:
    """N(0, 1), both signs."""
    return random.standard_normal(blocks).astype(np.float32)


def equal(random: np.random.Generator, blocks: int) -> Array:
    """One value everywhere: every block ties."""
    return np.full(blocks, np.float32(random.uniform(0.5, 2.0)), dtype=np.float32)


def zero_plateau(random: np.random.Generator, blocks: int) -> Array:
    """A hundred positives (an eighth of a short row) among exact zeros: the cut is in the zeros."""
    scores = np.zeros(blocks, dtype=np.float32)
    places = random.permutation(blocks)[: min(100, max(blocks // 8, 1))]
    scores[places] = random.uniform(0.1, 4.0, places.size)
    return scores


def plateau_at_cut(random: np.random.Generator, blocks: int) -> Array:
    """Half the row on one non-zero value, a quarter above it, a quarter below."""
    scores = np.full(blocks, 1.5, dtype=np.float32)
    places = random.permutation(blocks)
    above, below = places[: blocks // 4], places[blocks // 4 : blocks // 2]
    scores[above] = random.uniform(1.6, 4.0, above.size)
    scores[below] = random.uniform(0.0, 1.4, below.size)
    return scores


def signed_zeros(random: np.random.Generator, blocks: int) -> Array:
    """Zeros of both signs, with a few values around them."""
    scores = np.where(random.random(blocks) < 0.5, 0.0, -0.0).astype(np.float32)
    some = random.random(blocks) < 0.05
    scores[some] = random.choice(np.array([-1.0, 1.0, 1e-45, -1e-45], np.float32), int(some.sum()))
    return scores


def low_byte(random: np.random.Generator, blocks: int) -> Array:
    """Bits that differ in the lowest byte alone: the last radix digit decides."""
    bits = np.uint32(0x3FC00000) | random.integers(0, 256, blocks, dtype=np.uint32)
    return bits.view(np.float32)


def one_half_bin(random: np.random.Generator, blocks: int) -> Array:
    """Everything in [1, 1.245): one coarse bin of a half-precision first pass."""
    return (1.0 + 0.245 * random.random(blocks)).astype(np.float32)


def crowded_bin(random: np.random.Generator, blocks: int) -> Array:
    """Half of the row within 1e-4 of 2.0, the rest spread below: one bin holds the cut."""
    scores = random.uniform(0.0, 1.0, blocks).astype(np.float32)
    places = random.permutation(blocks)[: (blocks + 1) // 2]
    scores[places] = (2.0 + 1e-4 * random.random(places.size)).astype(np.float32)
    return scores


def ramp_up(_random: np.random.Generator, blocks: int) -> Array:
    """Strictly ascending."""
    return np.arange(1, blocks + 1, dtype=np.float32) * np.float32(2.0**-10)


def ramp_down(random: np.random.Generator, blocks: int) -> Array:
    """Strictly descending."""
    return ramp_up(random, blocks)[::-1].copy()


def quantised(random: np.random.Generator, blocks: int) -> Array:
    """N(0, 1) rounded to hundredths: hundreds of ties a long row."""
    return (np.round(random.standard_normal(blocks) * 100) / 100).astype(np.float32)


def sparse(random: np.random.Generator, blocks: int) -> Array:
    """Nine in ten exact zeros."""
    scores = relu4(random, blocks)
    scores[random.random(blocks) < 0.9] = 0.0
    return scores


def fine_steps(random: np.random.Generator, blocks: int) -> Array:
    """1 + i * 2**-20 shuffled: half precision can't tell them apart."""
    steps = random.permutation(blocks).astype(np.float64)
    return (1.0 + steps * 2.0**-20).astype(np.float32)


def random_bits(random: np.random.Generator, blocks: int) -> Array:
    """Any finite float: denormals, both signs, all exponents."""
    bits = random.integers(0, 2**32, blocks, dtype=np.uint64).astype(np.uint32)
    bits[(bits & 0x7F800000) == 0x7F800000] &= np.uint32(0x807FFFFF)
    return bits.view(np.float32)


def extremes(random: np.random.Generator, blocks: int) -> Array:
    """The largest and smallest magnitudes beside scores below half precision's range."""
    pool = np.array(
        [3.4028235e38, -3.4028235e38, 1.1754944e-38, 1e-45, -1e-45, -1e5, 65504.0, 65520.0, 0.0],
        dtype=np.float32,
    )
    return random.choice(pool, blocks).astype(np.float32)


def negative(random: np.random.Generator, blocks: int) -> Array:
    """All below zero, down to -1e5."""
    return (-1e5 * random.random(blocks) - 1.0).astype(np.float32)


def two_scales(_random: np.random.Generator, blocks: int) -> Array:
    """Close together below zero, ascending, with one far outlier: dividing their range once is not enough."""
    scores = -(1.0 + 2.0**-20 * np.arange(blocks, 0, -1, dtype=np.float64)).astype(np.float32)
    scores[:1] = -3e38
    return scores


def three_values(random: np.random.Generator, blocks: int) -> Array:
    """Three neighbouring floats: dividing their range leaves a bin of one score, and crowded."""
    bits = np.uint32(0x3FC00000) + random.integers(0, 3, blocks, dtype=np.uint32)
    return bits.view(np.float32)


SCORE_ROWS: Mapping[str, Generator] = {
    generator.__name__.replace("_", "-"): generator
    for generator in (
        relu4,
        normal,
        equal,
        zero_plateau,
        plateau_at_cut,
        signed_zeros,
        low_byte,
        one_half_bin,
        crowded_bin,
        ramp_up,
        ramp_down,
        quantised,
        sparse,
        fine_steps,
        random_bits,
        extremes,
        negative,
        two_scales,
        three_values,
    )
}


def seeded(*words: object) -> np.random.Generator:
    """Return a generator whose stream depends on `words` alone, on every machine and run."""
    text = "/".join(str(word) for word in words).encode()
    return np.random.default_rng(np.frombuffer(text.ljust(4, b"\0"), dtype=np.uint8).tolist())
