"""Many mutants of a source in one: a mutant schema, whose faults a number in the library selects.

Each place that a mutant edits becomes a choice between the text as it was and the mutant's. What
has no such form (a declaration, a constant that the compiler needs) is left to a build of its own,
and so is what a compiler refuses as a choice.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from qsa_bench.operators import Source
from qsa_bench.operators.syntax import is_evaluated_early

if TYPE_CHECKING:
    from tree_sitter import Node

# Sixteen bytes that no library holds by chance, and behind them the number of the mutant chosen.
MARK = bytes.fromhex("c1d79ae0530f4b6c8e7af21964b3d508")
NONE = 0
_SYMBOL = "qsa_chosen_mutant"
# The compiler sees a constant that it does not know; its reads are no accesses of the kernel.
_PROLOGUE = (
    f'extern "C" __attribute__((visibility("hidden"))) const unsigned {_SYMBOL};\n'
    f'__asm__(".pushsection .rodata\\n.balign 16\\n.byte {",".join(map(str, MARK))}\\n'
    f'.globl {_SYMBOL}\\n.hidden {_SYMBOL}\\n{_SYMBOL}: .long 0\\n.popsection\\n");\n'
)
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


@dataclass(frozen=True)
class Place:
    """Bytes `begin` to `end` of a source that mutants replace.

    An expression or a statement; where `begin` is `end`, a function's entry.
    """

    begin: int
    end: int
    is_statement: bool = False


@dataclass(frozen=True)
class Choice:
    """One mutant's text at a place."""

    place: Place
    text: str


@dataclass(frozen=True)
class Schema:
    """A source with choices; `spans` are offsets of its text and the mutants that made it."""

    text: str
    spans: tuple[tuple[int, int, tuple[int, ...]], ...]

    def blamed(self, line: int, column: int) -> tuple[int, ...]:
        """Return the mutants, innermost, whose text stands at a line and column, from 1.

        Where none does, a compiler may mean what stands elsewhere in the line: all in it.
        """
        rows = self.text.split("\n")
        first = sum(len(row) + 1 for row in rows[: line - 1])
        at, last = first + column - 1, first + len(rows[line - 1])
        around = [span for span in self.spans if span[0] <= at < span[1]]
        if around:
            return min(around, key=lambda span: span[1] - span[0])[2]
        inside = [span[2] for span in self.spans if first <= span[0] and span[1] <= last]
        return tuple(sorted({number for numbers in inside for number in numbers}))


def choice_of(source: Source, mutated: bytes) -> Choice | None:
    """Return a mutated source as a choice at one place; None where it has no such form."""
    begin, end = _changed(source.content, mutated)
    grown = len(mutated) - len(source.content)
    entry = _entry(source, begin, end, mutated[begin : end + grown])
    if entry is not None:
        return entry
    # What was put in belongs to its neighbour on one side or the other.
    spans = ((begin, end),) if begin < end else ((begin - 1, end), (begin, end + 1))
    found: list[Choice] = []
    for first, last in spans:
        node = source.root.descendant_for_byte_range(first, last)
        for statement in (False, True):
            place = _place(node, statement)
            if place is None:
                continue
            text = mutated[place.begin : place.end + grown].decode()
            if place.is_statement or (text.strip() and ";" not in text):
                found.append(Choice(place, text))
                break
    return min(found, key=lambda choice: choice.place.end - choice.place.begin, default=None)


def _changed(old: bytes, new: bytes) -> tuple[int, int]:
    """Return the span of `old` between what both texts begin and end with."""
    most = min(len(old), len(new))
    begin = next((i for i in range(most) if old[i] != new[i]), most)
    tail = next((i for i in range(most - begin) if old[-1 - i] != new[-1 - i]), most - begin)
    return begin, len(old) - tail


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


def compose(source: Source, choices: Mapping[int, Choice]) -> Schema:
    """Return a source with all choices; their numbers are those that select them, from 1."""
    text = source.content.decode()
    if len(text) != len(source.content):
        raise ValueError(f"composing {source.path}: offsets are those of plain ASCII alone")
    numbers: dict[Place, list[int]] = {}
    for number, choice in choices.items():
        numbers.setdefault(choice.place, []).append(number)
    order = sorted(numbers, key=lambda place: (place.begin, -place.end))
    writer = _Writer(text, choices, numbers)
    writer.put(_PROLOGUE)
    writer.write(0, len(text), order)
    return Schema("".join(writer.parts), tuple(writer.spans))


class _Writer:
    """Writes a source out with its choices, inner ones within what stood there before."""

    def __init__(
        self,
        text: str,
        choices: Mapping[int, Choice],
        numbers: Mapping[Place, Sequence[int]],
    ) -> None:
        self._text = text
        self._choices = choices
        self._numbers = numbers
        self._at = 0
        self.parts: list[str] = []
        self.spans: list[tuple[int, int, tuple[int, ...]]] = []

    def put(self, text: str) -> None:
        """Write text as it is."""
        self.parts.append(text)
        self._at += len(text)

    def write(self, begin: int, end: int, inside: Sequence[Place]) -> None:
        """Write the text from `begin` to `end`, with the places inside it, in order."""
        at, index = begin, 0
        while index < len(inside):
            place = inside[index]
            last = index + 1
            while last < len(inside) and inside[last].begin < place.end:
                last += 1
            self.put(self._text[at : place.begin])
            self._choose(place, inside[index + 1 : last])
            at, index = place.end, last
        self.put(self._text[at:end])

    def _choose(self, place: Place, inside: Sequence[Place]) -> None:
        first = self._at
        numbers = self._numbers[place]
        for number in numbers:
            own = self._at
            text = self._choices[number].text
            if place.begin == place.end:
                self.put(f" if ({_SYMBOL} == {number}u) {{ {text} }}")
            elif place.is_statement:
                head = "{ " if number == numbers[0] else ""
                self.put(f"{head}if ({_SYMBOL} == {number}u) {{ {text} }} else ")
            else:
                head = "(" if number == numbers[0] else ""
                self.put(f"{head}{_SYMBOL} == {number}u ? ({text}) : ")
            self.spans.append((own, self._at, (number,)))
        if place.begin != place.end:
            self.put("{ " if place.is_statement else "(")
            self.write(place.begin, place.end, inside)
            self.put(" } }" if place.is_statement else "))")
        self.spans.append((first, self._at, tuple(numbers)))


def select(library: bytes, number: int) -> bytes:
    """Return a library with mutant `number` chosen, NONE for no mutant.

    ValueError where the library holds no schema, or more than one.
    """
    at = library.find(MARK)
    if at < 0 or library.find(MARK, at + 1) >= 0:
        raise ValueError("choosing a mutant: the library holds no schema, or several")
    first = at + len(MARK)
    return library[:first] + number.to_bytes(4, "little") + library[first + 4 :]
