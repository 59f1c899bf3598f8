"""Equal machine code as a proof, and equivalences that a person argued, which go stale.

`mutations/<stage>/equivalent.toml` holds the arguments: a line for a mutant that survives because
no input can tell it from the production kernel. Each names the digest of the function around it.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import tempfile
import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from pathlib import Path

from qsa_bench import patches
from qsa_bench.errors import ManifestError
from qsa_bench.model import Mutant
from qsa_bench.mutants import ARGUMENTS
from qsa_bench.targets import cuda, host

# Inputs whose outputs were bitwise equal, beside the argument.
LEAST_INPUTS = 100_000
_KEYS: Mapping[str, type] = {
    "id": str,
    "context": str,
    "reason": str,
    "date": date,
    "inputs": int,
    "equal": str,
}
# "bits": outputs were equal bit for bit. "contract": every check of the stage passed, where the
# contract leaves a choice (the order of a sum).
_EQUAL = ("bits", "contract")
# With `only` an argument speaks of one target: what is equal in the emulation's launch shapes may be a fault
# in a device's.
_ONLY = ("only", ("host",))
_ARCHITECTURE = 90
_LIMIT_S = 300.0
_DIGITS = 12
_UNNAMED = re.compile(rb"(_GLOBAL__N__)[0-9a-f]{8}_")


@dataclass(frozen=True)
class Argument:
    """Why a mutant is equivalent; `context` digests the code that the reason speaks of.

    With `only` it is so on that target, and another one can tell it.
    """

    id: str
    context: str
    reason: str
    date: date
    inputs: int
    equal: str
    only: str = ""

    def speaks_of(self, target: str) -> bool:
        """True where the argument holds for a target."""
        return self.only in ("", target)


def read(root: Path, stage: str) -> dict[str, Argument]:
    """Return a stage's arguments by mutant id; ManifestError for a file that is not as it must be.

    A stage without the file has none.
    """
    path = root / "mutations" / stage / ARGUMENTS
    if not path.is_file():
        return {}
    try:
        rows = tomllib.loads(path.read_text()).get("equivalent", [])
    except tomllib.TOMLDecodeError as error:
        raise ManifestError(f"reading {path}: {error}") from None
    found: dict[str, Argument] = {}
    for number, row in enumerate(rows, 1):
        key, targets = _ONLY
        wrong = sorted(set(row) - {key} ^ set(_KEYS)) or [
            key for key, kind in _KEYS.items() if not isinstance(row[key], kind)
        ]
        name = f"reading {path}: equivalent {number}"
        if wrong:
            raise ManifestError(f"{name}: {', '.join(wrong)} missing, unknown or of a wrong type")
        argument = Argument(**row)
        if argument.id in found or not argument.id.startswith(f"{stage}/"):
            raise ManifestError(f"{name}: {argument.id} stands twice, or is of another stage")
        if key in row and argument.only not in targets:
            raise ManifestError(f"{name}: {key} is {argument.only!r}, not {' or '.join(targets)}")
        if argument.equal not in _EQUAL:
            raise ManifestError(f"{name}: equal is {argument.equal!r}, not {' or '.join(_EQUAL)}")
        if not argument.reason.strip() or argument.inputs < LEAST_INPUTS:
            raise ManifestError(
                f"{name}: {argument.id} needs a reason and {LEAST_INPUTS:,} inputs of evidence"
            )
        found[argument.id] = argument
    return found


def hold(root: Path, stage: str, known: Collection[str]) -> None:
    """Read a stage's arguments; ManifestError where one is for no mutant of `known`, by id."""
    gone = [name for name in read(root, stage) if name not in known]
    if gone:
        raise ManifestError(
            f"reading mutations/{stage}/{ARGUMENTS}: no operator makes {', '.join(gone)} any more; "
            "take the argument out"
        )


def context_of(mutant: Mutant, root: Path) -> str:
    """Digest the function, or the file's statement, around what a mutant changes."""
    from qsa_bench.operators import Source
    from qsa_bench.operators.syntax import scope_of

    digest = hashlib.sha256()
    for patch in patches.parse(mutant.patch):
        content = (root / patch.path).read_bytes()
        source = Source(patch.path, content)
        for line in sorted(patches.changed_lines(patch, content.decode())):
            text = content.split(b"\n")[line - 1]
            column = len(text) - len(text.lstrip())
            node = source.root.descendant_for_point_range((line - 1, column), (line - 1, column))
            if node is not None:
                digest.update("".join(source.text(scope_of(node)).split()).encode())
    return digest.hexdigest()[:_DIGITS]


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

    def __init__(self, root: Path) -> None:
        self._root = root
        self.has_nvcc = shutil.which(cuda.COMPILER) is not None
        self._clean = lru_cache(maxsize=None)(lambda *key: self._digest(self._root, *key))

    def same_on_host(self, tree: Path, sources: Iterable[str]) -> bool:
        """True when g++ makes the same object of each source at -O2."""
        return all(self._same(tree, source, host.COMPILER) for source in sources)

    def same_on_device(self, tree: Path, sources: Iterable[str]) -> bool:
        """True when nvcc makes the same device code of each source; False where there is no nvcc."""
        return self.has_nvcc and all(self._same(tree, source, cuda.COMPILER) for source in sources)

    def _same(self, tree: Path, source: str, compiler: str) -> bool:
        mutated = self._digest(tree, source, compiler)
        return mutated is not None and mutated == self._clean(source, compiler)

    @staticmethod
    def _digest(root: Path, source: str, compiler: str) -> str | None:
        with tempfile.TemporaryDirectory(prefix="qsa-bench-code-") as scratch:
            made = Path(scratch) / "code"
            if compiler == host.COMPILER:
                command = host.optimised_command(Path(source), made, Path("kernels"))
            else:
                command = cuda.code_command(Path(source), made, Path("kernels"), _ARCHITECTURE)
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
            if done.returncode != 0 or not made.exists():
                return None
            # nvcc names what lies in an unnamed namespace after the folder it was compiled in.
            code = _UNNAMED.sub(rb"\g<1>00000000_", made.read_bytes())
            return hashlib.sha256(code).hexdigest()
