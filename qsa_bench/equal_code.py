"""Equal machine code as a proof: what two trees compile to, by every compiler that is here.

nvcc takes minutes over a kernel of many launch shapes. So it is first asked for quick code of all of
them: a device function that has the same text there is the same program. What differs there may still
come to the same, and is compiled as it ships, by launch shapes where a kernel names them.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

from qsa_bench import device_text
from qsa_bench.device_text import DeviceText
from qsa_bench.model import Kernel
from qsa_bench.once import Once
from qsa_bench.targets import cuda, host

_ARCHITECTURE = 90
_LIMIT_S = 300.0
_Defines = Mapping[str, int | str]


def same_library(mutated: Path, clean: Path) -> bool:
    """True when two libraries differ in their line tables at most."""
    return _without_lines(mutated) == _without_lines(clean)


@lru_cache(maxsize=4)
def _without_lines(library: Path) -> bytes:
    with tempfile.TemporaryDirectory(prefix="qsa-bench-code-") as scratch:
        made = Path(scratch) / "code"
        subprocess.run(
            ["objcopy", "--strip-debug", "--remove-section=.note.gnu.build-id", library, made],
            check=True,
            capture_output=True,
        )
        return made.read_bytes()


class UndecidedError(Exception):
    """A compiler gave no answer in time; what it would have said, equal or not, is not known."""


class Compilers:
    """Compares a mutant's machine code with the production kernel's, by every compiler here.

    What was compiled of the production tree is kept for the next mutant. Safe from threads.
    """

    def __init__(self, root: Path, kernels: Sequence[Kernel] = ()) -> None:
        """`kernels` of the tree `root` may say in what parts nvcc can compile them."""
        self._root = root
        self._parts = {kernel.source: kernel.parts for kernel in kernels}
        self.has_nvcc = shutil.which(cuda.COMPILER) is not None
        self._digests: Once[tuple[object, ...], str | None] = Once()
        self._texts: Once[str, DeviceText | None] = Once()

    def same_on_host(self, tree: Path, sources: Iterable[str]) -> bool:
        """True when g++ makes the same object of each source at -O2."""
        return all(self._same(tree, source, host.COMPILER, {}) for source in sources)

    def same_on_device(self, tree: Path, sources: Iterable[str]) -> bool:
        """True when nvcc makes the same device code of each source; False where there is no nvcc."""
        return self.has_nvcc and all(self._same_device_code(tree, source) for source in sources)

    def _same_device_code(self, tree: Path, source: str) -> bool:
        quick = _text(tree, source)
        clean = self._texts.of(source, lambda: _text(self._root, source))
        parts: Sequence[_Defines] | None = None
        # A compiler too old to be quick says nothing, nor does a text in which no kernel is found.
        if quick is not None and clean is not None and quick.kernels and clean.kernels:
            parts = _parts_with(device_text.differing(quick, clean), self._parts.get(source, {}))
        parts = ({},) if parts is None else parts
        return all(self._same(tree, source, cuda.COMPILER, defines) for defines in parts)

    def _same(self, tree: Path, source: str, compiler: str, defines: _Defines) -> bool:
        def clean() -> str | None:
            return _digest(self._root, source, compiler, defines)

        key = (source, compiler, *sorted(defines.items()))
        # Side by side, where the other is not known yet: near a campaign's end processors have nothing to do.
        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(self._digests.of, key, clean)
            mutated = _digest(tree, source, compiler, defines)
            return mutated is not None and mutated == other.result()


def _parts_with(kernels: Iterable[str], parts: Mapping[str, _Defines]) -> list[_Defines] | None:
    """Return the defines of the parts that hold all these kernels; None where some are in none."""
    found: set[str] = set()
    for kernel in kernels:
        name = next((name for name in parts if name in kernel), None)
        if name is None:
            return None
        found.add(name)
    # In the order in which the parts stand, those that compile fastest first; each build once.
    builds = {tuple(sorted(parts[name].items())): parts[name] for name in parts if name in found}
    return list(builds.values())


def _digest(root: Path, source: str, compiler: str, defines: _Defines) -> str | None:
    """Digest the machine code of one source; None where it does not compile."""

    def command(made: Path) -> list[str]:
        if compiler == host.COMPILER:
            return host.optimised_command(Path(source), made, Path("kernels"))
        return cuda.code_command(Path(source), made, Path("kernels"), _ARCHITECTURE, defines)

    with tempfile.TemporaryDirectory(prefix="qsa-bench-code-") as scratch:
        made = Path(scratch) / "code"
        if not _compiles(root, source, compiler, command(made)) or not made.exists():
            return None
        code = device_text.without_folder(made.read_bytes().decode("latin-1"))
        return hashlib.sha256(code.encode("latin-1")).hexdigest()


def _text(root: Path, source: str) -> DeviceText | None:
    """Return the device functions of one source, compiled quickly; None where it does not compile."""
    with tempfile.TemporaryDirectory(prefix="qsa-bench-code-") as scratch:
        made = Path(scratch) / "code"
        command = cuda.quick_command(Path(source), made, Path("kernels"), _ARCHITECTURE)
        if not _compiles(root, source, cuda.COMPILER, command) or not made.exists():
            return None
        return device_text.read(made.read_text())


def _compiles(root: Path, source: str, compiler: str, command: Sequence[str]) -> bool:
    try:
        done = subprocess.run(
            command,
            cwd=root,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise UndecidedError(
            f"{compiler} did not end within {_LIMIT_S:g} s on {source}: nothing says whether "
            "its code is the production kernel's; run it again on a quieter machine"
        ) from None
    return done.returncode == 0
