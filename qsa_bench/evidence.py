"""Evidence beside an argument that a mutant is equivalent: equal bytes on many generated inputs."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from qsa_bench.errors import NothingSelectedError
from qsa_bench.parity import PLAIN, StageBuilds, Workload
from qsa_bench.stages.base import Case, Stage

# Cases a child is given at once: their programs lie on the disk.
_BATCH = 10


@dataclass(frozen=True)
class Evidence:
    """How many inputs gave equal outputs, and the first case that did not, if any.

    `by_contract` says that bytes were allowed to differ where every check of the stage passed.
    """

    inputs: int
    differing: str = ""
    by_contract: bool = False


def gather(
    stage: Stage,
    production: StageBuilds,
    mutated: StageBuilds,
    inputs: int,
    jobs: int,
    by_contract: bool = False,
) -> Evidence:
    """Run both builds on at least `inputs` generated inputs; ends at the first that differs.

    NothingSelectedError for a stage that generates none.
    """
    if stage.generated is None:
        raise NothingSelectedError(f"gathering evidence: {stage.name} generates no inputs")
    done = 0
    with ThreadPoolExecutor(jobs) as pool:
        batches = _batches(stage, inputs)
        for group in _grouped(batches, jobs):
            found = pool.map(
                lambda batch: _differing(stage, production, mutated, batch[0], by_contract), group
            )
            for batch, differing in zip(group, found, strict=True):
                if differing:
                    return Evidence(done, differing, by_contract)
                done += batch[1]
    return Evidence(done, by_contract=by_contract)


_Batch = tuple[list[Case], int]


def _batches(stage: Stage, inputs: int) -> Iterator[_Batch]:
    assert stage.generated is not None
    seed = held = 0
    while held < inputs:
        cases, size = [], 0
        for _ in range(_BATCH):
            case, own = stage.generated(seed)
            cases.append(case)
            size += own
            seed += 1
        held += size
        yield cases, size


def _grouped(batches: Iterator[_Batch], size: int) -> Iterator[list[_Batch]]:
    group: list[_Batch] = []
    for batch in batches:
        group.append(batch)
        if len(group) == size:
            yield group
            group = []
    if group:
        yield group


def _differing(
    stage: Stage,
    production: StageBuilds,
    mutated: StageBuilds,
    cases: list[Case],
    by_contract: bool,
) -> str:
    """Return the first case whose outputs differ, "" where none does."""
    with Workload(stage, cases, "host", 0) as workload:
        seen = workload.gate(mutated, modes=(PLAIN,))
        if by_contract:
            return seen.failures[0].case if seen.failures else ""
        clean = workload.gate(production, modes=(PLAIN,))
    differ = (case for case, digests in clean.digests.items() if seen.digests.get(case) != digests)
    return next(differ, "")
