"""Which cases a mutant meets first, where its first kill is enough: those that killed most before it.

No outcome hangs on the order, only how soon it is known and which case is named.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence

from qsa_bench.model import Verdict
from qsa_bench.parity import PLAIN, Limits, Seen, StageBuilds, Workload
from qsa_bench.stages.base import Case

# Cases given to a child at once: few at first, when each may be the last.
_FIRST_BATCH = 2
_LARGEST_BATCH = 32
# What a case has killed before it was ever asked.
_PRIOR = 0.3


class CaseOrder:
    """The cases of a workload by kills for their cost; safe from several threads."""

    def __init__(self, workload: Workload, limits: Limits) -> None:
        self._workload = workload
        self._fuel = {case.id: limits.fuel[PLAIN, case.id] for case in workload.cases}
        self._kills = dict.fromkeys(self._fuel, 0)
        self._lock = threading.Lock()

    def cheap(self, share: float) -> list[Case]:
        """Return the cases that take at most this share of what all take together."""
        most = share * sum(self._fuel.values())
        return [case for case in self._workload.cases if self._fuel[case.id] <= most]

    def first_kill(
        self, builds: StageBuilds, limits: Limits, cases: Sequence[Case]
    ) -> tuple[Seen, bool]:
        """Run cases until one fails; return what was seen, and whether that was a kill.

        Of a kill the failures alone are returned: checks that had more to see said nothing yet.
        """
        passed: list[Verdict] = []
        by_clock = False
        for batch in self._batches(cases):
            seen = self._workload.gate(builds, limits, cases=batch, modes=(PLAIN,))
            by_clock |= seen.by_clock
            if seen.failures and not seen.by_clock:
                first = seen.failures[0].case
                with self._lock:
                    self._kills[first] += 1
                own = [verdict for verdict in seen.failures if verdict.case == first]
                return Seen(own, {}, limits), True
            passed += seen.verdicts
        return Seen(passed, {}, limits, by_clock), False

    def _batches(self, cases: Sequence[Case]) -> Iterator[list[Case]]:
        with self._lock:
            worth: Mapping[str, float] = {
                case.id: (self._kills[case.id] + _PRIOR) / self._fuel[case.id] for case in cases
            }
        left = sorted(cases, key=lambda case: -worth[case.id])
        size = _FIRST_BATCH
        while left:
            yield left[:size]
            left = left[size:]
            size = min(2 * size, _LARGEST_BATCH)
