"""Device activities that the profiler recorded, and which launch each belongs to. Pure.

Launches go to one stream, so activities follow one another in the order they were launched in.
What one call does to the device (how many kernels, of which names) is found out first; a record
that does not fit what was launched is refused as a whole, never guessed at.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


class LostRecordsError(RuntimeError):
    """The profiler's record does not fit what was launched."""


@dataclass(frozen=True)
class Activity:
    """A kernel, a copy or a fill on the device."""

    name: str
    start_ns: int
    duration_ns: int


@dataclass(frozen=True)
class Launched:
    """One call in the order of launching: who it counts for (None: nobody), what it does."""

    subject: str | None
    names: tuple[str, ...]


def activities(events: Iterable[Any]) -> list[Activity]:
    """Return what ran on the device, in order of time, of the profiler's raw events."""
    found = [
        Activity(event.name(), int(event.start_ns()), int(event.duration_ns()))
        for event in events
        if str(event.device_type()).rpartition(".")[2] == "CUDA"
    ]
    return sorted(found, key=lambda activity: activity.start_ns)


def names_of_a_call(recorded: Sequence[Activity], calls: int) -> tuple[str, ...]:
    """Return what one call does, of a record of `calls` equal ones.

    LostRecordsError where the record is empty or its parts differ.
    """
    if not recorded:
        raise LostRecordsError("the profiler recorded nothing on the device")
    count, rest = divmod(len(recorded), calls)
    names = tuple(activity.name for activity in recorded)
    if rest or count == 0 or names != names[:count] * calls:
        raise LostRecordsError(f"{calls} equal calls left {len(recorded)} unequal records")
    return names[:count]


def durations(
    recorded: Sequence[Activity], launched: Sequence[Launched]
) -> list[tuple[str | None, tuple[int, ...]]]:
    """Return each launched call's subject and the durations of its activities in order, in ns.

    LostRecordsError where a record is missing, superfluous or of another name.
    """
    wanted = sum(len(call.names) for call in launched)
    if wanted != len(recorded):
        raise LostRecordsError(f"{wanted} records are due, the profiler left {len(recorded)}")
    at = 0
    taken: list[tuple[str | None, tuple[int, ...]]] = []
    for call in launched:
        part = recorded[at : at + len(call.names)]
        for activity, name in zip(part, call.names, strict=True):
            if activity.name != name:
                raise LostRecordsError(f"a record of {name} is due, {activity.name} is there")
        taken.append((call.subject, tuple(activity.duration_ns for activity in part)))
        at += len(call.names)
    return taken


def described(trace: Mapping[str, Any]) -> list[str]:
    """Return a line a kernel of a profiler's exported trace: name, grid, block, registers.

    What the trace does not say is left out of the line.
    """
    lines: list[str] = []
    kernels = [event for event in trace.get("traceEvents", ()) if event.get("cat") == "kernel"]
    for event in sorted(kernels, key=lambda event: float(event.get("ts", 0))):
        said = event.get("args", {})
        parts = [str(event.get("name", ""))]
        for word, key in (("grid", "grid"), ("block", "block")):
            if said.get(key):
                parts.append(f"{word} {'x'.join(str(extent) for extent in said[key])}")
        if said.get("registers per thread") is not None:
            parts.append(f"{said['registers per thread']} registers")
        if said.get("shared memory"):
            parts.append(f"{said['shared memory']} B shared")
        lines.append(", ".join(parts))
    return lines


def dealt(lines: Sequence[str], names: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Return each subject's share of the kernels' lines, in order; nothing where they don't fit."""
    kernels = {
        subject: [name for name in done if not name.startswith(("Memset", "Memcpy"))]
        for subject, done in names.items()
    }
    if len(lines) != sum(len(part) for part in kernels.values()):
        return {}
    left = list(lines)
    shares: dict[str, list[str]] = {}
    for subject, part in kernels.items():
        shares[subject], left = left[: len(part)], left[len(part) :]
    return shares
