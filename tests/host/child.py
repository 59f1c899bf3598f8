"""Runs one entry of a host library in a process of its own: a pickled job on stdin, a pickled result on stdout.

Standard library only, so that a child starts in milliseconds.
"""

from __future__ import annotations

import ctypes
import json
import pickle
import sys
from typing import Any


class Options(ctypes.Structure):
    """qsa_host_options of kernels/host/control.h."""

    _fields_ = (
        ("schedule", ctypes.c_int32),
        ("compute_capability", ctypes.c_int32),
        ("seed", ctypes.c_uint64),
        ("fuel", ctypes.c_uint64),
        ("multiprocessors", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
    )


def findings_of(library: ctypes.CDLL) -> list[dict[str, Any]]:
    query = library.qsa_host_findings
    query.restype = ctypes.c_uint64
    length = query(None, ctypes.c_uint64(0))
    text = ctypes.create_string_buffer(length + 1)
    if query(text, ctypes.c_uint64(length)) != length or text.raw[0] != 0:
        raise AssertionError("a text that does not fit with its terminator must not be written")
    query(text, ctypes.c_uint64(length + 1))
    found: list[dict[str, Any]] = json.loads(text.value.decode())
    return found


def run(job: dict[str, Any]) -> dict[str, Any]:
    library = ctypes.CDLL(job["library"])
    library.qsa_host_fuel_used.restype = ctypes.c_uint64
    results = []
    for options in job["runs"]:
        library.qsa_host_reset(ctypes.byref(Options(**options)))
        memory = []
        for name, content, flags, offset in job["buffers"]:
            # The buffer sits `offset` bytes into a larger piece of memory, with room on both sides.
            room = ctypes.create_string_buffer(len(content) + 512)
            start = (ctypes.addressof(room) + 255) // 256 * 256 + offset
            ctypes.memmove(start, content, len(content))
            memory.append((room, start, len(content)))
            if flags is not None:
                library.qsa_host_register(
                    ctypes.c_void_p(start),
                    ctypes.c_uint64(len(content)),
                    ctypes.c_uint32(flags),
                    name.encode(),
                )
        for of, first, size, flags, name in job["views"]:
            library.qsa_host_register(
                ctypes.c_void_p(memory[of][1] + first),
                ctypes.c_uint64(size),
                ctypes.c_uint32(flags),
                name.encode(),
            )
        arguments: list[Any] = [ctypes.c_void_p(start) for _, start, _ in memory]
        arguments += [ctypes.c_int64(scalar) for scalar in job["scalars"]]
        status = getattr(library, job["entry"])(*arguments, ctypes.c_void_p(None))
        results.append(
            {
                "status": status,
                "findings": findings_of(library),
                "fuel": library.qsa_host_fuel_used(),
                "buffers": [ctypes.string_at(start, size) for _, start, size in memory],
                "after": [ctypes.string_at(start + size, 16) for _, start, size in memory],
                "mode": library.qsa_host_mode(),
            }
        )
    return {"results": results}


if __name__ == "__main__":
    answer = run(pickle.load(sys.stdin.buffer))
    sys.stdout.buffer.write(pickle.dumps(answer))
