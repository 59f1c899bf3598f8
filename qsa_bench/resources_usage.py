"""What the compiler gave each kernel: registers, spills, shared memory, and what occupancy follows.

From nvcc's own report and its PTX; no GPU is needed. Dynamic shared memory is chosen at a launch
and not in it.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from qsa_bench.environment import run_tool
from qsa_bench.errors import BuildError, EnvironmentMissingError
from qsa_bench.model import Kernel, Usage
from qsa_bench.targets import cuda

_COMPILE_LIMIT_S = 600.0
_MOST_THREADS = 1024
_WARP = 32


@dataclass(frozen=True)
class Multiprocessor:
    """What one multiprocessor of an architecture holds: warps, blocks, shared memory in bytes."""

    warps: int
    blocks: int
    shared: int


# From the toolkit's cuda_occupancy.h and the programming guide's table of compute capabilities.
_KIB = 1024
MULTIPROCESSORS: Mapping[int, Multiprocessor] = {
    80: Multiprocessor(64, 32, 164 * _KIB),
    86: Multiprocessor(48, 16, 100 * _KIB),
    89: Multiprocessor(48, 24, 100 * _KIB),
    90: Multiprocessor(64, 32, 228 * _KIB),
    100: Multiprocessor(64, 32, 228 * _KIB),
    120: Multiprocessor(48, 24, 100 * _KIB),
}
# Registers lie in four parts of 16,384, given out 256 a warp at a time; a block's shared memory is
# rounded up to 128 bytes, and the system keeps 1 KB of each block.
_PARTITIONS = 4
_PARTITION_REGISTERS = 16384
_REGISTER_UNIT = 256
_SHARED_UNIT = 128
_RESERVED_SHARED = 1024

_ENTRY = re.compile(r"Compiling entry function '([^']+)' for 'sm_(\d+)a?'")
_SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")
_PTX_ENTRY = re.compile(r"\.entry\s+([\w$]+)\s*\(.*?\)(.*?)\{", re.DOTALL)
_PTX_THREADS = re.compile(r"\.maxntid\s+(\d+)(?:\s*,\s*(\d+))?(?:\s*,\s*(\d+))?")


def resident_warps(architecture: int, registers: int, shared: int, threads: int) -> int:
    """Return how many warps of a kernel one multiprocessor can hold at this block size."""
    limits = MULTIPROCESSORS[architecture]
    warps = _up(threads, _WARP) // _WARP
    per_warp = max(_up(registers * _WARP, _REGISTER_UNIT), _REGISTER_UNIT)
    by_registers = _PARTITIONS * (_PARTITION_REGISTERS // per_warp) // _up(warps, _PARTITIONS)
    by_shared = limits.shared // (_up(shared, _SHARED_UNIT) + _RESERVED_SHARED)
    blocks = min(limits.blocks, limits.warps // warps, by_registers, by_shared)
    return blocks * warps


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def launch_bounds(ptx: str) -> dict[str, int]:
    """Return the most threads a block of each entry may have, of PTX that states it."""
    bounds: dict[str, int] = {}
    for match in _PTX_ENTRY.finditer(ptx):
        said = _PTX_THREADS.search(match[2])
        if said is not None:
            extents = [int(part) for part in said.groups() if part]
            product = 1
            for extent in extents:
                product *= extent
            bounds[match[1]] = product
    return bounds


def parse(kernel: str, report: str, ptx: str) -> list[Usage]:
    """Return the usage of every entry that nvcc's report tells of, by mangled name."""
    bounds = launch_bounds(ptx)
    made: list[Usage] = []
    name, architecture, spills = "", 0, (0, 0, 0)
    for line in report.splitlines():
        entry = _ENTRY.search(line)
        if entry:
            name, architecture, spills = entry[1], int(entry[2]), (0, 0, 0)
            continue
        spilt = _SPILLS.search(line)
        if spilt:
            spills = (int(spilt[1]), int(spilt[2]), int(spilt[3]))
        used = _USED.search(line)
        if used and name:
            smem = _SHARED.search(line)
            shared = int(smem[1]) if smem else 0
            threads = bounds.get(name, _MOST_THREADS)
            made.append(
                Usage(
                    kernel=kernel,
                    name=name,
                    architecture=architecture,
                    registers=int(used[1]),
                    spill_stores=spills[1],
                    spill_loads=spills[2],
                    stack=spills[0],
                    shared=shared,
                    threads=threads,
                    warps=resident_warps(architecture, int(used[1]), shared, threads),
                    most_warps=MULTIPROCESSORS[architecture].warps,
                )
            )
            name = ""
    return made


def readable(names: Sequence[str]) -> dict[str, str]:
    """Return kernel names as the source has them; as they are where c++filt is not there.

    Their namespaces and parameters say nothing that the template arguments do not.
    """
    answer = run_tool("c++filt", *names) if names else None
    lines = (answer or "").splitlines()
    if len(lines) != len(names):
        return {name: name for name in names}
    return {name: _short(line) for name, line in zip(names, lines, strict=True)}


def _short(name: str) -> str:
    name = name.replace("(anonymous namespace)::", "").removeprefix("void ")
    head = name.partition("(")[0] if "<" not in name else _before_parameters(name)
    plain = head.partition("<")[0].rpartition("::")[2]
    return plain + (f"<{head.partition('<')[2]}" if "<" in head else "")


def _before_parameters(name: str) -> str:
    depth = 0
    for place, character in enumerate(name):
        depth += (character == "<") - (character == ">")
        if character == "(" and depth == 0:
            return name[:place]
    return name


def measure(
    kernel: Kernel,
    root: Path,
    architectures: Iterable[int],
    defines: Mapping[str, int | str] | None = None,
) -> list[Usage]:
    """Compile a kernel for each architecture and return what its entries use.

    EnvironmentMissingError without nvcc; BuildError, with the compiler's first lines, where it
    does not compile.
    """
    made: list[Usage] = []
    for architecture in architectures:
        with tempfile.TemporaryDirectory(prefix="qsa-bench-usage-") as folder:
            scratch = Path(folder)
            command = cuda.compile_command(
                (root / kernel.source).resolve(),
                scratch / "out.o",
                (root / "kernels").resolve(),
                f"sm_{architecture}",
                dict(defines or {}),
            )
            report = _compile(
                [*command, "--resource-usage", "--keep", "--keep-dir", folder], kernel
            )
            ptx = "\n".join(path.read_text(errors="replace") for path in scratch.glob("*.ptx"))
        made += parse(kernel.name, report, ptx)
    names = readable(list(dict.fromkeys(usage.name for usage in made)))
    return [Usage(**{**vars(usage), "name": names[usage.name]}) for usage in made]


def _compile(command: Sequence[str], kernel: Kernel) -> str:
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=_COMPILE_LIMIT_S,
            stdin=subprocess.DEVNULL,
        )
    except FileNotFoundError:
        raise EnvironmentMissingError(
            f"asking what {kernel.name} uses: {command[0]} is not on the PATH"
        ) from None
    report = done.stderr + done.stdout
    if done.returncode != 0:
        head = "\n".join(report.strip().splitlines()[:40])
        raise BuildError(f"building {kernel.name}: it does not compile:\n{head}")
    return report
