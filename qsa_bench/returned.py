"""What came back of a run: read from its files, told written from untouched, given to the judge."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from qsa_bench.model import DTYPES, Evidence, Finding, Role, Status
from qsa_bench.poison import POISON
from qsa_bench.program import Buffer, Program
from qsa_bench.stages.base import Case, Outputs, expects_output

Array = npt.NDArray[Any]


def read(program: Program, out: Path, key: str, digest: str) -> dict[str, Array]:
    """Read a run's outputs by buffer, in their shapes, and remove their files."""
    outputs: dict[str, Array] = {}
    for buffer in program.buffers:
        if buffer.role in (Role.OUTPUT, Role.INOUT):
            path = out / f"{key}.{digest}.{buffer.name}"
            outputs[buffer.name] = np.fromfile(path, dtype=DTYPES[buffer.dtype][0]).reshape(
                buffer.shape
            )
            path.unlink()
    return outputs


def written(buffer: Buffer, got: Array) -> Array:
    """Return which elements of an output, in its shape, are not as they were before the run."""
    raw = np.ascontiguousarray(got).view(np.uint8).reshape(*got.shape, got.itemsize)
    if buffer.role is Role.OUTPUT:
        return np.asarray((raw != POISON).any(axis=-1))
    if buffer.data is None:
        return np.ones(got.shape, dtype=bool)
    before = np.ascontiguousarray(buffer.data.reshape(got.shape)).view(np.uint8)
    return np.asarray((raw != before.reshape(raw.shape)).any(axis=-1))


def judged(case: Case, program: Program, outputs: Outputs) -> list[Finding]:
    """Return what a case says of outputs; where nothing may be written, that too is held."""
    found = list(case.judge(program, outputs))
    if not case.writes and not case.may_write and expects_output(program):
        changed = {
            name: int(np.count_nonzero(written(program.buffer(name), array)))
            for name, array in outputs.items()
        }
        names = ", ".join(name for name, count in changed.items() if count)
        note = f"succeeded with nothing to do, but wrote to {names}" if names else ""
        total = sum(array.size for array in outputs.values())
        evidence = Evidence(sum(changed.values()), total, note=note)
        status = Status.WRONG if names else Status.PASS
        found.append(Finding("accepts", status, evidence))
    return found
