"""Edits of a source as choices between whole statements of a block."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from qsa_bench.operators import Source
from qsa_bench.operators.syntax import is_evaluated_early
from qsa_bench.places import Change, Choice, Place

if TYPE_CHECKING:
    from tree_sitter import Node

# What those behind it in its block may name.
_DECLARATIONS = ("declaration", "type_definition", "alias_declaration", "using_declaration")
# Statements that belong to the one around them.
_LABELLED = ("case_statement", "labeled_statement")


class Blocks:
    """Changes as whole statements of a block, in the old text and in the new one."""

    def __init__(self, source: Source, mutated: bytes, changes: Sequence[Change]) -> None:
        self._source = source
        self._content = mutated
        self._changes = changes

    @cached_property
    def _mutated(self) -> Source:
        """The new text as a tree: most edits are one value's and need none."""
        return Source(self._source.path, self._content)

    def choice(self, change: Change) -> Choice | None:
        """Return the statements around a change; to the end of their block where names are declared."""
        begin, end = change.begin, change.end
        while True:
            begin, end = self._with_changes(begin, end)
            block = _block(self._source.root, begin, end)
            if block is None or is_evaluated_early(block):
                return None
            span = _statements(self._source, block, begin, end)
            if span is not None and self._with_changes(*span) != (begin, end):
                begin, end = self._with_changes(*span)
            elif span is None or not self._is_whole(block, begin, end):
                # What holds the block is one statement of the block around it.
                begin, end = block.start_byte, block.end_byte
            elif self._declares(block, begin, end) and end < _last(block):
                end = _last(block)
            else:
                place = Place(begin, end, is_statement=begin < end)
                return Choice(place, self._text(begin, end).decode())

    def _with_changes(self, begin: int, end: int) -> tuple[int, int]:
        """Return a span with the whole of each change that it has a part of."""
        for change in self._changes:
            if change.begin < end and begin < change.end:
                begin, end = min(begin, change.begin), max(end, change.end)
        return begin, end

    def _moved(self, at: int, *, ends: bool) -> int:
        """Return where an offset of the old text, which no change holds, is in the new one."""
        moved = at
        for change in self._changes:
            before = change.end <= at if ends or change.begin < change.end else change.end < at
            if before:
                moved += (change.new_end - change.new_begin) - (change.end - change.begin)
        return moved

    def _new_span(self, begin: int, end: int) -> tuple[int, int]:
        return self._moved(begin, ends=False), self._moved(end, ends=True)

    def _text(self, begin: int, end: int) -> bytes:
        first, last = self._new_span(begin, end)
        return self._content[first:last]

    def _is_whole(self, block: Node, begin: int, end: int) -> bool:
        """True where statements of a block are statements of the same block in the new text."""
        first, last = self._new_span(begin, end)
        new = _block(self._mutated.root, first, last)
        if new is None or (new.has_error and not block.has_error):
            return False
        if new.start_byte != self._moved(block.start_byte, ends=False):
            return False
        return all(
            child.end_byte <= first
            or child.start_byte >= last
            or (first <= child.start_byte and child.end_byte <= last)
            for child in new.children[1:-1]
            if child.type != "comment"
        )

    def _declares(self, block: Node, begin: int, end: int) -> bool:
        first, last = self._new_span(begin, end)
        new = _block(self._mutated.root, first, last)
        spans = ((block, begin, end), (new, first, last))
        return any(
            child.type in _DECLARATIONS and from_ <= child.start_byte and child.end_byte <= to
            for node, from_, to in spans
            if node is not None
            for child in node.children
        )


def _block(root: Node, begin: int, end: int) -> Node | None:
    """Return the innermost block whose braces stand around a span."""
    node = root.descendant_for_byte_range(begin, end)
    while node is not None:
        inside = node.start_byte < begin and end < node.end_byte
        if node.type == "compound_statement" and inside:
            return node
        node = node.parent
    return None


def _statements(source: Source, block: Node, begin: int, end: int) -> tuple[int, int] | None:
    """Return a span and the whole of a block's statements that it touches; None where one has a label.

    A macro that stands before a loop belongs to it.
    """
    children = block.children[1:-1]
    touched = [
        child
        for child in children
        if (child.start_byte < end and begin < child.end_byte)
        or (begin == end and child.start_byte < begin < child.end_byte)
    ]
    if any(child.type in _LABELLED for child in touched):
        return None
    if not touched:
        return begin, end
    first, last = touched[0].start_byte, touched[-1].end_byte
    before = max(
        (child.end_byte for child in children if child.end_byte <= first),
        default=block.start_byte + 1,
    )
    between = source.content[before:first]
    first = before + len(between) - len(between.lstrip())
    return min(begin, first), max(end, last)


def _last(block: Node) -> int:
    """Return where the last statement of a block ends."""
    return max((child.end_byte for child in block.children[1:-1]), default=block.start_byte + 1)
