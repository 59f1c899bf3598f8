"""Many mutants in one source: a mutant schema, whose faults a number in the library selects.

Each place that a mutant edits becomes a choice between the text as it was and the mutant's. What
a compiler refuses as a choice is left to a build of its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from qsa_bench import source_lines
from qsa_bench.operators import Source
from qsa_bench.places import Choice, Place

# Sixteen bytes that no library holds by chance, and behind them the number of the mutant chosen.
MARK = bytes.fromhex("c1d79ae0530f4b6c8e7af21964b3d508")
NONE = 0
_SYMBOL = "qsa_chosen_mutant"
# The compiler sees a constant that it does not know; its reads are no accesses of the kernel. A kernel may
# include several files with choices: it holds one number.
_PROLOGUE = (
    "#ifndef QSA_SCHEMA\n#define QSA_SCHEMA\n"
    f'extern "C" __attribute__((visibility("hidden"))) const unsigned {_SYMBOL};\n'
    f'__asm__(".pushsection .rodata\\n.balign 16\\n.byte {",".join(map(str, MARK))}\\n'
    f'.globl {_SYMBOL}\\n.hidden {_SYMBOL}\\n{_SYMBOL}: .long 0\\n.popsection\\n");\n'
    "#endif\n"
)
_LINE = re.compile(r"#line (\d+)")


@dataclass(frozen=True)
class Schema:
    """A source with choices; `spans` are offsets of its text and the mutants that made it."""

    text: str
    spans: tuple[tuple[int, int, tuple[int, ...]], ...]

    def blamed(self, line: int, column: int) -> tuple[int, ...]:
        """Return the mutants, innermost, whose text a compiler names by line and column, from 1.

        Where none does, a compiler may mean what stands elsewhere in the line: all in it. Lines are those
        of the source, so that several of the text may have one number: what stands in any of them.
        """
        found: set[int] = set()
        at, told = 0, 1
        for row in self.text.split("\n"):
            if told == line:
                found.update(self._blamed(at, column, len(row)))
            marker = _LINE.fullmatch(row)
            told = int(marker[1]) if marker else told + 1
            at += len(row) + 1
        return tuple(sorted(found))

    def _blamed(self, first: int, column: int, length: int) -> tuple[int, ...]:
        at, last = first + column - 1, first + length
        around = [span for span in self.spans if span[0] <= at < span[1]]
        if around:
            return min(around, key=lambda span: span[1] - span[0])[2]
        inside = [span[2] for span in self.spans if first <= span[0] and span[1] <= last]
        return tuple({number for numbers in inside for number in numbers})


def compose(source: Source, choices: Mapping[int, Sequence[Choice]]) -> Schema:
    """Return a source with the choices of all mutants, by the numbers that select them, from 1.

    No place may cross another. What a compiler says of a line, it says of the source's.
    """
    text = source.content.decode()
    if len(text) != len(source.content):
        raise ValueError(f"composing {source.path}: offsets are those of plain ASCII alone")
    texts: dict[Place, dict[int, str]] = {}
    for number, own in choices.items():
        for choice in own:
            texts.setdefault(choice.place, {})[number] = choice.text
    writer = _Writer(text, texts)
    writer.put(f"{_PROLOGUE}#line 1\n")
    writer.write(0, len(text), sorted(texts, key=lambda place: (place.begin, -place.end)))
    return Schema("".join(writer.parts), tuple(writer.spans))


class _Writer:
    """Writes a source out with its choices, inner ones within what stood there before."""

    def __init__(self, text: str, texts: Mapping[Place, Mapping[int, str]]) -> None:
        self._text = text
        self._texts = texts
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
        texts = self._texts[place]
        for index, (number, text) in enumerate(texts.items()):
            own = self._at
            if place.begin == place.end:
                self._mutants(f" if ({_SYMBOL} == {number}u) {{ ", text, " }", place)
            elif place.is_statement:
                head = "" if index else "{ "
                self._mutants(f"{head}if ({_SYMBOL} == {number}u) {{ ", text, " } else ", place)
            else:
                head = "" if index else "("
                self._mutants(f"{head}{_SYMBOL} == {number}u ? (", text, ") : ", place)
            self.spans.append((own, self._at, (number,)))
        if place.begin != place.end:
            self.put("{ " if place.is_statement else "(")
            self.write(place.begin, place.end, inside)
            if "//" in self._text[place.begin : place.end].rpartition("\n")[2]:
                self._tell_line(place.end)
            self.put(" } }" if place.is_statement else "))")
        self.spans.append((first, self._at, tuple(texts)))

    def _mutants(self, head: str, text: str, tail: str, place: Place) -> None:
        """Write a mutant's text; lines are told on from the place where it stands."""
        old = self._text[place.begin : place.end]
        told = source_lines.told(old, text, self._line(place.begin))
        told = f"\n{told}" if told.startswith("#") else told
        self.put(head + told)
        if "\n" in told or "//" in told:
            self._tell_line(place.begin)
        self.put(tail)

    def _line(self, at: int) -> int:
        return self._text.count("\n", 0, at) + 1

    def _tell_line(self, at: int) -> None:
        """Begin a line that a compiler takes for the one of an offset of the source."""
        self.put(f"\n#line {self._line(at)}\n")


def select(library: bytes, number: int) -> bytes:
    """Return a library with mutant `number` chosen, NONE for no mutant.

    ValueError where the library holds no schema, or more than one.
    """
    at = library.find(MARK)
    if at < 0 or library.find(MARK, at + 1) >= 0:
        raise ValueError("choosing a mutant: the library holds no schema, or several")
    first = at + len(MARK)
    return library[:first] + number.to_bytes(4, "little") + library[first + 4 :]
