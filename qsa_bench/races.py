"""How often a fault in the order of accesses shows: the share of thread orders that give it away.

A race depends on the order it was run in, so one run says little: each order of a set is asked
whether the small cases' outputs still are the production kernel's, bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from qsa_bench.parity import PLAIN, Seen, StageBuilds, Workload
from qsa_bench.stages.base import EVERY_SCHEDULE, Case, Stage, expects_output

SCHEDULES = 20
# FIFO and LIFO come beside the seeds.
_SEEDS = SCHEDULES - 2
# Each costs a run an order; what a race needs is few threads and one barrier.
_MOST_CASES = 8
# A device has its own orders.
_HOST = "host"


@dataclass(frozen=True)
class Seldom:
    """In how many of `schedules` orders a mutant was killed."""

    killed: int
    schedules: int


class Races:
    """A stage's small cases under many orders; used as a context. Safe from several threads."""

    def __init__(self, stage: Stage, cases: Sequence[Case], builds: StageBuilds) -> None:
        small = [
            replace(case, schedules=EVERY_SCHEDULE)
            for case in cases
            if _HOST in case.targets and case.checked and case.writes
            if expects_output(case.build())
        ][:_MOST_CASES]
        self._workload = Workload(stage, small, _HOST, _SEEDS)
        try:
            self._clean = self._workload.gate(builds, modes=(PLAIN,), judged=False)
        except BaseException:
            self._workload.close()
            raise
        fuel = self._clean.limits.fuel
        self._cases = sorted(
            small, key=lambda case: (fuel[PLAIN, case.id], self._workload.program(case).bytes)
        )

    def __enter__(self) -> Races:
        return self

    def __exit__(self, *_: object) -> None:
        self._workload.close()

    def seen(self, builds: StageBuilds) -> Seldom:
        """Return how many orders give a mutant away; one that ends a run early does so in all.

        Cases are asked, those that take least first, until no order is left that has not told.
        """
        killed: set[int] = set()
        for case in self._cases:
            seen = self._workload.gate(
                builds, self._clean.limits, cases=[case], modes=(PLAIN,), judged=False
            )
            killed.update(_differing(self._clean.digests[case.id], seen, case.id))
            if len(killed) == SCHEDULES:
                break
        return Seldom(len(killed), SCHEDULES)


def _differing(clean: Sequence[str], seen: Seen, case: str) -> list[int]:
    """Return the orders, by number, in which a case's output is not the clean one."""
    digests = seen.digests.get(case, ())
    return [
        order
        for order, digest in enumerate(clean)
        if order >= len(digests) or digests[order] != digest
    ]
