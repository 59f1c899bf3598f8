"""Evidence beside an argument that a mutant is equivalent: equal bytes on many generated inputs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from qsa_bench import baseline
from qsa_bench.errors import NothingSelectedError
from qsa_bench.parity import PLAIN, StageBuilds, Workload
from qsa_bench.program import At, Program
from qsa_bench.stages.base import Case, Stage, no_judge

# Cases a child is given at once: their programs lie on the disk.
_BATCH = 32


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
    mutated: Mapping[str, StageBuilds],
    inputs: int,
    jobs: int,
    by_contract: bool = False,
    on_batch: Callable[[], None] = lambda: None,
    entry: str | None = None,
) -> dict[str, Evidence]:
    """Run mutants, by id, and production on at least `inputs` generated inputs.

    A mutant is dropped at the first case that differs; those with one machine code run once. With an
    `entry` that one alone is called. NothingSelectedError for a stage that generates no inputs, or
    none for that entry.
    """
    if stage.generated is None:
        raise NothingSelectedError(f"gathering evidence: {stage.name} generates no inputs")
    alike: dict[str, list[str]] = {}
    for name, builds in mutated.items():
        alike.setdefault(builds.code_digest, []).append(name)
    left = {names[0]: mutated[names[0]] for names in alike.values()}
    equal = dict.fromkeys(left, 0)
    differing: dict[str, str] = {}
    stopped = threading.Event()
    with baseline.stoppable_pool(jobs, stopped.set) as pool:
        for group in _grouped(_batches(stage, inputs, entry), jobs):

            def one(batch: _Batch, left: Mapping[str, StageBuilds] = left) -> dict[str, str]:
                return _differing(stage, production, left, batch[0], by_contract, stopped)

            futures = [pool.submit(one, batch) for batch in group]
            for _ in baseline.as_they_end(futures):
                on_batch()
            for batch, future in zip(group, futures, strict=True):
                told = future.result()
                for name in left:
                    equal[name] += 0 if name in told else batch[1]
                differing = {**told, **differing}
            left = {name: builds for name, builds in left.items() if name not in differing}
            if not left:
                break
    return {
        name: Evidence(equal[names[0]], differing.get(names[0], ""), by_contract)
        for names in alike.values()
        for name in names
    }


_Batch = tuple[list[Case], int]


def _batches(stage: Stage, inputs: int, entry: str | None) -> Iterator[_Batch]:
    assert stage.generated is not None
    seed = held = 0
    while held < inputs:
        cases, size = [], 0
        for _ in range(_BATCH):
            case, own = stage.generated(seed)
            cases.append(case if entry is None else calling(case, entry))
            size += own
            seed += 1
        held += size
        yield cases, size


def calling(case: Case, entry: str) -> Case:
    """Return a case that calls one entry alone, without the buffers of the others."""
    built = case.build()
    calls = tuple(call for call in built.calls if call.entry == entry)
    if not calls:
        raise NothingSelectedError(f"gathering evidence: no call of {entry} in {case.id}")
    values = [value for call in calls for value in call.values.values()]
    used = {value.buffer if isinstance(value, At) else value for value in values}
    buffers = tuple(buffer for buffer in built.buffers if buffer.name in used)
    alone = Program(buffers, calls, built.device)
    return replace(case, build=lambda: alone)


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
    mutated: Mapping[str, StageBuilds],
    cases: list[Case],
    by_contract: bool,
    stopped: threading.Event,
) -> dict[str, str]:
    """Return, by mutant, the first case whose outputs differ; only those that have one."""
    found: dict[str, str] = {}
    # Equal bytes need no judge, which takes longer than the run.
    held = cases if by_contract else [replace(case, judge=no_judge) for case in cases]
    with Workload(stage, held, "host", 0) as workload:
        clean = {} if by_contract else workload.gate(production, modes=(PLAIN,)).digests
        for name, builds in mutated.items():
            if stopped.is_set():
                break
            seen = workload.gate(builds, modes=(PLAIN,))
            differ = [case for case, digests in clean.items() if seen.digests.get(case) != digests]
            differ += [verdict.case for verdict in seen.failures]
            if differ:
                found[name] = differ[0]
    return found
