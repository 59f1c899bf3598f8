"""Who is timed in a sweep: builds that passed the gate, a user's kernel that did, and peers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from qsa_bench import parity, passes, peer_gate, resources, sweeps
from qsa_bench.builder import Builder
from qsa_bench.errors import BuildError
from qsa_bench.exit_codes import ExitCode
from qsa_bench.foreign import Foreign, stage_of
from qsa_bench.goldens import Golden
from qsa_bench.model import Build, Kernel, Measurement, Verdict
from qsa_bench.parity import StageBuilds
from qsa_bench.peer_names import build_name
from qsa_bench.peers import KERNELS, KERNELS_OF
from qsa_bench.requests import Progress, SweepRequest
from qsa_bench.stages.base import Stage
from qsa_bench.store import RunWriter
from qsa_bench.sweeps import Point
from qsa_bench.timer_client import Asked, HeldTimer

KERNEL, LIBRARY, PEER = "kernel", "library", "peer"


@dataclass(frozen=True)
class Subject:
    """What is timed at a point, and the pass it stands on.

    `why_not` says why it can't be timed; `graphs` is False where no graph can hold its calls.
    `title` is what a peer calls itself.
    """

    name: str
    kind: str
    build: str
    asked: Asked
    standing: str = ""
    why_not: str = ""
    graphs: bool = True
    title: str = ""


@dataclass
class Tally:
    """What a sweep was asked and did, and what it has to say at the end."""

    asked: int = 0
    done: int = 0
    codes: list[ExitCode] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)
    timings: list[Measurement] = field(default_factory=list)


@dataclass(frozen=True)
class Bench:
    """What a sweep works with; tests give a timer and a target of their own."""

    held: HeldTimer
    builder: Builder
    writer: RunWriter
    progress: Progress
    tally: Tally
    target: str = "cuda"

    def keep(self, timings: Iterable[Measurement]) -> list[Measurement]:
        """Write measurements to the run, at once, and return them."""
        rows = list(timings)
        self.writer.add_timings(rows)
        self.tally.timings += rows
        return rows


def library_of(builds: Sequence[Build]) -> str:
    """Return the plain build's library; BuildError where there is none."""
    plain = next(build for build in builds if build.mode == "plain")
    if plain.library is None:
        raise BuildError(f"building {plain.kernel}: it does not compile:\n{plain.log.strip()}")
    return plain.library


def kernel_of(stage: Stage, points: Iterable[Point]) -> Kernel:
    """Return the kernel that exports the entries of these points.

    Of a pipeline, a kernel without build axes that stands for all of the stage's.
    """
    if sweeps.spec_of(stage).pipeline:
        return replace(stage.kernels[0], name=stage.name, axes={})
    wanted = {point.entry for point in points}
    return next(k for k in stage.kernels if wanted <= {entry.symbol for entry in k.entries})


class Subjects:
    """Makes the subjects of one stage; verdicts and builds go to the writer on the way."""

    def __init__(
        self,
        stage: Stage,
        golden: Golden | None,
        points: Sequence[Point],
        request: SweepRequest,
        bench: Bench,
        verdicts_before: Sequence[Verdict],
    ) -> None:
        self._stage = stage
        self._golden = golden
        self._points = points
        self._request = request
        self._bench = bench
        self._before = verdicts_before
        self._kernel = kernel_of(stage, points)
        self._pipeline = sweeps.spec_of(stage).pipeline
        self._libraries: dict[str, str] = {}

    def _advance(self, count: int) -> None:
        for _ in range(count):
            self._bench.progress.advance()

    def kernels(self) -> list[Subject]:
        """Build and gate every variant of the kernel, each on the target that is timed."""
        request, stage, bench = self._request, self._stage, self._bench
        variants = {v.name: v for point in self._points for v in point.variants}
        builds = self._built(list(variants.values()))
        cases = [case for case in stage.cases(self._golden) if bench.target in case.targets]
        standings = {name: self._standing_before(each.digest) for name, each in builds.items()}
        waiting = {name: each for name, each in builds.items() if not standings[name]}
        failed: dict[str, str] = {}
        if waiting:
            bench.progress.start(f"gating {stage.name}", len(cases) * len(waiting))
            gated, blind = passes.gate(
                stage,
                cases,
                bench.target,
                waiting,
                request.jobs,
                on_cases=self._advance,
                control_builder=bench.builder,
                whole=len(waiting) == len(builds),
            )
            bench.progress.finish()
            if blind:
                bench.tally.codes.append(ExitCode.BLIND_GATE)
                bench.tally.notes.setdefault("blind_cases", {})[stage.name] = blind
            for each in gated:
                bench.writer.add_builds(each.builds.all)
                bench.writer.add_verdicts(each.verdicts)
                if blind:
                    failed[each.name] = "the gate is blind"
                elif each.passed:
                    standings[each.name] = each.standing
                else:
                    failed[each.name] = f"its gate failed: {_first_failure(each)}"
        return [
            self._subject(name, KERNEL, builds[name], standings[name], failed.get(name, ""))
            for name in builds
        ]

    def _built(self, variants: Sequence[sweeps.Variant]) -> dict[str, StageBuilds]:
        """Build the kernel for every variant, or a pipeline's kernels once."""
        bench, root = self._bench, resources.tree_root()
        if not self._pipeline:
            return passes.build_variants(
                bench.builder, self._kernel, bench.target, root, variants, self._request.jobs
            )
        modes = parity.modes_of(bench.target)
        made = parity.build_stage(bench.builder, self._stage.kernels, bench.target, root, modes)
        if made.failure is not None:
            library_of([made.failure])
        return {sweeps.AUTO: made}

    def _standing_before(self, digest: str) -> str:
        """Return the pass of a build that the resumed run has gated already, or ""."""
        found = [v for v in self._before if v.build == digest and v.family != sweeps.FAMILY]
        gated = passes.Gated("", StageBuilds({}), tuple(found))
        return gated.standing if gated.passed else ""

    def _subject(
        self, name: str, kind: str, builds: StageBuilds, standing: str, why_not: str
    ) -> Subject:
        if why_not:
            self._bench.tally.codes.append(ExitCode.TIMING_REFUSED)
        if self._pipeline:
            asked = Asked(name, libraries=builds.libraries(parity.PLAIN), pipeline=True)
        else:
            asked = Asked(name, library=library_of(builds.all))
        return Subject(name, kind, builds.digest, asked, standing, why_not)

    def foreign(self, foreign: Foreign) -> Subject:
        """Gate a user's own kernel on the stage's cases that it serves."""
        bench = self._bench
        stage = stage_of(self._stage, foreign)
        builds = foreign.builds(bench.target)
        cases = [case for case in stage.cases(self._golden) if bench.target in case.targets]
        bench.progress.start(f"gating {foreign.name}", len(cases))
        gated, _ = passes.gate(
            stage,
            cases,
            bench.target,
            {foreign.name: builds},
            self._request.jobs,
            on_cases=self._advance,
        )
        bench.progress.finish()
        bench.writer.add_builds(builds.all)
        bench.writer.add_verdicts(gated[0].verdicts)
        why_not = "" if gated[0].passed else f"its gate failed: {_first_failure(gated[0])}"
        made = self._subject(foreign.name, LIBRARY, builds, gated[0].standing, why_not)
        return replace(made, asked=replace(made.asked, call=1), graphs=foreign.has_stream)

    def peers(self) -> dict[str, list[Subject]]:
        """Return the peers of each entry, put through the gate's cases once."""
        spec = sweeps.spec_of(self._stage)
        found: dict[str, list[Subject]] = {}
        for entry in dict.fromkeys(point.entry for point in self._points):
            own = spec.peers.get(entry, ()) if self._request.builtin_peers else ()
            for where in dict.fromkeys((*own, *self._request.peers)):
                asked = self._peer(where, entry)
                if asked is not None:
                    made = Subject(where, PEER, build_name(where), asked)
                    found.setdefault(entry, []).append(made)
        if self._stage.interface is not None:
            self._gate_peers([peer for peers in found.values() for peer in peers])
        return found

    def _peer(self, where: str, entry: str) -> Asked | None:
        libraries: dict[str, str] = {}
        for name in KERNELS_OF.get(where, ()):
            library = self._peer_library(where, name)
            if not library:
                return None
            libraries[name] = library
        return Asked(where, peer=where, names=self._names(entry), libraries=libraries)

    def _names(self, entry: str) -> tuple[str, ...]:
        return tuple(argument.name for argument in self._kernel.entry(entry).arguments)

    def _peer_library(self, where: str, name: str) -> str:
        """Return a peer kernel's library, or "" where this toolkit can't build it."""
        if name not in self._libraries:
            built = self._bench.builder.build(
                KERNELS[name], self._bench.target, root=resources.tree_root(), mode="plain"
            )
            self._libraries[name] = built.library or ""
            if built.ok:
                self._bench.writer.add_builds([built])
            else:
                errors = [line for line in built.log.splitlines() if "error" in line]
                missing = self._bench.tally.notes.setdefault("peers_unavailable", {})
                missing[where] = errors[0] if errors else "it does not compile"
        return self._libraries[name]

    def _gate_peers(self, peers: Sequence[Subject]) -> None:
        gated = {verdict.build for verdict in self._before}
        # The cases call the entry that the stage's interface stands in for.
        first = sweeps.spec_of(self._stage).entries[0]
        wanted = {
            peer.name: replace(peer.asked, names=self._names(first))
            for peer in peers
            if peer.build not in gated
        }
        if not wanted:
            return
        bench, cases = self._bench, list(self._stage.cases(self._golden))
        bench.progress.start("gating peers", len(cases))
        bench.writer.add_verdicts(
            peer_gate.gate_peers(
                bench.held,
                self._stage,
                cases,
                self._kernel.entry(first),
                wanted,
                bench.progress.advance,
            )
        )
        bench.progress.finish()


def _first_failure(gated: passes.Gated) -> str:
    if not gated.failures:
        return "it has no verdict"
    first = gated.failures[0]
    note = first.evidence.note or str(first.status)
    return f"{len(gated.failures)} verdicts, first {first.case}, {first.check}: {note}"
