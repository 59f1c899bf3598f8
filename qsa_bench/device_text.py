"""The device functions of a compiled source, as PTX text, and which kernels differ between two of them.

Pure text: who compiles it is elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

# nvcc names what lies in an unnamed namespace, or is static, after the folder it was compiled in.
_FOLDER = re.compile(r"(_GLOBAL__N__|_INTERNAL_)[0-9a-f]{8}_")
# Frames, calls and labels are numbered through the module: a function more, and all behind it have others.
_NUMBERED = re.compile(r"(__local_depot|callseq |\$L__BB)\d+")
# What begins at a module's own level; the other directives belong to the function before its body.
_ITEM = re.compile(
    r"^(?=\.(?:visible|weak|extern|common|func|entry|global|const|shared|alias|file)\b)",
    re.MULTILINE,
)
# A function's name stands behind what it returns.
_FUNCTION = re.compile(r"(?:\.\w+\s+)*?\.(func|entry)\s*(?:\([^)]*\)\s*)?([\w$]+)")
_WORD = re.compile(r"[A-Za-z_$][\w$]*")


@dataclass(frozen=True)
class DeviceText:
    """A module's functions by name, which of them are kernels, and all else that stands in it."""

    functions: Mapping[str, str]
    kernels: frozenset[str]
    rest: tuple[str, ...]


def without_folder(text: str) -> str:
    """Take out of the names in a text what comes from the folder it was compiled in."""
    return _FOLDER.sub(r"\1", text)


def read(ptx: str) -> DeviceText:
    """Take a PTX module apart; its folder and its numbers of functions are taken out."""
    functions: dict[str, str] = {}
    kernels: set[str] = set()
    rest: list[str] = []
    for item in _ITEM.split(_NUMBERED.sub(r"\1", without_folder(ptx))):
        named = _FUNCTION.match(item)
        if named is None:
            rest.append(item)
            continue
        kind, name = named[1], named[2]
        # A function may be declared first and defined later.
        functions[name] = functions.get(name, "") + item
        if kind == "entry":
            kernels.add(name)
    return DeviceText(functions, frozenset(kernels), tuple(rest))


def differing(one: DeviceText, other: DeviceText) -> set[str]:
    """Return the kernels whose text, or that of a function they call, differs."""
    # Who calls it has the same name in its text, and differs where it now calls another.
    changed = _unlike(one, other)
    if not changed:
        return set()
    left = set(one.functions) - changed
    words = {name: set(_WORD.findall(one.functions[name])) for name in left}
    while callers := {name for name in left if not changed.isdisjoint(words[name])}:
        changed |= callers
        left -= callers
    # A table of functions may be anyone's.
    if not changed.isdisjoint(_WORD.findall("".join(one.rest))):
        changed.update(one.functions)
    return changed & (one.kernels | other.kernels)


def _unlike(one: DeviceText, other: DeviceText) -> set[str]:
    names = {*one.functions, *other.functions}
    # A constant or shared array that is another may be anyone's.
    if one.rest != other.rest:
        return names
    return {name for name in names if one.functions.get(name) != other.functions.get(name)}
