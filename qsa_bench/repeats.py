"""Races on a device: a mutant run many times, and how often it showed.

The emulation sees a race under any order of threads; a device shows it by chance. What 59 runs do
not show happens in fewer than 5% of runs (at 95%).
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from qsa_bench import judge
from qsa_bench.child import Ending
from qsa_bench.parity import PLAIN, Limits, StageBuilds, Workload
from qsa_bench.runner import Schedule, observe
from qsa_bench.stages.base import Case, expects_output

RUNS = 59
# A run is of all of these cases. The largest that are small enough to be run so often.
_MOST_CASES = 24
# A case that lost the device goes on in a fresh context with the runs it has left, so often.
_MOST_RESUMED = 4
# The limits are those of a case's few runs.
_LIMIT_FACTOR = 2.0


@dataclass(frozen=True)
class Repeats:
    """Of `runs` runs of all cases, `hits` went wrong in some case."""

    hits: int
    runs: int
    first: str = ""


def cases_of(workload: Workload) -> list[Case]:
    """Return the cases that a run consists of: largest first, of those that give outputs."""
    usable = [
        case for case in workload.cases if case.checked and expects_output(workload.program(case))
    ]
    usable.sort(key=lambda case: workload.program(case).bytes, reverse=True)
    return usable[:_MOST_CASES]


def repeat(
    workload: Workload,
    builds: StageBuilds,
    limits: Limits,
    runs: int = RUNS,
    python_path: Sequence[Path] = (),
) -> Repeats:
    """Run the cases `runs` times and count the runs in which some case was wrong.

    A run counts when a case was wrong in it or all cases were right; one that a lost device cut
    short counts for neither.
    """
    cases = cases_of(workload)
    wrong: dict[int, str] = {}
    right: dict[int, int] = dict.fromkeys(range(runs), 0)
    waiting = {case.id: 0 for case in cases}
    for _ in range(1 + _MOST_RESUMED):
        begun = [case for case in cases if waiting[case.id] < runs]
        if not begun:
            break
        _round(workload, builds, limits, begun, waiting, runs, wrong, right, python_path)
    known = [run for run in range(runs) if run in wrong or right[run] == len(cases)]
    return Repeats(len(wrong), len(known), wrong[min(wrong)] if wrong else "")


def _round(
    workload: Workload,
    builds: StageBuilds,
    limits: Limits,
    cases: Sequence[Case],
    waiting: dict[str, int],
    runs: int,
    wrong: dict[int, str],
    right: dict[int, int],
    python_path: Sequence[Path],
) -> None:
    """Give every case the runs it has not had; one whose device is lost keeps the rest."""
    by_id = {case.id: case for case in cases}
    jobs = [
        replace(job, limit_s=job.limit_s * _LIMIT_FACTOR)
        for case in cases
        for job in workload.jobs(
            PLAIN,
            limits,
            [case],
            [Schedule("device", number) for number in range(waiting[case.id], runs)],
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
                waiting[case.id] = number + 1
                if failure is None:
                    right[number] += 1
                else:
                    wrong.setdefault(number, f"{case.id}: {failure.check}")
            if seen.ending in (Ending.CRASHED, Ending.TIMED_OUT):
                # The run that it died in left no result.
                wrong.setdefault(waiting[case.id], f"{case.id}: {seen.ending}")
                waiting[case.id] += 1
            if seen.ending not in (Ending.RAN, Ending.CRASHED):
                # Each that hangs costs its whole limit: it is given up, its other runs unknown.
                waiting[case.id] = runs
