"""A mutated source as choices at places of the source, each between what stood there and the mutant's.

What has no such form (a declaration at file scope, a signature, a constant that the compiler needs)
is left to a build of its own.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from qsa_bench.operators import Source
from qsa_bench.operators.syntax import is_evaluated_early

if TYPE_CHECKING:
    from tree_sitter import Node

_EXPRESSIONS = (
    "binary_expression",
    "unary_expression",
    "number_literal",
    "identifier",
    "call_expression",
    "parenthesized_expression",
    "conditional_expression",
    "assignment_expression",
    "update_expression",
    "field_expression",
    "subscript_expression",
)
_STATEMENTS = ("expression_statement", "return_statement", "break_statement", "continue_statement")
# Whose first part is a name or a place, not a value.
_NAMED_BY = {
    "call_expression": "function",
    "assignment_expression": "left",
    "init_declarator": "declarator",
}
_PARTS_OF_A_NAME = (
    "field_expression",
    "update_expression",
    "pointer_expression",
    "qualified_identifier",
    "template_function",
)
# What those behind it in its block may name.
_DECLARATIONS = ("declaration", "type_definition", "alias_declaration", "using_declaration")
# Statements that belong to the one around them.
_LABELLED = ("case_statement", "labeled_statement")


@dataclass(frozen=True)
class Place:
    """Bytes `begin` to `end` of a source that mutants replace.

    An expression or statements; where `begin` is `end`, between statements.
    """

    begin: int
    end: int
    is_statement: bool = False

    def crosses(self, other: Place) -> bool:
        """True where two places have bytes in common and neither holds the other."""
        first, second = sorted((self, other), key=lambda place: (place.begin, -place.end))
        return first.begin < second.begin < first.end < second.end


@dataclass(frozen=True)
class Choice:
    """One mutant's text at a place."""

    place: Place
    text: str


@dataclass(frozen=True)
class _Change:
    """Bytes `begin` to `end` of the old text that became `new_begin` to `new_end` of the new one."""

    begin: int
    end: int
    new_begin: int
    new_end: int


def choices_of(source: Source, mutated: bytes) -> tuple[Choice, ...]:
    """Return a mutated source as choices at places of which none overlaps another.

    Empty where it has no such form, or where nothing changed.
    """
    changes = list(_changes(source.content, mutated))
    found: list[Choice] = []
    blocks = _Blocks(source, mutated, changes)
    for change in changes:
        choice = _within_a_statement(source, mutated, change) or blocks.choice(change)
        if choice is None:
            return ()
        found.append(choice)
    # A block's text has what changed anywhere in it.
    found.sort(key=lambda choice: (choice.place.begin, -choice.place.end))
    kept: list[Choice] = []
    for choice in found:
        if not kept or choice.place.begin >= kept[-1].place.end:
            kept.append(choice)
        elif choice.place.end > kept[-1].place.end:
            return ()
    return tuple(dict.fromkeys(kept))


def _changes(old: bytes, new: bytes) -> Iterator[_Change]:
    """Yield what changed, by runs of lines, without what a run begins and ends with as before."""
    before, after = old.splitlines(keepends=True), new.splitlines(keepends=True)
    starts, new_starts = _starts(before), _starts(after)
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    for tag, i, j, k, m in matcher.get_opcodes():
        if tag == "equal":
            continue
        was, now = old[starts[i] : starts[j]], new[new_starts[k] : new_starts[m]]
        head, tail = _common(was, now)
        yield _Change(
            starts[i] + head, starts[j] - tail, new_starts[k] + head, new_starts[m] - tail
        )


def _starts(lines: Sequence[bytes]) -> list[int]:
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    return starts


def _common(old: bytes, new: bytes) -> tuple[int, int]:
    """Return how many bytes both begin with, and how many of the others both end with."""
    most = min(len(old), len(new))
    head = next((i for i in range(most) if old[i] != new[i]), most)
    tail = next((i for i in range(most - head) if old[-1 - i] != new[-1 - i]), most - head)
    return head, tail


def _within_a_statement(source: Source, mutated: bytes, change: _Change) -> Choice | None:
    """Return a change of one value or one statement, or a return at a function's entry."""
    begin, end = change.begin, change.end
    put_in = mutated[change.new_begin : change.new_end]
    entry = _entry(source, begin, end, put_in)
    if entry is not None:
        return entry
    # What was put in belongs to its neighbour on one side or the other.
    spans = ((begin, end),) if begin < end else ((begin - 1, end), (begin, end + 1))
    found: list[Choice] = []
    for first, last in spans:
        node = source.root.descendant_for_byte_range(first, last)
        for statement in (False, True):
            place = _place(node, statement)
            if place is None or not place.begin <= begin <= end <= place.end:
                continue
            old = source.content[place.begin : place.end]
            text = old[: begin - place.begin] + put_in + old[end - place.begin :]
            if place.is_statement or _is_value(text, old):
                found.append(Choice(place, text.decode()))
                break
    return min(found, key=lambda choice: choice.place.end - choice.place.begin, default=None)


def _is_value(text: bytes, old: bytes) -> bool:
    """True for what can stand where a value stood; a comma more may have made it two arguments."""
    return bool(text.strip()) and b";" not in text and text.count(b",") == old.count(b",")


def _entry(source: Source, begin: int, end: int, put_in: bytes) -> Choice | None:
    """Return a return at a function's entry as a choice."""
    if begin != end or not re.fullmatch(rb"\s*return(?: \{\})?;\s*", put_in):
        return None
    node = source.root.descendant_for_byte_range(begin - 1, begin)
    while node is not None and node.type != "compound_statement":
        node = node.parent
    if node is None or node.parent is None or node.parent.type != "function_definition":
        return None
    return Choice(Place(node.start_byte + 1, node.start_byte + 1), put_in.decode().strip())


def _place(node: Node | None, statement: bool) -> Place | None:
    """Return the smallest value, or statement, around a node; None where there is none."""
    while node is not None:
        if node.type in _STATEMENTS:
            break
        if not statement and node.type in _EXPRESSIONS and not _is_named(node):
            break
        if node.type.endswith(("_statement", "_definition", "declaration")):
            return None
        node = node.parent
    if node is None or is_evaluated_early(node):
        return None
    return Place(node.start_byte, node.end_byte, node.type in _STATEMENTS)


def _is_named(node: Node) -> bool:
    """True for a part of an expression that is a name or a place, and no value."""
    parent = node.parent
    if parent is None or parent.type in _PARTS_OF_A_NAME:
        return True
    if parent.type == "declaration":
        return True
    field = _NAMED_BY.get(parent.type)
    return field is not None and parent.child_by_field_name(field) == node


class _Blocks:
    """Changes as whole statements of a block, in the old text and in the new one."""

    def __init__(self, source: Source, mutated: bytes, changes: Sequence[_Change]) -> None:
        self._source = source
        self._mutated = Source(source.path, mutated)
        self._changes = changes

    def choice(self, change: _Change) -> Choice | None:
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
        return self._mutated.content[first:last]

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
