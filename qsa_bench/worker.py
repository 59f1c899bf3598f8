"""The child process: runs programs and writes down what happened; it never judges.

`python -m qsa_bench.worker TARGET` reads one JSON job a line on stdin and answers in JSON lines on
stdout: {"ready": target} before the first, or {"unavailable": why} where there is no device to be had,
{"case": id, "run": {...}} after each run of a case, {"case": id, "lost": ...} after all, {"case": id,
"failed": ...} when the worker itself could not do its work. Only the standard library is imported for
the host target, so that a child is up in a few hundredths of a second.
Whatever dies here (a trap's context, a segment fault, a hang) dies without harming its parent: jobs are
done in a fork of this process, which says {"died": code} of one that died and forks the next. A
mutant that crashes in a hundred cases so costs a hundred forks, not a hundred starts of Python.
`python -m qsa_bench.worker TARGET alone` does the jobs in the process itself and ends with a lost device:
for a tool that follows one process.
"""

from __future__ import annotations

import ctypes
import gc
import hashlib
import importlib
import json
import os
import resource
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

SCALARS: Mapping[str, Any] = {
    "f32": ctypes.c_float,
    "f64": ctypes.c_double,
    "i32": ctypes.c_int32,
    "i64": ctypes.c_int64,
    "u8": ctypes.c_uint8,
    "u32": ctypes.c_uint32,
}
_PR_SET_PDEATHSIG = 1
# Exit code of a fork that another is to take the place of: its device is lost, or it was asked to.
_WORN_OUT = 75


class Device(Protocol):
    """What a target does for the worker. Status codes are those of kernels/common/status.h."""

    @property
    def lost(self) -> str:
        """Why no further case can run in this process, or "": a real device loses its context."""
        ...

    def load(self, path: str) -> ctypes.CDLL:
        """Load a kernel library, once."""
        ...

    def allocate(self, program: Mapping[str, Any], blob: memoryview) -> Mapping[str, int]:
        """Make the program's buffers, fenced; returns name to address."""
        ...

    def prepare(self, run: Mapping[str, Any], library: ctypes.CDLL) -> None:
        """Fill every buffer for one run and set the schedule."""
        ...

    def address(self, name: str) -> int:
        """Address of a buffer in the present run."""
        ...

    def finish(self, library: ctypes.CDLL) -> dict[str, Any]:
        """Wait for the device; returns status, findings, fences, inputs_changed, touched, fuel.

        `touched` names outputs that no longer are as they were filled.
        """
        ...

    def output(self, name: str) -> bytes:
        """Bytes of a buffer after the run."""
        ...

    def release(self) -> None:
        """Give the program's buffers back."""
        ...


def read_program(path: str) -> tuple[dict[str, Any], memoryview, dict[str, tuple[int, int]]]:
    """Return a program's description, the tensor bytes and each tensor's span in them."""
    blob = memoryview(Path(path).read_bytes())
    length = int.from_bytes(blob[:8], "little")
    header = json.loads(bytes(blob[8 : 8 + length]))
    program = json.loads(header.pop("__metadata__")["program"])
    spans = {name: tuple(entry["data_offsets"]) for name, entry in header.items()}
    return program, blob[8 + length :], spans


def _call(device: Device, library: ctypes.CDLL, call: Mapping[str, Any]) -> int:
    arguments: list[Any] = []
    for argument in call["arguments"]:
        if argument.get("null") or argument.get("stream"):
            arguments.append(ctypes.c_void_p(None))
        elif "buffer" in argument:
            base = device.address(argument["buffer"])
            arguments.append(ctypes.c_void_p(base + argument["byte_offset"]))
        else:
            arguments.append(SCALARS[argument["scalar"]](argument["value"]))
    entry = getattr(library, call["entry"])
    if call.get("void"):
        entry.restype = None
        entry(*arguments)
        return 0
    entry.restype = ctypes.c_int32
    return int(entry(*arguments))


def _call_python(
    device: Device, libraries: Mapping[str, ctypes.CDLL], call: Mapping[str, Any]
) -> int:
    module, _, function = call["python"].partition(":")
    values = {
        name: device.address(value["buffer"]) + value["byte_offset"]
        if "buffer" in value
        else value["value"]
        for name, value in call["values"].items()
    }
    return int(getattr(importlib.import_module(module), function)(libraries, values))


def _run_once(
    device: Device,
    libraries: Mapping[str, ctypes.CDLL],
    program: Mapping[str, Any],
    run: Mapping[str, Any],
) -> dict[str, Any]:
    first = libraries[program["calls"][0]["kernel"]]
    statuses: list[int] = []
    findings: list[Any] = []
    outcome: dict[str, Any] = {}
    fuel = 0
    for index, call in enumerate(program["calls"]):
        library = libraries[call["kernel"]]
        device.prepare({**run, "first": index == 0}, library)
        if call.get("python"):
            status = _call_python(device, libraries, call)
        else:
            status = _call(device, library, call)
        outcome = device.finish(library)
        statuses.append(status if status else outcome["status"])
        findings.extend(outcome["findings"])
        fuel += outcome["fuel"]
        if statuses[-1]:
            break
    outcome = outcome or device.finish(first)
    return {
        "schedule": run["schedule"],
        "seed": run["seed"],
        "statuses": statuses,
        "findings": findings,
        "fences": outcome["fences"],
        "inputs_changed": outcome["inputs_changed"],
        "touched": outcome["touched"],
        "fuel": fuel,
    }


class _WorkerError(Exception):
    """What went wrong is the worker's affair (a file, memory), not the kernel's."""


def _prepare(device: Device, job: Mapping[str, Any]) -> dict[str, Any]:
    try:
        program, blob, spans = read_program(job["program"])
        program["spans"] = spans
        device.allocate(program, blob)
    except Exception as error:
        raise _WorkerError(
            f"preparing {job['program']}: {type(error).__name__}: {error}"
        ) from error
    return program


def _keep_outputs(
    device: Device, program: Mapping[str, Any], job: Mapping[str, Any], known: set[str]
) -> str:
    """Write the outputs, unless ones with the same bytes are known or none is wanted.

    Returns their digest.
    """
    names = [b["name"] for b in program["buffers"] if b["role"] in ("out", "inout")]
    contents = {name: device.output(name) for name in names}
    digest = hashlib.blake2b(digest_size=16)
    for name in names:
        digest.update(contents[name])
    found = digest.hexdigest()
    if job["written"] and found not in known:
        known.add(found)
        try:
            for name in names:
                target = Path(job["out"]) / f"{job['key']}.{found}.{name}"
                target.write_bytes(contents[name])
        except OSError as error:
            raise _WorkerError(f"writing outputs in {job['out']}: {error}") from error
    return found


def _run_case(device: Device, job: Mapping[str, Any], say: Any) -> None:
    program = _prepare(device, job)
    known = set(job["known"])
    try:
        libraries = {name: device.load(path) for name, path in job["libraries"].items()}
        for run in job["runs"]:
            result = _run_once(device, libraries, program, {**run, "fuel": job["fuel"]})
            # Outputs mean something only after every call succeeded.
            if len(result["statuses"]) == len(program["calls"]) and not any(result["statuses"]):
                result["digest"] = _keep_outputs(device, program, job, known)
            # Told at once: a crash of the next run leaves what this one showed.
            say({"case": job["case"], "run": result})
            if device.lost:
                break
    finally:
        device.release()
    say({"case": job["case"], "lost": device.lost})


def die_with_parent() -> None:
    """Let this process be killed when its parent ends, and leave no core file."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _serve(target: ModuleType, say: Callable[[Mapping[str, Any]], None]) -> int:
    """Do jobs until stdin closes, the device is lost or another fork is asked for."""
    try:
        device: Device = target.open_device()
    except Exception as error:
        say({"unavailable": f"{type(error).__name__}: {error}"})
        return 0
    say({"ready": sys.argv[1]})
    for line in sys.stdin:
        job = json.loads(line)
        if "renew" in job:
            return _WORN_OUT
        try:
            _run_case(device, job, say)
        except _WorkerError as error:
            say({"case": job["case"], "failed": str(error)})
        if device.lost:
            return _WORN_OUT
    return 0


def main() -> int:
    """Let forks serve jobs until stdin closes."""
    die_with_parent()
    # Answers go where stdout went; what a kernel or Python code prints goes to the log.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    target = importlib.import_module(f"qsa_bench.targets.{sys.argv[1]}_device")

    def say(message: Mapping[str, Any]) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    if sys.argv[2:] == ["alone"]:
        # What became of the jobs was said. A tool would report another exit code as an error.
        _serve(target, say)
        return 0
    # A fork collects what it makes, not what it was given: that would copy every page of it.
    gc.freeze()
    while True:
        fork = os.fork()
        if fork == 0:
            die_with_parent()
            os._exit(_serve(target, say))
        code = os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1])
        if code == 0:
            return 0
        if code != _WORN_OUT:
            say({"died": code})


if __name__ == "__main__":
    sys.exit(main())
