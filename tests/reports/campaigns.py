"""A small campaign with one mutant of every outcome, as files would hold it."""

from __future__ import annotations

import math
from pathlib import Path

from qsa_bench.model import Expect, Kill, Mutant, MutantResult, Outcome, SourceText
from qsa_bench.store import RunWriter, StoredRun

STAGE = "qsa_pool"
PATH = "kernels/x.cu"
SOURCE = "".join(f"int line_{number} = {number};\n" for number in range(1, 31))
# What reports must escape: XML and HTML, workflow commands, scripts.
AWKWARD = "</script> & <b> 100% a:b, c\x01"


def mutant(number: int, operator: str = "constant") -> Mutant:
    """Return a mutant of one line of the source."""
    old, new = f"int line_{number} = {number};", f"int line_{number} = {number + 1};"
    patch = f"--- a/{PATH}\n+++ b/{PATH}\n@@ -{number},1 +{number},1 @@\n-{old}\n+{new}\n"
    name = f"{STAGE}/auto/{STAGE}/f/{operator}/{number:08}"
    return Mutant(
        name, STAGE, f"fault {number} is seen", "", Expect.KILLED, patch, operator=operator
    )


def result(number: int, outcome: Outcome, **fields: object) -> MutantResult:
    """Return what became of the mutant of a line."""
    died = outcome in (Outcome.KILLED, Outcome.KILLED_BY_CRASH, Outcome.KILLED_BY_TIMEOUT)
    settings: dict[str, object] = {
        "as_expected": outcome not in (Outcome.SURVIVED, Outcome.NOT_RUN),
        "killed_by": ("block-keys",) if died else (),
        "seconds": 0.25,
        **fields,
    }
    return MutantResult(mutant(number), "host", outcome, **settings)  # type: ignore[arg-type]


RESULTS = (
    result(1, Outcome.KILLED, margin=math.inf),
    result(2, Outcome.KILLED_BY_CRASH),
    result(3, Outcome.KILLED_BY_TIMEOUT),
    result(4, Outcome.SURVIVED, why=AWKWARD, code="c0de"),
    result(5, Outcome.EQUIVALENT, why="identical object code"),
    result(6, Outcome.UNVIABLE, why="does not build"),
    result(7, Outcome.GPU_ONLY, why="another by nvcc"),
    result(8, Outcome.NOT_RUN, why="given up"),
    result(9, Outcome.SURVIVED, why="no check saw it", code="c0de"),
)


def kills_of(made: MutantResult) -> list[Kill]:
    """Return a row of the kill matrix: a kill with a margin, a near miss, and one not run."""
    if made.outcome in (Outcome.EQUIVALENT, Outcome.UNVIABLE, Outcome.GPU_ONLY):
        return []
    failed = 3 if made.killed_by else 0
    margin = made.margin if failed else 0.5
    return [
        Kill(made.mutant.id, "block-keys", 40, failed, margin),
        Kill(made.mutant.id, "untouched", 40, 0),
    ]


def campaign(
    folder: Path | None, results: tuple[MutantResult, ...] = RESULTS, asked: int | None = None
) -> StoredRun:
    """Write a campaign and return it as it reads."""
    writer = RunWriter.create(folder, "mutate", ("qsa-bench", "mutate"), "host", "emulated")
    writer.add_sources([SourceText(PATH, SOURCE)])
    for made in results:
        writer.add_mutants([made])
        writer.add_kills(kills_of(made))
    notes = {"timing": {STAGE: {"baseline_seconds": 1.5, "mutant_seconds": 4.0}}}
    return writer.finish(len(results) if asked is None else asked, len(results), 4, notes)
