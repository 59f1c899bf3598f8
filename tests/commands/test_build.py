"""build on trees of the specimen: through `run`, and once through the real command line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from qsa_bench import builder, resources, results
from qsa_bench.commands import build
from qsa_bench.errors import UsageError
from qsa_bench.requests import BuildRequest, NullProgress
from qsa_bench.store import StoredRun
from tests.specimen.fixtures import (  # noqa: F401 - fixtures of this module
    specimen_master,
    specimen_planted,
    specimen_session_folder,
    specimen_tree,
)
from tests.specimen.trees import STAGE, Tree

RANK = "kernels/specimen/rank.cu"
HEADER = "kernels/specimen/element.cuh"
BOTH_MODES = {("rank", "plain"), ("rank", "checked")}


def run(mode: str | None = None, *, strict: bool = False) -> StoredRun:
    """Build the specimen of the planted tree in this process."""
    request = BuildRequest((STAGE,), mode=mode, warnings_as_errors=strict, jobs=2)
    return build.run(request, NullProgress())


def fresh(stored: StoredRun) -> set[tuple[str, str]]:
    """Return kernel and mode of what was not in the cache."""
    return {(made.kernel, made.mode) for made in stored.builds if not made.cached}


def test_only_what_changed_is_built_again_and_a_shared_header_changes_all(planted: Tree) -> None:
    stored = run()
    assert stored.run.exit_code == 0
    assert len(stored.builds) == 4
    assert fresh(stored) == set()
    planted.edit(RANK, "? 1 : 0", "? 1 : 0 * 7")
    again = run()
    assert fresh(again) == BOTH_MODES
    # To the millisecond, as a run's time is kept.
    longest = max(made.seconds for made in again.builds)
    assert again.run.seconds >= round(longest, 3) > 0
    planted.edit(HEADER, "Into (-1, 1)", "Into (-1, 1), as it were")
    assert fresh(run("plain")) == {("rank", "plain"), ("smooth", "plain")}


def test_a_kernel_that_does_not_compile_exits_5_with_its_first_error(tree: Tree) -> None:
    tree.edit(RANK, "int32_t below = 0;", "int32_t below = none_such;")
    done = tree.run("build", "--stage", STAGE, "--mode", "plain")
    assert done.returncode == 5
    assert "none_such" in done.stdout


def test_a_failed_build_is_counted_as_not_done_and_keeps_its_log(planted: Tree) -> None:
    planted.edit(RANK, "int32_t below = 0;", "int32_t below = none_such;")
    stored = run("plain")
    assert (stored.run.exit_code, stored.run.asked, stored.run.done) == (5, 2, 1)
    (log,) = [made.log for made in stored.builds if not made.ok]
    assert "none_such" in log


def test_a_warning_passes_unless_it_is_made_an_error(planted: Tree) -> None:
    planted.edit(RANK, "int32_t below = 0;", "int32_t below = 0;\n  int32_t idle = 0;")
    assert run("plain").run.exit_code == 0
    assert run("plain", strict=True).run.exit_code == 5


NVCC = """#!/bin/sh
[ "$1" = --version ] && { echo "nvcc: release 0.0, made up"; exit 0; }
case "$*" in
  *cub_topk*) echo 'a.cu:14:2: error: #error "this toolkit has no such header"' >&2; exit 1;;
  *BROKEN*) exit 1;;
esac
while [ "$1" != -o ]; do shift; done
printf '\\177ELF made' > "$2"
"""


def bench(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    source: str = NVCC,
    request: BuildRequest | None = None,
) -> StoredRun:
    """Build, what belongs to no stage if nothing is asked, with a compiler that is none."""
    fake = tmp_path / "bin" / "nvcc"
    fake.parent.mkdir()
    fake.write_text(source)
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", os.pathsep.join([str(fake.parent), os.environ["PATH"]]))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    builder.compiler_version.cache_clear()
    asked = request or BuildRequest(target="cuda", bench=True, architectures=(90,), jobs=2)
    try:
        return build.run(asked, NullProgress())
    finally:
        builder.compiler_version.cache_clear()


def test_bench_builds_what_belongs_to_no_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = bench(tmp_path, monkeypatch)
    folders = [resources.tree_root() / "kernels" / name for name in ("bench", "peers")]
    there = {path.stem for folder in folders for path in folder.glob("*.cu")}
    assert {made.kernel for made in stored.builds} == there - {"cub_topk"}
    assert all(made.ok for made in stored.builds)
    assert (stored.run.exit_code, stored.run.asked) == (0, len(there) - 1)
    # What a toolkit lacks is said, and is no failure of the kernel.
    assert stored.run.notes["unavailable"] == {"cub_topk": "this toolkit has no such header"}
    assert "this toolkit has no such header" in results.markdown(stored)


def test_a_kernel_of_no_stage_that_does_not_compile_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = bench(tmp_path, monkeypatch, NVCC.replace("BROKEN", "faults"))
    assert stored.run.exit_code == 5
    assert [made.kernel for made in stored.builds if not made.ok] == ["faults"]


@pytest.mark.parametrize("few", [False, True])
def test_few_shapes_are_asked_of_a_kernel_that_has_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few: bool
) -> None:
    words = ("qsa_select", "qsa_pool")
    request = BuildRequest(words, target="cuda", architectures=(90,), few_shapes=few, jobs=2)
    stored = bench(tmp_path, monkeypatch, request=request)
    defined = {made.kernel: "-DQSA_SELECT_FEW_SHAPES=1" in made.flags for made in stored.builds}
    assert defined == {"qsa_select": few, "qsa_pool": False}


def test_few_shapes_are_the_gpus() -> None:
    with pytest.raises(UsageError, match="--few-shapes goes with --target cuda"):
        BuildRequest(few_shapes=True)
