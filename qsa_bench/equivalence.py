"""Equivalences that a person argued, which go stale.

`mutations/<stage>/equivalent.toml` holds the arguments: a line for a mutant that survives because
no input can tell it from the production kernel. Each names the digest of the function around it.
"""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from qsa_bench import patches
from qsa_bench.errors import ManifestError
from qsa_bench.model import Mutant, Outcome
from qsa_bench.mutants import ARGUMENTS

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
_DIGITS = 12


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


@dataclass(frozen=True)
class Said:
    """What an argument comes to for a mutant that lives; of a stale one nothing."""

    outcome: Outcome
    why: str

    @property
    def is_stale(self) -> bool:
        """True where the code around the mutant is no longer what was argued about."""
        return self.outcome is Outcome.SURVIVED


def said_of(
    mutant: Mutant, target: str, arguments: Mapping[str, Argument], root: Path
) -> Said | None:
    """Return what the arguments say of a mutant that lives on a target, or None where they do not."""
    argument = arguments.get(mutant.id)
    if argument is None or not argument.speaks_of(target):
        return None
    context = context_of(mutant, root)
    if context != argument.context:
        why = f"its argument of {argument.date} is stale: the code around it is now {context}"
        return Said(Outcome.SURVIVED, why)
    outcome = Outcome.GPU_ONLY if argument.only else Outcome.EQUIVALENT
    return Said(outcome, f"argued {argument.date}: {argument.reason}")
