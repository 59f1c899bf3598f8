"""Builds that are right and differ from the one that is gated: what a sound gate lets pass.

Each is a build of the production kernels with another value of one axis or other optimisation, a
control that a person wrote to be right (`mutations/<stage>/controls/`, expected to survive), or the
production build itself, for orders of threads that the gate does not use.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from qsa_bench import baseline, mutants, resources
from qsa_bench.builder import Builder
from qsa_bench.errors import BuildError
from qsa_bench.model import Build, Expect
from qsa_bench.parity import PLAIN, StageBuilds, Workload, build_stage
from qsa_bench.runner import HOST, Schedule
from qsa_bench.sensitivity import Alarms
from qsa_bench.stages.base import Case, Stage, expects_output
from qsa_bench.targets.toolchain import toolchain

GENERATED, GATE_CASES = "generated", "the gate's cases"
OPTIMISATION, SOURCE, ORDER = "optimisation", "source", "order of threads"
# No gate counts this far; so many trials apart, no two --seed share an input or an order.
_FIRST, _APART = 1_000_000, 10_000


@dataclass(frozen=True)
class Alternative:
    """One such build, by name; `kind` says in what it differs. `python_path` holds patched Python."""

    name: str
    kind: str
    builds: StageBuilds
    python_path: tuple[Path, ...] = ()


def alternatives(
    stage: Stage, target: str, builder: Builder, production: StageBuilds, scratch: Path
) -> Iterator[Alternative]:
    """Build and yield a stage's alternatives; copies of the tree are made in `scratch`.

    What comes to production's machine code (an axis that the target does not read) is left out.
    BuildError for one that does not compile: what is right has to.
    """
    root = resources.tree_root()
    yield Alternative("production", ORDER, production)

    def built(
        name: str, kind: str, defines: Mapping[str, int | str], flags: Sequence[str]
    ) -> Alternative:
        made = {
            kernel.name: builder.build(
                kernel,
                target,
                root=root,
                # A shape that is asked for is the only one that is built.
                defines=_own(kernel.axes, defines) or kernel.short.get(target),
                flags=flags,
            )
            for kernel in stage.kernels
        }
        return _checked(Alternative(name, kind, StageBuilds({PLAIN: made})))

    for axis in dict.fromkeys(name for kernel in stage.kernels for name in kernel.axes):
        for kernel in stage.kernels:
            for value in kernel.axes[axis].values if axis in kernel.axes else ():
                define = kernel.axes[axis].define
                made_so = built(f"{axis} {value}", axis, {define: value}, ())
                if _codes(made_so.builds) != _codes(production):
                    yield made_so
    for name, flags in toolchain(target).OPTIMISATIONS.items():
        yield built(name, OPTIMISATION, {}, flags)
    for mutant in baseline.read_mutants(stage):
        if mutant.control and mutant.expect is Expect.SURVIVES and target in mutant.targets:
            folder = Path(tempfile.mkdtemp(dir=scratch))
            tree = mutants.apply(mutant, root, folder)
            made = build_stage(
                builder, stage.kernels, target, tree.root, (PLAIN,), mutant.id, short=True
            )
            path = (tree.root,) if tree.python else ()
            name = mutant.id.rpartition("/")[2]
            yield _checked(Alternative(name, SOURCE, made, path))


def _codes(builds: StageBuilds) -> list[str]:
    return [build.code_digest for build in builds.builds[PLAIN].values()]


def _own(axes: Mapping[str, object], defines: Mapping[str, int | str]) -> Mapping[str, int | str]:
    known = {getattr(axis, "define", "") for axis in axes.values()}
    return {name: value for name, value in defines.items() if name in known}


def _checked(made: Alternative) -> Alternative:
    failure: Build | None = made.builds.failure
    if failure is not None:
        raise BuildError(
            f"building {failure.kernel} ({made.name}), which is right and should compile:\n"
            f"{failure.log.strip()}"
        )
    return made


class FreshInputs:
    """Cases and orders of threads that no gate has, the same for every build; used as a context."""

    def __init__(
        self, stage: Stage, cases: Sequence[Case], target: str, trials: int, seed: int
    ) -> None:
        self._stage = stage
        self._target = target
        self._first = _FIRST + seed * _APART
        self.inputs = GATE_CASES
        self._held: list[Case] = []
        if stage.generated is not None:
            self.inputs = GENERATED
            held = [stage.generated(self._first + trial)[0] for trial in range(trials)]
        else:
            usable = [case for case in cases if target in case.targets and case.writes]
            held = [case for case in usable if expects_output(case.build())]
            # Spread over the families, which stand one after the other.
            held = held[:: max(len(held) // trials, 1)][:trials]
        self._workload = Workload(stage, held, target, 0)

    def __enter__(self) -> FreshInputs:
        return self

    def __exit__(self, *_: object) -> None:
        self._workload.close()

    def stop(self) -> None:
        """End what is under way: its results are void."""
        self._workload.stopped.set()

    def alarms(self, build: Alternative) -> Alarms:
        """Run every case on a build, each in an order of threads of its own; count those refused."""
        first = ""
        alarms = 0
        for trial, case in enumerate(self._workload.cases):
            order = (
                Schedule("seeded", self._first + trial)
                if self._target == HOST
                else Schedule("device", trial % 2)
            )
            seen = self._workload.gate(
                build.builds, None, build.python_path, [case], (PLAIN,), orders=[order]
            )
            if seen.failures:
                alarms += 1
                first = first or f"{case.id}: {seen.failures[0].check}"
        trials = len(self._workload.cases)
        stage, target = self._stage.name, self._target
        return Alarms(stage, target, build.name, build.kind, self.inputs, trials, alarms, first)
