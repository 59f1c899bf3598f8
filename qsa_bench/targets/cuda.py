"""The CUDA toolchain: nvcc to an object, then to a shared library with a static CUDA runtime.

A mode names the architecture ("sm_90"); "plain" is the architecture of the device found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from qsa_bench.errors import EnvironmentMissingError

COMPILER = "nvcc"
ARCHITECTURES = (80, 86, 89, 90, 100, 120)
STRICT_FLAGS = ("-Werror", "all-warnings")
OPTIMISATIONS: Mapping[str, tuple[str, ...]] = {
    f"ptxas -O{level}": ("-Xptxas", f"-O{level}") for level in (1, 2)
}


@cache
def _device() -> tuple[str, int]:
    """Return the name and compute capability of the first device, asked of NVML."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception as error:
        raise EnvironmentMissingError(
            f"looking for a GPU: NVML answers {error}; use --target host, which needs none"
        ) from None
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
        name = pynvml.nvmlDeviceGetName(handle)
        return (name if isinstance(name, str) else name.decode()), major * 10 + minor
    finally:
        pynvml.nvmlShutdown()


def device_name() -> str:
    """Return the device's name; EnvironmentMissingError when there is none."""
    return _device()[0]


def architecture(mode: str) -> int:
    """Return the architecture a mode names, for example 90."""
    return _device()[1] if mode == "plain" else int(mode.removeprefix("sm_"))


def gencode(number: int) -> str:
    """Return the -gencode value; the families with instructions of their own get their "a"."""
    suffix = "a" if number >= 90 else ""
    return f"arch=compute_{number}{suffix},code=sm_{number}{suffix}"


def compile_command(
    source: Path,
    output: Path,
    include: Path,
    mode: str,
    defines: Mapping[str, int | str],
) -> list[str]:
    """Return the nvcc command for one kernel source."""
    return [
        COMPILER,
        "-std=c++17",
        "-O3",
        "-gencode",
        gencode(architecture(mode)),
        "-Xcompiler",
        "-fPIC,-Wall,-Wextra",
        f"-I{include}",
        *(f"-D{name}={value}" for name, value in sorted(defines.items())),
        "-c",
        str(source),
        "-o",
        str(output),
    ]


def code_command(
    source: Path, output: Path, include: Path, number: int, defines: Mapping[str, int | str]
) -> list[str]:
    """Return the command that makes one architecture's machine code alone, without host code."""
    named = [f"-D{name}={value}" for name, value in sorted(defines.items())]
    return [*_device_alone(include, number), *named, "-cubin", str(source), "-o", str(output)]


def quick_command(source: Path, output: Path, include: Path, number: int) -> list[str]:
    """Return the command that makes PTX as fast as it can be made, hardly optimised.

    Of select's 42 kernels it takes a sixteenth of the time that their machine code does (5 s, 88 s).
    """
    quick = ["--Ofast-compile=max", "-ptx"]
    return [*_device_alone(include, number), *quick, str(source), "-o", str(output)]


def _device_alone(include: Path, number: int) -> list[str]:
    return [COMPILER, "-std=c++17", "-O3", "-gencode", gencode(number), f"-I{include}"]


def runtime_sources(_kernels: Path) -> list[Path]:
    """Return no sources: the device needs no runtime of ours."""
    return []


def relocation_flags(_root: Path) -> list[str]:
    """Return no flags: nothing of the folder reaches the object."""
    return []


def link_command(objects: Sequence[Path], library: Path) -> list[str]:
    """Return the command that makes the shared library; the CUDA runtime is linked in."""
    return [COMPILER, "-shared", *(str(path) for path in objects), "-o", str(library)]
