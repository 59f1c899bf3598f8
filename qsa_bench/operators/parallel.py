"""Operators on what only parallel code has: barriers, atomics, indices, masks, grids."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from qsa_bench.operators.edits import Edit, Operator, calls, is_statement, operator_of
from qsa_bench.operators.syntax import Source, function_of, is_device

if TYPE_CHECKING:
    from tree_sitter import Node

_BARRIERS = ("__syncthreads", "__syncwarp")
_FENCES = ("__threadfence", "__threadfence_block", "__threadfence_system")
_MASKED = re.compile(r"^__\w+_sync$")
# Name to the operation as an expression of *address and the value.
_PLAIN = {
    "atomicAdd": "{0} += {1}",
    "atomicSub": "{0} -= {1}",
    "atomicOr": "{0} |= {1}",
    "atomicAnd": "{0} &= {1}",
    "atomicXor": "{0} ^= {1}",
    "atomicMax": "{0} = max({0}, {1})",
    "atomicMin": "{0} = min({0}, {1})",
    "atomicExch": "{0} = {1}",
}
_OTHER_ATOMIC = {
    "atomicAdd": "atomicMax",
    "atomicSub": "atomicAdd",
    "atomicMax": "atomicMin",
    "atomicMin": "atomicMax",
    "atomicOr": "atomicAnd",
    "atomicAnd": "atomicOr",
    "atomicXor": "atomicOr",
    "atomicExch": "atomicMax",
}
_OTHER_INDEX = {"threadIdx": "blockIdx", "blockIdx": "threadIdx"}
_OTHER_PLACE = {
    "lane_index": "warp_index",
    "warp_index": "lane_index",
    "lane": "warp",
    "warp": "lane",
}


def _barrier(source: Source, node: Node) -> Iterator[Edit]:
    call = calls(source, node)
    if call is not None and call[0] in _BARRIERS and is_statement(node):
        yield Edit.of(node, "")
        if call[0] == "__syncthreads":
            yield Edit.of(node, "__syncwarp()")


def _fence(source: Source, node: Node) -> Iterator[Edit]:
    call = calls(source, node)
    if call is not None and call[0] in _FENCES and is_statement(node):
        yield Edit.of(node, "")


def _atomic_plain(source: Source, node: Node) -> Iterator[Edit]:
    call = calls(source, node)
    if call is None or call[0] not in _PLAIN or len(call[1]) != 2:
        return
    address, value = (source.text(argument) for argument in call[1])
    place = address[1:] if address.startswith("&") else f"*({address})"
    done = _PLAIN[call[0]].format(place, f"({value})")
    if is_statement(node):
        yield Edit.of(node, done)
    elif call[0] == "atomicAdd":
        yield Edit.of(node, f"(({done}) - ({value}))")


def _atomic_swapped(source: Source, node: Node) -> Iterator[Edit]:
    call = calls(source, node)
    if call is not None and call[0] in _OTHER_ATOMIC:
        name = node.child_by_field_name("function")
        assert name is not None
        yield Edit(node, name.start_byte, name.end_byte, _OTHER_ATOMIC[call[0]])


def _index(source: Source, node: Node) -> Iterator[Edit]:
    """Take a block's number for a thread's, a warp's for a lane's, or the neighbour's."""
    text = source.text(node)
    if node.type == "field_expression":
        of = node.child_by_field_name("argument")
        if of is not None and source.text(of) in _OTHER_INDEX:
            yield Edit(node, of.start_byte, of.end_byte, _OTHER_INDEX[source.text(of)])
            yield Edit.of(node, f"({text} + 1)")
            yield Edit.of(node, f"({text} - 1)")
    call = calls(source, node)
    if call is not None and call[0] in _OTHER_PLACE and not call[1]:
        yield Edit.of(node, f"{_OTHER_PLACE[call[0]]}()")
        yield Edit.of(node, f"({text} + 1)")
        yield Edit.of(node, f"({text} - 1)")
    if node.type == "identifier" and text in ("lane", "warp") and _is_read(node):
        yield Edit.of(node, _OTHER_PLACE[text])
        yield Edit.of(node, f"({text} + 1)")
        yield Edit.of(node, f"({text} - 1)")


def _is_read(node: Node) -> bool:
    """True for a name in an expression of a device function, not where it is declared."""
    parent = node.parent
    if parent is None or not is_device(function_of(node)):
        return False
    if parent.type in ("parameter_declaration", "init_declarator", "declaration"):
        value = parent.child_by_field_name("value")
        return value is not None and value == node
    return parent.type not in ("field_expression", "function_declarator", "update_expression")


def _mask(source: Source, node: Node) -> Iterator[Edit]:
    call = calls(source, node)
    if call is not None and _MASKED.match(call[0]) and call[1]:
        mask = call[1][0]
        yield Edit.of(mask, f"({source.text(mask)} >> 1)")


def _shared_size(source: Source, node: Node) -> Iterator[Edit]:
    """Make a static shared array one element short."""
    if node.type != "array_declarator":
        return
    for begin, end in source.shared_sizes:
        if node.start_byte <= begin and end <= node.end_byte:
            size = source.content[begin:end].decode().strip()
            yield Edit(node, begin, end, f" ({size}) - 1")


def _grid(source: Source, node: Node) -> Iterator[Edit]:
    """Turn (n + d - 1) / d into n / d."""
    found = operator_of(source, node)
    if found is None or found[0] != "/":
        return
    left, right = (node.child_by_field_name(name) for name in ("left", "right"))
    if left is None or right is None or left.type != "parenthesized_expression":
        return
    less = left.named_children[0]
    sum_ = less.child_by_field_name("left") if less.type == "binary_expression" else None
    if sum_ is None or sum_.type != "binary_expression":
        return
    first, last = (sum_.child_by_field_name(name) for name in ("left", "right"))
    if first is not None and last is not None and source.text(last) == source.text(right):
        yield Edit.of(node, f"({source.text(first)}) / {source.text(right)}")


OPERATORS = (
    Operator("barrier", "a barrier that is missing or holds a warp alone", _barrier, race=True),
    Operator("fence", "a write that others may see late", _fence, race=True, device=True),
    Operator("atomic-plain", "a read-modify-write that others interrupt", _atomic_plain, race=True),
    Operator("atomic-swapped", "the wrong atomic operation", _atomic_swapped),
    Operator("index", "another thread's, warp's or block's share", _index),
    Operator("mask", "a collective that names too few lanes", _mask),
    Operator("shared-size", "a shared array that is one short", _shared_size),
    Operator("ceil-to-floor", "a grid or a count of tiles that is rounded down", _grid),
)
