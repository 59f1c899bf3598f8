"""The parity gate on one build: every case run in children, every check's say as a verdict.

Shared by the commands that gate (a kernel) and mutate (hundreds of its mutants): the workload is
prepared once, and an output that was judged once is not judged again.
"""

from __future__ import annotations

import hashlib
import heapq
import shutil
import tempfile
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from qsa_bench import judge, program
from qsa_bench.builder import Builder
from qsa_bench.child import Children, Ending
from qsa_bench.model import Build, Finding, Kernel, Verdict
from qsa_bench.program import Program
from qsa_bench.runner import HOST, Job, Observation, RunResult, Schedule, observe, schedules
from qsa_bench.stages.base import (
    SCHEDULE_COUNTS,
    Case,
    Stage,
    expects_output,
    expects_trap,
)

PLAIN = "plain"
CHECKED = "checked"
# What orders two accesses does not depend on the order they were run in, so one order is enough.
_CHECKED_SCHEDULES = (Schedule("fifo"),)
# Orders that a mutant meets first: FIFO, and where it breaks an order of accesses LIFO too.
FIRST_ORDER = 1
FIRST_ORDERS = 2
# What a mutant meets first under the checker: the largest cases of each family, so many.
_FIRST_CHECKED = 2
# A device orders its threads as it likes. Two runs place the buffers in two ways.
_DEVICE_SCHEDULES = (Schedule("device"), Schedule("device", 1))
# A mutant may use this many times the clean kernel's fuel and time before it counts as endless:
# enough for one that merely does more work, little enough that an endless loop costs no minute.
_FUEL_FACTOR = 8
_TIME_FACTOR = 20.0
_LEAST_FUEL = 200_000
_LEAST_TIME_S = 5.0
# A device's cases take hundredths of a second, some more beside contexts whose kernels hang; and one
# that hangs holds a share of the whole device until it is ended.
_LEAST_DEVICE_TIME_S = 2.0
_CLEAN_TIME_S = 120.0
# The driver makes contexts one after another. On an H200 one takes 0.25 s, four at a time 0.55 s
# each and fourteen 2.3 s each; a trap then takes 5 s instead of 1.4.
MOST_CONTEXTS = 4


@dataclass(frozen=True)
class Limits:
    """Fuel and seconds a case may use, by mode and case id; empty for a clean kernel's first run."""

    fuel: Mapping[tuple[str, str], int] = field(default_factory=dict)
    seconds: Mapping[tuple[str, str], float] = field(default_factory=dict)


@dataclass(frozen=True)
class StageBuilds:
    """All kernels of a stage built from one tree: mode to kernel name to build."""

    builds: Mapping[str, Mapping[str, Build]]

    @property
    def all(self) -> tuple[Build, ...]:
        """Every build, in order of mode and kernel."""
        return tuple(build for mode in self.builds.values() for build in mode.values())

    @property
    def failure(self) -> Build | None:
        """The first build that failed, or None."""
        return next((build for build in self.all if not build.ok), None)

    @property
    def digest(self) -> str:
        """One digest for the plain builds together."""
        return _join(build.digest for build in self.builds[PLAIN].values())

    @property
    def code_digest(self) -> str:
        """One digest of the machine code of all builds: the checker sees what a plain one folds."""
        return _join(build.code_digest for build in self.all)

    def libraries(self, mode: str) -> dict[str, str]:
        """Kernel name to library for a mode."""
        return {name: build.library for name, build in self.builds[mode].items() if build.library}


def _join(digests: Iterable[str]) -> str:
    return hashlib.sha256("".join(digests).encode()).hexdigest()[:32]


def build_stage(
    builder: Builder,
    kernels: Sequence[Kernel],
    target: str,
    root: Path,
    modes: Sequence[str],
    mutant: str | None = None,
    *,
    short: bool = False,
    flags: Sequence[str] = (),
) -> StageBuilds:
    """Build every kernel in every mode; failures are builds without library.

    `short` builds fewer instances where a kernel has such a build (model.Kernel.short); `flags` are
    the compiler's last. Modes are built side by side: they share an object, but each has a runtime of its own.
    """

    def made(mode: str) -> dict[str, Build]:
        return {
            kernel.name: builder.build(
                kernel,
                target,
                root=root,
                mode=mode,
                defines=kernel.short.get(target) if short else None,
                mutant=mutant,
                flags=flags,
            )
            for kernel in kernels
        }

    with ThreadPoolExecutor(len(modes)) as pool:
        return StageBuilds(dict(zip(modes, pool.map(made, modes), strict=True)))


def ending_of(run: RunResult) -> str:
    """Name what a run came to: the digest of its outputs, or the status that ended it."""
    status = next((status for status in run.statuses if status), 0)
    return run.digest or f"status {status}"


def modes_of(target: str) -> tuple[str, ...]:
    """The builds a target's gate needs: the host adds the access checker's."""
    return (PLAIN, CHECKED) if target == "host" else (PLAIN,)


@dataclass
class Seen:
    """What one gate of one build saw; `digests` are its plain runs' endings by case."""

    verdicts: list[Verdict]
    digests: dict[str, tuple[str, ...]]
    limits: Limits
    # A case ended by the clock: on another day, or a faster machine, it may end by itself.
    by_clock: bool = False

    @property
    def failures(self) -> list[Verdict]:
        """Verdicts that are no pass."""
        return [verdict for verdict in self.verdicts if not verdict.passed]


class Workload:
    """The cases of a stage with their programs on disk and in memory; used as a context.

    On a device the cases that must trap come last, whatever order the stage gives: each costs the
    process that runs it its context. Safe to use from several threads: what is shared is written
    once or guarded.
    """

    def __init__(self, stage: Stage, cases: Sequence[Case], target: str, seeds: int) -> None:
        self.stage = stage
        self.cases = [case for case in cases if target in case.targets]
        self.target = target
        self.schedules = schedules(seeds) if target == HOST else _DEVICE_SCHEDULES
        # Set when the run is given up: gates in other threads then end at once, their results void.
        self.stopped = threading.Event()
        self._folder = Path(tempfile.mkdtemp(prefix="qsa-bench-"))
        self.children = Children(target, most=None if target == HOST else MOST_CONTEXTS)
        self._programs: dict[str, Program] = {}
        # What was said of each output, by case and digest: a campaign sees thousands of outputs.
        self._findings: dict[str, dict[str, tuple[Finding, ...]]] = {}
        self._lock = threading.Lock()
        try:
            self._prepare()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Workload:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the children that wait and remove the programs."""
        self.children.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _prepare(self) -> None:
        for case in self.cases:
            if case.id in self._programs:
                raise ValueError(f"case id {case.id} stands twice")
            self._programs[case.id] = case.build()
        if self.target != HOST:
            self.cases.sort(key=lambda case: expects_trap(self._programs[case.id]))
        for index, case in enumerate(self.cases):
            built = self._programs[case.id]
            program.write(self._folder / f"{index}.safetensors", built, self.stage.kernels)

    @property
    def trapping(self) -> list[Case]:
        """Cases that must trap."""
        return [case for case in self.cases if expects_trap(self._programs[case.id])]

    @property
    def ordinary(self) -> list[Case]:
        """Cases that must not."""
        return [case for case in self.cases if not expects_trap(self._programs[case.id])]

    @property
    def brief(self) -> list[Case]:
        """The cases that a mutant which may live is run on: on a device one trap a clause, no more.

        Each case that traps costs a context there, most of a second of the whole device.
        """
        if self.target == HOST:
            return self.cases
        first = {case.clauses: case for case in reversed(self.trapping)}
        return [*self.ordinary, *first.values()]

    def program(self, case: Case) -> Program:
        """Return a case's program."""
        return self._programs[case.id]

    def jobs(
        self,
        mode: str,
        limits: Limits,
        cases: Sequence[Case],
        orders: Sequence[Schedule] | None = None,
        judged: bool = True,
        first: int = 0,
    ) -> list[Job]:
        """Return what a child is to do for these cases; `orders` replace their own.

        Without `judged` every output is written, also one that was judged before. `first`, as for
        `gate`.
        """
        first = first if self.target == HOST else 0
        jobs: list[Job] = []
        wanted = {case.id for case in (self._first(mode, cases) if first else cases)}
        for index, case in enumerate(self.cases):
            if case.id not in wanted or (mode == CHECKED and not case.checked):
                continue
            own = _CHECKED_SCHEDULES if mode == CHECKED else self.schedules
            own = own[: SCHEDULE_COUNTS[case.schedules]] if orders is None else tuple(orders)
            own = own[:first] if first else own
            with self._lock:
                known = tuple(self._findings.get(case.id, ()))
            jobs.append(
                Job(
                    case.id,
                    str(index),
                    self._folder / f"{index}.safetensors",
                    own,
                    limits.fuel.get((mode, case.id), 0),
                    limits.seconds.get((mode, case.id), _CLEAN_TIME_S),
                    known if judged else (),
                    expects_trap(self._programs[case.id]),
                )
            )
        return jobs

    def _first(self, mode: str, cases: Sequence[Case]) -> list[Case]:
        """Return which of the cases a mutant meets first in a mode."""
        chosen = [case for case in cases if not case.reserve]
        if mode != CHECKED:
            return chosen
        families: dict[str, list[Case]] = {}
        for case in chosen:
            if case.checked:
                families.setdefault(case.family, []).append(case)
        return [
            case
            for family in families.values()
            for case in heapq.nlargest(
                _FIRST_CHECKED, family, key=lambda case: self._programs[case.id].bytes
            )
        ]

    def gate(
        self,
        builds: StageBuilds,
        limits: Limits | None = None,
        python_path: Sequence[Path] = (),
        cases: Sequence[Case] | None = None,
        modes: Sequence[str] | None = None,
        phase: str = "",
        judged: bool = True,
        orders: Sequence[Schedule] | None = None,
        first: int = 0,
    ) -> Seen:
        """Run every case on the builds and judge it; `cases` and `modes` narrow it.

        Not `judged`, there are digests and no verdicts. `orders` of threads replace the cases' own.
        With `first` it is what a mutant meets first: on the CPU no case in reserve, so many orders alone,
        and under the checker the largest cases of each family.
        """
        given = limits or Limits()
        chosen = self.cases if cases is None else list(cases)
        by_id = {case.id: case for case in chosen}
        verdicts: list[Verdict] = []
        digests: dict[str, tuple[str, ...]] = {}
        fuel: dict[tuple[str, str], int] = {}
        seconds: dict[tuple[str, str], float] = {}
        by_clock = False
        build_digest = builds.digest
        least_s = _LEAST_TIME_S if self.target == HOST else _LEAST_DEVICE_TIME_S
        with tempfile.TemporaryDirectory(dir=self._folder, prefix="out-") as scratch:
            for mode in modes or tuple(builds.builds):
                jobs = self.jobs(mode, given, chosen, orders, judged, first)
                # The checker's say is all that is asked of a checked run.
                written = judged and mode != CHECKED
                jobs = [replace(job, written=written) for job in jobs]
                keys = {job.case: job.key for job in jobs}
                for seen in observe(
                    self.target,
                    builds.libraries(mode),
                    jobs,
                    Path(scratch),
                    python_path,
                    self.stopped,
                    self.children,
                ):
                    case = by_id[seen.case]
                    by_clock |= seen.ending in (Ending.TIMED_OUT, Ending.NOT_RUN)
                    key = keys[seen.case]
                    found = self._judge(mode, case, seen, Path(scratch), key) if judged else []
                    verdicts.extend(
                        Verdict(
                            build_digest,
                            self.stage.name,
                            case.id,
                            case.family,
                            finding.check,
                            finding.status,
                            finding.evidence,
                            max(len(seen.runs), 1),
                            phase,
                        )
                        for finding in found
                    )
                    if mode == PLAIN:
                        digests[case.id] = tuple(ending_of(run) for run in seen.runs)
                    used = max((run.fuel for run in seen.runs), default=0)
                    fuel[(mode, case.id)] = max(used * _FUEL_FACTOR, _LEAST_FUEL)
                    seconds[(mode, case.id)] = max(seen.seconds * _TIME_FACTOR, least_s)
        return Seen(verdicts, digests, Limits(fuel, seconds), by_clock)

    def _judge(
        self, mode: str, case: Case, seen: Observation, scratch: Path, key: str
    ) -> list[Finding]:
        built = self._programs[case.id]
        if mode == CHECKED:
            return judge.checker_findings(seen, expects_output(built))
        return judge.findings_of(case, built, seen, self.memory(case), scratch, key)

    def memory(self, case: Case) -> judge.Memory:
        """What the stage has said of a case's outputs so far; shared by all threads."""

        def known(digest: str) -> Sequence[Finding] | None:
            with self._lock:
                return self._findings.get(case.id, {}).get(digest)

        def judged(digest: str, findings: Sequence[Finding]) -> None:
            with self._lock:
                self._findings.setdefault(case.id, {})[digest] = tuple(findings)

        return judge.Memory(known, judged)
