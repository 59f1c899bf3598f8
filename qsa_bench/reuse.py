"""Outcomes of mutants kept from earlier runs, addressed by everything that could change them.

A mutant whose builds, manifest, cases, golden, gate code and libraries are the same byte for byte
is not run again; its result says that it is reused. Only the emulated device's outcomes are kept,
and of these none that a time limit decided (fuel may): they are deterministic.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from qsa_bench.model import Kill, Mutant, MutantResult, Outcome
from qsa_bench.parity import Limits, Seen
from qsa_bench.resources import PACKAGE
from qsa_bench.store import layouts

_KEPT = {
    Outcome.KILLED,
    Outcome.KILLED_BY_CRASH,
    Outcome.SURVIVED,
    Outcome.EQUIVALENT,
    Outcome.KILLED_BY_TIMEOUT,
    Outcome.UNVIABLE,
    Outcome.GPU_ONLY,
}
# What stands for the production kernel in the place of a mutant.
_CLEAN = "clean"


@cache
def _gate_code() -> str:
    """Digest of the package's Python and of what it computes with."""
    digest = hashlib.sha256(platform.python_version().encode())
    digest.update(importlib.metadata.version("numpy").encode())
    for path in sorted(PACKAGE.rglob("*.py")):
        digest.update(str(path.relative_to(PACKAGE)).encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


class Outcomes:
    """Kept outcomes under `folder`; None keeps and finds nothing."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def _path(self, mutant: Mutant | str, inputs: Iterable[str]) -> Path | None:
        if self._folder is None:
            return None
        digest = hashlib.sha256(_gate_code().encode())
        for part in (repr(mutant), *inputs):
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part.encode())
        return self._folder / f"{digest.hexdigest()[:40]}.json"

    def find(self, mutant: Mutant, inputs: Sequence[str]) -> tuple[MutantResult, list[Kill]] | None:
        """Return the kept outcome for these inputs, marked as reused, or None."""
        path = self._path(mutant, inputs)
        if path is None:
            return None
        try:
            kept = json.loads(path.read_text())
            result = layouts.MUTANTS.from_row(kept["result"])
            kills = [layouts.KILLS.from_row(row) for row in kept["kills"]]
        except (OSError, ValueError, KeyError, TypeError):
            return None  # not there, or not written whole: the mutant is run
        return replace(result, mutant=mutant, reused=True), kills

    def find_clean(self, inputs: Sequence[str]) -> Seen | None:
        """Return what the unmutated kernel's gate saw when it passed for these inputs, or None."""
        path = self._path(_CLEAN, inputs)
        if path is None:
            return None
        try:
            kept = json.loads(path.read_text())
            return Seen(
                [layouts.VERDICTS.from_row(row) for row in kept["verdicts"]],
                {},
                Limits(
                    {(mode, case): fuel for mode, case, fuel in kept["fuel"]},
                    {(mode, case): limit for mode, case, limit in kept["seconds"]},
                ),
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def keep_clean(self, inputs: Sequence[str], seen: Seen) -> None:
        """Keep what a clean gate saw: verdicts and limits."""
        document = {
            "verdicts": [layouts.VERDICTS.to_row(verdict) for verdict in seen.verdicts],
            "fuel": [[*key, fuel] for key, fuel in seen.limits.fuel.items()],
            "seconds": [[*key, limit] for key, limit in seen.limits.seconds.items()],
        }
        self._write(self._path(_CLEAN, inputs), document)

    def keep(
        self, mutant: Mutant, inputs: Sequence[str], result: MutantResult, kills: Sequence[Kill]
    ) -> None:
        """Keep an outcome that ended; what was not run is not kept."""
        path = self._path(mutant, inputs)
        if path is None or result.outcome not in _KEPT:
            return
        document = {
            "result": layouts.MUTANTS.to_row(result),
            "kills": [layouts.KILLS.to_row(kill) for kill in kills],
        }
        self._write(path, document)

    @staticmethod
    def _write(path: Path | None, document: object) -> None:
        if path is None:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        made = path.with_suffix(f".{os.getpid()}.{id(document)}.tmp")
        made.write_text(json.dumps(document))
        os.replace(made, path)
