"""Per-thread functions against numpy: bits, rounding, conversions, atomics."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from tests.host.harness import FIFO, INPUT, LIFO, SEEDED, Buffer, Library

FILE = "arithmetic.cu"
Build = Callable[[str], Library]


# Zeros, ones, sign bits, infinities, NaNs, the denormal border, the largest float, the borders of int32.
EDGES = [
    int(word, 16)
    for word in (
        "0 1 2 7fffffff 80000000 ffffffff 7f800000 ff800000 7fc00000 7f800001 3f800000 bf800000 007fffff 00800000"
        " 7f7fffff 4f000000 cf000000"
    ).split()
]


def words(seed: int, count: int) -> npt.NDArray[np.uint32]:
    """Random words, with the ones that break things among them."""
    edges = np.array(EDGES, np.uint32)
    drawn = np.random.default_rng(seed).integers(0, 1 << 32, count, np.uint32)
    drawn[: edges.size] = edges
    return drawn


def test_bf16_rounds_to_nearest_even_and_nan_to_7fff(plain: Build) -> None:
    # Every upper half with the lower halves around a tie, on both sides.
    upper = np.arange(1 << 16, dtype=np.uint32) << 16
    lower = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    given = (upper[:, None] | lower).reshape(-1)
    wide = given.astype(np.uint64)
    want = ((wide + 0x7FFF + ((wide >> 16) & 1)) >> 16).astype(np.uint16)
    want[(given & 0x7FFFFFFF) > 0x7F800000] = 0x7FFF
    result = plain(FILE).run(
        "round_to_bf16",
        [Buffer("in", given, INPUT), Buffer("out", np.zeros(given.size, np.uint16), 0)],
        [given.size],
    )
    np.testing.assert_array_equal(result.arrays["out"], want)


def test_bf16_widens_exactly(plain: Build) -> None:
    given = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)
    result = plain(FILE).run(
        "widen_bf16",
        [Buffer("in", given, INPUT), Buffer("out", np.zeros(given.size, np.uint32), 0)],
        [given.size],
    )
    np.testing.assert_array_equal(result.arrays["out"], given.astype(np.uint32) << 16)


def test_bit_functions_return_cudas_values(plain: Build) -> None:
    pairs = np.stack([words(1, 400), np.roll(words(2, 400), 3)], axis=1)
    result = plain(FILE).run(
        "bits",
        [Buffer("in", pairs, INPUT), Buffer("out", np.zeros((400, 10), np.uint32), 0)],
        [400],
    )

    def want(a: int, b: int) -> list[int]:
        def signed(v: int) -> int:
            return v - (1 << 32) if v >> 31 else v

        both = (b << 32) | a
        source = a.to_bytes(4, "little") + b.to_bytes(4, "little")
        # Selector 0x7a31: byte 1, byte 3, the sign of byte 2, byte 7.
        picked = [source[1], source[3], 0xFF if source[2] & 0x80 else 0, source[7]]
        return [
            a.bit_count(),
            32 - a.bit_length(),
            (a & -a).bit_length(),
            int(f"{a:032b}"[::-1], 2),
            int.from_bytes(bytes(picked), "little"),
            ((both << (b & 31)) >> 32) & 0xFFFFFFFF,
            (both >> (b & 31)) & 0xFFFFFFFF,
            (a * b) >> 32,
            min(signed(a), signed(b)) & 0xFFFFFFFF,
            max(a, b),
        ]

    for (a, b), got in zip(pairs.tolist(), result.arrays["out"].tolist(), strict=True):
        assert got == want(a, b), (hex(a), hex(b))


def test_float_functions_round_once_and_nothing_fuses(plain: Build) -> None:
    rng = np.random.default_rng(4)
    given = rng.standard_normal((500, 3)).astype(np.float32)
    given[: len(EDGES), 0] = words(1, 20).view(np.float32)[: len(EDGES)]
    given[3:20, 1] = words(1, 20).view(np.float32)[: len(EDGES)]
    given[20, :2], given[21, :2] = (-0.0, 0.0), (0.0, -0.0)
    result = plain(FILE).run(
        "floats",
        [Buffer("in", given, INPUT), Buffer("out", np.zeros((500, 9), np.float32), 0)],
        [500],
    )
    a, b, c = given.T
    with np.errstate(all="ignore"):
        wide = given.astype(np.longdouble).T
        truncated = np.clip(
            np.nan_to_num(np.trunc(a.astype(np.float64)), nan=0.0), -(2.0**31), 2.0**31 - 1
        )
        lower_zero = np.signbit(a) & (a == 0) & (b == 0)
        want = np.stack(
            [
                # 64 mantissa bits hold the product of two floats; the sum is rounded twice only where its
                # parts lie 2^40 apart, which these inputs do not have outside of the edges tested below.
                (wide[0] * wide[1] + wide[2]).astype(np.float32),
                (a * b) + c,
                a / b,
                np.sqrt(np.abs(a)),
                np.float32(1) / np.sqrt(np.abs(a)),
                np.where((a == 0) & (b == 0), np.where(lower_zero, b, a), np.fmax(a, b)),
                np.where((a == 0) & (b == 0), np.where(lower_zero, a, b), np.fmin(a, b)),
                truncated.astype(np.float32) + np.float32(0),  # an integer zero has no sign
                np.where(np.isnan(a), 1, np.where(np.isinf(a), 2, 0)).astype(np.float32),
            ],
            axis=1,
        ).astype(np.float32)
    got = result.arrays["out"]
    both_nan = np.isnan(got) & np.isnan(want)
    np.testing.assert_array_equal(got.view(np.uint32)[~both_nan], want.view(np.uint32)[~both_nan])
    # At least one row tells one rounding from two.
    assert (got[:, 0] != got[:, 1]).any()


def test_atomics_add_up_whatever_the_order(checked: Build) -> None:
    given = Buffer("in", np.zeros(1, np.uint32), INPUT)
    start = np.zeros(14, np.uint32)
    start[3] = 0xFFFFFFFF
    results = checked(FILE).runs(
        "atomics",
        [given, Buffer("out", start)],
        [0],
        [{"schedule": FIFO}, {"schedule": LIFO}, {"schedule": SEEDED, "seed": 7}],
    )
    total = sum(range(256))
    for result in results:
        got = result.arrays["out"].tolist()
        assert (result.status, result.findings) == (0, [])
        assert got[:2] == [total, -total & 0xFFFFFFFF]
        assert got[2:8] == [0xFFFFFFFF, 0, 255, -255 & 0xFFFFFFFF, 0, 77]
        assert np.float32(128.0).view(np.uint32) == got[9]
        assert got[10] + (got[11] << 32) == 256 << 31
    # Compare and swap takes a step for every thread that comes in ascending order, one where none does.
    assert [result.arrays["out"][8] for result in results[:2]] == [256, 1]
    assert [result.arrays["out"][12] for result in results[:2]] == [256, 1]
