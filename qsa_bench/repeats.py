"""Races on a device: a mutant run many times, and how often it showed.

The emulation sees a race under any order of threads; a device shows it by chance. What 59 runs do
not show happens in fewer than 5% of runs (at 95%).
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from qsa_bench import judge
from qsa_bench.child import Ending
from qsa_bench.model import Status, Verdict
from qsa_bench.parity import PLAIN, Limits, StageBuilds, Workload
from qsa_bench.runner import Schedule, observe
from qsa_bench.stages.base import Case, expects_output

RUNS = 59
# A run is of all of these cases. The largest that are small enough to be run so often.
_MOST_CASES = 24
# After so many lost contexts a round gives its other cases up: each costs as long as a thousand runs.
_MOST_LOSSES = 4
# While no case has had all its runs, those that are left go on in fresh contexts, so often.
_MOST_RESUMED = 2
# What takes the context, or a whole limit, of the case that it happens to.
_DEAR = (Status.CRASHED, Status.TRAPPED, Status.TIMED_OUT)


@dataclass(frozen=True)
class Repeats:
    """Of `runs` runs `hits` went wrong in some case.

    `cases` of the cases there are were in every run; `left_out` were in none, or in some alone.
    """

    hits: int
    runs: int
    cases: int
    left_out: int
    first: str = ""


@dataclass
class _Count:
    """What is known so far: how many runs each case had, and by run what was first seen wrong."""

    had: dict[str, int]
    wrong: dict[int, str] = field(default_factory=dict)
    # Cases that hung: each time costs a whole limit, so they are not gone on with.
    hung: set[str] = field(default_factory=set)


def cases_of(workload: Workload) -> list[Case]:
    """Return the cases that a run consists of: largest first, of those that give outputs."""
    usable = [
        case for case in workload.cases if case.checked and expects_output(workload.program(case))
    ]
    usable.sort(key=lambda case: workload.program(case).bytes, reverse=True)
    return usable[:_MOST_CASES]


def dear_of(verdicts: Sequence[Verdict]) -> set[str]:
    """Return the ids of cases that hung or lost the device."""
    return {verdict.case for verdict in verdicts if verdict.status in _DEAR}


def repeat(
    workload: Workload,
    builds: StageBuilds,
    limits: Limits,
    dear: Collection[str] = (),
    runs: int = RUNS,
    python_path: Sequence[Path] = (),
) -> Repeats:
    """Run the cases `runs` times and count the runs in which some case was wrong.

    `dear` are ids of cases that are known to hang or to lose the device: they are left out while
    others remain, and so is, from then on, a case that turns out to be one. A run is known when some
    case was wrong in it, or every case that was not left out was right: all are known, unless no case
    came to its last run.
    """
    every = cases_of(workload)
    cases = [case for case in every if case.id not in dear] or every
    count = _Count({case.id: 0 for case in cases})
    for _ in range(1 + _MOST_RESUMED):
        going_on = [case for case in cases if case.id not in count.hung]
        # Those that a round gave up before their turn come first in the next.
        going_on.sort(key=lambda case: count.had[case.id])
        _round(workload, builds, limits, going_on, count, runs, python_path)
        if runs in count.had.values():
            break
    whole = [case for case, had in count.had.items() if had == runs]
    first = count.wrong[min(count.wrong)] if count.wrong else ""
    # Who had all its runs was right in those in which nobody was wrong.
    known = runs if whole else len(count.wrong)
    return Repeats(len(count.wrong), known, len(whole), len(every) - len(whole), first)


def _round(
    workload: Workload,
    builds: StageBuilds,
    limits: Limits,
    cases: Sequence[Case],
    count: _Count,
    runs: int,
    python_path: Sequence[Path],
) -> None:
    """Give every case the runs it has not had, up to one that hangs or loses the device."""
    by_id = {case.id: case for case in cases}
    jobs = [
        replace(job, limits_each=True)
        for case in cases
        for job in workload.jobs(
            PLAIN,
            limits,
            [case],
            [Schedule("device", number) for number in range(count.had[case.id], runs)],
        )
    ]
    keys = {job.case: job.key for job in jobs}
    with tempfile.TemporaryDirectory(prefix="qsa-bench-repeats-") as scratch:
        for seen in observe(
            workload.target,
            builds.libraries(PLAIN),
            jobs,
            Path(scratch),
            python_path,
            workload.stopped,
            workload.children,
            _MOST_LOSSES,
        ):
            case = by_id[seen.case]
            for run in seen.runs:
                number = run.schedule.seed
                failure = judge.run_failure(
                    case,
                    workload.program(case),
                    run,
                    workload.memory(case),
                    Path(scratch),
                    keys[case.id],
                )
                count.had[case.id] = number + 1
                if failure is not None:
                    count.wrong.setdefault(number, f"{case.id}: {failure.check}")
            if seen.ending in (Ending.CRASHED, Ending.TIMED_OUT):
                # The run that it died in left no result; of one that died after all it is the last.
                number = min(count.had[case.id], runs - 1)
                count.wrong.setdefault(number, f"{case.id}: {seen.ending}")
                count.had[case.id] = number + 1
            if seen.ending is Ending.TIMED_OUT:
                count.hung.add(case.id)
