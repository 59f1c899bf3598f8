"""A mutated source as choices at places of the source, each between what stood there and the mutant's.

What has no such form (a declaration at file scope, a signature, a constant that the compiler needs)
is left to a build of its own.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from qsa_bench.block_choices import Blocks
from qsa_bench.operators import Source
from qsa_bench.operators.syntax import is_evaluated_early
from qsa_bench.places import Change, Choice, Place

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


def choices_of(source: Source, mutated: bytes) -> tuple[Choice, ...]:
    """Return a mutated source as choices at places of which none overlaps another.

    Empty where it has no such form, or where nothing changed.
    """
    changes = list(_changes(source.content, mutated))
    found: list[Choice] = []
    blocks = Blocks(source, mutated, changes)
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


def _changes(old: bytes, new: bytes) -> Iterator[Change]:
    """Yield what changed, by runs of lines, without what a run begins and ends with as before."""
    before, after = old.splitlines(keepends=True), new.splitlines(keepends=True)
    starts, new_starts = _starts(before), _starts(after)
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    for tag, i, j, k, m in matcher.get_opcodes():
        if tag == "equal":
            continue
        was, now = old[starts[i] : starts[j]], new[new_starts[k] : new_starts[m]]
        head, tail = _common(was, now)
        yield Change(starts[i] + head, starts[j] - tail, new_starts[k] + head, new_starts[m] - tail)


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


def _within_a_statement(source: Source, mutated: bytes, change: Change) -> Choice | None:
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
