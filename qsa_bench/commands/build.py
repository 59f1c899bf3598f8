"""build: compile the production kernels of stages for a target and say what came of it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from qsa_bench import limits, peers, resources, resources_usage, sanitizer
from qsa_bench.builder import Builder
from qsa_bench.exit_codes import ExitCode
from qsa_bench.model import Build, Kernel, Usage
from qsa_bench.parity import modes_of
from qsa_bench.requests import BuildRequest, Progress
from qsa_bench.stages import select_stages
from qsa_bench.store import RunWriter, StoredRun
from qsa_bench.targets import cuda
from qsa_bench.targets.toolchain import device_name


def run(request: BuildRequest, progress: Progress) -> StoredRun:
    """Build every kernel of the stages; a failed build is exit 5, with its log in the record.

    A kernel that several stages use is built once.
    """
    kernels = {
        kernel.name: kernel for kernel in _kernels(request) if request.target in kernel.targets
    }
    wanted = [(kernel, mode) for kernel in kernels.values() for mode in _modes(request)]
    # As a context, and begun first: it writes down how long the run took and how it ended.
    with RunWriter.create(
        request.results if request.resources else None,
        "build",
        request.argv,
        request.target,
        _device(request),
        len(wanted),
    ) as writer:
        builds = _build(request, wanted, progress)
        missing = {build.kernel: said for build in builds if (said := _lacking(build))}
        builds = [build for build in builds if build.kernel not in missing]
        failed = [build for build in builds if not build.ok]
        writer.add_builds(builds)
        if request.resources and not failed:
            writer.add_usages(_usages(request, list(kernels.values())))
        code = ExitCode.BASELINE_FAILED if failed else ExitCode.OK
        notes = {"unavailable": missing} if missing else {}
        return writer.finish(len(builds), len(builds) - len(failed), code, notes)


def _build(
    request: BuildRequest, wanted: list[tuple[Kernel, str]], progress: Progress
) -> list[Build]:
    builder = Builder(resources.cache_root())
    progress.start(f"building for {request.target}", len(wanted))

    def one(item: tuple[Kernel, str]) -> Build:
        kernel, mode = item
        made = builder.build(
            kernel,
            request.target,
            root=resources.tree_root(),
            mode=mode,
            defines=kernel.short.get(request.target) if request.few_shapes else None,
            strict=request.warnings_as_errors,
        )
        progress.advance(kernel.name)
        return made

    with ThreadPoolExecutor(request.jobs) as pool:
        builds = list(pool.map(one, wanted))
    progress.finish()
    return builds


def _kernels(request: BuildRequest) -> Iterable[Kernel]:
    if request.bench:
        return (limits.KERNEL, sanitizer.FAULTS, *peers.KERNELS.values())
    return (kernel for stage in select_stages(request.stages) for kernel in stage.kernels)


def _lacking(build: Build) -> str:
    """Return what a toolkit lacks that a kernel needs, as the kernel's own #error says; or ""."""
    found = None if build.ok else re.search(r'#error "(this toolkit.*)"', build.log)
    return found[1] if found else ""


def _device(request: BuildRequest) -> str:
    """Return what is built for; an architecture that is named needs no device."""
    if request.target == "host" or _modes(request) == ("plain",):
        return device_name(request.target)
    return ", ".join(_modes(request))


def _usages(request: BuildRequest, kernels: list[Kernel]) -> list[Usage]:
    architectures = [cuda.architecture(mode) for mode in _modes(request)]
    asked = [(kernel, number) for kernel in kernels for number in architectures]
    root = resources.tree_root()
    with ThreadPoolExecutor(request.jobs) as pool:
        parts = pool.map(lambda each: resources_usage.measure(each[0], root, (each[1],)), asked)
        return [usage for part in parts for usage in part]


def _modes(request: BuildRequest) -> tuple[str, ...]:
    """Host modes; on cuda a mode names the architecture, "" the device's own."""
    if request.target == "host":
        return (request.mode,) if request.mode else modes_of("host")
    if request.all_architectures:
        return tuple(f"sm_{number}" for number in cuda.ARCHITECTURES)
    return tuple(f"sm_{number}" for number in request.architectures) or ("plain",)
