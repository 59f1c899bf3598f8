"""What a stage is: kernels, clauses, cases and their judges.

A stage module holds one `STAGE` and is found by its file name; nothing else names it. A case
builds a program (data) and judges what came back; between the two the program runs in a child.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from qsa_bench.captured import Captured
from qsa_bench.goldens import Golden
from qsa_bench.model import TARGETS, Argument, Finding, Kernel
from qsa_bench.program import OK, TRAP, Buffer, Program, Value

Array = npt.NDArray[Any]
Outputs = Mapping[str, Array]
Judge = Callable[[Program, Outputs], Iterable[Finding]]

# How many orders of threads a case is run under on the host: all (FIFO, LIFO and the seeds), the
# first three where the case is about values and others of its family have all, or one where it is
# about something no order changes (a refusal by the C entry, a buffer of many GB) or is long.
EVERY_SCHEDULE = "every"
FEW_SCHEDULES = "few"
ONE_SCHEDULE = "one"
SCHEDULE_COUNTS = {EVERY_SCHEDULE: None, FEW_SCHEDULES: 3, ONE_SCHEDULE: 1}


@dataclass(frozen=True)
class Case:
    """One input of a stage and the judge of what it gives.

    `label` is unique within the family; `clauses` name entries of the stage's clauses. `checked`
    says that the case is small enough for the access checker (36 bytes of bookkeeping a byte).
    `counts_bits` marks the golden cases whose differing mask bits are counted for a mutant.
    `writes` is False where the contract lets no byte be written (refusals, empty prefixes, traps):
    the writes-nothing control need not fail there. With `may_write` none is owed, but any may be.
    `reserve` says that a mutant meets the case only where the others leave it alive.
    """

    stage: str
    family: str
    label: str
    clauses: tuple[str, ...]
    build: Callable[[], Program]
    judge: Judge
    checked: bool = False
    schedules: str = EVERY_SCHEDULE
    targets: tuple[str, ...] = TARGETS
    counts_bits: bool = False
    writes: bool = True
    may_write: bool = False
    reserve: bool = False

    @cached_property
    def id(self) -> str:
        """Readable and unique: stage/family/label."""
        return f"{self.stage}/{self.family}/{self.label}"


@dataclass(frozen=True)
class Capture:
    """Inputs of one launch in the form of a captured file."""

    tensors: Mapping[str, Array]
    dtypes: Mapping[str, str]
    metadata: Mapping[str, str]


@dataclass(frozen=True)
class SweepAxis:
    """An axis that a stage's timed points differ in.

    `kind` is "size" (2k, 2052, 1M: binary k and M), "count" or "word"; values are kept as decimal
    text. `choices` names the words there are, or none for numbers. `default` holds where other
    axes are asked for and this one is not.
    """

    kind: str
    doc: str
    default: tuple[str, ...]
    choices: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class SweepPoint:
    """One launch to be timed: a program of one call, its judge, the bytes it can't avoid moving.

    Of a pipeline the launch is all calls of the program, in order. `requested` counts bytes that are
    read more than once as often as they are, `flops` are the tensor cores'; 0 says nothing of either.
    """

    entry: str
    axes: Mapping[str, str]
    program: Program
    judge: Judge
    bytes_read: int
    bytes_written: int
    requested: int = 0
    flops: int = 0


@dataclass(frozen=True)
class SweepSpec:
    """What of a stage can be timed.

    `entries` are C entries, the first where none is asked for. `standard` are the grids of the
    published sweep: lists of values by axis, where "entry", "cache" and the kernel's build axes
    are axes too. `peers` are `module:function` by entry. `point(entry, axes)` makes a launch. Of a
    `pipeline` all kernels of the stage are timed together; its entries are names of its launches, no
    symbols, and it has neither build axes nor peers.
    """

    entries: tuple[str, ...]
    axes: Mapping[str, SweepAxis]
    standard: tuple[Mapping[str, tuple[str, ...]], ...]
    point: Callable[[str, Mapping[str, str]], SweepPoint]
    peers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    pipeline: bool = False


@dataclass(frozen=True)
class View:
    """A program's inputs as another implementation is given them: buffers, and values by call.

    `writes` is False where it owes no byte (a list of no entries).
    """

    buffers: tuple[Buffer, ...]
    calls: tuple[Mapping[str, Value], ...]
    writes: bool = True


@dataclass(frozen=True)
class Interface:
    """What another implementation of a stage (a user's C entry, a peer) may take and give.

    `arguments` are all that may be asked for by name. `forms` map an output form to the argument
    it is written to. `view(program, form)` is None for a program that is about this repository's
    own entry (a refusal, a trap). `judge(form, ties)` holds outputs (by form) to the contract of
    the program it is given; with ties "free" any of equal scores may be kept. `checks` name what
    it finds.
    """

    arguments: Mapping[str, Argument]
    forms: Mapping[str, str]
    view: Callable[[Program, str], View | None]
    judge: Callable[[str, str], Judge]
    checks: Mapping[str, str]


@dataclass(frozen=True)
class Fault:
    """A fault of one place whose meaning only the stage knows, for dials to put into outputs.

    `plant(program, outputs, random)` returns outputs with the fault, as a wrong kernel would give
    them, or None where the case has no place for it. What it is given stays as it is.
    """

    sentence: str
    plant: Callable[[Program, Outputs, np.random.Generator], Outputs | None]


@dataclass(frozen=True)
class Stage:
    """A kernel or a pipeline of kernels with everything needed to gate it.

    `clauses` and `checks` map a name to one sentence. `cases(golden)` gives all cases; `golden`
    is None when the stage reads no golden. `replay(captured)` turns a captured file into a case,
    raising ReplayError with one line for a bad file; `captures(program)` goes the other way, for
    a failing case: its rows one by one, smallest first, then the whole. `numbers` name what the
    judges count in `Evidence.numbers` (name to sentence); the gate sums them over the golden's
    cases. "differing_bits" is the count that a mutant's manifest may state. `sweep` says what can
    be timed, `interface` how another implementation is put through the same cases.
    `generated(seed)` makes a case of random inputs and says of how many; `faults` are planted
    beside the dials that every stage has.
    """

    name: str
    summary: str
    kernels: tuple[Kernel, ...]
    clauses: Mapping[str, str]
    checks: Mapping[str, str]
    cases: Callable[[Golden | None], Sequence[Case]]
    golden_kind: str | None = None
    replay: Callable[[Captured], Case] | None = None
    captures: Callable[[Program], Sequence[Capture]] | None = None
    numbers: Mapping[str, str] = field(default_factory=dict)
    sweep: SweepSpec | None = None
    interface: Interface | None = None
    generated: Callable[[int], tuple[Case, int]] | None = None
    faults: Mapping[str, Fault] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.kernels:
            raise ValueError(f"stage {self.name}: no kernel")


def expects_output(program: Program) -> bool:
    """True when every call of the program should succeed, so that its outputs mean something."""
    return all(call.expect == OK for call in program.calls)


def expects_trap(program: Program) -> bool:
    """True when the last call of the program must trap."""
    return program.calls[-1].expect == TRAP


def no_judge(_program: Program, _outputs: Outputs) -> Iterable[Finding]:
    """Judge of a case whose status alone says everything (a trap, a refusal)."""
    return ()


def poisoned_like(shape: tuple[int, ...], dtype: str, poison: int) -> Array:
    """Return an array filled with the poison byte, as an untouched output looks."""
    raw = np.full(int(np.prod(shape)) * np.dtype(dtype).itemsize, poison, dtype=np.uint8)
    return raw.view(dtype).reshape(shape)
