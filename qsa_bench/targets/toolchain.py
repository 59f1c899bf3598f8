"""What a target's toolchain answers: its compiler and its commands, run by the builder."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, cast


class Toolchain(Protocol):
    """A target module (targets/host.py, targets/cuda.py): commands as lists of words."""

    COMPILER: str
    STRICT_FLAGS: Sequence[str]
    ARCHITECTURES: Sequence[int]
    # Flags, by a name, that change the machine code and, for a right kernel, no contract.
    OPTIMISATIONS: Mapping[str, Sequence[str]]

    def device_name(self) -> str:
        """Return what the kernels run on, in words."""
        ...

    def compile_command(
        self,
        source: Path,
        output: Path,
        include: Path,
        mode: str,
        defines: Mapping[str, int | str],
    ) -> list[str]:
        """Return the command that compiles a kernel source to an object."""
        ...

    def runtime_sources(self, kernels: Path) -> list[Path]:
        """Return the runtime's sources; none on a real device."""
        ...

    def relocation_flags(self, root: Path) -> list[str]:
        """Return flags that keep the tree's folder out of the object; no part of its digest."""
        ...

    def link_command(self, objects: Sequence[Path], library: Path) -> list[str]:
        """Return the command that links objects into a shared library."""
        ...


def toolchain(target: str) -> Toolchain:
    """Return the toolchain of a target."""
    return cast(Toolchain, importlib.import_module(f"qsa_bench.targets.{target}"))


def device_name(target: str) -> str:
    """Return what a target's kernels run on, in words."""
    return toolchain(target).device_name()
