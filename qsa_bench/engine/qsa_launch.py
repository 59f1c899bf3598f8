"""Launches of the QSA kernels, one method a C entry; ctypes, nothing else.

Pointers are tensors (or addresses), numbers are int64 but for eps. A status that is not success
raises QsaLaunchError; nothing here waits for the device.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import Any

from qsa_bench.engine.qsa_errors import QsaLaunchError
from qsa_bench.engine.qsa_geometry import FUSED, ROTARY_DIM
from qsa_bench.engine.qsa_memory import WIDTHS, Tensor, dtype_of

KERNELS = {
    "qsa_ingest": "qsa_ingest",
    "qsa_ingest_step": "qsa_ingest",
    "qsa_score": "qsa_score",
    "qsa_score_scalar": "qsa_score",
    "qsa_select_ids": "qsa_select",
    "qsa_gather": "qsa_gather",
    "qsa_decode_attention": "qsa_decode_attention",
    "qsa_prefill_attention": "qsa_prefill_attention",
}


def at(tensor: Tensor, row: int) -> int:
    """Return the address of a tensor's row."""
    size = WIDTHS[dtype_of(tensor)]
    for extent in tuple(tensor.shape)[1:]:
        size *= int(extent)
    return tensor.data_ptr() + row * size


class QsaKernels:
    """The loaded libraries by kernel name, and the stream that each launch asks for."""

    def __init__(
        self, libraries: Mapping[str, ctypes.CDLL], stream: Callable[[], int | None]
    ) -> None:
        self._stream = stream
        self._entries: dict[str, Any] = {}
        for entry, kernel in KERNELS.items():
            function = getattr(libraries[kernel], entry)
            function.restype = ctypes.c_int32
            self._entries[entry] = function

    def launch(self, entry: str, *arguments: Tensor | int | float | None) -> None:
        """Call an entry with its arguments in order, without the stream.

        An int stands for a scalar; an address is given as `Address`.
        """
        given: list[Any] = []
        for argument in arguments:
            if argument is None:
                given.append(ctypes.c_void_p(None))
            elif isinstance(argument, Address):
                given.append(ctypes.c_void_p(int(argument)))
            elif isinstance(argument, int):
                given.append(ctypes.c_int64(argument))
            elif isinstance(argument, float):
                given.append(ctypes.c_float(argument))
            else:
                given.append(ctypes.c_void_p(argument.data_ptr()))
        status = int(self._entries[entry](*given, ctypes.c_void_p(self._stream())))
        if status:
            raise QsaLaunchError(entry, status)


class Address(int):
    """A number that is passed as a pointer."""


def row(tensor: Tensor, number: int) -> Address:
    """Return a pointer to a tensor's row."""
    return Address(at(tensor, number))


# What every entry that reads fused rows is told of them.
FUSED_SCALARS = (FUSED, ROTARY_DIM)
