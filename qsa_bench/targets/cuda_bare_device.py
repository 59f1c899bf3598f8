"""The device as compute-sanitizer should see it: buffers of their exact size, nothing filled in.

No fence lies around a buffer (a write past the end is memcheck's to see), no poison in an output
and no data where no kernel may read (a read of either is initcheck's).
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

from qsa_bench.targets.cuda_device import WIDTH, CudaDevice


class BareCudaDevice(CudaDevice):
    """The first CUDA device, for runs whose outputs nobody reads."""

    def __init__(self) -> None:
        self._bare: dict[str, int] = {}
        super().__init__()

    def allocate(self, program: Mapping[str, Any], blob: memoryview) -> Mapping[str, int]:
        """Allocate every buffer by itself and fill in what kernels may read."""
        spans = program["spans"]
        for spec in program["buffers"]:
            width = WIDTH[spec["dtype"]]
            elements = 1
            for extent in spec["shape"]:
                elements *= extent
            # An empty buffer is a pointer too; no kernel may follow it.
            address = self.allocated(max(elements * width, 1))
            self._bare[spec["name"]] = address
            places = [(offset * width, spans[key]) for offset, key in spec["segments"]]
            if "tensor" in spec:
                places.append((0, spans[spec["tensor"]]))
            hidden = [(start * width, stop * width) for start, stop in spec["uninitialised"]]
            for offset, (begin, end) in places:
                for start, stop in _visible(offset, offset + end - begin, hidden):
                    shift = begin - offset
                    self.copy_in(address + start, bytes(blob[start + shift : stop + shift]))
        return dict(self._bare)

    def prepare(self, _run: Mapping[str, Any], _library: ctypes.CDLL) -> None:
        """Leave the buffers as they are: a run is the first and only one."""

    def address(self, name: str) -> int:
        """Address of a buffer."""
        return self._bare[name]

    def finish(self, _library: ctypes.CDLL) -> dict[str, Any]:
        """Wait for the device; nothing is looked at but how the launch ended."""
        return self.waited()

    def output(self, _name: str) -> bytes:
        """Nothing: reading what a kernel left unwritten would itself be reported."""
        return b""

    def release(self) -> None:
        """Free all buffers; nothing can be freed in a context that is lost."""
        for address in self._bare.values():
            if not self.lost:
                self.freed(address)
        self._bare.clear()


def _visible(start: int, stop: int, hidden: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the parts of [start, stop) that no hidden span covers; spans are in order."""
    parts: list[tuple[int, int]] = []
    at = start
    for low, high in sorted(hidden):
        if low > at and at < stop:
            parts.append((at, min(low, stop)))
        at = max(at, high)
    if at < stop:
        parts.append((at, stop))
    return parts


def open_device() -> BareCudaDevice:
    """Return the device; DriverError when there is none."""
    return BareCudaDevice()
