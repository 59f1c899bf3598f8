"""A run with its rows, as it is written and as it is read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from qsa_bench.model import Build, Kill, Measurement, MutantResult, Run, SourceText, Usage, Verdict
from qsa_bench.sensitivity import Alarms, Strength

RUN_FILE = "run.json"
# What a sweep is asked to time; peers and calibration come beside it.
TIMED_KINDS = ("kernel", "library")


@dataclass(frozen=True)
class StoredRun:
    """A run with its rows. `folder` is None for a run that kept nothing on disk.

    `complete` is False when run.json tells no end: the run was killed or still goes on. It then
    has exit code 130 and what had reached the disk.
    """

    run: Run
    verdicts: tuple[Verdict, ...] = ()
    mutants: tuple[MutantResult, ...] = ()
    kills: tuple[Kill, ...] = ()
    builds: tuple[Build, ...] = ()
    timings: tuple[Measurement, ...] = ()
    usages: tuple[Usage, ...] = ()
    sources: tuple[SourceText, ...] = ()
    strengths: tuple[Strength, ...] = ()
    alarms: tuple[Alarms, ...] = ()
    folder: Path | None = None
    complete: bool = True


def done_of(
    command: str, *, mutants: int, cases: int, builds: int, timings: int, audits: int = 0
) -> int:
    """Return how much a run has done, in the things its command counts."""
    return {"mutate": mutants, "gate": cases, "sweep": timings, "strength": audits}.get(
        command, builds
    )
