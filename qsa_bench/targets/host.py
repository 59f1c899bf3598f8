"""How a kernel is compiled and linked for the CPU: flags and sources only; the builder runs them.

A kernel is compiled once, instrumented, and linked to one of two runtimes, its mode. ``plain`` runs it as it is;
collectives, traps, fuel and launch limits are checked. ``checked`` also sees every memory access: the compiler's
thread-sanitizer instrumentation calls the runtime's own checker (``kernels/host/checker.cpp``), and no sanitizer
library is linked. The same calls do nothing in plain mode.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

COMPILER = "g++"
STRICT_FLAGS = ("-Werror",)
#: For runs that compare bytes and nothing else: no access is seen, no endless loop but by the clock.
BARE = ("-O1", "-fno-sanitize=all", "-fno-sanitize-coverage=trace-pc")

#: Other ways to compile a right kernel; the build that is gated has -Og.
OPTIMISATIONS: Mapping[str, tuple[str, ...]] = {"-O1": ("-O1",), "-O2": ("-O2",), "-O3": ("-O3",)}
#: The processor's own flags stand below; there is no list of architectures to choose from.
ARCHITECTURES: tuple[int, ...] = ()

#: Any x86-64 processor since 2013. Without it every __fmaf_rn would be a call into the C library.
_MACHINE = ("-march=x86-64-v3",)

#: Bits are those of the source: nothing is fused or reassociated, and bytes may be seen through any type.
_LANGUAGE = (
    "-std=c++17",
    # A mutant is compiled twice and run for a second: -Og compiles in half of -O2's time and runs
    # as fast, since most of a run is switching fibers.
    "-Og",
    "-fPIC",
    "-Wall",
    "-Wextra",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
)

#: The runtime is compiled once and runs under every kernel.
_RUNTIME = ("-O2", "-DQSA_HOST_RUNTIME", "-fvisibility=hidden")

#: One library a kernel, several in a process: nothing in one may be bound to another's definition.
_LIBRARY = ("-ftls-model=initial-exec", "-fno-semantic-interposition", "-fno-gnu-unique")


#: What both modes have in common, so that a mutant is compiled once and linked twice.
_KERNEL = (
    # A pass that takes a thirtieth of the compilation and speeds up nothing here.
    "-fno-forward-propagate",
    # Basic blocks are counted (fuel), so that a loop without a call ends too.
    "-fsanitize-coverage=trace-pc",
    # Every access calls a hook, which in plain mode does nothing.
    "-fsanitize=thread",
    "--param=tsan-instrument-func-entry-exit=0",
    # A local that nothing assigned holds a pattern instead of what the stack held: no hook sees it, but
    # what it does wrong, it does in every run.
    "-ftrivial-auto-var-init=pattern",
    # A thread's own arrays, which no access hook sees: their indices are held instead.
    "-fsanitize=bounds-strict",
    # And how far a word is shifted: past its width this processor and a GPU do not agree.
    "-fsanitize=shift-exponent",
    # Nothing is thrown or unwound, and the tables would cost a tenth of the compilation.
    "-fno-exceptions",
    "-fno-asynchronous-unwind-tables",
    # The lines of findings.
    "-g1",
)

#: The modes differ in the runtime that is linked to a kernel's object.
MODES: Mapping[str, tuple[str, ...]] = {
    "plain": (*_RUNTIME, "-DQSA_HOST_CHECKED=0"),
    "checked": (*_RUNTIME, "-DQSA_HOST_CHECKED=1"),
}


def device_name() -> str:
    """What the kernels run on."""
    return "CPU (functional emulation)"


def _mode(name: str) -> tuple[str, ...]:
    if name not in MODES:
        raise ValueError(f"host mode {name!r}: expected one of {', '.join(MODES)}")
    return MODES[name]


def runtime_sources(kernels_root: Path) -> list[Path]:
    """The runtime's sources below ``kernels_root``: one file, which includes the others. Compiled once a mode."""
    return [kernels_root / "host" / "runtime.cpp"]


def compile_command(
    source: Path,
    object: Path,  # noqa: A002
    include: Path,
    mode: str,
    defines: Mapping[str, str | int],
) -> list[str]:
    """The command that compiles one source to one object.

    ``include`` is the kernels' root. A source directly in its ``host`` folder belongs to the runtime and is not
    instrumented. File names inside the object are relative to ``include``, so equal sources give equal objects
    wherever they lie. Raises ValueError for an unknown mode.
    """
    of_runtime = _mode(mode)
    runtime = source.parent == include / "host"
    return [
        COMPILER,
        *_LANGUAGE,
        *_MACHINE,
        *_LIBRARY,
        *(of_runtime if runtime else _KERNEL),
        *(f"-D{name}={value}" for name, value in defines.items()),
        f"-ffile-prefix-map={include}/=",
        f"-I{include}",
        "-x",
        "c++",
        "-c",
        str(source),
        "-o",
        str(object),
    ]


def preprocess_command(source: Path, include: Path, mode: str) -> list[str]:
    """The command that prints a source as the compiler proper sees it, with the lines it comes from."""
    command = compile_command(source, Path("-"), include, mode, {})
    return [*command[: command.index("-c")], "-E", str(source)]


def optimised_command(source: Path, object: Path, include: Path) -> list[str]:  # noqa: A002
    """The command that compiles a source as a compiler makes the most of it, uninstrumented.

    Two sources with the same object do the same, whatever the instrumented builds look like.
    """
    language = [flag for flag in _LANGUAGE if flag != "-Og"]
    flags = [*language, "-O2", *_MACHINE, f"-I{include}"]
    return [COMPILER, *flags, "-x", "c++", "-c", str(source), "-o", str(object)]


def relocation_flags(root: Path) -> list[str]:
    """Flags that keep the folder of the tree out of the object's line tables."""
    return [f"-fdebug-prefix-map={root}=."]


@cache
def _linker() -> tuple[str, ...]:
    """Flags that make linking cheap: a mutant is linked twice.

    No plugin of the linker is loaded, for nothing is optimised there; gold, where binutils bring
    it, links in 0.04 s what bfd does in 0.11.
    """
    gold = ("-fuse-ld=gold",) if shutil.which("ld.gold") else ()
    return ("-fno-use-linker-plugin", *gold)


def link_command(objects: Sequence[Path], library: Path) -> list[str]:
    """The command that links a kernel's objects and the runtime's into one shared library."""
    linked = map(str, objects)
    return [COMPILER, "-shared", *_linker(), "-Wl,-Bsymbolic", *linked, "-o", str(library)]


def locate_command(library: Path, address: str) -> list[str]:
    """The command that finds the source line of a finding's ``address``; read its output with ``located``."""
    return ["addr2line", "--inlines", f"--exe={library}", address]


def located(output: str) -> tuple[str, int] | None:
    """File (relative to the kernels' root) and line out of ``locate_command``'s output.

    An access made by one of the runtime's inline functions (an atomic) belongs to the kernel's line that called
    it. None where the library has no line for the address.
    """
    for place in output.splitlines():
        file, _, line = place.partition(" ")[0].rpartition(":")
        if line.isdigit() and int(line) > 0 and Path(file).parent.name != "host":
            return file, int(line)
    return None
