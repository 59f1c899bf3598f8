"""The parent's side of the timing child: messages out, answers in, whatever becomes of the child."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from qsa_bench.child import Child, Ending
from qsa_bench.errors import EnvironmentMissingError
from qsa_bench.timing import Rule

_MODULE = "qsa_bench.timer_worker"
# Importing torch, starting CUPTI and raising the clocks takes 5 to 15 s.
_START_LIMIT_S = 180.0
_LOAD_LIMIT_S = 300.0
# Beyond the rule's own limit: graphs of 2,000 calls are captured, kernels described.
_TIME_SLACK_S = 240.0


class TimerLostError(RuntimeError):
    """The child died, lost its device or went silent; the next message needs a new one."""


@dataclass(frozen=True)
class Asked:
    """A subject: a call of a library, a peer `module:function`, or a pipeline's calls in order.

    `call` is the place of the call among the program's; `names` are its arguments' names in order;
    `libraries` are what the peer's own kernels were built into, or a pipeline's by kernel.
    """

    name: str
    library: str | None = None
    peer: str | None = None
    names: tuple[str, ...] = ()
    libraries: Mapping[str, str] = field(default_factory=dict)
    call: int = 0
    pipeline: bool = False

    def message(self) -> dict[str, Any]:
        """Return it as the child reads it."""
        if self.peer is not None:
            return {
                "name": self.name,
                "peer": self.peer,
                "names": list(self.names),
                "libraries": dict(self.libraries),
                "call": self.call,
            }
        if self.pipeline:
            return {"name": self.name, "pipeline": dict(self.libraries)}
        return {"name": self.name, "library": self.library, "call": self.call}


@dataclass(frozen=True)
class Loaded:
    """What a subject gave in its first run: files of raw bytes by output, or why there are none."""

    title: str = ""
    form: str | None = None
    files: Mapping[str, Path] = field(default_factory=dict)
    error: str = ""


@dataclass(frozen=True)
class Timed:
    """What timing a subject gave. `calls` is how many calls one sample is the mean of.

    `parts_ns` are the medians of what a call does on the device, in order, by CUPTI alone.
    """

    samples_ns: tuple[int, ...]
    dropped: Mapping[str, int]
    stopped: str
    why: str
    calls: int
    kernels: tuple[str, ...]
    clocks: Mapping[str, float]
    parts_ns: tuple[int, ...] = ()


class Timer(Protocol):
    """What the sweep needs of a timing child."""

    @property
    def device(self) -> Mapping[str, Any]:
        """What the device says of itself."""
        ...

    def load(
        self, program: Path, subjects: Sequence[Asked], out: Path, flush: str | None
    ) -> dict[str, Loaded]:
        """Make a program's buffers and subjects; run each once."""
        ...

    def calibrate(self, library: str) -> dict[str, tuple[int, int]]:
        """Make the calibration's subjects; returns bytes read and written of each."""
        ...

    def time(
        self,
        subjects: Sequence[str],
        timer: str,
        cache: str,
        rule: Rule,
        seed: int,
        describe: bool,
    ) -> dict[str, Timed]:
        """Sample subjects interleaved."""
        ...

    def close(self) -> None:
        """End the child."""
        ...


class TimerChild:
    """A timing child process. TimerLostError from any call means: make another."""

    def __init__(self, module: str = _MODULE) -> None:
        self._child = Child((), (), module)
        self._closed = False
        answer = self._receive(_START_LIMIT_S)
        self._device: Mapping[str, Any] = answer["ready"]

    @property
    def device(self) -> Mapping[str, Any]:
        """What the device says of itself."""
        return self._device

    def _receive(self, limit_s: float) -> dict[str, Any]:
        answer = self._child.receive(limit_s)
        if isinstance(answer, Ending):
            said = self._said()
            self.close()
            if answer is Ending.TIMED_OUT:
                raise TimerLostError(f"the timing child gave no answer within {limit_s:.0f} s")
            raise TimerLostError(f"the timing child died: {said}")
        if "lost" in answer:
            self.close()
            raise TimerLostError(str(answer["lost"]))
        return answer

    def _said(self) -> str:
        lines = self._child.said().strip().splitlines()
        return lines[-1] if lines else "it said nothing"

    def _ask(self, limit_s: float, **message: Any) -> dict[str, Any]:
        if self._closed:
            raise TimerLostError("the timing child is gone")
        self._child.send(message)
        return self._receive(limit_s)

    def load(
        self, program: Path, subjects: Sequence[Asked], out: Path, flush: str | None
    ) -> dict[str, Loaded]:
        """Make a program's buffers and subjects; run each once over poisoned outputs."""
        answer = self._ask(
            _LOAD_LIMIT_S,
            do="load",
            program=str(program),
            out=str(out),
            flush=flush,
            subjects=[subject.message() for subject in subjects],
        )
        return {
            name: Loaded(
                said.get("title", name),
                said.get("form"),
                {key: Path(path) for key, path in said.get("files", {}).items()},
                said["error"],
            )
            for name, said in answer["subjects"].items()
        }

    def calibrate(self, library: str) -> dict[str, tuple[int, int]]:
        """Make the calibration's subjects; returns bytes read and written of each."""
        answer = self._ask(_LOAD_LIMIT_S, do="calibrate", library=library)
        return {name: (read, written) for name, (read, written) in answer["subjects"].items()}

    def time(
        self,
        subjects: Sequence[str],
        timer: str,
        cache: str,
        rule: Rule,
        seed: int,
        describe: bool,
    ) -> dict[str, Timed]:
        """Sample subjects interleaved by one timer in one cache state."""
        answer = self._ask(
            rule.limit_s + _TIME_SLACK_S,
            do="time",
            subjects=list(subjects),
            timer=timer,
            cache=cache,
            rule={
                "half_width": rule.half_width,
                "confidence": rule.confidence,
                "least": rule.least,
                "most": rule.most,
                "limit_s": rule.limit_s,
            },
            seed=seed,
            describe=describe,
        )
        return {
            name: Timed(
                tuple(said["samples"]),
                said["dropped"],
                said["stopped"],
                said["why"],
                said["calls"],
                tuple(answer["kernels"].get(name, ())),
                answer["clocks"],
                tuple(answer["parts"].get(name, ())),
            )
            for name, said in answer["results"].items()
        }

    def close(self) -> None:
        """End the child."""
        if not self._closed:
            self._closed = True
            self._child.close()


class HeldTimer:
    """One timing child for as long as it lives; the next one is made when it is asked for."""

    def __init__(self, opened: Callable[[], Timer]) -> None:
        self._open = opened
        self._timer: Timer | None = None

    def get(self) -> Timer:
        """Return the child, a new one after `drop`."""
        if self._timer is None:
            self._timer = self._open()
        return self._timer

    def drop(self) -> None:
        """Forget a child that was lost."""
        self._timer = None

    def close(self) -> None:
        """End the child, if there is one."""
        if self._timer is not None:
            self._timer.close()
            self._timer = None


def open_timer() -> Timer:
    """Return a timing child; EnvironmentMissingError where there is no device or no torch."""
    try:
        return TimerChild()
    except TimerLostError as error:
        raise EnvironmentMissingError(
            f"opening the GPU for timing: {error}; times are never taken on the emulator, "
            "published ones lie in results/published"
        ) from None
