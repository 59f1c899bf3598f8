"""What stands between a build and a time: the gate, on the target that is timed.

The cases are prepared once for all builds of a stage; an output that was judged for one build is
not judged again for another. One proof that the gate is not blind serves all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from qsa_bench import baseline
from qsa_bench.builder import Builder
from qsa_bench.errors import BuildError
from qsa_bench.model import Kernel, Verdict
from qsa_bench.parity import Limits, StageBuilds, Workload, modes_of
from qsa_bench.stages.base import Case, Stage
from qsa_bench.sweeps import Variant


@dataclass(frozen=True)
class Gated:
    """What the gate said of one build. Only `passed` may be timed."""

    name: str
    builds: StageBuilds
    verdicts: tuple[Verdict, ...]

    @property
    def failures(self) -> tuple[Verdict, ...]:
        """Verdicts that are no pass."""
        return tuple(verdict for verdict in self.verdicts if not verdict.passed)

    @property
    def passed(self) -> bool:
        """True where there are verdicts and all are passes."""
        return bool(self.verdicts) and not self.failures

    @property
    def standing(self) -> str:
        """The pass that a time stands on, in words."""
        cases = len({verdict.case for verdict in self.verdicts})
        return f"{len(self.verdicts)} verdicts on {cases} cases passed"


def build_variants(
    builder: Builder,
    kernel: Kernel,
    target: str,
    root: Path,
    variants: Sequence[Variant],
    jobs: int,
) -> dict[str, StageBuilds]:
    """Build a kernel for every variant; BuildError, with the compiler's first lines, for any."""

    def build(variant: Variant) -> StageBuilds:
        return StageBuilds(
            {
                mode: {
                    kernel.name: builder.build(
                        kernel, target, root=root, mode=mode, defines=variant.defines(kernel)
                    )
                }
                for mode in modes_of(target)
            }
        )

    with ThreadPoolExecutor(max(min(jobs, len(variants)), 1)) as pool:
        made = dict(
            zip((variant.name for variant in variants), pool.map(build, variants), strict=True)
        )
    for name, builds in made.items():
        failure = builds.failure
        if failure is not None:
            raise BuildError(
                f"building {failure.kernel} ({name}) for {target}: it does not compile:\n"
                f"{failure.log.strip()}"
            )
    return made


def gate(
    stage: Stage,
    cases: Sequence[Case],
    target: str,
    builds: Mapping[str, StageBuilds],
    jobs: int,
    seeds: int = 0,
    on_cases: Callable[[int], None] | None = None,
    control_builder: Builder | None = None,
    whole: bool = True,
) -> tuple[list[Gated], list[str]]:
    """Gate every build on the cases, which are prepared once.

    On a device the first build meets every trap (not unless `whole`), the others one a clause: they
    differ in their shape, and each trap costs most of a second.

    With a builder for the control that writes nothing, also returns the cases which that control
    passes though bytes are owed: the gate is blind there.
    """
    gated: list[Gated] = []
    blind: list[str] = []
    with Workload(stage, cases, target, seeds) as workload:
        limits = Limits()
        for name, each in builds.items():
            met = workload.cases if whole and not gated else workload.brief
            seen = baseline.gate_in_parallel(workload, each, jobs, on_case=on_cases, cases=met)
            gated.append(Gated(name, each, tuple(seen.verdicts)))
            limits = seen.limits
        if control_builder is not None:
            control = baseline.read_control(stage)
            blind = baseline.blind_cases(workload, control, control_builder, limits)
    return gated, blind
