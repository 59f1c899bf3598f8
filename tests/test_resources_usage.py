"""What the compiler says of kernels: its report, the launch bounds, and the occupancy of both."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from qsa_bench import resources, resources_usage, store
from qsa_bench.errors import EnvironmentMissingError
from qsa_bench.model import Usage
from qsa_bench.resources_usage import launch_bounds, parse, readable, resident_warps
from qsa_bench.stages import load_stage
from tests.conftest import Qsa

REPORT = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z5firstPf' for 'sm_90a'
ptxas info    : Function properties for _Z5firstPf
    24 bytes stack frame, 20 bytes spill stores, 28 bytes spill loads
ptxas info    : Used 64 registers, used 1 barriers, 24 bytes cumulative stack size, 9616 bytes smem
ptxas info    : Compile time = 50.119 ms
ptxas info    : Compiling entry function '_Z6secondPf' for 'sm_90a'
ptxas info    : Function properties for _Z6secondPf
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 4 registers, used 0 barriers
"""
PTX = """
.visible .entry _Z5firstPf(
\t.param .u64 _Z5firstPf_param_0
)
.maxntid 1024, 1, 1
.minnctapersm 1
{
\tret;
}
.visible .entry _Z6secondPf(
\t.param .u64 _Z6secondPf_param_0
)
{
\tret;
}
"""


def test_a_report_is_read_entry_by_entry() -> None:
    first, second = parse("made", REPORT, PTX)
    assert first == Usage("made", "_Z5firstPf", 90, 64, 20, 28, 24, 9616, 1024, 32, 64)
    assert (second.registers, second.spill_stores, second.shared) == (4, 0, 0)
    assert (first.occupancy, second.occupancy) == (0.5, 1.0)


def test_spills_of_one_entry_are_not_anothers() -> None:
    silent = "".join(
        line for line in REPORT.splitlines(keepends=True) if " 0 bytes stack" not in line
    )
    assert [usage.spill_stores for usage in parse("made", silent, PTX)] == [20, 0]


def test_a_kernel_without_a_launch_bound_may_have_1024_threads() -> None:
    assert launch_bounds(PTX) == {"_Z5firstPf": 1024}
    assert parse("made", REPORT, PTX)[1].threads == 1024


@pytest.mark.parametrize(
    ("architecture", "registers", "shared", "threads", "warps"),
    [
        # Figures of NVIDIA's occupancy calculator, which cuda_occupancy.h holds.
        (90, 32, 0, 1024, 64),
        (90, 33, 0, 1024, 32),
        (90, 52, 9616, 256, 32),
        (90, 40, 9616, 512, 48),
        (90, 16, 0, 32, 32),
        (90, 32, 100 * 1024, 128, 8),
        (90, 32, 227 * 1024, 1024, 32),
        (80, 32, 0, 256, 64),
        (86, 32, 0, 1024, 32),
        (86, 16, 0, 32, 16),
        (89, 40, 0, 256, 48),
        (89, 42, 0, 256, 40),
        (120, 255, 0, 256, 8),
    ],
)
def test_occupancy_follows_from_the_scarcest_of_warps_blocks_registers_and_shared_memory(
    architecture: int, registers: int, shared: int, threads: int, warps: int
) -> None:
    assert resident_warps(architecture, registers, shared, threads) == warps


def test_names_are_those_of_the_source() -> None:
    mangled = "_ZN3qsa47_GLOBAL__N__c7d04edd_14_calibration_cu_7550de3611copy_kernelEPK5uint4PS1_l"
    template = "_ZN3qsa12_GLOBAL__N_16selectILi256ELi1EEEvPf"
    assert readable([mangled, template]) == {
        mangled: "copy_kernel",
        template: "select<256, 1>",
    }


def test_names_stay_mangled_without_a_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources_usage, "run_tool", lambda *_: None)
    assert readable(["_Z1f"]) == {"_Z1f": "_Z1f"}


def test_nvcc_tells_of_every_kernel_of_select() -> None:
    kernel = load_stage("qsa_select").kernels[0]
    if shutil.which("nvcc") is None:
        with pytest.raises(EnvironmentMissingError, match="nvcc is not on the PATH"):
            resources_usage.measure(kernel, resources.tree_root(), (90,))
        return
    found = resources_usage.measure(
        kernel, resources.tree_root(), (90,), {"QSA_SELECT_THREADS": 256}
    )
    by_name = {usage.name.partition("<")[0]: usage for usage in found}
    searching = {"select_mask_kernel", "select_ids_kernel"}
    assert set(by_name) == searching | {"short_mask_kernel", "short_ids_kernel"}
    assert {by_name[name].threads for name in searching} == {256}
    assert all(by_name[name].shared > 1000 for name in searching)
    assert all(usage.registers > 8 for usage in found)


def test_a_build_keeps_what_its_kernels_use_and_needs_no_gpu(
    qsa_bench: Qsa, tmp_path: Path
) -> None:
    words = ("build", "--stage", "qsa_pool", "--target", "cuda", "--arch", "90", "--resources")
    done = qsa_bench(*words)
    if shutil.which("nvcc") is None:
        assert done.returncode == 7
        return
    assert done.returncode == 0, done.stderr
    assert "resources, sm_90" in done.stdout
    run = store.read_run(store.run_folders(tmp_path / "results")[-1])
    assert (run.run.command, run.run.device) == ("build", "sm_90")
    assert {usage.architecture for usage in run.usages} == {90}
    assert all(usage.registers > 8 for usage in run.usages)


def test_resources_are_the_gpu_compilers(qsa_bench: Qsa) -> None:
    done = qsa_bench("build", "--resources")
    assert done.returncode == 2
    assert "--resources goes with --target cuda" in done.stderr
