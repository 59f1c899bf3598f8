"""Many mutants of a source in one: which have that form, what they become, how one is chosen."""

from __future__ import annotations

import pytest

from qsa_bench import schemata
from qsa_bench.operators import OPERATORS, Source
from qsa_bench.schemata import Choice, Place

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


def choices(text: str, operator: str) -> list[tuple[str, Choice | None]]:
    """Return the text that each edit replaces, in order, and its choice."""
    source = Source("x.cu", text.encode())
    found = []
    for node in source.nodes():
        for edit in OPERATORS[operator].edits(source, node):
            new = source.content[: edit.begin] + edit.text.encode() + source.content[edit.end :]
            found.append((source.text(node), schemata.choice_of(source, new)))
    return found


def composed(text: str, operator: str) -> schemata.Schema:
    made = [choice for _, choice in choices(text, operator) if choice is not None]
    return schemata.compose(Source("x.cu", text.encode()), dict(enumerate(made, 1)))


@pytest.mark.parametrize(
    ("operator", "wanted"),
    [
        ("boundary", f"if (({CHOSEN} == 1u ? (count <= 3) : (count < 3))) {{"),
        ("arithmetic", f"out[0] = ({CHOSEN} == 1u ? (count - 5) : (count + 5));"),
        ("condition-negated", f"if (({CHOSEN} == 1u ? (!(count < 3)) : (count < 3))) {{"),
        (
            "constant",
            f"= count + ({CHOSEN} == 5u ? (6) : {CHOSEN} == 6u ? (4) : (5));",
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


def test_what_the_compiler_needs_the_value_of_has_no_such_form() -> None:
    found = dict(choices(KERNEL, "constant"))
    assert found["8"] is None  # a constant of the file
    assert found["2"] is None  # one in a function
    assert found["9"] is None  # if constexpr
    assert found["5"] is not None
    deleted = dict(choices(KERNEL, "statement-deleted"))
    assert deleted["out[1] = count;"] is not None  # what if constexpr guards is run


def test_with_nothing_chosen_the_source_is_what_it_was() -> None:
    text = KERNEL.replace("count + 5", "(count + 5) * (count - 2)")
    source = Source("x.cu", text.encode())
    made = [
        choice
        for operator in OPERATORS
        for _, choice in choices(text, operator)
        if choice is not None
    ]
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
    schema = schemata.compose(source, {1: outer, 2: inner})
    lines = schema.text.split("\n")

    def blamed(word: str) -> tuple[int, ...]:
        line = next(i for i, text in enumerate(lines) if word in text)
        return schema.blamed(line + 1, lines[line].index(word) + 1)

    assert blamed("oops") == (1,)
    assert blamed("nothing") == (2,)
    assert blamed("__syncthreads") == ()
    # An error that stands beside the choices may still be one of theirs.
    assert blamed("out[0] =") == (1, 2)


def test_choosing_changes_a_number_and_nothing_else() -> None:
    library = b"code" + schemata.MARK + bytes(4) + b"more code"
    chosen = schemata.select(library, 258)
    assert chosen == b"code" + schemata.MARK + b"\x02\x01\0\0" + b"more code"
    assert schemata.select(chosen, schemata.NONE) == library
    for wrong in (b"code", library + library):
        with pytest.raises(ValueError, match="holds no schema, or several"):
            schemata.select(wrong, 1)
