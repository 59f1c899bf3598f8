"""Programs: named buffers and the C entries called over them, in order.

One kernel is a program of one call; a pipeline is a program of several, which hand buffers on.
A program is data: the parent builds it, the worker runs it in a child, neither judges it there.
On disk it is a safetensors file, so that what a failing case saved can be replayed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from qsa_bench import tensor_file
from qsa_bench.model import DTYPES, Kernel, Role

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Buffer:
    """A device buffer of a program.

    `data` fills it (inputs, inout); without data it is poisoned. `segments` place arrays at
    element offsets in a buffer that is otherwise untouched zero pages, so that a buffer of many
    GB costs only what is written. `uninitialised` marks element ranges [start, stop) which no
    kernel may read: the access checker reports a read there.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    role: Role
    data: Array | None = None
    segments: tuple[tuple[int, Array], ...] = ()
    uninitialised: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"buffer {self.name}: unknown dtype {self.dtype!r}")
        if any(extent < 0 for extent in self.shape):
            raise ValueError(f"buffer {self.name}: negative extent in {self.shape}")
        if self.role in (Role.INPUT, Role.INOUT) and self.data is None and not self.segments:
            raise ValueError(f"buffer {self.name}: an input without data")
        if self.data is not None and self.data.dtype != np.dtype(DTYPES[self.dtype][0]):
            raise ValueError(f"buffer {self.name}: data is {self.data.dtype}, not {self.dtype}")
        if self.data is not None and self.data.size != self.elements:
            raise ValueError(f"buffer {self.name}: {self.data.size} values for {self.shape}")

    @property
    def elements(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def bytes(self) -> int:
        """Size in bytes."""
        return self.elements * DTYPES[self.dtype][1]


@dataclass(frozen=True)
class At:
    """A pointer into a buffer, `offset` elements past its start."""

    buffer: str
    offset: int = 0


# What a call passes for an argument: a buffer (by name or At), a number, or a null pointer.
Value = str | At | int | float | None

OK = "ok"
TRAP = "trap"


@dataclass(frozen=True)
class Call:
    """One C entry called with named values. `expect` is "ok", "trap" or a refusal's status code.

    `python` names "module:function" instead of a C entry: it is called in the worker with the
    loaded libraries and the buffers, for the Python surface and engine code that mutants patch.
    """

    kernel: str
    entry: str
    values: Mapping[str, Value]
    expect: str | int = OK
    python: str | None = None


@dataclass(frozen=True)
class Program:
    """Buffers and calls. `device` overrides what the emulated device says of itself."""

    buffers: tuple[Buffer, ...]
    calls: tuple[Call, ...]
    device: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = [buffer.name for buffer in self.buffers]
        if len(set(names)) != len(names):
            raise ValueError(f"program: a buffer name stands twice in {names}")
        if not self.calls:
            raise ValueError("program: no call")
        for call in self.calls:
            for name, value in call.values.items():
                target = value.buffer if isinstance(value, At) else value
                if isinstance(target, str) and target not in names:
                    raise ValueError(f"{call.entry}: {name} names no buffer {target!r}")

    def buffer(self, name: str) -> Buffer:
        """Return the buffer of that name; KeyError if there is none."""
        for buffer in self.buffers:
            if buffer.name == name:
                return buffer
        raise KeyError(name)

    def array(self, name: str) -> Array:
        """Return an input's data in its shape (bf16 as uint16)."""
        data = self.buffer(name).data
        if data is None:
            raise KeyError(f"buffer {name} holds no data")
        return data.reshape(self.buffer(name).shape)

    @cached_property
    def bytes(self) -> int:
        """Size of all buffers together."""
        return sum(buffer.bytes for buffer in self.buffers)


def _place(value: At | str, widths: Mapping[str, int]) -> dict[str, Any]:
    at = At(value) if isinstance(value, str) else value
    return {"buffer": at.buffer, "byte_offset": at.offset * widths[at.buffer]}


def _resolve(
    call: Call, kernels: Mapping[str, Kernel], widths: Mapping[str, int]
) -> dict[str, Any]:
    """Spell a call as the worker needs it: typed arguments in ABI order."""
    if call.python is not None:
        return {
            "python": call.python,
            "expect": call.expect,
            "kernel": call.kernel,
            "entry": call.entry,
            "values": {
                name: _place(value, widths) if isinstance(value, (At, str)) else {"value": value}
                for name, value in call.values.items()
            },
        }
    entry = kernels[call.kernel].entry(call.entry)
    unknown = set(call.values) - {argument.name for argument in entry.arguments}
    if unknown:
        raise ValueError(f"{call.entry} has no arguments {sorted(unknown)}")
    arguments: list[dict[str, Any]] = []
    for argument in entry.arguments:
        if argument.role is Role.STREAM:
            arguments.append({"stream": True})
            continue
        if argument.name not in call.values:
            if not argument.optional:
                raise ValueError(f"{call.entry}: no value for {argument.name}")
            arguments.append({"null": True})
            continue
        value = call.values[argument.name]
        if value is None:
            arguments.append({"null": True})
        elif isinstance(value, (At, str)):
            arguments.append(_place(value, widths))
        else:
            arguments.append({"scalar": argument.dtype, "value": value})
    return {
        "kernel": call.kernel,
        "entry": call.entry,
        "arguments": arguments,
        "expect": call.expect,
        **({"void": True} if entry.void else {}),
    }


def write(path: Path, program: Program, kernels: Sequence[Kernel]) -> None:
    """Write `program` as a safetensors file: inputs as tensors, the rest in metadata "program"."""
    by_name = {kernel.name: kernel for kernel in kernels}
    tensors: dict[str, Array] = {}
    dtypes: dict[str, str] = {}
    buffers: list[dict[str, Any]] = []
    for buffer in program.buffers:
        spec: dict[str, Any] = {
            "name": buffer.name,
            "dtype": buffer.dtype,
            "shape": list(buffer.shape),
            "role": str(buffer.role),
            "segments": [],
            "uninitialised": [list(span) for span in buffer.uninitialised],
        }
        if buffer.data is not None:
            tensors[buffer.name] = np.ascontiguousarray(buffer.data.reshape(buffer.shape))
            dtypes[buffer.name] = buffer.dtype
            spec["tensor"] = buffer.name
        for index, (offset, array) in enumerate(buffer.segments):
            key = f"{buffer.name}@{index}"
            tensors[key] = np.ascontiguousarray(array)
            dtypes[key] = buffer.dtype
            spec["segments"].append([offset, key])
        buffers.append(spec)
    widths = {buffer.name: DTYPES[buffer.dtype][1] for buffer in program.buffers}
    description = {
        "buffers": buffers,
        "calls": [_resolve(call, by_name, widths) for call in program.calls],
        "device": dict(program.device),
    }
    tensor_file.write(path, tensors, dtypes, {"program": json.dumps(description)})
