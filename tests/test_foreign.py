"""A user's own kernel: plain C++ of a third party through the gate, whatever it gets wrong."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qsa_bench import foreign, tensor_file
from qsa_bench.errors import UsageError
from qsa_bench.model import Role
from qsa_bench.requests import ForeignRequest
from qsa_bench.stages import load_stage
from tests.conftest import Qsa

HERE = Path(__file__).parent / "foreign"
STAGE = load_stage("qsa_select")
Build = Callable[..., Path]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Return a function that compiles the third party's kernel, once a set of defines."""
    folder = tmp_path_factory.mktemp("foreign")

    def build(*defines: str) -> Path:
        library = folder / f"lib{'-'.join(defines) or 'right'}.so"
        if not library.exists():
            words = ["g++", "-std=c++17", "-O2", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror"]
            flags = [f"-D{name}" for name in defines]
            source = str(HERE / "topk_mask.cpp")
            subprocess.run([*words, *flags, source, "-o", str(library)], check=True, timeout=120)
        return library

    return build


def _gate(qsa: Qsa, library: Path, entry: str, *words: str) -> tuple[int, dict[str, Any]]:
    done = qsa(
        "gate",
        "--stage",
        "qsa_select",
        "--library",
        str(library),
        "--entry",
        entry,
        "--map",
        str(HERE / f"{entry}.toml"),
        "--format",
        "json",
        *words,
    )
    assert done.stdout, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, document


def _failed(document: dict[str, Any]) -> dict[str, set[str]]:
    """Return the families each check failed on."""
    failed: dict[str, set[str]] = {}
    for verdict in document["verdicts"]:
        if verdict["status"] != "pass":
            failed.setdefault(verdict["check"], set()).add(verdict["family"])
    return failed


@pytest.mark.parametrize("entry", ["topk_mask", "topk_list"])
def test_a_right_kernel_of_a_third_party_passes_every_case_it_serves(
    qsa_bench: Qsa, built: Build, entry: str
) -> None:
    code, document = _gate(qsa_bench, built(), entry)
    assert code == 0, _failed(document)
    assert document["done"] == document["asked"] > 100
    assert document["notes"]["library"]["entry"] == entry
    assert document["notes"]["blind_cases"] == {"qsa_select": []}
    families = {verdict["family"] for verdict in document["verdicts"]}
    assert {"golden", "distribution", "ragged", "long", "far-offset", "edge"} <= families
    # It is not told of live_rows, and refusals and traps are our own entry's.
    assert families & {"padding", "refusal", "trap"} == set()


@pytest.mark.parametrize(
    ("define", "entry", "checks"),
    [
        ("TIES_TO_HIGHEST", "topk_mask", {"ties"}),
        ("TIES_TO_HIGHEST", "topk_list", set()),
        ("SIGNED_ZEROS", "topk_mask", {"zeros"}),
        ("SIGNED_ZEROS", "topk_list", set()),
        # On rows that all tie, what is dropped is one of equals.
        ("DROPS_THE_BEST", "topk_mask", {"selection", "ties"}),
        ("DROPS_THE_BEST", "topk_list", {"selection"}),
    ],
)
def test_what_a_kernel_breaks_is_named_and_a_free_tie_rule_excuses_ties_alone(
    qsa_bench: Qsa, built: Build, define: str, entry: str, checks: set[str]
) -> None:
    code, document = _gate(qsa_bench, built(define), entry, "--case", "*/distribution/*-61-*")
    assert set(_failed(document)) == checks
    assert code == (3 if checks else 0)


def test_the_zeros_are_told_from_other_ties(qsa_bench: Qsa, built: Build) -> None:
    _, document = _gate(qsa_bench, built("SIGNED_ZEROS"), "topk_mask", "--case", "*/distribution/*")
    cases = {v["case"] for v in document["verdicts"] if v["status"] != "pass"}
    assert cases
    assert all("signed-zeros" in case or "extremes" in case for case in cases), cases


def test_a_captured_input_is_replayed_on_it(qsa_bench: Qsa, built: Build, tmp_path: Path) -> None:
    scores = np.array([0.5, 3.0, 0.5, 2.0, 0.5, 0.5, 0.1, 0.5], dtype=np.float32)
    captured = tmp_path / "captured.safetensors"
    tensor_file.write(
        captured,
        {"scores": scores, "rows": np.array([31], dtype=np.int32)},
        {"scores": "f32", "rows": "i32"},
        {"tokens": "32", "score_cols": "8", "budget": "16"},
    )
    words = ("replay", "qsa_select", str(captured), "--entry", "topk_mask")
    mapped = ("--map", str(HERE / "topk_mask.toml"))
    right = qsa_bench(*words, *mapped, "--library", str(built()))
    assert right.returncode == 0, right.stderr
    unstable = ("--library", str(built("TIES_TO_HIGHEST")), "--format", "json")
    wrong = qsa_bench(*words, *mapped, *unstable)
    assert wrong.returncode == 3
    found = {f["check"]: f for f in json.loads(wrong.stdout)["findings"]}
    assert found["ties"]["note"].startswith("row 0: 2 of the equal scores kept are not the lowest")
    assert found["selection"]["status"] == "pass"


def test_a_library_that_faults_is_a_crash_and_not_ours(qsa_bench: Qsa, tmp_path: Path) -> None:
    source = tmp_path / "faults.cpp"
    source.write_text('extern "C" void topk_mask(unsigned char* out) { *(out - (1 << 30)) = 1; }\n')
    library = tmp_path / "libfaults.so"
    subprocess.run(["g++", "-fPIC", "-shared", str(source), "-o", str(library)], check=True)
    code, document = _gate(qsa_bench, library, "topk_mask", "--case", "*/position/5")
    assert code == 3
    assert {v["status"] for v in document["verdicts"] if v["check"] == "no-crash"} == {"crashed"}


def test_a_write_past_the_mask_is_seen(qsa_bench: Qsa, tmp_path: Path) -> None:
    source = tmp_path / "writes.cpp"
    source.write_text(
        'extern "C" void topk_mask(unsigned char* out, const float*, const int* p, const int*,\n'
        "  int, int, int width, short*, int, float) {\n"
        "  for (int i = 0; i < width; ++i) out[i] = i <= p[0];\n"
        "  out[width] = 0;\n}\n"
    )
    library = tmp_path / "libwrites.so"
    subprocess.run(["g++", "-fPIC", "-shared", str(source), "-o", str(library)], check=True)
    code, document = _gate(qsa_bench, library, "topk_mask", "--case", "*/position/6")
    assert code == 3
    assert set(_failed(document)) <= {"fences", "no-crash"}
    assert _failed(document)


def test_an_entry_that_writes_nothing_would_fail_every_case(built: Build) -> None:
    own = foreign.read(built(), "topk_mask", HERE / "topk_mask.toml", STAGE)
    cases = foreign.stage_of(STAGE, own).cases(None)
    assert foreign.blind_cases(cases) == []
    lenient = [case for case in cases if case.family == "position"][:1]
    blind = [foreign.replace(case, judge=lambda *_: ()) for case in lenient]
    assert foreign.blind_cases(blind) == [lenient[0].id]


def test_the_entry_is_called_as_its_map_says(built: Build) -> None:
    own = foreign.read(built(), "topk_mask", HERE / "topk_mask.toml", STAGE)
    assert own.entry.void
    assert not own.has_stream
    case = next(case for case in STAGE.cases(None) if case.family == "ragged")
    assert STAGE.interface is not None
    called = own.call(case.build(), STAGE.interface)
    assert called is not None
    view, calls = called
    names = [argument.name for argument in own.entry.arguments]
    assert list(calls[0].values) == names
    assert calls[0].values["constant_9"] == 1.0
    scratch = next(buffer for buffer in view.buffers if buffer.name == "scratch_7")
    assert (scratch.bytes, scratch.role) == (64, Role.SCRATCH)
    assert {a.name: a.dtype for a in own.entry.arguments}["row_count"] == "i32"


def test_only_the_budgets_it_serves_are_asked_of_it(built: Build, tmp_path: Path) -> None:
    text = (HERE / "topk_mask.toml").read_text() + "\n[only]\nbudget = [2048]\n"
    path = tmp_path / "some.toml"
    path.write_text(text)
    own = foreign.read(built(), "topk_mask", path, STAGE)
    cases = foreign.stage_of(STAGE, own).cases(None)
    assert cases
    assert {case.build().buffer("mask").shape[0] for case in cases}
    budgets = {found[1] for case in cases if (found := re.search(r"budget(\d+)", case.label))}
    assert budgets == {"2048"}


MAP = (HERE / "topk_mask.toml").read_text()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('stage = "qsa_select"', 'stage = "qsa_pool"', "it maps the stage 'qsa_pool'"),
        ('output = "mask"', 'output = "bits"', "output is 'bits'; use mask or blocks or tokens"),
        ('output = "mask"', 'output = "blocks"', "no argument is named 'kept_blocks'"),
        ('ties = "exact"', "", "ties is missing; use exact or free"),
        ('returns = "nothing"', 'returns = "int"', "returns is 'int'; use status or nothing"),
        ('returns = "nothing"', "returnz = 1", "unknown key 'returnz'"),
        ('{ name = "rows" }', '{ name = "row" }', "argument 2: there is no argument 'row'"),
        ('{ name = "rows" }', '{ name = "scores" }', "the argument 'scores' stands twice"),
        ('{ name = "rows" }', '{ nam = "rows" }', "argument 2: unknown key 'nam'"),
        ('{ name = "rows" }', "{ }", "argument 2: give one of name, value and scratch_bytes"),
        ('{ name = "rows" }', '{ name = "rows", dtype = "i64" }', "rows is i32, which can't be"),
        ('dtype = "i32" },\n    { name = "score', 'dtype = "int" },\n    { name = "score', "'int'"),
        ("{ scratch_bytes = 64 }", "{ scratch_bytes = 0 }", "scratch_bytes is 0, no size"),
        ('{ value = 1.0, dtype = "f32" }', "{ value = 1.0 }", "a constant needs a number and a"),
        ("arguments = [", "arguments = 3 #", "it is no TOML"),
    ],
)
def test_a_map_that_makes_no_sense_is_refused_in_one_line(
    built: Build, tmp_path: Path, old: str, new: str, said: str
) -> None:
    assert MAP.count(old) == 1
    path = tmp_path / "map.toml"
    path.write_text(MAP.replace(old, new))
    with pytest.raises(UsageError) as caught:
        foreign.read(built(), "topk_mask", path, STAGE)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_library_map_or_symbol_is_refused(built: Build, tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    mapped = HERE / "topk_mask.toml"
    for library, entry, map_file, said in (
        (missing, "topk_mask", mapped, "there is no such library"),
        (built(), "topk_mask", missing, "No such file"),
        (built(), "topk_misk", mapped, "it has no symbol 'topk_misk'"),
    ):
        with pytest.raises(UsageError, match=said):
            foreign.read(library, entry, map_file, STAGE)


def test_a_library_without_a_stage_is_refused(built: Build) -> None:
    request = ForeignRequest(built(), "topk_mask", HERE / "topk_mask.toml")
    with pytest.raises(UsageError, match="say with --stage"):
        foreign.asked(request, (STAGE, load_stage("qsa_pool")))
    assert foreign.asked(None, ()) is None
