"""Facts that stand twice are compared: C and Python, cases and clauses, manifests and names."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import pytest

import qsa_bench
from qsa_bench import checks, goldens, judge, mutants, resources, stages
from qsa_bench.builder import Sources
from qsa_bench.model import DTYPES, STREAM, Entry, Kernel, Mutant, Role
from qsa_bench.program import Program
from qsa_bench.stages.base import Case, Stage
from qsa_bench.stages.qsa_select import KERNEL, SHAPES
from tests.specimen import trees

# What a pointer or scalar of C is in Python: its element type, and whether it may be written.
C_TYPES: Mapping[str, tuple[str, bool]] = {
    "float": ("f32", True),
    "double": ("f64", True),
    "int32_t": ("i32", True),
    "int64_t": ("i64", True),
    "uint8_t": ("u8", True),
    "uint32_t": ("u32", True),
    "uint16_t": ("bf16", True),
}
# Clauses that the common checks hold in every case, whatever it names.
HELD_IN_EVERY_CASE = {"memory", "termination"}
_NAMES = stages.stage_names()


@cache
def stage_of(name: str) -> tuple[Stage, Path]:
    """Return a stage and the tree that holds its kernels; the specimen is one, too."""
    if name == trees.STAGE:
        return trees.stage(), trees.FILES
    return stages.load_stage(name), resources.tree_root()


@cache
def cases_of(name: str) -> Sequence[Case]:
    stage, _ = stage_of(name)
    golden = None
    if stage.golden_kind in goldens.kinds():
        golden = goldens.load(goldens.committed(stage.golden_kind), stage.golden_kind)
    return stage.cases(golden)


every_stage = pytest.mark.parametrize("name", [*_NAMES, trees.STAGE])


@every_stage
def test_a_short_build_is_one_that_the_source_knows(name: str) -> None:
    stage, root = stage_of(name)
    for kernel in stage.kernels:
        sources = Sources(root)
        text = b"".join(sources.bytes_of(sources.root / kernel.source)).decode()
        for target, defines in kernel.short.items():
            assert target in kernel.targets
            for define in defines:
                assert re.search(rf"\b{define}\b", text), f"{kernel.source} knows no {define}"


def c_entries(text: str) -> dict[str, tuple[str, list[tuple[str, str]]]]:
    """Return symbol to return type and arguments (type, name) of a source's C entries."""
    code = re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)
    found = {}
    for result, symbol, arguments in re.findall(
        r'extern\s+"C"\s+(\w+)\s+(\w+)\s*\(([^)]*)\)\s*\{', code
    ):
        pairs = []
        for argument in arguments.split(","):
            kind, name = re.fullmatch(r"\s*(.*?)\s*(\w+)\s*", argument, re.DOTALL).groups()  # type: ignore[union-attr]
            pairs.append((re.sub(r"\s+", "", kind.replace("const ", "const@")), name))
        found[symbol] = (result, pairs)
    return found


def c_spelling(entry: Entry) -> list[tuple[str, str]]:
    """Return the C arguments that an entry of Python stands for."""
    names = {dtype: name for name, (dtype, _) in C_TYPES.items()}
    spelt = []
    for argument in entry.arguments:
        if argument.role is Role.STREAM:
            spelt.append(("void*", argument.name))
        elif argument.role is Role.SCALAR:
            spelt.append((names[argument.dtype], argument.name))
        else:
            constant = "const@" if argument.role is Role.INPUT else ""
            spelt.append((f"{constant}{names[argument.dtype]}*", argument.name))
    return spelt


@every_stage
def test_the_c_signature_is_the_python_entry_argument_by_argument(name: str) -> None:
    stage, root = stage_of(name)
    for kernel in stage.kernels:
        written = c_entries((root / kernel.source).read_text())
        for entry in kernel.entries:
            assert written[entry.symbol] == ("int32_t", c_spelling(entry)), entry.symbol


@every_stage
def test_every_c_entry_of_a_stages_sources_is_an_entry_in_python(name: str) -> None:
    stage, root = stage_of(name)
    for kernel in stage.kernels:
        symbols = {entry.symbol for entry in kernel.entries}
        assert set(c_entries((root / kernel.source).read_text())) == symbols


def test_a_signature_that_differs_in_any_way_is_seen() -> None:
    stage, root = stage_of(trees.STAGE)
    kernel: Kernel = stage.kernels[0]
    (entry,) = kernel.entries
    text = (root / kernel.source).read_text()
    assert c_entries(text)[entry.symbol] == ("int32_t", c_spelling(entry))
    for old, new in (
        ("(const float* values", "(float* values"),
        ("(const float* values", "(const double* values"),
        ("(const float* values", "(const float* value"),
        ("int64_t count,", "int32_t count,"),
        ("int32_t specimen_smooth", "int64_t specimen_smooth"),
        (", void* stream)", ")"),
    ):
        assert text.count(old) >= 1
        changed = c_entries(text.replace(old, new))[entry.symbol]
        assert changed != ("int32_t", c_spelling(entry)), new


def test_every_element_type_has_a_spelling_in_c() -> None:
    assert {dtype for dtype, _ in C_TYPES.values()} == set(DTYPES)
    assert STREAM.name == "stream"


def test_status_codes_are_the_headers_wherever_python_names_them() -> None:
    header = (resources.tree_root() / "kernels/common/status.h").read_text()
    header += (resources.tree_root() / "kernels/include/qsa.h").read_text()
    codes = {
        name: int(value)
        for name, value in re.findall(r"^#define QSA_(\w+) (\d+)\b", header, re.MULTILINE)
    }
    assert len(codes) == len(set(codes.values())) >= 13
    seen = set()
    for module in _modules():
        for name, value in vars(module).items():
            if name.lstrip("_") in codes and isinstance(value, int):
                assert value == codes[name.lstrip("_")], f"{module.__name__}.{name}"
                seen.add(name.lstrip("_"))
    assert {name for name in codes if name.startswith("HOST_")} <= seen
    assert {"NULL_POINTER", "BAD_EXTENT"} <= seen
    assert judge.DEVICE_FAULT not in codes.values()


def _modules() -> list[object]:
    """Return the modules that may name a status: the judges' and the stages'."""
    package = Path(qsa_bench.__file__).parent / "stages"
    names = [f"qsa_bench.stages.{found.name}" for found in pkgutil.iter_modules([str(package)])]
    return [judge, *(importlib.import_module(name) for name in names)]


@every_stage
def test_every_clause_that_a_case_names_is_the_stages_and_every_case_names_one(name: str) -> None:
    stage, _ = stage_of(name)
    for case in cases_of(name):
        assert case.clauses, case.id
        assert set(case.clauses) <= set(stage.clauses), case.id


@every_stage
def test_every_clause_is_exercised_by_some_case(name: str) -> None:
    stage, _ = stage_of(name)
    exercised = {clause for case in cases_of(name) for clause in case.clauses}
    assert set(stage.clauses) - exercised - HELD_IN_EVERY_CASE == set()


@every_stage
def test_case_ids_are_unique_and_begin_with_their_stage(name: str) -> None:
    ids = [case.id for case in cases_of(name)]
    assert ids
    assert len(set(ids)) == len(ids)
    assert all(case_id.startswith(f"{name}/") for case_id in ids)


@every_stage
def test_names_are_words_and_sentences_say_something(name: str) -> None:
    stage, _ = stage_of(name)
    assert set(stage.checks).isdisjoint(checks.COMMON)
    for known in (stage.clauses, stage.checks, stage.numbers):
        for word, sentence in known.items():
            assert re.fullmatch(r"[a-z0-9]+([-_][a-z0-9]+)*", word), word
            assert len(sentence) > 10, word
            assert not sentence.endswith("."), word


@every_stage
def test_every_call_of_every_case_fits_its_entry(name: str) -> None:
    stage, _ = stage_of(name)
    kernels = {kernel.name: kernel for kernel in stage.kernels}
    for case in _samples(name):
        built: Program = case.build()
        for call in built.calls:
            assert call.kernel in kernels, case.id
            if call.python is not None:
                continue
            entry = kernels[call.kernel].entry(call.entry)
            for argument, value in call.values.items():
                spec = entry.argument(argument)
                if value is None:
                    continue
                buffer = getattr(value, "buffer", value)
                assert isinstance(buffer, str) is spec.is_pointer, (case.id, argument)
                if isinstance(buffer, str):
                    assert built.buffer(buffer).dtype == spec.dtype, (case.id, argument)


def _samples(name: str) -> list[Case]:
    """Return the first case of every family: building all takes long where buffers are large."""
    first: dict[str, Case] = {}
    for case in cases_of(name):
        first.setdefault(case.family, case)
    return list(first.values())


def manifests(name: str) -> list[Mutant]:
    stage, root = stage_of(name)
    return mutants.load(root, name, stage.clauses, checks.checks_of(stage))


@pytest.mark.parametrize("name", _NAMES)  # the specimen's patch of Python needs a tree
def test_every_manifest_names_clauses_and_checks_of_its_stage_and_its_patch_applies(
    name: str,
) -> None:
    found = manifests(name)
    assert {f"{name}/controls/does-nothing", f"{name}/controls/writes-nothing"} <= {
        mutant.id for mutant in found
    }
    for mutant in found:
        assert not mutant.proves.endswith("."), mutant.id


def test_the_parts_that_select_is_compiled_in_are_its_launch_table() -> None:
    source = (resources.tree_root() / KERNEL.source).read_text()
    table = source[source.index("int32_t launch_rows") : source.index("int32_t refuse(")]
    launched = {
        tuple(map(int, shape)) for shape in re.findall(r"spread<(\d+), (\d+), (\d+)>", table)
    }
    assert launched
    assert set(SHAPES) == launched
    assert len(KERNEL.parts) == len(SHAPES) + 1
