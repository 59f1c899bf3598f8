"""Buffers and calls on the emulated device, for the worker; standard library and ctypes only.

Every buffer lies between two inaccessible pages. In even runs it starts at a page (aligned as an
allocator gives it) and poison fills the rest of its last page; in odd runs it ends exactly at the
page behind it, so that one element past the end faults. What is left of the pages is a fence.
"""

from __future__ import annotations

import ctypes
import json
import mmap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from qsa_bench.poison import POISON

_PAGE = mmap.PAGESIZE
_PROT_NONE = 0
_MAP_PRIVATE_ANONYMOUS_NORESERVE = 0x02 | 0x20 | 0x4000
_READ_ONLY = 1
_INITIALISED = 2
_FENCE = 0x5C
_WIDTH = {"f32": 4, "f64": 8, "bf16": 2, "i32": 4, "i64": 8, "u8": 1, "u32": 4}
# A buffer above this is sparse: it is neither poisoned nor read back whole.
_SPARSE_BYTES = 1 << 30

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
# A fence is never longer than a page.
_WHOLE_FENCE = bytes([_FENCE]) * _PAGE


class _Options(ctypes.Structure):
    _fields_ = (
        ("schedule", ctypes.c_int32),
        ("compute_capability", ctypes.c_int32),
        ("seed", ctypes.c_uint64),
        ("fuel", ctypes.c_uint64),
        ("multiprocessors", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
    )


_SCHEDULES = {"fifo": 0, "lifo": 1, "seeded": 2}


@dataclass
class _Region:
    name: str
    width: int
    size: int
    role: str
    mapping: int
    mapped: int
    segments: tuple[tuple[int, bytes], ...]
    # Start, bytes, whether a kernel may read it before it has written it, and name of each piece.
    pieces: tuple[tuple[int, int, bool, bytes], ...]
    base: int = 0

    def __post_init__(self) -> None:
        self.inner = self.mapping + _PAGE
        self.inner_bytes = self.mapped - 2 * _PAGE
        self.sparse = self.size > _SPARSE_BYTES


def _pieces(
    name: str, size: int, uninitialised: Iterable[tuple[int, int]]
) -> Iterator[tuple[int, int, bool, bytes]]:
    """Cut a buffer at what no kernel may read, which is registered as if nothing initialised it."""
    at = 0
    for start, stop in (*uninitialised, (size, size)):
        for begin, end, readable in ((at, start, True), (start, stop, False)):
            if end > begin:
                piece = name if begin == 0 else f"{name}+{begin}"
                yield begin, end - begin, readable, piece.encode()
        at = stop


def _map(size: int) -> tuple[int, int]:
    """Map `size` bytes, rounded up to pages (one at least), between two inaccessible pages."""
    total = max(-(-size // _PAGE), 1) * _PAGE + 2 * _PAGE
    address = _libc.mmap(
        None,
        total,
        mmap.PROT_READ | mmap.PROT_WRITE,
        _MAP_PRIVATE_ANONYMOUS_NORESERVE,
        -1,
        0,
    )
    if address in (None, ctypes.c_void_p(-1).value):
        raise MemoryError(f"mapping {total} bytes failed: errno {ctypes.get_errno()}")
    _libc.mprotect(address, _PAGE, _PROT_NONE)
    _libc.mprotect(address + total - _PAGE, _PAGE, _PROT_NONE)
    return int(address), total


class HostDevice:
    """The device of one worker; holds the buffers of one program at a time."""

    def __init__(self) -> None:
        self._libraries: dict[str, ctypes.CDLL] = {}
        self._regions: dict[str, _Region] = {}
        self._device: Mapping[str, int] = {}

    @property
    def lost(self) -> str:
        """Never: a trap on the emulated device ends the launch alone."""
        return ""

    def load(self, path: str) -> ctypes.CDLL:
        """Load a kernel library, once a path."""
        if path not in self._libraries:
            library = ctypes.CDLL(path)
            if _has_runtime(library):
                library.qsa_host_findings.restype = ctypes.c_uint64
                library.qsa_host_findings.argtypes = [ctypes.c_char_p, ctypes.c_uint64]
                library.qsa_host_fuel_used.restype = ctypes.c_uint64
                library.qsa_host_register.argtypes = [
                    ctypes.c_void_p,
                    ctypes.c_uint64,
                    ctypes.c_uint32,
                    ctypes.c_char_p,
                ]
            self._libraries[path] = library
        return self._libraries[path]

    def allocate(self, program: Mapping[str, Any], blob: memoryview) -> Mapping[str, int]:
        """Map every buffer of the program."""
        spans = program["spans"]
        self._device = program["device"]
        for spec in program["buffers"]:
            width = _WIDTH[spec["dtype"]]
            elements = 1
            for extent in spec["shape"]:
                elements *= extent
            mapping, mapped = _map(elements * width)
            places = [(offset * width, key) for offset, key in spec["segments"]]
            if "tensor" in spec:
                places.append((0, spec["tensor"]))
            self._regions[spec["name"]] = _Region(
                spec["name"],
                width,
                elements * width,
                spec["role"],
                mapping,
                mapped,
                tuple((offset, bytes(blob[slice(*spans[key])])) for offset, key in places),
                tuple(
                    _pieces(
                        spec["name"],
                        elements * width,
                        [(start * width, stop * width) for start, stop in spec["uninitialised"]],
                    )
                ),
            )
        return {name: region.inner for name, region in self._regions.items()}

    def prepare(self, run: Mapping[str, Any], library: ctypes.CDLL) -> None:
        """Place and fill the buffers (before the first call of a run), then set up the runtime."""
        if run["first"]:
            for region in self._regions.values():
                self._fill(region, at_end=bool(run["index"] % 2))
        if not _has_runtime(library):
            return
        options = _Options(
            _SCHEDULES[run["schedule"]],
            self._device.get("compute_capability", 90),
            run["seed"],
            run["fuel"],
            self._device.get("multiprocessors", 132),
            0,
        )
        library.qsa_host_reset(ctypes.byref(options))
        for region in self._regions.values():
            self._register(region, library, first=run["first"])

    def _fill(self, region: _Region, at_end: bool) -> None:
        slack = region.inner_bytes - region.size
        region.base = region.inner + (slack if at_end else 0)
        if not region.sparse:
            ctypes.memset(region.inner, _FENCE, region.inner_bytes)
            ctypes.memset(region.base, POISON, region.size)
        for offset, data in region.segments:
            ctypes.memmove(region.base + offset, data, len(data))

    def _register(self, region: _Region, library: ctypes.CDLL, first: bool) -> None:
        # After the first call of a pipeline its outputs are the next call's inputs: the runtime
        # has forgotten what was written, so they count as initialised.
        flags = _READ_ONLY if region.role == "in" else 0
        if region.role in ("in", "inout") or not first:
            flags |= _INITIALISED
        for start, size, readable, name in region.pieces:
            given = flags if readable else flags & ~_INITIALISED
            library.qsa_host_register(region.base + start, size, given, name)

    def address(self, name: str) -> int:
        """Address of a buffer in the present run."""
        return self._regions[name].base

    def finish(self, library: ctypes.CDLL) -> dict[str, Any]:
        """Collect what the runtime found and whether fences and inputs are untouched."""
        return {
            "status": 0,
            "findings": _findings(library) if _has_runtime(library) else [],
            "fuel": int(library.qsa_host_fuel_used()) if _has_runtime(library) else 0,
            "fences": [hit for region in self._regions.values() for hit in _broken_fence(region)],
            "inputs_changed": [
                change
                for region in self._regions.values()
                if region.role == "in"
                for change in _changed(region)
            ],
            "touched": [
                {"buffer": region.name}
                for region in self._regions.values()
                if region.role in ("out", "inout") and _touched(region)
            ],
        }

    def output(self, name: str) -> bytes:
        """Bytes of a buffer."""
        region = self._regions[name]
        return ctypes.string_at(region.base, region.size)

    def release(self) -> None:
        """Unmap all buffers."""
        for region in self._regions.values():
            _libc.munmap(region.mapping, region.mapped)
        self._regions.clear()


def _has_runtime(library: ctypes.CDLL) -> bool:
    """False for a user's own library: plain host code, which knows no schedules and no checker."""
    return hasattr(library, "qsa_host_reset")


def _findings(library: ctypes.CDLL) -> list[dict[str, Any]]:
    needed = int(library.qsa_host_findings(None, 0))
    if needed <= len("[]"):
        return []
    text = ctypes.create_string_buffer(needed + 1)
    library.qsa_host_findings(text, needed + 1)
    found: list[dict[str, Any]] = json.loads(text.value.decode(errors="replace") or "[]")
    return found


def _broken_fence(region: _Region) -> list[dict[str, Any]]:
    if region.sparse:
        return []
    hits: list[dict[str, Any]] = []
    end = region.base + region.size
    after = region.inner + region.inner_bytes - end
    for side, start, size in (
        ("before", region.inner, region.base - region.inner),
        ("after", end, after),
    ):
        if _libc.memcmp(start, _WHOLE_FENCE, size) != 0:
            place = _first_difference(start, _WHOLE_FENCE[:size])
            hits.append({"buffer": region.name, "side": side, "byte": start + place - region.base})
    return hits


def _first_difference(address: int, want: bytes) -> int:
    now = ctypes.string_at(address, len(want))
    return next(i for i, byte in enumerate(want) if byte != now[i])


def _changed(region: _Region) -> list[dict[str, Any]]:
    for offset, data in region.segments:
        if _libc.memcmp(region.base + offset, data, len(data)) != 0:
            place = _first_difference(region.base + offset, data)
            return [{"buffer": region.name, "element": (offset + place) // region.width}]
    return []


def _touched(region: _Region) -> bool:
    if region.segments or region.sparse:
        return bool(_changed(region))
    if region.size == 0:
        return False
    # Poison throughout: the first byte is, and every other is as the one before it.
    first = ctypes.string_at(region.base, 1)[0]
    return first != POISON or _libc.memcmp(region.base, region.base + 1, region.size - 1) != 0


def open_device() -> HostDevice:
    """Return the host device."""
    return HostDevice()
