"""What is built is known by every byte that went into it."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from qsa_bench import builder as builder_module
from qsa_bench.builder import Builder, Sources
from qsa_bench.errors import EnvironmentMissingError
from qsa_bench.exit_codes import ExitCode
from qsa_bench.model import Build, Kernel
from qsa_bench.stages.base import Stage
from qsa_bench.targets import host
from tests.specimen.fixtures import (  # noqa: F401 - fixtures of this module
    specimen_builder,
    specimen_master,
    specimen_session_folder,
    specimen_stage,
    specimen_tree,
)
from tests.specimen.trees import PROBE, Tree

RANK, SMOOTH = "kernels/specimen/rank.cu", "kernels/specimen/smooth.cu"
HEADER = "kernels/specimen/element.cuh"


@pytest.fixture(name="rank")
def rank_kernel(stage: Stage) -> Kernel:
    return stage.kernels[1]


@pytest.fixture(name="smooth")
def smooth_kernel(stage: Stage) -> Kernel:
    return stage.kernels[0]


class Compilers:
    """Counts what is executed and answers in the compiler's stead where told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.commands: list[Sequence[str]] = []
        self.answers: list[subprocess.CompletedProcess[str]] = []
        self._execute = builder_module.execute
        monkeypatch.setattr(builder_module, "execute", self.execute)

    def execute(self, command: Sequence[str], cwd: Path) -> subprocess.CompletedProcess[str]:
        self.commands.append(command)
        return self.answers.pop(0) if self.answers else self._execute(command, cwd)


@pytest.fixture(name="compilers")
def counting_compilers(monkeypatch: pytest.MonkeyPatch) -> Compilers:
    return Compilers(monkeypatch)


def test_the_same_source_elsewhere_is_not_built_again(
    builder: Builder, master: Tree, tree: Tree, rank: Kernel, compilers: Compilers
) -> None:
    first = builder.build(rank, "host", root=master.root)
    again = builder.build(rank, "host", root=tree.root)
    assert compilers.commands == []
    assert again.cached
    assert (again.library, again.digest, again.code_digest) == (
        first.library,
        first.digest,
        first.code_digest,
    )


def test_the_same_source_compiled_elsewhere_gives_the_same_code(
    builder: Builder, master: Tree, tree: Tree, rank: Kernel, tmp_path: Path
) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache/objects").symlink_to(_runtime_alone(master, tmp_path))
    elsewhere = Builder(tmp_path / "cache").build(rank, "host", root=tree.root)
    assert not elsewhere.cached
    assert elsewhere.code_digest == builder.build(rank, "host", root=master.root).code_digest


def _runtime_alone(master: Tree, tmp_path: Path) -> Path:
    """Copy the objects of the runtime, the largest by far in number, into a cache of its own."""
    sources = Sources(master.root)
    names = {path.stem for path in host.runtime_sources(sources.include)}
    assert names
    target = tmp_path / "objects"
    target.mkdir()
    for path in (master.builds / "objects").glob("*.o"):
        if b"specimen_" not in path.read_bytes():
            (target / path.name).hardlink_to(path)
    return target


def test_a_changed_source_is_another_build(
    builder: Builder, master: Tree, tree: Tree, rank: Kernel
) -> None:
    first = builder.build(rank, "host", root=master.root)
    tree.edit(RANK, "? 1 : 0", "? 2 : 0")
    second = builder.build(rank, "host", root=tree.root)
    assert second.ok
    assert second.digest != first.digest
    assert second.code_digest != first.code_digest


def test_a_changed_comment_is_another_build_of_the_same_code(
    builder: Builder, master: Tree, tree: Tree, rank: Kernel
) -> None:
    first = builder.build(rank, "host", root=master.root)
    tree.edit(RANK, "how many levels lie below each", "how many levels there are below each")
    second = builder.build(rank, "host", root=tree.root)
    assert second.digest != first.digest
    assert second.code_digest == first.code_digest


def test_a_changed_shared_header_rebuilds_every_kernel_that_includes_it_and_nothing_else(
    builder: Builder, tree: Tree, rank: Kernel, smooth: Kernel, compilers: Compilers
) -> None:
    builder.build(PROBE, "host", root=tree.root)
    compilers.commands.clear()
    tree.edit(HEADER, "kMostElements = 64", "kMostElements = 128")
    for kernel in (smooth, rank, PROBE):
        builder.build(kernel, "host", root=tree.root)
    compiled = [c[c.index("-c") + 1] for c in compilers.commands if "-c" in c]
    assert compiled == [SMOOTH, RANK]


def test_headers_of_headers_count_and_those_of_the_compiler_do_not(tmp_path: Path) -> None:
    kernels = tmp_path / "kernels"
    (kernels / "sub").mkdir(parents=True)
    (kernels / "sub/k.cu").write_text('#include "near.cuh"\n  #  include "sub/far.cuh"\n')
    (kernels / "sub/near.cuh").write_text('#include <vector>\n#include "../up.cuh"\n')
    (kernels / "sub/far.cuh").write_text('#include "sub/k.cu"\n#include "not_ours.h"\n')
    (kernels / "up.cuh").write_text("// #include in words\n")
    (kernels / "unused.cuh").write_text("")
    sources = Sources(tmp_path)
    names = [str(p.relative_to(kernels)) for p in sources.closure(kernels / "sub/k.cu")]
    assert names == ["sub/far.cuh", "sub/k.cu", "sub/near.cuh", "up.cuh"]


def test_a_header_that_appears_in_front_of_another_is_another_build(
    builder: Builder, master: Tree, tree: Tree, rank: Kernel
) -> None:
    # kernels/specimen/specimen/element.cuh is found before kernels/specimen/element.cuh.
    tree.write("kernels/specimen/specimen/element.cuh", tree.read(HEADER) + "// another\n")
    first = builder.build(rank, "host", root=master.root)
    assert builder.build(rank, "host", root=tree.root).digest != first.digest


def test_a_mode_and_a_define_are_other_builds(builder: Builder, master: Tree, rank: Kernel) -> None:
    builds = [
        builder.build(rank, "host", root=master.root),
        builder.build(rank, "host", root=master.root, mode="checked"),
        builder.build(rank, "host", root=master.root, defines={"AXIS": 1}),
        builder.build(rank, "host", root=master.root, defines={"AXIS": 2}),
    ]
    assert len({build.digest for build in builds}) == 4
    assert "-DAXIS=2" in builds[3].flags


def test_both_modes_link_one_object(
    builder: Builder, tree: Tree, rank: Kernel, compilers: Compilers
) -> None:
    tree.edit(RANK, "? 1 : 0", "? 400 : 0")
    plain = builder.build(rank, "host", root=tree.root)
    checked = builder.build(rank, "host", root=tree.root, mode="checked")
    assert len([command for command in compilers.commands if RANK in command]) == 1
    assert plain.code_digest == checked.code_digest
    assert plain.library != checked.library


def test_lines_that_only_move_are_the_same_code(
    builder: Builder, master: Tree, tree: Tree, rank: Kernel
) -> None:
    first = builder.build(rank, "host", root=master.root)
    # What follows keeps its line: launches and collectives know theirs.
    tree.edit(RANK, "int32_t below = 0;\n  for (", "int32_t below\n      = 0;  for (")
    moved = builder.build(rank, "host", root=tree.root)
    assert first.library is not None
    assert moved.library is not None
    assert Path(first.library).read_bytes() != Path(moved.library).read_bytes()
    assert moved.code_digest == first.code_digest


def test_a_source_that_does_not_compile_is_a_build_with_its_log(
    builder: Builder, tree: Tree, rank: Kernel
) -> None:
    tree.edit(RANK, "int32_t below = 0;", "int32_t below = none_such;")
    build = builder.build(rank, "host", root=tree.root, mutant="specimen/m")
    assert not build.ok
    assert build.library is None
    assert "none_such" in build.log
    assert RANK in build.log
    assert build.mutant == "specimen/m"


@pytest.mark.parametrize("code", [-2, 1, 124])
def test_a_compiler_that_was_stopped_once_is_asked_again(
    builder: Builder, tree: Tree, rank: Kernel, compilers: Compilers, code: int
) -> None:
    tree.edit(RANK, "? 1 : 0", f"? {abs(code) + 2} : 0")
    compilers.answers.append(subprocess.CompletedProcess([], code, "", "out of memory"))
    assert not builder.build(rank, "host", root=tree.root).ok
    assert builder.build(rank, "host", root=tree.root).ok


def test_a_compiler_that_succeeds_without_an_object_is_a_failure(
    builder: Builder, tree: Tree, rank: Kernel, compilers: Compilers
) -> None:
    tree.edit(RANK, "? 1 : 0", "? 200 : 0")
    compilers.answers.append(subprocess.CompletedProcess([], 0, "", ""))
    assert not builder.build(rank, "host", root=tree.root).ok


def test_a_link_that_fails_is_a_build_with_its_log(
    builder: Builder, master: Tree, rank: Kernel, compilers: Compilers, tmp_path: Path
) -> None:
    (tmp_path / "objects").symlink_to(master.builds / "objects")
    fresh = Builder(tmp_path)
    compilers.answers.append(subprocess.CompletedProcess([], 1, "", "ld: no room"))
    build = fresh.build(rank, "host", root=master.root)
    assert not build.ok
    assert "ld: no room" in build.log
    assert fresh.build(rank, "host", root=master.root).ok


def test_a_warning_is_kept_in_the_log_and_fails_a_strict_build(
    tmp_path: Path, tree: Tree, rank: Kernel
) -> None:
    tree.edit(RANK, "int32_t below = 0;", "int32_t below = 0;\n  int32_t idle = 0;")
    builder = Builder(tmp_path / "fresh")
    build = builder.build(rank, "host", root=tree.root)
    assert build.ok
    assert "-Wunused-variable" in build.log
    strict = builder.build(rank, "host", root=tree.root, strict=True)
    assert not strict.ok
    assert "-Werror" in strict.flags


def test_a_compiler_that_is_not_there_is_the_environments_fault(
    builder: Builder, master: Tree, rank: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "COMPILER", "g++-that-nobody-has")
    with pytest.raises(EnvironmentMissingError, match="g\\+\\+-that-nobody-has is not on") as it:
        builder.build(rank, "host", root=master.root)
    assert it.value.exit_code is ExitCode.ENVIRONMENT_MISSING


def test_a_runtime_that_does_not_build_is_no_fault_of_the_kernel(
    builder: Builder, tree: Tree, rank: Kernel
) -> None:
    source = str(host.runtime_sources(tree.root / "kernels")[0].relative_to(tree.root))
    tree.write(source, tree.read(source) + "#error not today\n")
    with pytest.raises(EnvironmentMissingError, match=r"(?s)host runtime \(plain\).*not today"):
        builder.build(rank, "host", root=tree.root)


def test_a_kernel_and_its_runtime_compile_side_by_side(
    builder: Builder, tree: Tree, rank: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Neither was ever compiled before.
    tree.edit(RANK, "? 1 : 0", "? 21 : 0")
    source = str(host.runtime_sources(tree.root / "kernels")[0].relative_to(tree.root))
    tree.write(source, tree.read(source) + "// another runtime\n")
    both = threading.Barrier(2)
    execute = builder_module.execute

    def together(command: Sequence[str], cwd: Path) -> subprocess.CompletedProcess[str]:
        if "-c" in command:
            both.wait(20)  # one that waits for the other to end would wait for good
        return execute(command, cwd)

    monkeypatch.setattr(builder_module, "execute", together)
    assert builder.build(rank, "host", root=tree.root).ok


def test_builds_at_the_same_time_compile_once(
    builder: Builder, tree: Tree, rank: Kernel, compilers: Compilers
) -> None:
    tree.edit(RANK, "? 1 : 0", "? 300 : 0")

    def build(_: int) -> Build:
        return builder.build(rank, "host", root=tree.root)

    with ThreadPoolExecutor(3) as pool:
        builds = list(pool.map(build, range(3)))
    assert len({build.library for build in builds}) == 1
    assert len(compilers.commands) == 2  # one to compile, one to link


def test_nothing_half_made_is_left_in_the_cache(
    builder: Builder, tree: Tree, rank: Kernel, compilers: Compilers, tmp_path: Path
) -> None:
    fresh = Builder(tmp_path / "cache")
    # The kernel's and the runtime's compiler.
    compilers.answers += 2 * [subprocess.CompletedProcess([], 1, "", "error")]
    fresh.build(rank, "host", root=tree.root)
    assert [path for path in (tmp_path / "cache").rglob("*") if path.is_file()] == []
    assert list((tmp_path / "cache/objects").iterdir()) == []
