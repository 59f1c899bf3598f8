"""Tensors as the QSA runtime sees them, and where it gets its own; standard library only.

A torch tensor is a `Tensor`, and so is an `ArenaTensor`: an address in memory that somebody else
owns. The runtime asks for nothing more, so it runs where torch is not.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

from qsa_bench.engine.qsa_errors import QsaCapacityError, QsaTensorError

WIDTHS = {"bfloat16": 2, "float32": 4, "int32": 4, "uint8": 1}
_ALIGNMENT = 256
# What vector loads of an element type need; single words otherwise.
_VECTOR_BYTES = {"bfloat16": 16}


class Tensor(Protocol):
    """What the runtime asks of a tensor."""

    @property
    def shape(self) -> Sequence[int]:
        """Extents."""
        ...

    @property
    def dtype(self) -> Any:
        """Element type; its text ends in bfloat16, float32, int32 or uint8."""
        ...

    @property
    def device(self) -> Any:
        """Where it lies; compared by its text."""
        ...

    def data_ptr(self) -> int:
        """Address of the first element."""
        ...

    def is_contiguous(self) -> bool:
        """True where elements lie in row-major order without a gap."""
        ...


class Memory(Protocol):
    """Where the runtime's own tensors come from."""

    @property
    def device(self) -> Any:
        """Where its tensors lie."""
        ...

    def empty(self, shape: Sequence[int], dtype: str) -> Tensor:
        """Return a new contiguous tensor, aligned to 16 bytes at least, uninitialised."""
        ...

    def free(self, tensor: Tensor) -> None:
        """Give a tensor back."""
        ...

    def copy(self, target: Tensor, source: Tensor, elements: int) -> None:
        """Copy the first `elements` elements, in the order of the stream."""
        ...

    def write(self, target: Tensor, values: Sequence[int]) -> None:
        """Write int32 `values` to the start of a tensor, in the order of the stream."""
        ...

    def stream(self) -> int | None:
        """Return the stream that launches go to; None is the default one."""
        ...


def dtype_of(tensor: Tensor) -> str:
    """Return the name of a tensor's element type, without the library's prefix."""
    return str(tensor.dtype).rpartition(".")[2]


def require(
    doing: str, name: str, tensor: Tensor, dtype: str, shape: Sequence[int | None], device: Any
) -> None:
    """Raise QsaTensorError unless a tensor is of this dtype, device and shape (None: any extent).

    It must be contiguous, and bf16 aligned to 16 bytes.
    """
    if not hasattr(tensor, "data_ptr"):
        raise QsaTensorError(f"{doing}: {name} is a {type(tensor).__name__}, expected a tensor")
    found = tuple(int(extent) for extent in tensor.shape)
    wanted = "[" + ", ".join("any" if extent is None else str(extent) for extent in shape) + "]"
    if dtype_of(tensor) != dtype:
        raise QsaTensorError(f"{doing}: {name} is {dtype_of(tensor)}, expected {dtype}: convert it")
    if str(tensor.device) != str(device):
        raise QsaTensorError(
            f"{doing}: {name} lies on {tensor.device}, the indexer on {device}: move it there"
        )
    fits = len(found) == len(shape) and all(
        want is None or extent == want for extent, want in zip(found, shape, strict=True)
    )
    if not fits:
        raise QsaTensorError(f"{doing}: {name} is {list(found)}, expected {wanted}")
    if not tensor.is_contiguous():
        raise QsaTensorError(f"{doing}: {name} is not contiguous: call contiguous() first")
    alignment = _VECTOR_BYTES.get(dtype, WIDTHS[dtype])
    if tensor.data_ptr() % alignment:
        raise QsaTensorError(
            f"{doing}: {name} lies {tensor.data_ptr() % alignment} bytes past a multiple of "
            f"{alignment}: copy it, as clone() does"
        )


@dataclass(frozen=True)
class ArenaTensor:
    """A contiguous tensor at an address."""

    address: int
    shape: tuple[int, ...]
    dtype: str
    device: str = "arena"

    def data_ptr(self) -> int:
        """Address of the first element."""
        return self.address

    def is_contiguous(self) -> bool:
        """Always."""
        return True


class ArenaMemory:
    """Tensors out of one block of memory that the caller owns, on the host or a CUDA device.

    Nothing is reused: `free` only counts. `cuda` copies through the driver of the current context.
    """

    device = "arena"

    def __init__(self, address: int, size: int, cuda: bool) -> None:
        self._next = address
        self._end = address + size
        self._driver = ctypes.CDLL("libcuda.so.1") if cuda else None
        self.freed: list[Tensor] = []

    def empty(self, shape: Sequence[int], dtype: str) -> ArenaTensor:
        """Return the next tensor of the block; QsaCapacityError when it is used up."""
        first = -(-self._next // _ALIGNMENT) * _ALIGNMENT
        size = prod(shape) * WIDTHS[dtype]
        if first + size > self._end:
            raise QsaCapacityError(
                f"allocating {size} bytes: {max(self._end - first, 0)} are left of the arena"
            )
        self._next = first + size
        return ArenaTensor(first, tuple(shape), dtype)

    def free(self, tensor: Tensor) -> None:
        """Note that a tensor is given back."""
        self.freed.append(tensor)

    def copy(self, target: Tensor, source: Tensor, elements: int) -> None:
        """Copy the first `elements` elements."""
        size = elements * WIDTHS[dtype_of(source)]
        if self._driver is None:
            ctypes.memmove(target.data_ptr(), source.data_ptr(), size)
            return
        self._driver.cuMemcpyDtoD_v2(
            ctypes.c_uint64(target.data_ptr()),
            ctypes.c_uint64(source.data_ptr()),
            ctypes.c_size_t(size),
        )

    def write(self, target: Tensor, values: Sequence[int]) -> None:
        """Write int32 values to the start of a tensor."""
        words = (ctypes.c_int32 * len(values))(*values)
        if self._driver is None:
            ctypes.memmove(target.data_ptr(), words, ctypes.sizeof(words))
            return
        self._driver.cuMemcpyHtoD_v2(
            ctypes.c_uint64(target.data_ptr()), words, ctypes.c_size_t(ctypes.sizeof(words))
        )

    def stream(self) -> None:
        """Return the default stream."""
        return
