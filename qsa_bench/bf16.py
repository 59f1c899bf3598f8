"""bfloat16 as numpy uint16: the upper half of a float32's bits.

numpy has no bfloat16, and importing torch for a conversion costs more than a second a process.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

U16 = npt.NDArray[np.uint16]
F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]

# What a NaN becomes; the CUDA conversion writes the same bits.
NAN_BITS = 0x7FFF


def to_float32(bits: U16) -> F32:
    """Return the float32 value of bfloat16 `bits`, same shape; every bfloat16 is exact in float32."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def round_to_bf16(values: F32 | F64) -> U16:
    """Return the bits of the bfloat16 nearest to `values` (float32 or float64), ties to even.

    Same shape. One rounding whatever the input: a float64 is not rounded to float32 on the way.
    Past the largest bfloat16 the result is infinite, and a NaN becomes 0x7fff.
    """
    single = values if values.dtype == np.float32 else _round_to_odd(values.astype(np.float64))
    bits = np.atleast_1d(single).view(np.uint32)
    even_bias = ((bits >> np.uint32(16)) & np.uint32(1)) + np.uint32(0x7FFF)
    # An infinity has nothing below its upper half, so the bias never carries it further.
    rounded = ((bits + even_bias) >> np.uint32(16)).astype(np.uint16)
    rounded[np.isnan(np.atleast_1d(single))] = NAN_BITS
    return rounded.reshape(values.shape)


def round_trip(values: F32 | F64) -> F32:
    """Return `values` rounded to bfloat16, as float32 of the same shape."""
    return to_float32(round_to_bf16(values))


def _round_to_odd(values: F64) -> F32:
    """Round to float32 so that a second rounding to fewer bits equals one rounding of `values`.

    An inexact result is cut towards zero and its last bit set: it can then never sit on a midpoint
    or on a bfloat16, so it stays on the side of both on which the float64 lies.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        nearest = np.atleast_1d(values.astype(np.float32))
    exact = np.atleast_1d(values)
    back = nearest.astype(np.float64)
    inexact = (back != exact) & ~np.isnan(exact)
    away = inexact & (np.abs(back) > np.abs(exact))
    bits = nearest.view(np.uint32).copy()
    bits -= away.astype(np.uint32)
    bits |= inexact.astype(np.uint32)
    return bits.view(np.float32).reshape(values.shape)
