"""The parent's side of the worker: jobs in, observations out, whatever becomes of the child.

A child that dies or goes silent costs the case it was on; the next cases get a fresh one: of one
that died the worker makes it (a fork), of one that went silent, or took the worker with it, we do.
"""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from qsa_bench.child import Child, Children, Ending

HOST = "host"
CRASH_PREFIX = "QSA_HOST_CRASH "
FINDING_PREFIX = "QSA_HOST_FINDING "
# After so many cases that ran out of time the rest is given up: each costs a whole limit. So it is
# after so many that lost the device though nothing should trap: each costs a context, which the
# driver makes one after another for all gates.
_MOST_TIMEOUTS = 3
_MOST_LOSSES = 6
_START_LIMIT_S = 120.0
_DEATH_S = 5.0


@dataclass(frozen=True)
class Schedule:
    """The order in which an emulated device runs its threads."""

    kind: str
    seed: int = 0

    @property
    def name(self) -> str:
        """Readable: fifo, lifo, seeded(3)."""
        return f"{self.kind}({self.seed})" if self.kind == "seeded" else self.kind


def schedules(seeds: int) -> tuple[Schedule, ...]:
    """Return FIFO, LIFO and `seeds` seeded orders."""
    return (
        Schedule("fifo"),
        Schedule("lifo"),
        *(Schedule("seeded", seed) for seed in range(1, seeds + 1)),
    )


@dataclass(frozen=True)
class Job:
    """One case for a child: its program's file and the schedules to run it under.

    `fuel` limits the emulated steps of one call, 0 for the runtime's default. `limit_s` is for all
    runs together, with `limits_each` for each by itself. `known` are digests of outputs the parent
    has judged before, so that the child need not write them again; without `written` it writes none,
    and their digests are all that is wanted of outputs. `traps` says that the case must trap, which
    takes a real device's context with it.
    """

    case: str
    key: str
    program: Path
    schedules: tuple[Schedule, ...]
    fuel: int = 0
    limit_s: float = 60.0
    known: tuple[str, ...] = ()
    traps: bool = False
    written: bool = True
    limits_each: bool = False


@dataclass(frozen=True)
class RunResult:
    """One program run under one schedule; statuses of the calls made, in order."""

    schedule: Schedule
    statuses: tuple[int, ...]
    findings: tuple[Mapping[str, Any], ...]
    fences: tuple[Mapping[str, Any], ...]
    inputs_changed: tuple[Mapping[str, Any], ...]
    touched: tuple[Mapping[str, Any], ...]
    fuel: int
    digest: str | None


@dataclass(frozen=True)
class Observation:
    """What was seen of one case: its runs, and how the child ended and what it last said.

    A child that died leaves the runs it had finished; `findings` are what the runtime said while it
    died, the crash itself last, and `code` its exit code (None: the whole worker ended). `after` is
    what a fresh child found of a real device whose context this case took: "" that it answers, a
    reason that it does not; None where nobody asked.
    """

    case: str
    ending: Ending
    runs: tuple[RunResult, ...] = ()
    text: str = ""
    findings: tuple[Mapping[str, Any], ...] = ()
    seconds: float = 0.0
    lost: str = ""
    code: int | None = None
    after: str | None = None


def _describe_death(code: int, said: str) -> tuple[str, tuple[Mapping[str, Any], ...]]:
    findings: list[Mapping[str, Any]] = []
    for line in said.splitlines():
        for prefix in (FINDING_PREFIX, CRASH_PREFIX):
            if line.startswith(prefix):
                try:
                    findings.append(json.loads(line[len(prefix) :]))
                except ValueError:
                    continue
    if findings:
        return str(findings[-1].get("message", "crashed")), tuple(findings)
    if code < 0:
        return f"killed by {signal.Signals(-code).name}", ()
    last = said.strip().splitlines()[-1:] or ["no message"]
    return f"exit {code}: {last[0]}", ()


def _result(raw: Mapping[str, Any]) -> RunResult:
    return RunResult(
        Schedule(raw["schedule"], raw["seed"]),
        tuple(raw["statuses"]),
        tuple(raw["findings"]),
        tuple(raw["fences"]),
        tuple(raw["inputs_changed"]),
        tuple(raw["touched"]),
        raw["fuel"],
        raw.get("digest"),
    )


def observe(
    target: str,
    libraries: Mapping[str, str],
    jobs: Sequence[Job],
    out: Path,
    python_path: Sequence[Path] = (),
    stopped: threading.Event | None = None,
    children: Children | None = None,
    most_losses: int | None = None,
) -> Iterator[Observation]:
    """Run `jobs` in children, one after another, and yield an observation for each, in order.

    Outputs land in `out` as "<key>.<digest>.<buffer>", raw bytes. Every job gets exactly one
    observation, whatever becomes of the child; once `stopped` is set, NOT_RUN. A child is taken
    from `children`, where there are any, and given back. RuntimeError when the worker, not the
    kernel, fails. After a case that took a real device's context a fresh child asks the device
    whether it still answers; where it does not, the rest is DEVICE_LOST. After `most_losses`
    cases that took it though they should not trap the rest is NOT_RUN.
    """
    workers = children or Children(target)
    try:
        with workers.place():
            yield from _observe(
                workers,
                libraries,
                jobs,
                out,
                python_path,
                stopped or threading.Event(),
                _MOST_LOSSES if most_losses is None else most_losses,
            )
    finally:
        if children is None:
            workers.close()


def _observe(
    workers: Children,
    libraries: Mapping[str, str],
    jobs: Sequence[Job],
    out: Path,
    python_path: Sequence[Path],
    stopped: threading.Event,
    most_losses: int,
) -> Iterator[Observation]:
    child: Child | None = None
    timeouts = losses = 0
    lost = ""
    finished = False
    try:
        for job in jobs:
            given_up = _given_up(stopped, timeouts, losses, most_losses)
            if given_up:
                yield Observation(job.case, Ending.NOT_RUN, text=given_up)
                continue
            if child is None and not lost:
                child = workers.take(python_path)
            if child is not None and _is_worn(child, job, libraries, workers.target):
                child.renew()
            child, lost = _ready(child, workers, python_path, stopped, lost)
            if child is None:
                yield Observation(job.case, Ending.DEVICE_LOST, text=lost)
                continue
            seen = _run(child, job, libraries, out, stopped)
            if child.fresh and workers.target != HOST and not stopped.is_set():
                losses += not job.traps
                child, lost = _ready(child, workers, python_path, stopped, lost)
                seen = replace(seen, after=lost)
            elif child.gone:
                child = None
            timeouts += seen.ending is Ending.TIMED_OUT
            yield seen
        finished = True
    finally:
        if child is not None and not finished:
            # One that nobody waits for any more may be in the midst of a case.
            child.stop()
        elif child is not None and python_path:
            child.close()
        elif child is not None:
            workers.give(child)


def _is_worn(child: Child, job: Job, libraries: Mapping[str, str], target: str) -> bool:
    """True when another process should do a job: other libraries were run, or a trap takes its own.

    One of the same libraries goes on: a context costs a device as long as many cases. One that is yet to
    say that it is ready has loaded nothing, and would take what is sent after the word with it.
    """
    traps = job.traps and target != HOST
    return not child.fresh and bool(child.loaded) and (traps or child.loaded != libraries)


def _given_up(stopped: threading.Event, timeouts: int, losses: int, most_losses: int) -> str:
    """Return why no further case is run, or ""."""
    if stopped.is_set():
        return "stopped"
    if timeouts >= _MOST_TIMEOUTS:
        return f"given up after {timeouts} cases out of time"
    if losses >= most_losses:
        return f"given up after {losses} lost contexts"
    return ""


def _ready(
    child: Child | None,
    workers: Children,
    python_path: Sequence[Path],
    stopped: threading.Event,
    lost: str,
) -> tuple[Child | None, str]:
    """Return a child that can do a job and ""; or none and why the device answers no process."""
    if lost:
        return None, lost
    if child is None or child.gone:
        child = workers.take(python_path)
    if child.fresh:
        lost = _await_ready(child, stopped, workers.target)
        if lost:
            child.stop()
            return None, lost
    return child, ""


def _run(
    child: Child, job: Job, libraries: Mapping[str, str], out: Path, stopped: threading.Event
) -> Observation:
    """Let a child do one job; one that went silent, or died with its worker, is gone then."""
    begun = time.monotonic()
    child.loaded = dict(libraries)
    child.send(_message(job, libraries, out))
    seen = replace(_await(child, job, stopped), seconds=time.monotonic() - begun)
    child.fresh = seen.ending is not Ending.RAN or seen.lost != ""
    code = seen.code
    if child.fresh and (child.alone or (code is None and not seen.lost)):
        # The pipe of one that dies is closed before its exit status is there.
        ends = seen.ending is Ending.CRASHED or seen.lost != ""
        code = child.stop(_DEATH_S if ends else 0.0)
    if seen.ending is Ending.CRASHED:
        text, findings = _describe_death(code or 0, child.said())
        return replace(seen, text=text, findings=findings)
    if seen.ending is Ending.TIMED_OUT:
        return replace(seen, text=f"no answer within {job.limit_s:.1f} s")
    return seen


def _message(job: Job, libraries: Mapping[str, str], out: Path) -> dict[str, Any]:
    return {
        "case": job.case,
        "key": job.key,
        "program": str(job.program),
        "libraries": dict(libraries),
        "fuel": job.fuel,
        "known": list(job.known),
        "written": job.written,
        "out": str(out),
        "runs": [
            {"schedule": schedule.kind, "seed": schedule.seed, "index": index}
            for index, schedule in enumerate(job.schedules)
        ],
    }


def _await(child: Child, job: Job, stopped: threading.Event) -> Observation:
    deadline = time.monotonic() + job.limit_s
    runs: list[RunResult] = []
    while True:
        answer = child.receive(max(deadline - time.monotonic(), 0.001), stopped)
        if isinstance(answer, Ending):
            return Observation(job.case, answer, tuple(runs))
        if "died" in answer:
            return Observation(job.case, Ending.CRASHED, tuple(runs), code=answer["died"])
        if answer.get("case") != job.case:
            continue
        if "failed" in answer:
            raise RuntimeError(f"running {job.case}: the worker failed {answer['failed']}")
        if "run" in answer:
            runs.append(_result(answer["run"]))
            if job.limits_each:
                deadline = time.monotonic() + job.limit_s
            continue
        return Observation(job.case, Ending.RAN, tuple(runs), lost=answer["lost"])


def _await_ready(child: Child, stopped: threading.Event, target: str) -> str:
    """Wait until the worker can do a job and return ""; else why the device can't be used.

    RuntimeError with what the worker said when it, not the device, is at fault.
    """
    answer = child.receive(_START_LIMIT_S, stopped)
    if stopped.is_set() or (not isinstance(answer, Ending) and "ready" in answer):
        child.fresh = False
        child.loaded = {}
        return ""
    if not isinstance(answer, Ending) and "unavailable" in answer:
        return str(answer["unavailable"])
    code = child.stop(_DEATH_S if answer is Ending.CRASHED else 0.0)
    if not isinstance(answer, Ending):
        code = answer.get("died", code)
    # A driver that dies or hangs when a process opens the device is a device that is gone.
    if target != HOST and answer is Ending.TIMED_OUT:
        return f"opening the device took more than {_START_LIMIT_S:.0f} s"
    if target != HOST and not isinstance(answer, Ending):
        return f"the process that opened the device died (exit {code})"
    raise RuntimeError(f"the worker did not start (exit {code}): {child.said().strip()}")
