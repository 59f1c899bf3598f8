"""Many mutants of a source in one: which have that form, what they become, how one is chosen."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from qsa_bench import schemata
from qsa_bench.choices import choices_of
from qsa_bench.operators import OPERATORS, Source
from qsa_bench.places import Choice, Place

CHOSEN = "qsa_chosen_mutant"
KERNEL = """\
constexpr int kSize = 8;
__global__ void work(int* out, int count) {
  constexpr int kTwice = 2 * kSize;
  if (count < 3) {
    out[0] = count + 5;
    return;
  }
  if constexpr (kTwice > 9) {
    out[1] = count;
  }
  __syncthreads();
  out[count + 1] = kTwice;
}
"""


def choices(text: str, operator: str) -> list[tuple[str, tuple[Choice, ...]]]:
    """Return the text that each edit replaces, in order, and its choices."""
    source = Source("x.cu", text.encode())
    found = []
    for node in source.nodes():
        for edit in OPERATORS[operator].edits(source, node):
            new = source.content[: edit.begin] + edit.text.encode() + source.content[edit.end :]
            found.append((source.text(node), choices_of(source, new)))
    return found


def composed(text: str, operator: str) -> schemata.Schema:
    made = [own for _, own in choices(text, operator) if own]
    return schemata.compose(Source("x.cu", text.encode()), dict(enumerate(made, 1)))


@pytest.mark.parametrize(
    ("operator", "wanted"),
    [
        ("boundary", f"if (({CHOSEN} == 1u ? (count <= 3) : (count < 3))) {{"),
        ("arithmetic", f"out[0] = ({CHOSEN} == 2u ? (count - 5) : (count + 5));"),
        ("condition-negated", f"if (({CHOSEN} == 1u ? (!(count < 3)) : (count < 3))) {{"),
        (
            "constant",
            f"= count + ({CHOSEN} == 8u ? (6) : {CHOSEN} == 9u ? (4) : (5));",
        ),
        (
            "statement-deleted",
            f"{{ if ({CHOSEN} == 1u) {{ ; }} else {{ out[0] = count + 5; }} }}",
        ),
        ("statement-deleted", f"{{ if ({CHOSEN} == 2u) {{ ; }} else {{ return; }} }}"),
        ("barrier", f"if ({CHOSEN} == 1u) {{ ; }} else {{ ({CHOSEN} == 2u ?"),
        ("barrier", f"({CHOSEN} == 2u ? (__syncwarp()) : (__syncthreads()))"),
        ("early-return", f"int count) {{ if ({CHOSEN} == 1u) {{ return; }}"),
        ("early-return", "== 2u) { if (threadIdx.x == 0) return; __syncthreads(); } else"),
    ],
)
def test_a_mutants_text_stands_beside_what_was_there(operator: str, wanted: str) -> None:
    assert wanted in composed(KERNEL, operator).text


def test_with_nothing_chosen_the_source_is_what_it_was() -> None:
    text = KERNEL.replace("count + 5", "(count + 5) * (count - 2)")
    source = Source("x.cu", text.encode())
    made = [own for operator in OPERATORS for _, own in choices(text, operator) if own]
    schema = schemata.compose(source, dict(enumerate(made, 1))).text
    inside = schema[schema.index("constexpr int kSize") :]
    for number in sorted(range(1, len(made) + 1), reverse=True):
        inside = _without(inside, number)
    assert inside.count(CHOSEN) == 0
    plain = str.maketrans("", "", "(){} \n")
    assert inside.translate(plain) == text.translate(plain)


def _without(text: str, number: int) -> str:
    """Take a mutant's text out of a schema, with what asks whether it is chosen."""
    head = f"{CHOSEN} == {number}u"
    at = text.index(head)
    asks = text[:at].endswith("if (")
    opening = text.index("{" if asks else "(", at + len(head))
    depth, end = 0, opening
    while True:
        depth += {"{": 1, "(": 1, "}": -1, ")": -1}.get(text[end], 0)
        end += 1
        if depth == 0:
            break
    rest = text[end:]
    for follows in (" else ", " : "):
        rest = rest.removeprefix(follows)
    return text[: at - 4 if asks else at] + rest


def test_a_compilers_error_is_blamed_on_the_innermost_choice() -> None:
    source = Source("x.cu", KERNEL.encode())
    at = KERNEL.index("count + 5")
    outer = Choice(Place(at, at + len("count + 5")), "count + oops")
    inner = Choice(Place(at + len("count + "), at + len("count + 5")), "nothing")
    schema = schemata.compose(source, {1: [outer], 2: [inner]})
    lines = schema.text.split("\n")

    def blamed(word: str) -> tuple[int, ...]:
        line = next(i for i, text in enumerate(lines) if word in text)
        # Lines are told from the first of the source.
        return schema.blamed(line - lines.index("#line 1"), lines[line].index(word) + 1)

    assert blamed("oops") == (1,)
    assert blamed("nothing") == (2,)
    assert blamed("__syncthreads") == ()
    # An error that stands beside the choices may still be one of theirs.
    assert blamed("out[0] =") == (1, 2)


PROGRAM = """\
#include <cstdio>
static int at(int line) {
  std::printf("%d ", line);
  return 0;
}
int main() {
  int sum = 0;  // the lines told
  at(__LINE__);
  sum += at(__LINE__) + 1;
  for (int i = 0; i < 2; ++i) {
    at(__LINE__);  // twice
    sum += i;
  }
  at(__LINE__);
  std::printf("sum %d", sum);
}
"""
# What is edited, and what the program then says: lines of the source, also behind what was edited.
EDITS = (
    ("  sum += at(__LINE__) + 1;\n", "", "8 11 11 14 sum 1"),
    ("i < 2;", "i < 3;", "8 9 11 11 11 14 sum 4"),
    (
        "    at(__LINE__);  // twice\n",
        "    at(__LINE__);\n    at(__LINE__);  // anew\n",
        "8 9 11 12 11 12 14 sum 2",
    ),
    ("int sum = 0;", "int sum = 5;  // more", "8 9 11 11 14 sum 7"),
    ("  for (int i = 0;", "  const int was = sum;\n  for (int i = was;", "8 9 11 14 sum 2"),
    ("sum);", "\n    at(__LINE__) + 1);", "8 9 11 11 14 16 sum 1"),
)


def test_each_number_runs_its_mutant_and_lines_are_the_sources(tmp_path: Path) -> None:
    source = Source("x.cpp", PROGRAM.encode())
    own = {
        number: choices_of(source, PROGRAM.replace(old, new).encode())
        for number, (old, new, _) in enumerate(EDITS, 1)
    }
    assert all(own.values())
    program = tmp_path / "program"
    program.with_suffix(".cpp").write_text(schemata.compose(source, own).text)
    subprocess.run(["g++", "-w", "-o", program, program.with_suffix(".cpp")], check=True)

    def said(number: int) -> str:
        chosen = tmp_path / f"chosen-{number}"
        chosen.write_bytes(schemata.select(program.read_bytes(), number))
        chosen.chmod(0o755)
        return subprocess.run([chosen], capture_output=True, text=True, check=True).stdout

    assert said(schemata.NONE) == "8 9 11 11 14 sum 2"
    for number, (_, _, wanted) in enumerate(EDITS, 1):
        assert said(number) == wanted


def test_choosing_changes_a_number_and_nothing_else() -> None:
    library = b"code" + schemata.MARK + bytes(4) + b"more code"
    chosen = schemata.select(library, 258)
    assert chosen == b"code" + schemata.MARK + b"\x02\x01\0\0" + b"more code"
    assert schemata.select(chosen, schemata.NONE) == library
    for wrong in (b"code", library + library):
        with pytest.raises(ValueError, match="holds no schema, or several"):
            schemata.select(wrong, 1)
