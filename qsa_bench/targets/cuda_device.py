"""Buffers and calls on a real device, for the worker; ctypes over the CUDA driver, nothing else.

The driver's own allocations are used: a child is up in a fraction of a second (with torch it takes
seconds, and every trap costs a child), and a memory checker sees each buffer by itself. A kernel
library carries its own CUDA runtime, which joins the primary context made here.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from qsa_bench.poison import POISON

WIDTH = {"f32": 4, "f64": 8, "bf16": 2, "i32": 4, "i64": 8, "u8": 1, "u32": 4}
_FENCE = 0x5C
_FENCE_BYTES = 4096
_SPARSE_BYTES = 1 << 30
_LAUNCH_FAILED = 719
# kernels/common/status.h and runner.py: what the host runtime answers for the same endings.
_TRAPPED = 100
_DEVICE_FAULT = 110


class DriverError(RuntimeError):
    """A call of the CUDA driver that failed outside a kernel."""


@dataclass
class _Region:
    name: str
    width: int
    size: int
    role: str
    allocation: int
    allocated: int
    segments: tuple[tuple[int, bytes], ...]
    base: int = 0

    @property
    def sparse(self) -> bool:
        return self.size > _SPARSE_BYTES


class CudaDevice:
    """The first CUDA device in this process's primary context."""

    def __init__(self) -> None:
        self._driver = ctypes.CDLL("libcuda.so.1")
        self._libraries: dict[str, ctypes.CDLL] = {}
        self._regions: dict[str, _Region] = {}
        self._lost = ""
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self._do("cuInit", ctypes.c_uint(0))
        self._do("cuDeviceGet", ctypes.byref(device), ctypes.c_int(0))
        self._do("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._do("cuCtxSetCurrent", context)
        self._probe()

    def _probe(self) -> None:
        """Raise DriverError unless the device fills memory and gives it back."""
        address = self.allocated(_FENCE_BYTES)
        self._set(address, _FENCE, _FENCE_BYTES)
        wrong = self._read(address, _FENCE_BYTES) != bytes([_FENCE]) * _FENCE_BYTES
        self.freed(address)
        if wrong:
            raise DriverError("the device does not give back the bytes that it was filled with")

    def _try(self, name: str, *arguments: Any) -> int:
        return int(getattr(self._driver, name)(*arguments))

    def _do(self, name: str, *arguments: Any) -> None:
        code = self._try(name, *arguments)
        if code:
            raise DriverError(f"{name}: {self._error(code)}")

    def _error(self, code: int) -> str:
        text = ctypes.c_char_p()
        self._driver.cuGetErrorString(ctypes.c_int(code), ctypes.byref(text))
        return f"{code} ({(text.value or b'unknown').decode()})"

    @property
    def lost(self) -> str:
        """Why this context can't be used any more, or ""."""
        return self._lost

    def load(self, path: str) -> ctypes.CDLL:
        """Load a kernel library, once a path."""
        if path not in self._libraries:
            self._libraries[path] = ctypes.CDLL(path)
        return self._libraries[path]

    def allocate(self, program: Mapping[str, Any], blob: memoryview) -> Mapping[str, int]:
        """Allocate every buffer of the program with a fence on both sides."""
        spans = program["spans"]
        for spec in program["buffers"]:
            width = WIDTH[spec["dtype"]]
            elements = 1
            for extent in spec["shape"]:
                elements *= extent
            size = elements * width
            # 256 bytes more than the fences, so that the buffer can end or start anywhere.
            allocated = size + 2 * _FENCE_BYTES + 256
            address = self.allocated(allocated)
            places = [(offset * width, key) for offset, key in spec["segments"]]
            if "tensor" in spec:
                places.append((0, spec["tensor"]))
            self._regions[spec["name"]] = _Region(
                spec["name"],
                width,
                size,
                spec["role"],
                address,
                allocated,
                tuple((offset, bytes(blob[slice(*spans[key])])) for offset, key in places),
            )
        return {name: region.allocation for name, region in self._regions.items()}

    def prepare(self, run: Mapping[str, Any], _library: ctypes.CDLL) -> None:
        """Fence, poison and fill the buffers before the first call of a run."""
        if not run["first"]:
            return
        for region in self._regions.values():
            # Even runs start at a 256-byte boundary as an allocator gives it; odd runs end at one.
            shift = (-region.size) % 256 if run["index"] % 2 else 0
            region.base = region.allocation + _FENCE_BYTES + shift
            if not region.sparse:
                self._set(region.allocation, _FENCE, region.allocated)
                self._set(region.base, POISON, region.size)
            for offset, data in region.segments:
                self.copy_in(region.base + offset, data)
        self._do("cuCtxSynchronize")

    def allocated(self, size: int) -> int:
        """Return the address of `size` bytes of the device's memory."""
        address = ctypes.c_uint64()
        self._do("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return int(address.value)

    def freed(self, address: int) -> None:
        """Give memory back; what keeps the driver from it has been seen before."""
        self._try("cuMemFree_v2", ctypes.c_uint64(address))

    def copy_in(self, address: int, data: bytes) -> None:
        """Copy bytes to the device."""
        if data:
            self._do("cuMemcpyHtoD_v2", ctypes.c_uint64(address), data, ctypes.c_size_t(len(data)))

    def _set(self, address: int, value: int, count: int) -> None:
        if count:
            self._do(
                "cuMemsetD8_v2",
                ctypes.c_uint64(address),
                ctypes.c_ubyte(value),
                ctypes.c_size_t(count),
            )

    def address(self, name: str) -> int:
        """Address of a buffer in the present run."""
        return self._regions[name].base

    def finish(self, _library: ctypes.CDLL) -> dict[str, Any]:
        """Wait for the device; after a trap or a fault the context is lost and nothing is read."""
        outcome = self.waited()
        if self._lost:
            return outcome
        for region in self._regions.values():
            outcome["fences"].extend(self._broken_fence(region))
            if region.role == "in":
                outcome["inputs_changed"].extend(self._changed(region))
            elif region.role in ("out", "inout") and self._touched(region):
                outcome["touched"].append({"buffer": region.name})
        return outcome

    def waited(self) -> dict[str, Any]:
        """Wait for the device; return how the launch ended, with nothing else looked at yet."""
        code = self._try("cuCtxSynchronize")
        outcome: dict[str, Any] = {
            "status": 0,
            "findings": [],
            "fuel": 0,
            "fences": [],
            "inputs_changed": [],
            "touched": [],
        }
        if code:
            self._lost = self._error(code)
            kind = "trap" if code == _LAUNCH_FAILED else "crash"
            outcome["status"] = _TRAPPED if code == _LAUNCH_FAILED else _DEVICE_FAULT
            outcome["findings"] = [{"kind": kind, "message": f"the device says {self._lost}"}]
        return outcome

    def output(self, name: str) -> bytes:
        """Bytes of a buffer."""
        region = self._regions[name]
        return self._read(region.base, region.size)

    def _read(self, address: int, count: int) -> bytes:
        if not count:
            return b""
        target = ctypes.create_string_buffer(count)
        self._do("cuMemcpyDtoH_v2", target, ctypes.c_uint64(address), ctypes.c_size_t(count))
        return target.raw

    def _broken_fence(self, region: _Region) -> list[dict[str, Any]]:
        if region.sparse:
            return []
        before = self._read(region.allocation, region.base - region.allocation)
        end = region.base + region.size
        after = self._read(end, region.allocation + region.allocated - end)
        hits: list[dict[str, Any]] = []
        for side, fence in (("before", before), ("after", after)):
            if fence.count(_FENCE) != len(fence):
                place = next(i for i, byte in enumerate(fence) if byte != _FENCE)
                offset = place - len(before) if side == "before" else region.size + place
                hits.append({"buffer": region.name, "side": side, "byte": offset})
        return hits

    def _changed(self, region: _Region) -> list[dict[str, Any]]:
        for offset, data in region.segments:
            now = self._read(region.base + offset, len(data))
            if now != data:
                place = next(i for i, byte in enumerate(data) if byte != now[i])
                return [{"buffer": region.name, "element": (offset + place) // region.width}]
        return []

    def _touched(self, region: _Region) -> bool:
        if region.segments or region.sparse:
            return bool(self._changed(region))
        content = self._read(region.base, region.size)
        return content.count(POISON) != len(content)

    def release(self) -> None:
        """Free all buffers; nothing can be freed in a context that is lost."""
        for region in self._regions.values():
            if not self._lost:
                self.freed(region.allocation)
        self._regions.clear()


def open_device() -> CudaDevice:
    """Return the device; DriverError when there is none."""
    return CudaDevice()
