"""From what a child was seen to do to findings: the common checks, then the stage's own.

Pure functions of a case, its program and an observation; nothing is run here.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from qsa_bench import returned
from qsa_bench.child import Ending
from qsa_bench.model import Evidence, Finding, Status
from qsa_bench.program import OK, TRAP, Program
from qsa_bench.runner import Observation, RunResult
from qsa_bench.stages.base import Case

Array = npt.NDArray[Any]

# kernels/common/status.h: what only the host runtime answers.
HOST_TRAPPED = 100
HOST_DIVERGED = 101
HOST_OUT_OF_FUEL = 102
HOST_LAUNCH_LIMIT = 103
DEVICE_FAULT = 110
_HOST_CHECKS: Mapping[int, tuple[str, Status]] = {
    HOST_TRAPPED: ("no-trap", Status.TRAPPED),
    HOST_DIVERGED: ("collectives", Status.WRONG),
    HOST_OUT_OF_FUEL: ("terminates", Status.TIMED_OUT),
    HOST_LAUNCH_LIMIT: ("launch-limits", Status.WRONG),
    DEVICE_FAULT: ("no-crash", Status.CRASHED),
}
_CHECKER_CHECKS: Mapping[str, str] = {
    "race": "races",
    "bounds": "bounds",
    "uninitialised": "uninitialised",
    "read-only": "inputs-unchanged",
}
# A case with more distinct outputs than this has shown that its schedules disagree.
_MOST_OUTPUTS_JUDGED = 4
_RAN_CHECKS = ("no-trap", "collectives", "terminates", "launch-limits")


@dataclass(frozen=True)
class Memory:
    """The stage's findings on outputs judged before, by digest: None where there are none yet."""

    recall: Callable[[str], Sequence[Finding] | None] = lambda _digest: None
    remember: Callable[[str, Sequence[Finding]], None] = lambda _digest, _findings: None


def findings_of(
    case: Case,
    program: Program,
    observation: Observation,
    memory: Memory,
    out: Path,
    key: str,
) -> list[Finding]:
    """Judge one plain observation.

    Of a case that did not run to its end only failures are told: a check passes a case when every
    order of threads was run.

    The raw outputs lie in `out` as "<key>.<digest>.<buffer>", those that `memory` knows do not.
    """
    found: dict[str, Finding] = {}
    for run in observation.runs:
        for finding in _status_findings(program, run):
            _keep_worst(found, finding, run.schedule.name)
        for finding in _memory_findings(run):
            _keep_worst(found, finding, run.schedule.name)
    if observation.ending is Ending.RAN:
        _keep_worst(found, Finding("no-crash", Status.PASS), "")
    digests = list(dict.fromkeys(run.digest for run in observation.runs if run.digest))
    if digests:
        outputs: dict[str, dict[str, Array]] = {}
        for digest in digests[:_MOST_OUTPUTS_JUDGED]:
            known = memory.recall(digest)
            if known is None:
                outputs[digest] = returned.read(program, out, key, digest)
                known = returned.judged(case, program, outputs[digest])
                memory.remember(digest, known)
            for finding in known:
                _keep_worst(found, finding, _schedule_of(observation, digest))
        if len(observation.runs) > 1:
            _keep_worst(found, _agreement(observation, digests, outputs), "")
    return _told(observation, found)


def checker_findings(observation: Observation, expects_end: bool) -> list[Finding]:
    """Judge one observation of the access checker: races, bounds, uninitialised reads.

    `expects_end` is True where the program should run to its end. As above, only failures are told
    of a case that did not.
    """
    found: dict[str, Finding] = {
        check: Finding(check, Status.PASS)
        for check in ("races", "bounds", "uninitialised", "inputs-unchanged")
    }
    for run in observation.runs:
        for raw in run.findings:
            check = _CHECKER_CHECKS.get(str(raw.get("kind")))
            if check is not None:
                _keep_worst(found, Finding(check, Status.WRONG, _place(raw)), run.schedule.name)
        status = next((status for status in run.statuses if status), 0)
        if expects_end and status in _HOST_CHECKS:
            check, kind = _HOST_CHECKS[status]
            _keep_worst(found, Finding(check, kind, place_of(run)), run.schedule.name)
    # What a child said while it crashed; the crash itself, of another kind, comes last.
    for raw in observation.findings:
        check = _CHECKER_CHECKS.get(str(raw.get("kind")))
        if check is not None:
            _keep_worst(found, Finding(check, Status.WRONG, _place(raw)), "")
    return _told(observation, found)


def _told(observation: Observation, found: Mapping[str, Finding]) -> list[Finding]:
    if observation.after is not None:
        found = {**found, "device": _afterwards(observation)}
    if observation.ending is Ending.RAN:
        return list(found.values())
    ending = _ending(observation)
    failures = [f for f in found.values() if f.status is not Status.PASS]
    return [ending, *(f for f in failures if f.check != ending.check)]


def _afterwards(observation: Observation) -> Finding:
    """Say whether the device answered a fresh process after a case that took its context."""
    if not observation.after:
        return Finding("device", Status.PASS)
    note = f"after this case the device answers no process: {observation.after}"
    return Finding("device", Status.DEVICE_LOST, Evidence(1, 1, "devices", note=note))


def _ending(observation: Observation) -> Finding:
    evidence = (
        _place(observation.findings[-1])
        if observation.findings
        else Evidence(1, 1, "runs", note=observation.text)
    )
    if observation.ending is Ending.CRASHED:
        return Finding("no-crash", Status.CRASHED, evidence)
    if observation.ending is Ending.TIMED_OUT:
        return Finding("terminates", Status.TIMED_OUT, evidence)
    if observation.ending is Ending.DEVICE_LOST:
        return Finding("device", Status.DEVICE_LOST, evidence)
    return Finding("terminates", Status.NOT_RUN, evidence)


def _status_findings(program: Program, run: RunResult) -> Iterable[Finding]:
    # The first call that failed, or that should have: what follows it means nothing.
    made = list(zip(program.calls, run.statuses, strict=False))
    place = next(
        (i for i, (call, status) in enumerate(made) if status or call.expect != OK), len(made) - 1
    )
    status = run.statuses[place]
    expected = program.calls[place].expect
    entry = program.calls[place].entry
    if expected == TRAP:
        if status == HOST_TRAPPED:
            yield Finding("traps", Status.PASS, place_of(run))
        else:
            yield Finding("traps", Status.WRONG, _unexpected(entry, "a trap", status))
        return
    if isinstance(expected, int):
        touched = [str(hit["buffer"]) for hit in run.touched]
        if status != expected:
            evidence = _unexpected(entry, f"status {expected}", status)
            yield Finding("refuses", Status.WRONG, evidence)
        elif touched:
            note = f"{entry} refused, but wrote to {', '.join(touched)}"
            yield Finding("refuses", Status.WRONG, Evidence(len(touched), 1, "buffers", note=note))
        else:
            yield Finding("refuses", Status.PASS)
        return
    if status in _HOST_CHECKS:
        check, kind = _HOST_CHECKS[status]
        yield Finding(check, kind, place_of(run))
        return
    if status:
        yield Finding("accepts", Status.REFUSED, _unexpected(entry, OK, status))
        return
    yield Finding("accepts", Status.PASS)
    for check in _RAN_CHECKS:
        yield Finding(check, Status.PASS)


def _unexpected(entry: str, want: str, status: int) -> Evidence:
    got = {0: "it succeeded", HOST_TRAPPED: "a trap"}.get(status, f"status {status}")
    return Evidence(1, 1, "runs", entry, want, got, note=f"{entry}: want {want}, got {got}")


def _memory_findings(run: RunResult) -> Iterable[Finding]:
    if run.fences:
        hit = run.fences[0]
        note = f"{hit['buffer']}: byte {hit['byte']} {hit['side']} the buffer was written"
        yield Finding("fences", Status.WRONG, Evidence(len(run.fences), 1, "fences", note=note))
    else:
        yield Finding("fences", Status.PASS)
    if run.inputs_changed:
        hit = run.inputs_changed[0]
        note = f"input {hit['buffer']}: element {hit['element']} changed"
        evidence = Evidence(len(run.inputs_changed), 1, "inputs", note=note)
        yield Finding("inputs-unchanged", Status.WRONG, evidence)
    else:
        yield Finding("inputs-unchanged", Status.PASS)


def _place(raw: Mapping[str, Any]) -> Evidence:
    """Turn a finding of the runtime into evidence: message, place in memory, block and thread."""
    where = []
    if raw.get("buffer"):
        where.append(f"{raw['buffer']}[byte {raw.get('offset', '?')}]")
    if raw.get("block") is not None:
        where.append(f"block {tuple(raw['block'])} thread {tuple(raw.get('thread', ()))}")
    if raw.get("file"):
        where.append(f"{Path(str(raw['file'])).name}:{raw.get('line', '?')}")
    text = str(raw.get("message", raw.get("kind", "")))
    return Evidence(1, 1, "runs", where=", ".join(where), note=text)


def place_of(run: RunResult) -> Evidence:
    """Return what the runtime last said of a run: reason and place of a trap or a deadlock."""
    return _place(run.findings[-1]) if run.findings else Evidence(1, 1, "runs", note="no message")


def _keep_worst(found: dict[str, Finding], finding: Finding, schedule: str) -> None:
    """Keep, per check, the failing finding over the passing, then the larger margin and count."""
    if finding.status is not Status.PASS and schedule:
        note = finding.evidence.note
        noted = f"{note} [{schedule}]" if note else f"[{schedule}]"
        finding = replace(finding, evidence=replace(finding.evidence, note=noted))
    before = found.get(finding.check)
    if before is None or _weight(finding) > _weight(before):
        found[finding.check] = finding


def _weight(finding: Finding) -> tuple[bool, float, int]:
    margin = finding.evidence.margin
    return (
        finding.status is not Status.PASS,
        margin if margin is not None else -math.inf,
        finding.evidence.count,
    )


def run_failure(
    case: Case, program: Program, run: RunResult, memory: Memory, out: Path, key: str
) -> Finding | None:
    """Return what is wrong with one run by itself, None where nothing is; files as above."""
    found = [*_status_findings(program, run), *_memory_findings(run)]
    if run.digest:
        known = memory.recall(run.digest)
        if known is None:
            known = returned.judged(case, program, returned.read(program, out, key, run.digest))
            memory.remember(run.digest, known)
        found += known
    return next((finding for finding in found if finding.status is not Status.PASS), None)


def _schedule_of(observation: Observation, digest: str) -> str:
    return next(run.schedule.name for run in observation.runs if run.digest == digest)


def _agreement(
    observation: Observation, digests: list[str], outputs: Mapping[str, Mapping[str, Array]]
) -> Finding:
    if len(digests) == 1:
        return Finding("schedules-agree", Status.PASS)
    first, other = _schedule_of(observation, digests[0]), _schedule_of(observation, digests[1])
    note = f"{len(digests)} different outputs; {other} differs from {first}"
    count = 1
    for left, right in itertools.pairwise(outputs.values()):
        for name, array in left.items():
            differing = int(np.count_nonzero(array.view(np.uint8) != right[name].view(np.uint8)))
            if differing:
                count, note = differing, f"{note}: {differing} bytes of {name}"
                break
        break
    return Finding("schedules-agree", Status.WRONG, Evidence(count, 0, "bytes", note=note))
