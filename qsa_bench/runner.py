"""The parent's side of the worker: jobs in, observations out, whatever becomes of the child.

A child that dies or goes silent costs the case it was on; the next cases get a fresh one: of one
that died the worker makes it (a fork), of one that went silent, or took the worker with it, we do.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import IO, Any

from qsa_bench.resources import PACKAGE

CRASH_PREFIX = "QSA_HOST_CRASH "
FINDING_PREFIX = "QSA_HOST_FINDING "
# After so many cases that ran out of time the rest is given up: each costs a whole limit.
_MOST_TIMEOUTS = 3
_START_LIMIT_S = 120.0
# How soon a child notices that its campaign was stopped.
_POLL_S = 0.1
_DEATH_S = 5.0


class Ending(StrEnum):
    """How the child left a case."""

    RAN = "ran"
    CRASHED = "crashed"
    TIMED_OUT = "timed-out"
    NOT_RUN = "not-run"


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

    `fuel` limits the emulated steps of one call, 0 for the runtime's default. `known` are digests
    of outputs the parent has judged before, so that the child need not write them again.
    """

    case: str
    key: str
    program: Path
    schedules: tuple[Schedule, ...]
    fuel: int = 0
    limit_s: float = 60.0
    known: tuple[str, ...] = ()


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
    died, the crash itself last, and `code` its exit code (None: the whole worker ended).
    """

    case: str
    ending: Ending
    runs: tuple[RunResult, ...] = ()
    text: str = ""
    findings: tuple[Mapping[str, Any], ...] = ()
    seconds: float = 0.0
    lost: str = ""
    code: int | None = None


class Child:
    """A child process of this package and its pipes: JSON lines in and out, stderr to `log`."""

    def __init__(
        self,
        words: Sequence[str],
        python_path: Sequence[Path],
        log: IO[bytes],
        module: str = "qsa_bench.worker",
        stopped: threading.Event | None = None,
    ) -> None:
        environment = dict(os.environ)
        # A mutant of Python code is a copied package: the copy comes first on the path, then the
        # package that this process runs. -P keeps the working directory, which may hold another
        # (a checkout), from coming before both.
        environment["PYTHONPATH"] = os.pathsep.join(
            [str(path) for path in (*python_path, PACKAGE.parent)]
            + [part for part in environment.get("PYTHONPATH", "").split(os.pathsep) if part]
        )
        self.log = log
        self._stopped = stopped or threading.Event()
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=environment,
            # Ctrl-C is for the parent: a child that died of it would look like a crashed kernel.
            process_group=0,
        )
        assert self.process.stdout is not None
        self._selector = selectors.DefaultSelector()
        self._selector.register(self.process.stdout, selectors.EVENT_READ)
        self._buffer = b""

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message; a child that has died is told of by the next `receive`."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(message).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # the death is seen, with its reason, at the next read

    def receive(self, limit_s: float) -> dict[str, Any] | Ending:
        """Return the next message, or why there is none.

        CRASHED at the end of the stream, TIMED_OUT past the limit, NOT_RUN once stopped.
        """
        assert self.process.stdout is not None
        deadline = time.monotonic() + limit_s
        while b"\n" not in self._buffer:
            if self._stopped.is_set():
                return Ending.NOT_RUN
            left = deadline - time.monotonic()
            if left <= 0:
                return Ending.TIMED_OUT
            if not self._selector.select(min(left, _POLL_S)):
                continue
            chunk = os.read(self.process.stdout.fileno(), 1 << 20)
            if not chunk:
                return Ending.CRASHED
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        try:
            message = json.loads(line)
        except ValueError:
            return Ending.CRASHED
        return message if isinstance(message, dict) else Ending.CRASHED

    def stop(self, grace_s: float = 0.0) -> int:
        """End the process, if it does not end by itself within the grace; return its exit status.

        With it ends what it forked: the pipe is at its end when nobody holds it any more.
        """
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            code = self.process.wait(grace_s)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            code = self.process.wait()
        if not self.process.stdout.closed:
            while self._selector.select(_DEATH_S) and os.read(self.process.stdout.fileno(), 1 << 20):
                pass
        self._selector.close()
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass
        self.process.stdout.close()
        return code

    def close(self) -> None:
        """Let the process finish by itself."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self.stop()


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
) -> Iterator[Observation]:
    """Run `jobs` in children, one after another, and yield an observation for each, in order.

    Outputs land in `out` as "<key>.<digest>.<buffer>", raw bytes. Every job gets exactly one
    observation, whatever becomes of the child; once `stopped` is set, NOT_RUN. RuntimeError when
    the worker, not the kernel, fails.
    """
    child: Child | None = None
    stopped = stopped or threading.Event()
    timeouts = 0
    finished = False
    fresh = True
    log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed in the finally below
    try:
        for job in jobs:
            if stopped.is_set():
                yield Observation(job.case, Ending.NOT_RUN, text="stopped")
                continue
            if timeouts >= _MOST_TIMEOUTS:
                yield Observation(
                    job.case, Ending.NOT_RUN, text=f"given up after {timeouts} cases out of time"
                )
                continue
            if child is None:
                child = Child((target,), python_path, log, stopped=stopped)
                fresh = True
            if fresh:
                _await_ready(child, log, stopped)
            begun = time.monotonic()
            child.send(_message(job, libraries, out))
            seen = replace(_await(child, job), seconds=time.monotonic() - begun)
            fresh = seen.ending is not Ending.RAN or seen.lost != ""
            code = seen.code
            if fresh and code is None and not seen.lost:
                # The pipe of one that dies is closed before its exit status is there.
                code = child.stop(_DEATH_S if seen.ending is Ending.CRASHED else 0.0)
                child = None
            if seen.ending is Ending.CRASHED:
                text, findings = _describe_death(code or 0, _tail(log))
                seen = replace(seen, text=text, findings=findings)
            elif seen.ending is Ending.TIMED_OUT:
                timeouts += 1
                seen = replace(seen, text=f"no answer within {job.limit_s:.1f} s")
                _tail(log)
            yield seen
        finished = True
    finally:
        if child is not None:
            # One that nobody waits for any more may be in the midst of a case.
            child.close() if finished else child.stop()
        log.close()


def _message(job: Job, libraries: Mapping[str, str], out: Path) -> dict[str, Any]:
    return {
        "case": job.case,
        "key": job.key,
        "program": str(job.program),
        "libraries": dict(libraries),
        "fuel": job.fuel,
        "known": list(job.known),
        "out": str(out),
        "runs": [
            {"schedule": schedule.kind, "seed": schedule.seed, "index": index}
            for index, schedule in enumerate(job.schedules)
        ],
    }


def _await(child: Child, job: Job) -> Observation:
    deadline = time.monotonic() + job.limit_s
    runs: list[RunResult] = []
    while True:
        answer = child.receive(max(deadline - time.monotonic(), 0.001))
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
            continue
        return Observation(job.case, Ending.RAN, tuple(runs), lost=answer["lost"])


def _tail(log: IO[bytes]) -> str:
    """Return what was last said and forget it."""
    log.seek(0, os.SEEK_END)
    log.seek(max(0, log.tell() - 65536))
    text = log.read().decode(errors="replace")
    # The next child writes where the position, which all of them share, stands.
    log.seek(0)
    log.truncate()
    return text


def _await_ready(child: Child, log: IO[bytes], stopped: threading.Event) -> None:
    """Wait until the worker can do a job; RuntimeError with what it said when it can't."""
    answer = child.receive(_START_LIMIT_S)
    if stopped.is_set() or (not isinstance(answer, Ending) and "ready" in answer):
        return
    code = child.stop(_DEATH_S if answer is Ending.CRASHED else 0.0)
    if not isinstance(answer, Ending):
        code = answer.get("died", code)
    raise RuntimeError(f"the worker did not start (exit {code}): {_tail(log).strip()}")
