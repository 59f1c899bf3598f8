"""A production kernel's outputs, taken once, and what the gate says when a dial is turned on them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from qsa_bench import returned
from qsa_bench.dials import Dial, Subject, dials_of
from qsa_bench.model import Status
from qsa_bench.parity import PLAIN, Limits, StageBuilds, Workload
from qsa_bench.runner import observe
from qsa_bench.sensitivity import GATE, Strength, search
from qsa_bench.stages.base import Case, Stage, expects_output


@dataclass(frozen=True)
class Failed:
    """Why the production kernel's outputs are no ground to plant faults on."""

    case: str
    why: str


class Doses:
    """The judged outputs of one stage's production kernel."""

    def __init__(self, stage: Stage, cases: Sequence[Case], subjects: Sequence[Subject]) -> None:
        """`subjects` are those of `cases`, place for place."""
        self._stage = stage
        self._cases = cases
        self._subjects = subjects
        self.checks: dict[str, None] = {}
        self.failed: list[Failed] = []
        for case, subject in zip(cases, subjects, strict=True):
            for finding in returned.judged(case, subject.program, subject.outputs):
                self.checks[finding.check] = None
                if finding.status is not Status.PASS:
                    self.failed.append(Failed(case.id, finding.check))

    def dials(self) -> list[Dial]:
        """Return the dials that can be turned on the stage's outputs."""
        return dials_of(self._subjects, self._stage.faults)

    def strengths(self, dial: Dial, target: str, repeats: int) -> Iterator[Strength]:
        """Yield the strength of the gate against a dial, then that of each check of the stage."""
        names = (GATE, *self.checks)
        found = search(
            len(dial.sizes), names, repeats, lambda place: self._hits(dial, place, repeats)
        )
        for name in names:
            bracket = found[name]
            caught = None if bracket.caught is None else dial.sizes[bracket.caught]
            missed = None if bracket.missed is None else dial.sizes[bracket.missed]
            turns = ", ".join(
                f"seen at {dial.show(dial.sizes[low])}, missed at {dial.show(dial.sizes[high])}"
                for low, high in bracket.turns[:3]
            )
            yield Strength(
                self._stage.name,
                target,
                dial.name,
                name,
                caught,
                missed,
                0 if bracket.missed is None else bracket.tried[bracket.missed],
                repeats,
                len(bracket.tried),
                not bracket.turns,
                "" if caught is None else dial.show(caught),
                "" if missed is None else dial.show(missed),
                turns,
            )

    def _hits(self, dial: Dial, place: int, repeats: int) -> dict[str, int]:
        """Count, by check, the repeats in which it saw a fault of this size."""
        hits: dict[str, int] = {}
        for repeat in range(repeats):
            for name in self._seeing(dial, dial.sizes[place], repeat):
                hits[name] = hits.get(name, 0) + 1
        return hits

    def _seeing(self, dial: Dial, size: float, repeat: int) -> set[str]:
        """Return the checks that see one dose in any case; a case nothing was changed in passes."""
        seeing: set[str] = set()
        for index, outputs in dial.apply(self._subjects, size, repeat):
            # A NaN that a fault makes may be a signalling one.
            with np.errstate(invalid="ignore", over="ignore"):
                findings = returned.judged(
                    self._cases[index], self._subjects[index].program, outputs
                )
            seeing |= {f.check for f in findings if f.status is not Status.PASS}
            if len(seeing) == len(self.checks):
                break
        return seeing | {GATE} if seeing else seeing


def take(workload: Workload, builds: StageBuilds) -> tuple[Doses, list[Failed]]:
    """Run every case that gives outputs once and judge these; also return those that gave none."""
    cases = [case for case in workload.cases if expects_output(workload.program(case))]
    by_id = {case.id: case for case in cases}
    jobs = workload.jobs(PLAIN, Limits(), cases, workload.schedules[:1], judged=False)
    keys = {job.case: job.key for job in jobs}
    kept: list[Case] = []
    subjects: list[Subject] = []
    lost: list[Failed] = []
    with tempfile.TemporaryDirectory(prefix="qsa-bench-doses-") as scratch:
        for seen in observe(
            workload.target,
            builds.libraries(PLAIN),
            jobs,
            Path(scratch),
            stopped=workload.stopped,
            children=workload.children,
        ):
            case = by_id[seen.case]
            digest = next((run.digest for run in seen.runs if run.digest), None)
            if digest is None:
                lost.append(Failed(case.id, seen.text or str(seen.ending)))
                continue
            outputs = returned.read(workload.program(case), Path(scratch), keys[case.id], digest)
            kept.append(case)
            subjects.append(Subject(case.id, workload.program(case), outputs))
    return Doses(workload.stage, kept, subjects), lost
