"""What a command line asks for, and the answers that are no run.

A request is data: the command line builds it, a command module's `run(request, progress)` carries
it out, nobody prints on the way. Paths are as the user gave them (relative to the working
directory). `argv` is what was typed, kept for the run's record.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from qsa_bench import defaults
from qsa_bench.errors import UsageError
from qsa_bench.exit_codes import ExitCode
from qsa_bench.model import TARGETS, Finding, Status
from qsa_bench.timing import Rule

BUILD_MODES = ("plain", "checked")
# The tools of compute-sanitizer; qsa_bench.checks says what each looks for.
SANITIZERS = ("memcheck", "racecheck", "initcheck", "synccheck")
LISTS = (
    "stages",
    "kernels",
    "cases",
    "checks",
    "clauses",
    "mutants",
    "goldens",
    "runs",
    "exit-codes",
)


def default_jobs() -> int:
    """Processors this process may use, at least 1."""
    return max(1, len(os.sched_getaffinity(0)))


def check(target: str, jobs: int = 1, seeds: int = 0) -> None:
    """Refuse, by UsageError, values that no command takes."""
    if target not in TARGETS:
        raise UsageError(f"--target {target}: there is no such target; use {' or '.join(TARGETS)}")
    if jobs < 1:
        raise UsageError(f"--jobs {jobs}: at least one worker is needed")
    if seeds < 0:
        raise UsageError(f"--seeds {seeds}: a number of schedules can't be negative")


def sanitizers(text: str | None, target: str) -> tuple[str, ...]:
    """Return the tools of a list such as memcheck,racecheck; UsageError for one that is none."""
    if text is None:
        return ()
    if target == "host":
        raise UsageError("--sanitizer goes with --target cuda; the host has its own checker")
    asked = words(text)
    unknown = [tool for tool in asked if tool not in SANITIZERS]
    if unknown:
        raise UsageError(f"--sanitizer {unknown[0]}: use {', '.join(SANITIZERS)}")
    return asked


def words(text: str) -> tuple[str, ...]:
    """Return the words of a list given as 1,8,64; UsageError for an empty one."""
    found = tuple(word.strip() for word in text.split(","))
    if not all(found):
        raise UsageError(f"a list is {text!r}; give values with commas between them")
    return tuple(dict.fromkeys(found))


def axes(named: Mapping[str, str | None], more: Sequence[str] = ()) -> dict[str, tuple[str, ...]]:
    """Return asked lists by axis: those given by name, and others given as "name=list"."""
    given = {name: words(text) for name, text in named.items() if text is not None}
    for text in more:
        name, equals, values = text.partition("=")
        if not equals or not name:
            raise UsageError(f"--axis {text}: give a name, = and a list")
        if name in given:
            raise UsageError(f"--axis {text}: {name} is given twice")
        given[name] = words(values)
    return given


def share(text: str) -> float:
    """Return a share given as 5% or 0.05; UsageError for anything else."""
    number, percent = text.strip().removesuffix("%"), text.strip().endswith("%")
    try:
        value = float(number) / (100 if percent else 1)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UsageError(f"a share is {text!r}; give 5% or 0.05")
    return value


def rule(half_width: float, least: int, most: int, limit_s: float) -> Rule:
    """Return a stopping rule; UsageError for one that makes no sense."""
    try:
        return Rule(half_width=half_width, least=least, most=most, limit_s=limit_s)
    except ValueError as error:
        raise UsageError(f"--half-width, --least, --most, --limit: {error}") from None


class Progress(Protocol):
    """How a command says how far it is. One task at a time; `start` begins a new one."""

    def start(self, description: str, total: int | None) -> None:
        """Begin a task of `total` steps (None: unknown)."""

    def advance(self, text: str = "") -> None:
        """One step is done; `text` names it."""

    def finish(self) -> None:
        """The task is over, whether or not all steps were taken."""


class NullProgress:
    """Progress that nobody watches."""

    def start(self, description: str, total: int | None) -> None:
        """Ignore the task."""

    def advance(self, text: str = "") -> None:
        """Ignore the step."""

    def finish(self) -> None:
        """Ignore the end."""


@dataclass(frozen=True)
class ForeignRequest:
    """A user's own kernel: a shared library, the C entry in it, and the map of its arguments."""

    library: Path
    entry: str
    map_file: Path


def foreign(
    library: Path | None, entry: str | None, map_file: Path | None
) -> ForeignRequest | None:
    """Return the user's kernel that three options name, None where none is given."""
    if library is None and entry is None and map_file is None:
        return None
    if library is None or entry is None or map_file is None:
        raise UsageError("--library, --entry and --map go together")
    return ForeignRequest(library, entry, map_file)


@dataclass(frozen=True)
class GateRequest:
    """Gate stages. No stages: all that there are (with a golden: those that read its kind).

    On a device `sanitizers` are tools to run the small cases under, and with `against_host` the
    emulation's outputs are held to the device's.
    """

    stages: tuple[str, ...] = ()
    target: str = "host"
    golden: Path | None = None
    case_globs: tuple[str, ...] = ()
    seeds: int = defaults.SEEDS
    jobs: int = field(default_factory=default_jobs)
    results: Path = defaults.RESULTS
    argv: tuple[str, ...] = ()
    save_failures: bool = True
    foreign: ForeignRequest | None = None
    sanitizers: tuple[str, ...] = ()
    against_host: bool = False

    def __post_init__(self) -> None:
        check(self.target, self.jobs, self.seeds)
        if self.against_host and self.target == "host":
            raise UsageError("--against-host goes with --target cuda: it compares a device with it")
        if self.against_host and self.foreign is not None:
            raise UsageError("--against-host and --library: a user's kernel has no emulation")


@dataclass(frozen=True)
class BuildRequest:
    """Compile the kernels of stages. `mode` is a host mode, None builds both.

    `architectures` are compute capabilities of the cuda target (80, 90, ...); empty: the device
    found. `all_architectures` asks for every one that is supported. `few_shapes` builds kernels with a
    launch table (model.Kernel.short) with few of its shapes. `bench` builds instead what
    belongs to no stage: the kernels of kernels/bench and kernels/peers. With `resources` what the
    compiler gave each kernel is kept as a run under `results`.
    """

    stages: tuple[str, ...] = ()
    target: str = "host"
    mode: str | None = None
    architectures: tuple[int, ...] = ()
    all_architectures: bool = False
    few_shapes: bool = False
    warnings_as_errors: bool = False
    bench: bool = False
    resources: bool = False
    jobs: int = field(default_factory=default_jobs)
    results: Path = defaults.RESULTS
    argv: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check(self.target, self.jobs)
        if self.mode is not None and self.mode not in BUILD_MODES:
            raise UsageError(f"--mode {self.mode}: use {' or '.join(BUILD_MODES)}")
        if self.target == "host" and (self.architectures or self.all_architectures):
            raise UsageError("--arch and --all-architectures go with --target cuda")
        if self.target == "host" and self.few_shapes:
            raise UsageError("--few-shapes goes with --target cuda")
        if self.target == "cuda" and self.mode is not None:
            raise UsageError("--mode goes with --target host")
        if self.bench and (self.target == "host" or self.stages or self.resources):
            raise UsageError("--bench goes with --target cuda, and with no --stage or --resources")
        if self.target == "host" and self.resources:
            raise UsageError("--resources goes with --target cuda")


@dataclass(frozen=True)
class ReplayRequest:
    """Run one kernel on tensors captured elsewhere; write its outputs to `output` if given."""

    kernel: str
    inputs: Path
    mutant: str | None = None
    output: Path | None = None
    force: bool = False
    target: str = "host"
    argv: tuple[str, ...] = ()
    foreign: ForeignRequest | None = None

    def __post_init__(self) -> None:
        check(self.target)
        if self.foreign is not None and self.mutant is not None:
            raise UsageError("--library and --mutant: a mutant is one of a kernel of this tree")


@dataclass(frozen=True)
class SweepRequest:
    """Time the kernels of stages on the GPU.

    `axes` are asked lists by axis ("context", "threads", "cache", "entry", ...); none: the
    standard grids. `peers` are a user's own beside the built-in ones. `resume` names a run folder
    to go on with, `nsys` an export to read instead of timing anything, `gate` a run of the gate
    whose passes stand. After `stop_after_s` no further point is begun.
    """

    stages: tuple[str, ...] = ()
    axes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    timers: tuple[str, ...] = ("cupti", "graph")
    peers: tuple[str, ...] = ()
    builtin_peers: bool = True
    foreign: ForeignRequest | None = None
    golden: Path | None = None
    rule: Rule = field(default_factory=Rule)
    seed: int = 1
    resume: str | None = None
    stop_after_s: float | None = None
    nsys: Path | None = None
    gate: str | None = None
    jobs: int = field(default_factory=default_jobs)
    results: Path = defaults.RESULTS
    argv: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check("cuda", self.jobs)
        for peer in self.peers:
            module, _, function = peer.partition(":")
            if not module or not function.isidentifier():
                raise UsageError(f"--peer {peer}: give module:function")
        if self.nsys is not None and (self.axes or self.resume or self.foreign or self.peers):
            raise UsageError("--from-nsys reads a file and times nothing; it goes with no axis")
        if self.gate is not None and self.golden is not None:
            raise UsageError("--gate and --golden: that run's passes are of its own golden")


@dataclass(frozen=True)
class CompareRequest:
    """Compare two runs of one kind. Factors of allowed growth: 0.05 is 5%."""

    old: str
    new: str
    max_slowdown: float = 0.05
    max_growth: float = 0.0
    results: Path = defaults.RESULTS

    def __post_init__(self) -> None:
        if not 0 < self.max_slowdown < 10:
            raise UsageError(f"--max-slowdown {self.max_slowdown:.0%}: a share above 0 is needed")
        if not 0 <= self.max_growth < 100:
            raise UsageError(f"--max-growth {self.max_growth:.0%}: a share of 0 or more is needed")


@dataclass(frozen=True)
class ReportRequest:
    """Read a run folder. "latest" is the newest folder under `results`.

    `plots` names a folder to draw a sweep's plots into. `beside` are runs to show a campaign
    beside: one on another target, or an audit's false alarms.
    """

    run: str
    results: Path = defaults.RESULTS
    plots: Path | None = None
    beside: tuple[str, ...] = ()


@dataclass(frozen=True)
class GoldenDumpRequest:
    """Dump a golden of the reference. `weights` and `hidden` are safetensors of a user's own."""

    kind: str
    out: Path
    seed: int = 0
    weights: Path | None = None
    hidden: Path | None = None
    force: bool = False


@dataclass(frozen=True)
class GoldenVerifyRequest:
    """Check a golden's layout and claims. No path: every committed golden (of `kind`, if given)."""

    path: Path | None = None
    kind: str | None = None


@dataclass(frozen=True)
class DoctorRequest:
    """Look at what this machine offers; `target` must be able to work for exit 0."""

    target: str = "host"
    results: Path = defaults.RESULTS

    def __post_init__(self) -> None:
        check(self.target)


@dataclass(frozen=True)
class ListRequest:
    """List one kind of thing, one of LISTS. `stages` narrows what belongs to stages."""

    what: str = "stages"
    stages: tuple[str, ...] = ()
    target: str = "host"
    golden: Path | None = None
    results: Path = defaults.RESULTS

    def __post_init__(self) -> None:
        check(self.target)
        if self.what not in LISTS:
            raise UsageError(f"list {self.what}: there is no such list; use {', '.join(LISTS)}")


@dataclass(frozen=True)
class ReplayResult:
    """What a replay saw.

    `findings` are the checks' say against the oracle; `status` is the worst of them or what
    became of the child. A trap has a reason and a place, also where the contract demands it
    (`trap_expected`); a trap is never exit 0. `output` is the file written, if any.
    """

    kernel: str
    inputs: Path
    target: str
    status: Status
    exit_code: ExitCode
    case: str = ""
    mutant: str | None = None
    findings: tuple[Finding, ...] = ()
    trap_reason: str = ""
    trap_where: str = ""
    trap_expected: bool = False
    output: Path | None = None
    lines: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.status is Status.TRAPPED and not self.trap_reason:
            raise ValueError("replay: trapped without a reason")
        if (self.exit_code is ExitCode.OK) != (self.status is Status.PASS):
            raise ValueError(f"replay: exit {int(self.exit_code)} for status {self.status}")


@dataclass(frozen=True)
class Listing:
    """Things of one kind; `columns` name the fields of each row.

    The first `shown` of them fit a page (None: all); JSON has every one.
    """

    what: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    shown: int | None = None

    def __post_init__(self) -> None:
        if any(len(row) != len(self.columns) for row in self.rows):
            raise ValueError(f"list {self.what}: a row does not fit {self.columns}")


class State(StrEnum):
    """What a probe found: ABSENT is no fault unless it is needed."""

    OK = "ok"
    ABSENT = "absent"
    MISSING = "MISSING"


@dataclass(frozen=True)
class Probe:
    """One thing the doctor looked at. A missing thing comes with what to do about it."""

    name: str
    state: State
    found: str
    remedy: str = ""

    def __post_init__(self) -> None:
        if self.state is State.MISSING and not self.remedy:
            raise ValueError(f"probe {self.name}: missing, and no word on what to do")


@dataclass(frozen=True)
class Diagnosis:
    """What this machine offers, and whether `target` can work here."""

    target: str
    probes: tuple[Probe, ...]

    @property
    def exit_code(self) -> ExitCode:
        """ENVIRONMENT_MISSING when something that the target needs is missing."""
        missing = any(probe.state is State.MISSING for probe in self.probes)
        return ExitCode.ENVIRONMENT_MISSING if missing else ExitCode.OK


@dataclass(frozen=True)
class GoldenFile:
    """A golden that holds: what it says of itself, and the facts checked, a sentence each."""

    path: Path
    kind: str
    bytes: int
    digest: str
    metadata: Mapping[str, str]
    facts: tuple[str, ...]


@dataclass(frozen=True)
class GoldenReport:
    """Goldens dumped or verified; one that does not hold is a GoldenError instead."""

    action: str
    files: tuple[GoldenFile, ...]
