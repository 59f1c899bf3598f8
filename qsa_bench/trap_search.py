"""Traps on a device: a mutant whose manifest names them is run on them up to the first that tells.

Each costs the process that runs it its context, which the driver makes one after another for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from qsa_bench.model import Mutant
from qsa_bench.parity import PLAIN, Limits, Seen, StageBuilds, Workload
from qsa_bench.stages.base import Case

CHECK = "traps"
# So many at a time: after each of them a context goes on with the next.
_AT_ONCE = 4


def search(
    mutant: Mutant,
    made: StageBuilds,
    clean: StageBuilds,
    workload: Workload,
    limits: Limits,
    python_path: Sequence[Path] = (),
) -> Seen:
    """Run cases that must trap on a mutant's builds until one shows that they do not trap there.

    What it shows counts where the unmutated kernel's builds, `clean`, trap in that very case. Returns
    what was seen up to it, or in all cases.
    """
    cases = _ordered(mutant, workload)
    limits = _for_all(cases, limits)
    seen = Seen([], {}, limits)
    for first in range(0, len(cases), _AT_ONCE):
        batch = cases[first : first + _AT_ONCE]
        part = workload.gate(made, limits, python_path, batch)
        seen.by_clock |= part.by_clock
        for case in batch:
            told = [verdict for verdict in part.verdicts if verdict.case == case.id]
            if not any(verdict.check == CHECK and not verdict.passed for verdict in told):
                seen.verdicts += told
            elif not workload.gate(clean, limits, cases=[case]).failures:
                seen.verdicts += told
                return seen
    return seen


def _ordered(mutant: Mutant, workload: Workload) -> list[Case]:
    """Return the cases that must trap: those of the mutant's clause first, each from the last on.

    A stage lists what is plain first and what is at an edge last: there mutants of a trap differ.
    """
    cases = sorted(workload.trapping, key=lambda case: mutant.clause in case.clauses)
    cases.reverse()
    return cases


def _for_all(cases: Sequence[Case], limits: Limits) -> Limits:
    """Return limits with the longest of all for cases that the unmutated kernel was not yet run on."""
    longest = max(limits.seconds.values(), default=0.0)
    if not longest:
        return limits
    own = {(PLAIN, case.id): longest for case in cases}
    return Limits(limits.fuel, {**own, **limits.seconds})
