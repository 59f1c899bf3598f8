"""Read and write safetensors files with numpy alone.

The format is an 8-byte little-endian header length, a JSON header and the tensors' bytes. It is
read here rather than by the safetensors package because that package has no numpy name for
bfloat16, and because its writer orders metadata by a hash: the same contents would not be the same
bytes, and a golden is named by its digest.

bfloat16 tensors are uint16 arrays with dtype name "bf16"; dtype names are the format's in lower
case ("f32", "bf16", "i32", "u8", ...).
"""

from __future__ import annotations

import hashlib
import json
import math
import mmap
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qsa_bench.errors import UsageError

Array = NDArray[Any]

# How each dtype lies in memory. Those numpy lacks are kept as their bits.
STORAGE: dict[str, np.dtype[Any]] = {
    "f64": np.dtype("<f8"),
    "f32": np.dtype("<f4"),
    "f16": np.dtype("<f2"),
    "bf16": np.dtype("<u2"),
    "f8_e4m3": np.dtype("u1"),
    "f8_e5m2": np.dtype("u1"),
    "f8_e8m0": np.dtype("u1"),
    "i64": np.dtype("<i8"),
    "i32": np.dtype("<i4"),
    "i16": np.dtype("<i2"),
    "i8": np.dtype("i1"),
    "u64": np.dtype("<u8"),
    "u32": np.dtype("<u4"),
    "u16": np.dtype("<u2"),
    "u8": np.dtype("u1"),
    "bool": np.dtype("?"),
}

_LENGTH_BYTES = 8
# The format's own limit; a longer "header" is another format's first 8 bytes read as a number.
_MAX_HEADER_BYTES = 100_000_000
_METADATA = "__metadata__"
# What numpy can hold: more is a damaged header.
_MOST_DIMENSIONS = 32
_MOST_EXTENT = 1 << 48


@dataclass(frozen=True)
class TensorFile:
    """What a safetensors file holds.

    `tensors` are read-only views of the mapped file, so nothing is loaded before it is used;
    `dtypes` has the same keys, values from `STORAGE`.
    """

    tensors: Mapping[str, Array]
    dtypes: Mapping[str, str]
    metadata: Mapping[str, str]


@dataclass(frozen=True)
class _Entry:
    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class _MalformedError(Exception):
    """Why a file is not a whole safetensors file; `read` puts the path in front."""


def read(path: Path) -> TensorFile:
    """Map the safetensors file at `path`.

    Raises UsageError, one line, when the file is missing, truncated or of another format.
    """
    try:
        with path.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            if size < _LENGTH_BYTES:
                raise _MalformedError(f"truncated: {size} bytes, a safetensors file has at least 8")
            mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        return _parse(mapped, size)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from error
    except _MalformedError as error:
        raise UsageError(f"{path}: {error}") from error


def write(
    path: Path,
    tensors: Mapping[str, Array],
    dtypes: Mapping[str, str],
    metadata: Mapping[str, str],
) -> None:
    """Write a safetensors file that appears under `path` whole or not at all.

    `dtypes` names every tensor's dtype (bf16 cannot be told from u16 by the array). Equal contents
    give equal bytes. A link is followed. Raises UsageError when the file cannot be written, or
    is there and no regular file (a device, a folder), ValueError when an array does not have its
    dtype's storage (a bug of the caller).
    """
    header, order = _header(tensors, dtypes, metadata)
    path = Path(os.path.realpath(path))
    if path.exists() and not path.is_file():
        raise UsageError(f"{path}: cannot be written: it is no regular file; give a file's name")
    # The name is unique so that two writers of one path can't mix; the last rename wins, whole.
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        try:
            with partial.open("xb") as stream:
                stream.write(header)
                for name in order:
                    stream.write(tensors[name].tobytes())
                stream.flush()
                os.fsync(stream.fileno())
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror or error}") from error


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file's bytes in hex. Raises UsageError when it cannot be read."""
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from error


def _parse(mapped: mmap.mmap, size: int) -> TensorFile:
    length = int.from_bytes(mapped[:_LENGTH_BYTES], "little")
    if length > _MAX_HEADER_BYTES:
        raise _MalformedError("not a safetensors file: its first 8 bytes are no header length")
    start = _LENGTH_BYTES + length
    if start > size:
        raise _MalformedError(f"truncated: {size} bytes, its header alone needs {start}")
    entries, metadata = _entries(mapped[_LENGTH_BYTES:start])
    tensors: dict[str, Array] = {}
    expected = 0
    for entry in sorted(entries, key=lambda entry: (entry.begin, entry.end)):
        if entry.begin != expected:
            raise _MalformedError(
                f"not a whole safetensors file: tensor {entry.name!r} begins at byte "
                f"{entry.begin}, expected {expected}"
            )
        expected = entry.end
    if start + expected != size:
        word = "truncated" if start + expected > size else "not a safetensors file"
        raise _MalformedError(f"{word}: {size} bytes, its header describes {start + expected}")
    for entry in entries:
        tensors[entry.name] = _view(mapped, start, entry)
    return TensorFile(tensors, {entry.name: entry.dtype for entry in entries}, metadata)


def _view(mapped: mmap.mmap, start: int, entry: _Entry) -> Array:
    dtype = STORAGE[entry.dtype]
    count = math.prod(entry.shape)
    if count == 0:  # np.frombuffer refuses an empty range
        return np.empty(entry.shape, dtype)
    flat = np.frombuffer(mapped, dtype, count, start + entry.begin)
    # A file whose writer did not align its tensors is copied: pointers to these arrays go to C.
    return (flat if flat.flags.aligned else flat.copy()).reshape(entry.shape)


def _entries(raw: bytes) -> tuple[list[_Entry], dict[str, str]]:
    try:
        header = json.loads(raw.decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise _MalformedError("not a safetensors file: its header is not JSON") from error
    if not isinstance(header, dict):
        raise _MalformedError("not a safetensors file: its header is not a JSON object")
    metadata = header.pop(_METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise _MalformedError("not a safetensors file: its metadata is not text by name")
    return [_entry(name, value) for name, value in header.items()], metadata


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise _MalformedError(f"not a safetensors file: its header has {twice!r} twice")
    return found


def _entry(name: str, value: Any) -> _Entry:
    try:
        dtype, shape = value["dtype"], tuple(value["shape"])
        begin, end = value["data_offsets"]
        numbers = (*shape, begin, end)
        whole = all(type(number) is int and 0 <= number < _MOST_EXTENT for number in numbers)
        whole = whole and len(shape) <= _MOST_DIMENSIONS
    except (TypeError, KeyError, ValueError):
        whole = False
    if not whole or not isinstance(dtype, str):
        raise _MalformedError(
            f"not a safetensors file: tensor {name!r} lacks a dtype, shape or data_offsets"
        )
    if dtype.lower() not in STORAGE:
        raise _MalformedError(f"tensor {name!r} has dtype {dtype!r}, which qsa-bench does not read")
    needed = math.prod(shape) * STORAGE[dtype.lower()].itemsize
    if end - begin != needed:
        raise _MalformedError(
            f"not a whole safetensors file: tensor {name!r} has {end - begin} bytes, "
            f"its shape needs {needed}"
        )
    return _Entry(name, dtype.lower(), shape, begin, end)


def _header(
    tensors: Mapping[str, Array], dtypes: Mapping[str, str], metadata: Mapping[str, str]
) -> tuple[bytes, list[str]]:
    """Return the file's bytes before the tensors, and the tensors' order."""
    if tensors.keys() != dtypes.keys():
        raise ValueError(
            f"tensors without dtype or dtypes without tensor: "
            f"{sorted(tensors.keys() ^ dtypes.keys())}"
        )
    for name, tensor in tensors.items():
        if tensor.dtype != STORAGE[dtypes[name]]:
            raise ValueError(
                f"tensor {name!r} is {tensor.dtype}, {dtypes[name]} is stored as "
                f"{STORAGE[dtypes[name]]}"
            )
    # Widest first keeps every tensor aligned without gaps, which the format does not allow.
    order = sorted(tensors, key=lambda name: (-tensors[name].itemsize, name))
    header: dict[str, Any] = {_METADATA: dict(sorted(metadata.items()))}
    offset = 0
    for name in order:
        end = offset + tensors[name].nbytes
        header[name] = {
            "dtype": dtypes[name].upper(),
            "shape": list(tensors[name].shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode("utf-8")
    text += b" " * (-len(text) % _LENGTH_BYTES)
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text, order
