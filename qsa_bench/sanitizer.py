"""compute-sanitizer around the child, as extra checks of cases that an ordinary gate has run.

A tool ran, failed to run, or is unavailable, and each is told as what it was. A tool that attaches
to nothing finds nothing: so each is first shown a kernel with the fault it looks for, and is
unavailable where it stays silent.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from qsa_bench import checks, program, resources
from qsa_bench.builder import Builder
from qsa_bench.child import Children, Ending
from qsa_bench.model import (
    STREAM,
    Argument,
    Entry,
    Evidence,
    Kernel,
    Role,
    Status,
    Verdict,
)
from qsa_bench.parity import PLAIN, Limits, StageBuilds, Workload
from qsa_bench.program import Buffer, Call, Program, Value
from qsa_bench.runner import Job, Observation, Schedule, observe
from qsa_bench.stages.base import Case, expects_output

PROGRAM = "compute-sanitizer"
TOOLS = tuple(checks.SANITIZERS)
# The name that a job of the proof has; it belongs to no stage.
PROOF = "sanitizer-proof"
# A kernel runs tens of times slower under a tool.
_LIMIT_S = 120.0
_COUNT = 16

FAULTS = Kernel(
    "faults",
    "kernels/bench/faults.cu",
    (
        Entry(
            "qsa_fault",
            (
                Argument("data", "u32", Role.SCRATCH, ("count",)),
                Argument("sink", "u32", Role.OUTPUT, ("1",)),
                Argument("count", "i64", Role.SCALAR),
                Argument("fault", "i32", Role.SCALAR, doc="see the file"),
                STREAM,
            ),
        ),
    ),
)
# The fault of kernels/bench/faults.cu that a tool must see.
FAULT_OF: Mapping[str, int] = {"memcheck": 1, "racecheck": 2, "initcheck": 3, "synccheck": 4}

_SUMMARY = re.compile(r"ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard")
_LINE = "========="
# Lines that begin no report.
_FRAME = ("COMPUTE-SANITIZER", "ERROR SUMMARY", "RACECHECK SUMMARY", "LEAK SUMMARY")


@dataclass(frozen=True)
class Report:
    """What a tool wrote: how many errors, None where it came to no summary; reports by case.

    `late` are reports that came when every case was over. `text` is its last lines.
    """

    errors: int | None
    by_case: Mapping[str, Sequence[str]]
    late: Sequence[str]
    text: str
    endings: Mapping[str, Ending]


def bare(target: str) -> str:
    """Return the name under which a target's device leaves buffers bare."""
    return f"{target}_bare"


def cases_of(workload: Workload) -> list[Case]:
    """Return the cases that a tool sees: those small enough that must give outputs."""
    return [
        case for case in workload.cases if case.checked and expects_output(workload.program(case))
    ]


class Sanitizer:
    """The tools asked for, each proved once. Safe to use from several threads."""

    def __init__(self, tools: Sequence[str], target: str, builder: Builder) -> None:
        self.tools = tuple(tools)
        self._target = target
        self._builder = builder
        self._missing: dict[str, str] = {}
        self._lock = threading.Lock()

    def prove(self) -> Mapping[str, str]:
        """Return, for each tool, why it is unavailable, "" where it saw the fault it was shown."""
        with self._lock:
            for tool in self.tools:
                if tool not in self._missing:
                    self._missing[tool] = self._prove(tool)
            return dict(self._missing)

    def _prove(self, tool: str) -> str:
        if shutil.which(PROGRAM) is None:
            return f"{PROGRAM} is not on the PATH"
        library = self._builder.build(
            FAULTS, self._target, root=resources.tree_root(), mode=PLAIN
        ).library
        if library is None:
            return f"{FAULTS.source} does not compile"
        with tempfile.TemporaryDirectory(prefix="qsa-bench-sanitizer-") as scratch:
            folder = Path(scratch)
            path = folder / "proof.safetensors"
            program.write(path, faulty(FAULT_OF[tool]), (FAULTS,))
            job = Job(PROOF, PROOF, path, (Schedule("device"),), limit_s=_LIMIT_S)
            said = _watch(tool, self._target, {FAULTS.name: library}, [job], folder, ())
        if said.errors is None:
            return f"{tool} came to no summary: {said.text or 'it wrote nothing'}"
        if not said.errors:
            return f"{tool} reports nothing on a kernel with the fault it looks for"
        return ""

    def examine(
        self,
        workload: Workload,
        builds: StageBuilds,
        cases: Sequence[Case],
        python_path: Sequence[Path] = (),
    ) -> list[Verdict]:
        """Run cases under every tool; one verdict a tool and case."""
        missing = self.prove()
        found: list[Verdict] = []
        for tool in self.tools:
            if missing[tool]:
                evidence = Evidence(note=missing[tool])
                found += [
                    _verdict(builds, case, tool, Status.UNAVAILABLE, evidence) for case in cases
                ]
            else:
                found += self._examine(tool, workload, builds, cases, python_path)
        return found

    def _examine(
        self,
        tool: str,
        workload: Workload,
        builds: StageBuilds,
        cases: Sequence[Case],
        python_path: Sequence[Path],
    ) -> list[Verdict]:
        jobs = [
            replace(job, limit_s=_LIMIT_S)
            for job in workload.jobs(PLAIN, Limits(), cases, (Schedule("device"),))
        ]
        with tempfile.TemporaryDirectory(prefix="qsa-bench-sanitizer-") as scratch:
            said = _watch(
                tool, self._target, builds.libraries(PLAIN), jobs, Path(scratch), python_path
            )
        return [
            _verdict(builds, case, tool, *_judged(said, case.id, first=index == 0))
            for index, case in enumerate(cases)
        ]


def _judged(said: Report, case: str, *, first: bool) -> tuple[Status, Evidence]:
    reports = list(said.by_case.get(case, ()))
    if reports:
        return Status.WRONG, Evidence(len(reports), 0, "reports", note=reports[0])
    if said.endings.get(case) is not Ending.RAN:
        ending = said.endings.get(case, Ending.NOT_RUN)
        return Status.NOT_RUN, Evidence(note=f"the child ended: {ending}; {said.text}")
    if said.errors is None:
        return Status.UNAVAILABLE, Evidence(note=f"it came to no summary: {said.text}")
    # What belongs to no case is nobody's pass; the first case carries it.
    if first and (said.late or (said.errors and not any(said.by_case.values()))):
        note = said.late[0] if said.late else said.text
        return Status.WRONG, Evidence(
            max(len(said.late), 1), 0, "reports", note=f"{note} (after the last case)"
        )
    return Status.PASS, Evidence()


def _verdict(
    builds: StageBuilds, case: Case, tool: str, status: Status, evidence: Evidence
) -> Verdict:
    return Verdict(builds.digest, case.stage, case.id, case.family, tool, status, evidence)


def faulty(fault: int) -> Program:
    """Return a program that makes one fault of the kernel, none for 0."""
    buffers = (
        Buffer("data", "u32", (_COUNT,), Role.SCRATCH),
        Buffer("sink", "u32", (1,), Role.OUTPUT),
    )
    values: dict[str, Value] = {"data": "data", "sink": "sink", "count": _COUNT, "fault": fault}
    return Program(buffers, (Call(FAULTS.name, "qsa_fault", values),))


def _watch(
    tool: str,
    target: str,
    libraries: Mapping[str, str],
    jobs: Sequence[Job],
    folder: Path,
    python_path: Sequence[Path],
) -> Report:
    """Run jobs in one child under a tool; reports are told apart by how far its log had come."""
    log = folder / "log"
    log.mkdir()
    # A child that dies is followed by another: each has a log of its own.
    under = (PROGRAM, "--tool", tool, "--log-file", str(log / "%p.txt"))
    marks: list[tuple[str, int]] = []
    endings: dict[str, Ending] = {}
    children = Children(bare(target), under)
    try:
        for seen in observe(bare(target), libraries, jobs, folder, python_path, children=children):
            marks.append((seen.case, len(_written(log))))
            endings[seen.case] = _ending(seen)
    finally:
        children.close()
    whole = _written(log)
    by_case: dict[str, list[str]] = {}
    begun = 0
    for case, end in marks:
        by_case[case] = _reports(whole[begun:end])
        begun = end
    found = list(_SUMMARY.finditer(whole))
    errors = sum(int(match[1] or match[2]) for match in found) if found else None
    text = " / ".join(_bare_line(line) for line in whole.strip().splitlines()[-2:])
    return Report(errors, by_case, _reports(whole[begun:]), text, endings)


def _ending(seen: Observation) -> Ending:
    """A launch that faulted under a tool has run: what the tool says of it counts."""
    return Ending.RAN if seen.runs else seen.ending


def _written(log: Path) -> str:
    """Return what all logs hold, in the order in which they were begun."""
    files = sorted(log.iterdir(), key=lambda path: path.stat().st_ctime_ns)
    return "".join(path.read_text(errors="replace") for path in files)


def _bare_line(line: str) -> str:
    return line.replace(_LINE, "").strip()


def _reports(text: str) -> list[str]:
    """Return the first lines of the reports in a piece of a log: what was found, and where."""
    found: list[str] = []
    begins = True
    for line in text.splitlines():
        said = _bare_line(line)
        if not said:
            begins = True
        elif begins and not said.startswith(_FRAME):
            found.append(said)
            begins = False
        elif found and not begins and said.startswith("at ") and " at " not in found[-1]:
            found[-1] += f" {said}"
    return found
