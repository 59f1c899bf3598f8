"""Files that a compiler made and that later runs use again: whole and unchanged, or made anew.

Beside each file lies the digest of its bytes, written before the file gets its name: a file whose
digest does not match was cut short, or changed, after it was made.
"""

from __future__ import annotations

import hashlib
import os
import struct
from pathlib import Path

_ELF = b"\x7fELF"
_ELF_HEADER = 64
_NO_BITS = 8


def is_whole(path: Path) -> bool:
    """Return whether a kept file is there, with the bytes it was made with."""
    try:
        return _seal(path).read_text() == _digest(path)
    except (OSError, ValueError):
        return False


def fault(made: Path) -> str:
    """Say why what a compiler that reported success wrote is no object, or return ""."""
    try:
        with made.open("rb") as file:
            start = file.read(len(_ELF))
    except OSError as error:
        return f"it reported success, but its output can't be read: {error.strerror}"
    return "" if start == _ELF else "it reported success, but what it wrote is no ELF file"


def code_digest(path: Path) -> str:
    """Return the digest of an ELF object but for its line tables.

    Two sources that differ in where their lines stand have the same code.
    """
    raw = path.read_bytes()
    if len(raw) < _ELF_HEADER:
        return hashlib.sha256(raw).hexdigest()[:32]
    (table,) = struct.unpack_from("<Q", raw, 0x28)
    width, count, names = struct.unpack_from("<HHH", raw, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", raw, table + width * index) for index in range(count)]
    text = headers[names][4] if headers else 0
    digest = hashlib.sha256()
    for name, kind, flags, _, offset, size in headers:
        label = raw[text + name : raw.index(b"\0", text + name)]
        if label.startswith((b".debug", b".rela.debug")):
            continue
        content = b"" if kind == _NO_BITS else raw[offset : offset + size]
        digest.update(label + struct.pack("<IQQ", kind, flags, size) + content)
    return digest.hexdigest()[:32]


def keep(made: Path, path: Path) -> None:
    """Move a made file, on the same file system, to where it is kept."""
    seal = made.with_name(made.name + ".seal")
    seal.write_text(_digest(made))
    # Until the second rename the seal is of another file, or of none: not whole, so made anew.
    os.replace(seal, _seal(path))
    os.replace(made, path)


def _seal(path: Path) -> Path:
    return path.with_name(path.name + ".sha256")


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
