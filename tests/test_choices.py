"""Which mutated sources have the form of choices, and where those stand."""

from __future__ import annotations

import pytest

from qsa_bench.choices import choices_of
from qsa_bench.operators import OPERATORS, Source
from qsa_bench.places import Choice, Place

KERNEL = """\
constexpr int kSize = 8;
__device__ int twice(int value) { return 2 * value; }
__global__ void work(int* out, int count) {
  constexpr int kTwice = 2 * kSize;
  if (count < 3) {
    out[0] = count + 5;
    return;
  }
  const int kept = twice(count);
  const dim3 grid(count);
QSA_UNROLL
  for (int i = 0; i < kept; ++i) {
    out[i] += 1;  // the first
    out[i] += 2;
  }
  switch (count) {
    case 4:
      out[1] = 4;
      break;
    default:
      break;
  }
  __syncthreads();  // nothing is read before
  out[count + 1] = kTwice;
}
"""


def edited(*edits: tuple[str, str]) -> str:
    text = KERNEL
    for old, new in edits:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def found(*edits: tuple[str, str]) -> list[tuple[str, str]]:
    """Return what each choice of an edited kernel replaces, and its text."""
    source = Source("x.cu", KERNEL.encode())
    return [
        (KERNEL[choice.place.begin : choice.place.end].strip(), choice.text.strip())
        for choice in choices_of(source, edited(*edits).encode())
    ]


def chosen(*edits: tuple[str, str]) -> str:
    """Return the kernel with the text of its choices in their places."""
    source = Source("x.cu", KERNEL.encode())
    text = KERNEL
    for choice in reversed(choices_of(source, edited(*edits).encode())):
        text = text[: choice.place.begin] + choice.text + text[choice.place.end :]
    return text


def test_a_value_is_replaced_alone() -> None:
    assert found(("count < 3", "count < 4")) == [("3", "4")]
    assert found(("= twice(count)", "= twice(count) + 1")) == [("twice(count)", "twice(count) + 1")]


def test_a_statement_may_go_with_what_is_said_of_it() -> None:
    gone = ("  __syncthreads();  // nothing is read before\n", "")
    assert found(gone) == [("__syncthreads();  // nothing is read before", "")]
    assert found(("    out[i] += 1;  // the first\n", "")) == [("out[i] += 1;  // the first", "")]


def test_statements_may_come_between_others() -> None:
    ((was, text),) = found(("  switch", "  __syncthreads();\n  switch"))
    assert (was, text) == ("", "__syncthreads();")


def test_what_declares_a_name_goes_on_to_the_end_of_its_block() -> None:
    ((was, text),) = found(("  switch", "  const int more = kept;\n  switch"))
    assert was.startswith("switch (count)")
    assert was.endswith("= kTwice;")
    assert text == f"const int more = kept;\n  {was}"
    ((was, text),) = found(("const int kept", "const unsigned kept"))
    assert was.startswith("const int kept")
    assert was.endswith("= kTwice;")


def test_a_constant_of_a_function_goes_on_to_the_end_of_its_block() -> None:
    ((was, text),) = found(("2 * kSize", "3 * kSize"))
    assert was.startswith("constexpr int kTwice")
    assert text.startswith("constexpr int kTwice = 3 * kSize;")


def test_several_places_of_one_mutant_are_several_choices() -> None:
    edits = (("value;", "value + 1;"), ("  __syncthreads();  // nothing is read before\n", ""))
    assert [was for was, _ in found(*edits)] == [
        "value",
        "__syncthreads();  // nothing is read before",
    ]


def test_one_choice_holds_what_changed_anywhere_in_it() -> None:
    edits = (("const int kept", "const unsigned kept"), ("= kTwice", "= 2 * kTwice"))
    ((was, text),) = found(*edits)
    assert was.startswith("const int kept")
    assert text.endswith("= 2 * kTwice;")


def test_a_loop_keeps_the_macro_before_it() -> None:
    loop = ("for (int i = 0; i < kept; ++i) {", "for (int i = 1, j = 0; i < kept; ++i, ++j) {")
    ((was, text),) = found(loop)
    assert was.startswith("QSA_UNROLL\n  for (int i = 0")
    assert text.startswith("QSA_UNROLL\n  for (int i = 1, j")


def test_what_stands_under_a_label_is_its_switch() -> None:
    ((was, text),) = found(("      out[1] = 4;\n      break;\n", "      out[1] = 5;\n"))
    assert was.startswith("switch (count)")
    assert text.startswith("switch (count)")
    assert "out[1] = 5;\n    default" in text


def test_an_argument_more_is_no_value() -> None:
    """In parentheses of its own it would be a comma operator: another fault."""
    ((was, text),) = found(("grid(count)", "grid(count, 65536)"))
    assert was.startswith("const dim3 grid(count);")
    assert text.startswith("const dim3 grid(count, 65536);")


@pytest.mark.parametrize(
    "edit",
    [
        ("kSize = 8", "kSize = 9"),
        ("int twice(int value)", "int twice(long value)"),
        ("int* out, int count", "int* out, int count, int"),
    ],
)
def test_what_the_compiler_needs_or_callers_see_has_no_such_form(edit: tuple[str, str]) -> None:
    assert found(edit) == []


def test_an_unchanged_source_has_no_choice() -> None:
    assert found() == []


@pytest.mark.parametrize(
    "edits",
    [
        (("count < 3", "count < 4"),),
        (("  __syncthreads();  // nothing is read before\n", ""),),
        (("  switch", "  const int more = kept;\n  switch"), ("value;", "value + 1;")),
        (("grid(count)", "grid(count, 65536)"), ("out[1] = 4", "out[1] = 5")),
        (("    out[i] += 2;\n", "    out[i] += 3;\n    ++i;\n"), ("{ return", "{ value++; return")),
    ],
)
def test_the_texts_in_their_places_are_the_mutated_source(
    edits: tuple[tuple[str, str], ...],
) -> None:
    assert chosen(*edits) == edited(*edits)


def test_every_operators_edits_in_their_places_are_the_mutated_source() -> None:
    source = Source("x.cu", KERNEL.encode())
    seen = 0
    for operator in OPERATORS.values():
        for node in source.nodes():
            for edit in operator.edits(source, node):
                mutated = KERNEL[: edit.begin] + edit.text + KERNEL[edit.end :]
                text = KERNEL
                own = choices_of(source, mutated.encode())
                for choice in reversed(own):
                    text = text[: choice.place.begin] + choice.text + text[choice.place.end :]
                seen += bool(own)
                wanted = mutated if own else KERNEL
                assert "".join(text.split()) == "".join(wanted.split()), operator.name
    assert seen > 50


def test_places_cross_where_neither_holds_the_other() -> None:
    assert Place(0, 5).crosses(Place(3, 8))
    assert Place(3, 8).crosses(Place(0, 5))
    assert not Place(0, 5).crosses(Place(5, 8))
    assert not Place(0, 8).crosses(Place(3, 5))
    assert not Place(0, 5).crosses(Place(0, 8))
    assert not Place(4, 4).crosses(Place(0, 8))
    assert Choice(Place(0, 1), "x") == Choice(Place(0, 1), "x")
