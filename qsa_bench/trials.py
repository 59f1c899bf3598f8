"""Automatic mutants one by one: built, told apart by their machine code, run as far as it takes.

A mutant whose object code is the production kernel's is equivalent, and mutants with the same code
run once. The plain build meets every case under every order unless the first ones kill it; the access
checker is asked only where a plain run saw nothing or an order of accesses was broken.
"""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from qsa_bench import baseline, equal_code, equivalence, mutants, outcomes, patches, resources
from qsa_bench.builder import Builder, Sources
from qsa_bench.case_order import CaseOrder
from qsa_bench.equal_code import Compilers, UndecidedError
from qsa_bench.equivalence import Argument
from qsa_bench.model import Build, Kill, Mutant, MutantResult, Outcome, Verdict
from qsa_bench.once import Once
from qsa_bench.operators import OPERATORS
from qsa_bench.parity import (
    CHECKED,
    FIRST_ORDER,
    FIRST_ORDERS,
    PLAIN,
    Limits,
    Seen,
    StageBuilds,
    Workload,
    build_stage,
    modes_of,
)
from qsa_bench.races import Races, Seldom
from qsa_bench.runner import HOST
from qsa_bench.stages.base import Stage

_CODE_DIGITS = 16
# What a result says of a mutant that was not run on.
STOPPED = "stopped at its first kill"


@dataclass(frozen=True)
class Trial:
    """What became of one mutant, and what was built for it."""

    result: MutantResult
    kills: Sequence[Kill] = ()
    builds: Sequence[Build] = ()
    log: str = ""
    by_clock: bool = False


@dataclass(frozen=True)
class _Run:
    """What the gate saw of one machine code: all mutants that have it share it."""

    verdicts: tuple[Verdict, ...]
    builds: tuple[Build, ...]
    by_clock: bool
    seldom: Seldom | None = None
    stopped: bool = False


def whole_builds(
    mutant: Mutant, builder: Builder, stage: Stage, target: str, tree: Path
) -> StageBuilds | None:
    """Build a mutant's whole kernels where a mutant's build is a short one; None where it is not.

    What a short build leaves out may be what the patch changes.
    """
    if not any(kernel.short.get(target) for kernel in stage.kernels):
        return None
    return build_stage(builder, stage.kernels, target, tree, modes_of(target), mutant.id)


class Trials:
    """The trials of one stage's automatic mutants; safe from several threads."""

    def __init__(
        self,
        target: str,
        builder: Builder,
        production: StageBuilds,
        workload: Workload,
        limits: Limits,
        arguments: Mapping[str, Argument],
        races: Races | None,
        order: CaseOrder | None = None,
        *,
        separate: bool = True,
    ) -> None:
        """With an `order` of cases a mutant is run up to its first kill, else on all of them.

        Where mutants are `separate` all are built here, else those that share no build.
        """
        self._target = target
        self._builder = builder
        self._production = production
        self._workload = workload
        self._limits = limits
        self._arguments = arguments
        self._races = races
        self._order = order
        self._separate = separate
        self._root = resources.tree_root()
        self._compilers = Compilers(self._root, workload.stage.kernels)
        self._runs: Once[str, _Run] = Once()
        self._whole_limits: Once[None, Limits | None] = Once()

    def run(self, mutant: Mutant) -> Trial:
        """Build one mutant on a scratch copy and find out what becomes of it."""
        begun = time.perf_counter()
        with tempfile.TemporaryDirectory(prefix="qsa-bench-mutant-") as scratch:
            tree = mutants.apply(mutant, self._root, Path(scratch)).root
            try:
                trial = self._run(mutant, tree)
            except UndecidedError as error:
                unknown = self._judged(mutant, Outcome.NOT_RUN, str(error))
                trial = Trial(replace(unknown, as_expected=False))
        seconds = round(time.perf_counter() - begun, 3)
        return replace(trial, result=replace(trial.result, seconds=seconds))

    def _run(self, mutant: Mutant, tree: Path) -> Trial:
        plain = self._build(mutant, tree, PLAIN)
        failure = plain.failure
        if failure is not None:
            result = self._judged(mutant, Outcome.UNVIABLE, _first_error(failure.log))
            return Trial(result, (), plain.all, failure.log)
        code = _code_of(plain)
        if code == _code_of(self._production) and self._same_when_checked(mutant, tree):
            outcome, why = self._equal(mutant, tree)
            return Trial(self._judged(mutant, outcome, why, code=code), (), plain.all)
        ran = self._runs.of(code, lambda: self._gate(mutant, tree, plain))
        result, kills = outcomes.result_of(mutant, self._target, ran.verdicts, None, 0.0)
        result = with_orders(result, ran.seldom)
        if ran.stopped and result.as_expected:
            result = replace(result, why=f"{STOPPED}, by {ran.verdicts[0].case}")
        if result.outcome is Outcome.SURVIVED:
            result = self._survivor(mutant, tree, replace(result, code=code))
        else:
            result = refuted(replace(result, code=self._told(code)), self._arguments)
        return Trial(result, kills, ran.builds, by_clock=ran.by_clock)

    def _build(self, mutant: Mutant, tree: Path, mode: str) -> StageBuilds:
        return build_stage(
            self._builder,
            self._workload.stage.kernels,
            self._target,
            tree,
            (mode,),
            mutant.id,
            short=True,
        )

    def _same_when_checked(self, mutant: Mutant, tree: Path) -> bool:
        """True when the checker's build, too, is the production kernel's, line tables apart.

        So must be, on a device, what a short build leaves out.
        """
        if CHECKED not in modes_of(self._target):
            stage = self._workload.stage
            whole = whole_builds(mutant, self._builder, stage, self._target, tree)
            if whole is None:
                return True
            production = baseline.build_or_raise(self._builder, stage, self._target)
            return whole.code_digest == production.code_digest
        checked = self._build(mutant, tree, CHECKED)
        return all(
            build.library is not None
            and clean.library is not None
            and equal_code.same_library(Path(build.library), Path(clean.library))
            for build, clean in zip(
                checked.builds[CHECKED].values(),
                self._production.builds[CHECKED].values(),
                strict=True,
            )
        )

    def _gate(self, mutant: Mutant, tree: Path, plain: StageBuilds) -> _Run:
        cases = self._workload.brief
        if self._order is not None and not mutant.race:
            seen, killed = self._order.first_kill(plain, self._limits, cases)
            if killed:
                return _Run(tuple(seen.verdicts), plain.all, False, stopped=True)
        else:
            orders = FIRST_ORDERS if mutant.race else FIRST_ORDER
            seen = self._workload.gate(plain, self._limits, cases=cases, first=orders)
            if self._target == HOST and not seen.failures:
                seen = self._workload.gate(plain, self._limits, cases=cases)
        verdicts, builds, by_clock = list(seen.verdicts), list(plain.all), seen.by_clock
        if CHECKED in modes_of(self._target) and (mutant.race or not seen.failures):
            checked = self._build(mutant, tree, CHECKED)
            builds += checked.all
            if checked.failure is None:
                both = StageBuilds({**plain.builds, **checked.builds})
                more = self._workload.gate(both, self._limits, modes=(CHECKED,))
                verdicts += more.verdicts
                by_clock = by_clock or more.by_clock
        if self._target != HOST and not seen.failures:
            whole, told = self._gate_whole(mutant, tree)
            builds += whole
            verdicts += told.verdicts
            by_clock = by_clock or told.by_clock
        seldom = self._races.seen(plain) if self._races is not None and mutant.race else None
        return _Run(tuple(verdicts), tuple(builds), by_clock, seldom)

    def _gate_whole(self, mutant: Mutant, tree: Path) -> tuple[tuple[Build, ...], Seen]:
        """Gate the whole kernels of a mutant that lives in short ones: what these leave out may show it."""
        nothing = Seen([], {}, Limits())
        whole = whole_builds(mutant, self._builder, self._workload.stage, self._target, tree)
        if whole is None:
            return (), nothing
        limits = self._whole_limits.of(None, self._gate_whole_production)
        if whole.failure is not None or limits is None:
            return whole.all, nothing
        return whole.all, self._workload.gate(whole, limits, cases=self._workload.brief)

    def _gate_whole_production(self) -> Limits | None:
        """Return the limits of the unmutated whole kernels; None where they fail and so prove nothing."""
        whole = baseline.build_or_raise(self._builder, self._workload.stage, self._target)
        clean = self._workload.gate(whole, cases=self._workload.brief)
        return None if clean.failures or clean.by_clock else clean.limits

    def _survivor(self, mutant: Mutant, tree: Path, result: MutantResult) -> MutantResult:
        """Ask the optimising compilers, then the arguments, why nothing saw it."""
        sources = self._sources_of(mutant)
        if self._target == "host" and self._compilers.same_on_host(tree, sources):
            outcome, why = self._equal(mutant, tree)
            return self._judged(mutant, outcome, why, code=result.code)
        said = equivalence.said_of(mutant, self._target, self._arguments, self._root)
        if said is not None and said.is_stale:
            return replace(result, why=said.why)
        if said is not None:
            return self._judged(mutant, said.outcome, said.why, code=self._told(result.code))
        return replace(result, why="no check saw it, and nothing says that it is equivalent")

    def _told(self, code: str) -> str:
        """Return the code of a mutant whose end a shared build may tell: it has none that is one mutant's."""
        return code if self._separate else ""

    def _equal(self, mutant: Mutant, tree: Path) -> tuple[Outcome, str]:
        """Say what equal code on the target comes to on the other one."""
        if self._target == "cuda":
            return Outcome.EQUIVALENT, "identical object code by nvcc"
        if self._compilers.has_nvcc:
            if self._compilers.same_on_device(tree, self._sources_of(mutant)):
                return Outcome.EQUIVALENT, "identical object code, by g++ and by nvcc"
            return Outcome.GPU_ONLY, "identical object code by g++, another by nvcc"
        if OPERATORS[mutant.operator].device:
            return Outcome.GPU_ONLY, "identical object code by g++; its fault is the device's alone"
        return Outcome.EQUIVALENT, "identical object code by g++ (nvcc was not there to ask)"

    def _sources_of(self, mutant: Mutant) -> list[str]:
        """Return the kernels' sources that include what the mutant changes."""
        changed = {self._root / patch.path for patch in patches.parse(mutant.patch)}
        closure = Sources(self._root)
        return [
            kernel.source
            for kernel in self._workload.stage.kernels
            if changed & {*closure.closure(closure.root / kernel.source)}
        ]

    def _judged(self, mutant: Mutant, outcome: Outcome, why: str, code: str = "") -> MutantResult:
        return MutantResult(mutant, self._target, outcome, True, why=why, code=code)


def refuted(result: MutantResult, arguments: Mapping[str, Argument]) -> MutantResult:
    """Return the result of a mutant that did not survive, held against its argument, if it has one."""
    argument = arguments.get(result.mutant.id)
    if (
        argument is None
        or not argument.speaks_of(result.target)
        or result.outcome is Outcome.NOT_RUN
    ):
        return result
    why = f"argued to be equivalent, but {result.outcome}: take the argument out"
    return replace(result, as_expected=False, why=why)


def with_orders(result: MutantResult, seldom: Seldom | None) -> MutantResult:
    """Return a result with how many orders of threads gave the mutant away, where that is known."""
    if seldom is None:
        return result
    return replace(result, orders_killed=seldom.killed, orders=seldom.schedules)


def _code_of(builds: StageBuilds) -> str:
    """Digest the plain builds' machine code, of all kernels together."""
    digest = hashlib.sha256()
    for build in builds.builds[PLAIN].values():
        digest.update(build.code_digest.encode())
    return digest.hexdigest()[:_CODE_DIGITS]


def _first_error(log: str) -> str:
    line = next((line for line in log.splitlines() if "error" in line), log.strip()[:200])
    return f"does not build: {line}"
