"""Frozen records that pass between the parts; standard library only.

A record that makes no sense can't be built: each validates itself and raises ValueError.
Requests become records, records become tables; nothing here knows how either is done.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

SCHEMA_VERSION = 1
TARGETS = ("host", "cuda")

# numpy spelling and width in bytes of every element type a kernel argument may have;
# bf16 travels as its 16 bits.
DTYPES: Mapping[str, tuple[str, int]] = {
    "f32": ("float32", 4),
    "f64": ("float64", 8),
    "bf16": ("uint16", 2),
    "i32": ("int32", 4),
    "i64": ("int64", 8),
    "u8": ("uint8", 1),
    "u32": ("uint32", 4),
}


class Role(StrEnum):
    """What a kernel argument is to the kernel."""

    INPUT = "in"
    OUTPUT = "out"
    INOUT = "inout"
    SCRATCH = "scratch"
    SCALAR = "scalar"
    STREAM = "stream"


@dataclass(frozen=True)
class Argument:
    """One argument of a C entry, in ABI order.

    `shape` is in the contract's words (names of scalars or numbers); empty for a scalar.
    """

    name: str
    dtype: str
    role: Role
    shape: tuple[str, ...] = ()
    optional: bool = False
    doc: str = ""

    def __post_init__(self) -> None:
        if self.role is not Role.STREAM and self.dtype not in DTYPES:
            raise ValueError(f"argument {self.name}: unknown dtype {self.dtype!r}")
        if self.role in (Role.SCALAR, Role.STREAM) and self.shape:
            raise ValueError(f"argument {self.name}: a {self.role} has no shape")

    @property
    def is_pointer(self) -> bool:
        """True for device buffers, False for scalars and the stream."""
        return self.role not in (Role.SCALAR, Role.STREAM)


STREAM = Argument("stream", "", Role.STREAM, doc="cudaStream_t; null is the default stream")


@dataclass(frozen=True)
class Entry:
    """A C entry: its symbol and its arguments in ABI order.

    It returns an int32 status; `void` is for a user's own entry that returns nothing.
    """

    symbol: str
    arguments: tuple[Argument, ...]
    summary: str = ""
    void: bool = False

    def __post_init__(self) -> None:
        names = [argument.name for argument in self.arguments]
        if len(set(names)) != len(names):
            raise ValueError(f"entry {self.symbol}: an argument name stands twice")

    def argument(self, name: str) -> Argument:
        """Return the argument of that name; KeyError if there is none."""
        for argument in self.arguments:
            if argument.name == name:
                return argument
        raise KeyError(f"{self.symbol} has no argument {name!r}")


@dataclass(frozen=True)
class Axis:
    """A compile-time choice: `define` becomes -Ddefine=value; None leaves it to the source."""

    define: str
    values: tuple[int | str, ...]
    doc: str = ""


@dataclass(frozen=True)
class Kernel:
    """A kernel source and what it exports. `source` is relative to the tree that holds kernels/.

    `short` gives, by target, the defines of a build with fewer instances of the same templates, for
    kernels of which a target compiles many: a mutant of what they share is in every one of them.
    `parts` are the defines that build its launch shapes for a GPU one by one, those that compile fastest
    first, by a text that the mangled names of a shape's device functions hold.
    """

    name: str
    source: str
    entries: tuple[Entry, ...]
    targets: tuple[str, ...] = TARGETS
    axes: Mapping[str, Axis] = field(default_factory=dict)
    short: Mapping[str, Mapping[str, int | str]] = field(default_factory=dict)
    parts: Mapping[str, Mapping[str, int | str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.entries:
            raise ValueError(f"kernel {self.name}: no entry")
        unknown = set(self.targets) - set(TARGETS)
        if unknown or not self.targets:
            raise ValueError(f"kernel {self.name}: unknown or no targets {sorted(unknown)}")

    def entry(self, symbol: str) -> Entry:
        """Return the entry of that symbol; KeyError if there is none."""
        for entry in self.entries:
            if entry.symbol == symbol:
                return entry
        raise KeyError(f"kernel {self.name} has no entry {symbol!r}")


class Status(StrEnum):
    """How one check of one case ended. Only PASS is a pass.

    DEVICE_LOST: the device answered no process any more. UNAVAILABLE: the tool that makes the check
    is not there, or does not see a fault that it was shown.
    """

    PASS = "pass"
    WRONG = "wrong"
    CRASHED = "crashed"
    TIMED_OUT = "timed-out"
    REFUSED = "refused"
    TRAPPED = "trapped"
    NOT_RUN = "not-run"
    DEVICE_LOST = "device-lost"
    UNAVAILABLE = "unavailable"

    @property
    def says_nothing(self) -> bool:
        """True where nothing was seen of the kernel, neither right nor wrong."""
        return self in _SAY_NOTHING


# Asked of every verdict, thousands a mutant: a member looked up in its class costs more than this.
_SAY_NOTHING = (Status.NOT_RUN, Status.DEVICE_LOST, Status.UNAVAILABLE)


@dataclass(frozen=True)
class Evidence:
    """What a check saw: how many, where first, want and got, and the worst error over its bound.

    `count` of `total` `unit` differ. `error` and `bound` are None where no number is compared
    (bitwise checks have bound 0 and no margin). `widened` counts elements held at a widened
    bound, `flips` elements whose other legal rounding was taken.
    """

    count: int = 0
    total: int = 0
    unit: str = "elements"
    first: str = ""
    want: str = ""
    got: str = ""
    error: float | None = None
    bound: float | None = None
    where: str = ""
    note: str = ""
    numbers: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.count < 0 or self.total < 0:
            raise ValueError(f"evidence: negative count {self.count} of {self.total}")

    @property
    def margin(self) -> float | None:
        """Error over bound: below 1 is inside. None where nothing was measured."""
        if self.error is None or self.bound is None:
            return None
        if math.isnan(self.error):
            return math.inf
        if self.bound == 0:
            return math.inf if self.error > 0 else 0.0
        return self.error / self.bound


@dataclass(frozen=True)
class Finding:
    """What a judge says of one check: passed or not, and on what evidence."""

    check: str
    status: Status
    evidence: Evidence = field(default_factory=Evidence)


@dataclass(frozen=True)
class Verdict:
    """One check of one case on one build.

    `phase` tells a second gate of the same build from the first: "after traps".
    """

    build: str
    stage: str
    case: str
    family: str
    check: str
    status: Status
    evidence: Evidence
    runs: int = 1
    phase: str = ""

    @property
    def passed(self) -> bool:
        """True only for a pass."""
        return self.status is Status.PASS


@dataclass(frozen=True)
class Build:
    """A kernel compiled for a target, or the failure and its log.

    `digest` covers every input byte: sources, headers, flags, compiler. `code_digest` covers the
    object code alone, so that two sources with the same machine code have the same one.
    """

    kernel: str
    target: str
    mode: str
    digest: str
    code_digest: str
    compiler: str
    flags: tuple[str, ...]
    library: str | None
    log: str = ""
    cached: bool = False
    seconds: float = 0.0
    mutant: str | None = None

    @property
    def ok(self) -> bool:
        """True when there is a library to load."""
        return self.library is not None


class Expect(StrEnum):
    """What a manifest says becomes of its mutant."""

    KILLED = "killed"
    KILLED_BY_CRASH = "killed-by-crash"
    KILLED_BY_TIMEOUT = "killed-by-timeout"
    SURVIVES = "survives"


class Outcome(StrEnum):
    """What became of a mutant.

    HOST_ONLY, of a mutant run on a device: nothing showed there, and its manifest names checks that
    the emulation alone makes.
    """

    KILLED = "killed"
    KILLED_BY_CRASH = "killed-by-crash"
    KILLED_BY_TIMEOUT = "killed-by-timeout"
    SURVIVED = "survived"
    EQUIVALENT = "equivalent"
    UNVIABLE = "unviable"
    STALE = "stale"
    GPU_ONLY = "gpu-only"
    HOST_ONLY = "host-only"
    NOT_RUN = "not-run"


@dataclass(frozen=True)
class Mutant:
    """One wrong behaviour: a patch and what its manifest claims of it.

    `id` is "<stage>/<name>". `killed_by` are the checks that must each see it. `differing_bits`
    is the exact count on the committed golden, where one is known. `least_margin` is the smallest
    error over bound it may die by. `operator` names what made an automatic mutant, which any check
    may kill; "" for one written by hand.
    """

    id: str
    stage: str
    proves: str
    clause: str
    expect: Expect
    patch: str
    killed_by: tuple[str, ...] = ()
    targets: tuple[str, ...] = TARGETS
    differing_bits: int | None = None
    least_margin: float | None = None
    why_survives: str = ""
    equivalent: bool = False
    control: bool = False
    race: bool = False
    operator: str = ""

    def __post_init__(self) -> None:
        survives = self.expect is Expect.SURVIVES
        if survives != bool(self.why_survives):
            raise ValueError("why_survives stands exactly when a mutant should survive")
        if survives and self.killed_by:
            raise ValueError("a mutant that should survive names no check in killed_by")
        if not (survives or self.killed_by or self.operator):
            raise ValueError("a mutant that should die names in killed_by the checks that see it")
        if self.equivalent and not survives:
            raise ValueError("an equivalent mutant survives")
        unknown = set(self.targets) - set(TARGETS)
        if unknown or not self.targets:
            raise ValueError(f"targets: unknown or none: {sorted(unknown)}")


@dataclass(frozen=True)
class MutantResult:
    """What became of one mutant and whether its manifest said so.

    `code` is the digest of its machine code, "" where it has no build of its own: mutants that share it
    are one and ran once. A race mutant was given away by `orders_killed` of `orders` orders of threads.
    A race mutant on a device is run many times: `race_hits` of `race_runs` showed it. `race_cases` were
    in each of these runs; `race_left_out` were not, as they hung or lost the device.
    """

    mutant: Mutant
    target: str
    outcome: Outcome
    as_expected: bool
    killed_by: tuple[str, ...] = ()
    differing_bits: int | None = None
    margin: float | None = None
    worst_error: float | None = None
    where: str = ""
    why: str = ""
    seconds: float = 0.0
    reused: bool = False
    code: str = ""
    orders_killed: int | None = None
    orders: int | None = None
    race_hits: int | None = None
    race_runs: int | None = None
    race_cases: int | None = None
    race_left_out: int | None = None


@dataclass(frozen=True)
class Kill:
    """A cell of the kill matrix: one check's say on one mutant over all cases."""

    mutant: str
    check: str
    cases: int
    failed: int
    margin: float | None = None
    first_case: str = ""


@dataclass(frozen=True)
class SourceText:
    """A source that a campaign mutated, as it was: a report shows it without the tree."""

    path: str
    text: str


@dataclass(frozen=True)
class Measurement:
    """Durations of one subject on one case, by one timer in one cache state.

    `kind` is "kernel" (a build of ours), "library" (a user's), "peer", "calibration" or "nsys";
    `name` tells the subjects of a case apart. `samples_ns` are durations of a call, each the mean
    of `calls` calls; none means that it was not measured, and `why` says why. `verdict` is the
    pass it stands on (or what a peer breaks); `kernels` describe what a call launched, `parts_ns`
    are the medians of each of its activities, where the timer tells them apart.
    `bytes_read` and `bytes_written` can't be avoided; `bytes_requested` counts what is read more than
    once as often as it is, and `flops` what the tensor cores do: 0 where they say nothing.
    """

    build: str
    stage: str
    case: str
    name: str
    timer: str
    cache: str
    axes: Mapping[str, str]
    samples_ns: tuple[int, ...]
    dropped: Mapping[str, int]
    stopped_because: str
    verdict: str | None = None
    clocks: Mapping[str, float] = field(default_factory=dict)
    kind: str = "kernel"
    entry: str = ""
    calls: int = 1
    bytes_read: int = 0
    bytes_written: int = 0
    kernels: tuple[str, ...] = ()
    why: str = ""
    bytes_requested: int = 0
    flops: int = 0
    parts_ns: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if any(sample < 0 for sample in self.samples_ns):
            raise ValueError("measurement: a negative duration")
        if self.samples_ns and self.kind in ("kernel", "library") and not self.verdict:
            raise ValueError(f"measurement: {self.name} was timed without a pass")

    @property
    def key(self) -> str:
        """Names a measurement within its run, and the same one in another run."""
        return "|".join((self.case, self.name, self.timer, self.cache))


@dataclass(frozen=True)
class Usage:
    """What the compiler gave one kernel of a library for one architecture.

    `threads` is the most a block may have (its launch bound, 1,024 without), `warps` of
    `most_warps` the occupancy at that size.
    """

    kernel: str
    name: str
    architecture: int
    registers: int
    spill_stores: int
    spill_loads: int
    stack: int
    shared: int
    threads: int
    warps: int
    most_warps: int

    @property
    def occupancy(self) -> float:
        """Share of a multiprocessor's warps that can be resident."""
        return self.warps / self.most_warps

    @property
    def key(self) -> str:
        """Names a kernel and its architecture, the same in another run."""
        return f"{self.kernel}|{self.name}|sm_{self.architecture}"


@dataclass(frozen=True)
class Run:
    """One command as it was asked and done. Done not equal to asked is not green."""

    id: str
    command: str
    argv: tuple[str, ...]
    started: str
    commit: str
    dirty: bool
    versions: Mapping[str, str]
    host: str
    target: str
    device: str
    asked: int
    done: int
    exit_code: int
    seconds: float
    notes: Mapping[str, object] = field(default_factory=dict)
