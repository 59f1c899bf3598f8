"""A child process and its pipes, and children that wait for work.

Whatever becomes of a child, the parent is told of it as an `Ending`, never by an exception.
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
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from enum import StrEnum
from pathlib import Path
from typing import IO, Any

from qsa_bench.resources import PACKAGE

# How soon a child notices that its campaign was stopped.
_POLL_S = 0.1
_DEATH_S = 5.0
_MOST_SAID = 65536
# A word for the worker: do the jobs in the process itself, without forks.
ALONE = "alone"


class Ending(StrEnum):
    """How the child left a case."""

    RAN = "ran"
    CRASHED = "crashed"
    TIMED_OUT = "timed-out"
    NOT_RUN = "not-run"
    DEVICE_LOST = "device-lost"


class Child:
    """A child process of this package and its pipes: JSON lines in and out, stderr to a log."""

    def __init__(
        self,
        words: Sequence[str],
        python_path: Sequence[Path],
        module: str = "qsa_bench.worker",
        under: Sequence[str] = (),
    ) -> None:
        """`under` is a command that runs the process, as compute-sanitizer does."""
        environment = dict(os.environ)
        # A mutant of Python code is a copied package: the copy comes first on the path, then the
        # package that this process runs. -P keeps the working directory, which may hold another
        # (a checkout), from coming before both.
        environment["PYTHONPATH"] = os.pathsep.join(
            [str(path) for path in (*python_path, PACKAGE.parent)]
            + [part for part in environment.get("PYTHONPATH", "").split(os.pathsep) if part]
        )
        # Under a tool the process is no worker that outlives what it runs.
        self.alone = bool(under)
        # Until it says that it is ready; anew after a death that its worker outlived.
        self.fresh = True
        # What its process has loaded since then.
        self.loaded: Mapping[str, str] = {}
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by stop()
        self.process = subprocess.Popen(
            [*under, sys.executable, "-P", "-m", module, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment,
            # Ctrl-C is for the parent: a child that died of it would look like a crashed kernel.
            process_group=0,
        )
        assert self.process.stdout is not None
        self._selector = selectors.DefaultSelector()
        self._selector.register(self.process.stdout, selectors.EVENT_READ)
        self._buffer = b""
        self._unread = ""

    @property
    def gone(self) -> bool:
        """True once it was stopped."""
        return self.process.returncode is not None

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message; a child that has died is told of by the next `receive`."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(message).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # the death is seen, with its reason, at the next read

    def renew(self) -> None:
        """Let another fork of the worker do what comes next."""
        self.send({"renew": True})
        self.fresh = True

    def receive(
        self, limit_s: float, stopped: threading.Event | None = None
    ) -> dict[str, Any] | Ending:
        """Return the next message, or why there is none.

        CRASHED at the end of the stream, TIMED_OUT past the limit, NOT_RUN once stopped.
        """
        assert self.process.stdout is not None
        deadline = time.monotonic() + limit_s
        while b"\n" not in self._buffer:
            if stopped is not None and stopped.is_set():
                return Ending.NOT_RUN
            left = max(deadline - time.monotonic(), 0.0)
            # An answer that waits in the pipe is one in time: it may be we who come late to it.
            if not self._selector.select(min(left, _POLL_S)):
                if not left:
                    return Ending.TIMED_OUT
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

    def said(self) -> str:
        """Return the last of what came on stderr since this was asked before."""
        if not self._log.closed:
            self._read_log()
        text, self._unread = self._unread, ""
        return text

    def _read_log(self) -> None:
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, self._log.tell() - _MOST_SAID))
        self._unread += self._log.read().decode(errors="replace")
        # The process writes where the position, which both share, stands.
        self._log.seek(0)
        self._log.truncate()

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
            while self._selector.select(_DEATH_S) and os.read(
                self.process.stdout.fileno(), 1 << 20
            ):
                pass
        self._selector.close()
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass
        self.process.stdout.close()
        if not self._log.closed:
            self._read_log()
            self._log.close()
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
            os.killpg(self.process.pid, signal.SIGKILL)
        self.stop()


class Children:
    """Workers of one target that wait for work, so that a gate need not start Python for it.

    `under` is a command that runs each, then a process without forks. `most` limits how many are
    at work at once; None limits nothing. Safe to use from several threads.
    """

    def __init__(self, target: str, under: Sequence[str] = (), most: int | None = None) -> None:
        self.target = target
        self._places = nullcontext() if most is None else threading.BoundedSemaphore(most)
        self._under = tuple(under)
        self._words = (target, ALONE) if under else (target,)
        self._idle: list[Child] = []
        self._lock = threading.Lock()
        # A worker ends with the thread that started it (PR_SET_PDEATHSIG): one that outlives gates.
        self._starter = ThreadPoolExecutor(1)

    def place(self) -> AbstractContextManager[object]:
        """Return what to hold, as a context, while a worker is at work: a place, once one is free."""
        return self._places

    def take(self, python_path: Sequence[Path] = ()) -> Child:
        """Return a worker; one that is to import a copied package first is a new one."""
        with self._lock:
            if self._idle and not python_path:
                return self._idle.pop()
        return self._starter.submit(Child, self._words, python_path, under=self._under).result()

    def give(self, child: Child) -> None:
        """Take back a worker that waits for a job."""
        with self._lock:
            self._idle.append(child)

    def close(self) -> None:
        """End all that wait."""
        with self._lock:
            idle, self._idle = self._idle, []
        for child in idle:
            child.close()
        self._starter.shutdown()
