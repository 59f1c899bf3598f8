"""What each operator makes of a piece of CUDA; offsets stay true where macros are masked."""

from __future__ import annotations

import pytest

from qsa_bench.operators import OPERATORS, Source


def mutated(operator: str, line: str, before: str = "", kernel: bool = True) -> set[str]:
    """Return what an operator makes of one line in a function's body, blanks folded."""
    head = "__global__ void work(int* out, int count) {" if kernel else "int work(int n, int d) {"
    text = f"{before}\n{head}\n  {line}\n}}\n"
    source = Source("x.cu", text.encode())
    assert source.unparsed() == []
    made = set()
    for node in source.nodes():
        for edit in OPERATORS[operator].edits(source, node):
            new = source.content[: edit.begin] + edit.text.encode() + source.content[edit.end :]
            assert new.count(b"\n") == source.content.count(b"\n"), "lines below must not move"
            changed = new.decode().split("\n")[text[: text.index(line)].count("\n")]
            if changed.strip() != line:
                made.add(changed.strip())
    return made


@pytest.mark.parametrize(
    ("operator", "line", "wanted"),
    [
        ("relational", "if (out[0] < count) out[0] = 1;", {"if (out[0] > count) out[0] = 1;"}),
        ("relational", "if (out[0] == 1) return;", {"if (out[0] != 1) return;"}),
        ("boundary", "if (count > 3) return;", {"if (count >= 3) return;"}),
        ("boundary", "if (count == 3) return;", set()),
        ("logical", "if (count > 3 && count < 9) return;", {"if (count > 3 || count < 9) return;"}),
        ("condition-negated", "if (count > 3) return;", {"if (!(count > 3)) return;"}),
        ("condition-negated", "if constexpr (true) return;", set()),
        ("arithmetic", "out[0] = count * 3;", {"out[0] = count + 3;"}),
        ("arithmetic", "out[0] += count;", {"out[0] -= count;"}),
        ("arithmetic", "out[0] = -1;", set()),
        ("arithmetic", "out[0] = -count;", {"out[0] = +count;"}),
        (
            "arithmetic",
            "float x = __fadd_rn(y, z);",
            {"float x = __fsub_rn(y, z);"},
        ),
        (
            "constant",
            "count = 8;",
            {"count = 9;", "count = 7;", "count = 16;", "count = 4;"},
        ),
        ("constant", "count = 0u;", {"count = 1u;", "count = -1u;"}),
        ("constant", "count = 0xffffffffu;", {"count = 0xfffffffeu;"}),
        ("constant", "float x = 0.5f;", {"float x = 1.0f;"}),
        (
            "shift",
            "count = count << lane;",
            {"count = count >> lane;", "count = count << (lane + 1);"},
        ),
        ("min-max", "count = min(count, 3);", {"count = max(count, 3);"}),
        (
            "bf16-accumulate",
            "x = __fmaf_rn(a, b, x);",
            {"x = __bfloat162float(__float2bfloat16_rn(__fmaf_rn(a, b, x)));"},
        ),
        ("bf16-accumulate", "out[0] = pack_bf16(__fmul_rn(a, b), c);", set()),
        ("statement-deleted", "out[0] = 1;", {";"}),
        ("statement-deleted", "if (count) return;", {"if (count) ;"}),
        ("statement-deleted", "__syncthreads();", set()),
        ("early-return", "__syncthreads();", {"if (threadIdx.x == 0) return; __syncthreads();"}),
        (
            "loop-bound",
            "for (int i = 0; i < count; ++i) out[i] = 0;",
            {"for (int i = 0; i < count - 1; ++i) out[i] = 0;"},
        ),
        (
            "loop-stride",
            "for (int i = 0; i < count; ++i) out[i] = 0;",
            {"for (int i = 0; i < count; i += 2) out[i] = 0;"},
        ),
        (
            "loop-stride",
            "for (int i = 0; i < count; i += 8) out[i] = 0;",
            {"for (int i = 0; i < count; i += (8) * 2) out[i] = 0;"},
        ),
        ("barrier", "__syncthreads();", {";", "__syncwarp();"}),
        ("barrier", "__syncwarp();", {";"}),
        ("fence", "__threadfence();", {";"}),
        ("atomic-plain", "atomicAdd(&out[1], count);", {"out[1] += (count);"}),
        ("atomic-plain", "atomicMax(out, count);", {"*(out) = max(*(out), (count));"}),
        ("atomic-plain", "int old = atomicAdd(out, 1);", {"int old = ((*(out) += (1)) - (1));"}),
        ("atomic-swapped", "atomicAdd(out, 1);", {"atomicMax(out, 1);"}),
        (
            "index",
            "out[threadIdx.x] = 1;",
            {"out[blockIdx.x] = 1;", "out[(threadIdx.x + 1)] = 1;", "out[(threadIdx.x - 1)] = 1;"},
        ),
        ("index", "int lane = count;", set()),
        ("mask", "x = __ballot_sync(kAll, x);", {"x = __ballot_sync((kAll >> 1), x);"}),
        (
            "shared-size",
            "QSA_SHARED(float, tile, 2 * kTile);",
            {"QSA_SHARED(float, tile, (2 * kTile) - 1);"},
        ),
    ],
)
def test_an_operator_makes_this_of_a_line(operator: str, line: str, wanted: set[str]) -> None:
    assert mutated(operator, line) == wanted


def test_a_rounded_up_grid_is_rounded_down() -> None:
    line = "return (n + d - 1) / d;"
    assert mutated("ceil-to-floor", line, kernel=False) == {"return (n) / d;"}


def test_the_last_return_of_a_function_with_a_result_stays() -> None:
    assert mutated("statement-deleted", "return n;", kernel=False) == set()


def test_a_function_is_left_at_its_start() -> None:
    source = Source("x.cu", b"int work(int n) { return n; }\n")
    texts = {e.text for n in source.nodes() for e in OPERATORS["early-return"].edits(source, n)}
    assert texts == {"{ return {};"}


@pytest.mark.parametrize(
    "macro", ["QSA_UNROLL\n  for (int i = 0; i < 3; ++i) {}", "QSA_DYNAMIC_SHARED(float, tile);"]
)
def test_a_macro_that_is_no_cplusplus_is_no_hole_in_the_tree(macro: str) -> None:
    source = Source("x.cu", f"__global__ void k() {{\n  {macro}\n  int x = 1;\n}}\n".encode())
    assert source.unparsed() == []
    (one,) = [n for n in source.nodes() if n.type == "number_literal" and source.text(n) == "1"]
    assert source.content[one.start_byte - 4 : one.end_byte] == b"x = 1"[-5:]


def test_a_c_entry_has_mutants_as_any_function() -> None:
    source = Source("x.cu", b'extern "C" int entry(int n) { return n < 1; }\n')
    texts = {e.text for n in source.nodes() for e in OPERATORS["boundary"].edits(source, n)}
    assert texts == {"<="}


def test_what_the_grammar_does_not_understand_is_told() -> None:
    source = Source("x.cu", b"void k() {\n  int x = 1 +;\n}\n")
    assert source.unparsed() == [2]


def test_launch_bounds_and_template_arguments_have_no_mutant() -> None:
    text = b"template <int N>\n__global__ void __launch_bounds__(256, 2) k() { work<4>(); }\n"
    source = Source("x.cu", text)
    constants = [e for n in source.nodes() for e in OPERATORS["constant"].edits(source, n)]
    assert constants == []
