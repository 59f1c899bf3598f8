"""The checks every stage has, beside its own: what any kernel owes whatever it computes.

Some need the emulation, which sees every thread and every access, some a real device.
"""

from __future__ import annotations

from collections.abc import Mapping

from qsa_bench.model import TARGETS
from qsa_bench.stages.base import Stage

COMMON: Mapping[str, str] = {
    "accepts": "the C entry accepts what the contract allows; with nothing to do it writes nothing",
    "refuses": "the C entry refuses what the contract forbids, by that code, and writes nothing",
    "no-trap": "an input inside the contract traps nowhere",
    "traps": "an input the contract forbids reaches the kernel's trap, and nothing else ends it",
    "terminates": "the kernel ends within its fuel and the case within its time",
    "no-crash": "no access faults",
    "collectives": "every barrier and warp collective is reached by the threads it names",
    "launch-limits": "the launch fits the device",
    "fences": "no byte outside a buffer changes",
    "inputs-unchanged": "no input changes",
    "schedules-agree": "every order of threads gives the same bytes",
    "races": "no two threads touch a byte without order between them (access checker)",
    "bounds": "no thread reads or writes outside a buffer (access checker)",
    "uninitialised": "no thread reads what nothing wrote (access checker)",
}

# What nothing but the emulation can see: a device shows such a fault by chance, if at all.
EMULATION = frozenset({"collectives", "launch-limits", "races", "bounds", "uninitialised"})

SANITIZERS: Mapping[str, str] = {
    "memcheck": "compute-sanitizer memcheck: no access outside a buffer or misaligned",
    "racecheck": "compute-sanitizer racecheck: no hazard in shared memory",
    "initcheck": "compute-sanitizer initcheck: no read of global memory that nothing wrote",
    "synccheck": "compute-sanitizer synccheck: no barrier misused",
}
# The check that a manifest names, and the tool that makes it on a device.
SANITIZER_OF: Mapping[str, str] = {
    "races": "racecheck",
    "bounds": "memcheck",
    "uninitialised": "initcheck",
    "collectives": "synccheck",
}
DEVICE: Mapping[str, str] = {
    "device": "after a trap or a fault the device answers a fresh process",
    "emulation": "the CPU's bytes are the GPU's under every order of threads, or what is held at a "
    "bound lies within it",
    "repeats": "a mutant with a race, run many times, gives right outputs every time",
    **SANITIZERS,
}


def checks_of(stage: Stage) -> dict[str, str]:
    """Return name to sentence of every check of a stage, common ones first."""
    return {**COMMON, **stage.checks}


def checks_on(stage: Stage, target: str) -> dict[str, str]:
    """Return name to sentence of every check that is made of a stage on a target."""
    found = checks_of(stage)
    if target == TARGETS[0]:
        return found
    return {**{name: told for name, told in found.items() if name not in EMULATION}, **DEVICE}
