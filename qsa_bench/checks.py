"""The checks every stage has, beside its own: what any kernel owes whatever it computes."""

from __future__ import annotations

from collections.abc import Mapping

from qsa_bench.stages.base import Stage

COMMON: Mapping[str, str] = {
    "accepts": "the C entry accepts what the contract allows",
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


def checks_of(stage: Stage) -> dict[str, str]:
    """Return name to sentence of every check of a stage, common ones first."""
    return {**COMMON, **stage.checks}
