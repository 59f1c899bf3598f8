"""Cases of the DSA stages whose calls must be refused or must trap, and that write nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from qsa_bench.program import Program, Value
from qsa_bench.stages.base import ONE_SCHEDULE, Case, no_judge

# What a refused call has beside its base: its label, other values, and the status or "ok".
Change = tuple[str, Mapping[str, Value], int | str]


def nothing(stage: str, family: str, label: str, clause: str, build: Callable[[], Program]) -> Case:
    """Return a case whose status alone says everything."""
    return Case(
        stage,
        family,
        label,
        (clause,),
        build,
        no_judge,
        schedules=ONE_SCHEDULE,
        writes=False,
    )


def refusals(
    stage: str, base: Callable[[], Program], changes: Sequence[Change], clause: str = "refusals"
) -> Iterator[Case]:
    """Yield a case for every change of the first call of `base`."""
    for label, change, expect in changes:

        def build(change: Mapping[str, Value] = change, expect: int | str = expect) -> Program:
            program = base()
            call = program.calls[0]
            values = {**call.values, **change}
            return Program(program.buffers, (replace(call, values=values, expect=expect),))

        yield nothing(stage, "refusal", label, clause, build)
