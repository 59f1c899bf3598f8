"""A stage's part of a sweep as it goes: gate, calibrate, then point by point, written at once.

Nothing without a pass is timed: a build whose gate failed, and at every point a subject whose
output is not the oracle's, gets a row that says so and no sample.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from qsa_bench import limits, peer_gate, program, resources, sweeps
from qsa_bench.errors import NotComparableError
from qsa_bench.exit_codes import ExitCode
from qsa_bench.foreign import Foreign
from qsa_bench.goldens import Golden
from qsa_bench.model import Finding, Kernel, Measurement, Status, Verdict
from qsa_bench.program import Program
from qsa_bench.requests import SweepRequest
from qsa_bench.stages.base import Stage, SweepPoint
from qsa_bench.store import StoredRun
from qsa_bench.sweep_subjects import KERNEL, LIBRARY, PEER, Bench, Subject, Subjects, library_of
from qsa_bench.sweeps import Point
from qsa_bench.timer_client import Asked, Loaded, Timed, TimerLostError
from qsa_bench.timers import COLD, CUPTI, GRAPH, WARM
from qsa_bench.timing import Rule, Stop

# A graph's replay is a mean of many calls already.
_GRAPH_LEAST, _GRAPH_MOST = 10, 60
_SEED_STEP = 1_000_003
_BENCH_STAGE = "bench"

Pair = tuple[str, str]


class StageSweep:
    """One stage's part of a sweep."""

    def __init__(
        self,
        stage: Stage,
        golden: Golden | None,
        points: Sequence[Point],
        request: SweepRequest,
        bench: Bench,
        before: StoredRun | None = None,
        foreign: Foreign | None = None,
        passed: Sequence[Verdict] = (),
    ) -> None:
        """`before` is a run that is resumed, `passed` what a gate has said of these builds."""
        self._stage = stage
        self._points = points
        self._request = request
        self._bench = bench
        self._foreign = foreign
        self._pairs = {point.case: sweeps.timings(request.timers, point.caches) for point in points}
        earlier = before.timings if before is not None else ()
        self._measured = {timing.key: timing.build for timing in earlier if timing.samples_ns}
        verdicts = [*(before.verdicts if before is not None else ()), *passed]
        self._subjects = Subjects(stage, golden, points, request, bench, verdicts)
        self._flush: str | None = None

    @property
    def asked(self) -> int:
        """How many measurements of kernels this part is to take."""
        total = 0
        for point in self._points:
            total += len(point.variants) * len(self._pairs_of(point, graphs=True))
            if self._foreign is not None and self._serves_foreign(point):
                total += len(self._pairs_of(point, graphs=self._foreign.has_stream))
        return total

    def _serves_foreign(self, point: Point) -> bool:
        """True at the entry that a user's own stands in for: the stage's first."""
        return point.entry == sweeps.spec_of(self._stage).entries[0]

    def _pairs_of(self, point: Point, *, graphs: bool) -> list[Pair]:
        return [pair for pair in self._pairs[point.case] if graphs or pair[0] != GRAPH]

    def run(self, stop_at: float | None) -> None:
        """Gate, calibrate, and go through the points until done or `stop_at` (monotonic)."""
        kernels = self._subjects.kernels()
        if self._foreign is not None:
            kernels.append(self._subjects.foreign(self._foreign))
        self._refuse_other_builds(kernels)
        self._bench.tally.notes["device"] = dict(self._bench.held.get().device)
        self._calibrate()
        self._through_points(kernels, self._subjects.peers(), stop_at)

    def _refuse_other_builds(self, kernels: Sequence[Subject]) -> None:
        """Raise NotComparableError where a resumed run holds times of other builds."""
        builds = {subject.name: subject.build for subject in kernels}
        for key, build in self._measured.items():
            name = key.split("|")[1]
            if name in builds and builds[name] != build:
                raise NotComparableError(
                    f"resuming: {name} was timed as build {build[:12]}, it now is "
                    f"{builds[name][:12]}; begin a new sweep"
                )

    def _calibrate(self) -> None:
        """Time an empty kernel and plain traffic, which floors, bandwidths and the flush show."""
        bench = self._bench
        timer = bench.held.get()
        built = bench.builder.build(
            limits.KERNEL, bench.target, root=resources.tree_root(), mode="plain"
        )
        self._flush = library_of([built])
        traffic = timer.calibrate(self._flush)
        # The product draws so much power that the device may throttle, which costs a whole round.
        rounds = (
            (CUPTI, WARM, [name for name in traffic if name != limits.MATRIX]),
            (CUPTI, COLD, [limits.EMPTY, limits.CACHED_READ]),
            (GRAPH, WARM, [limits.EMPTY]),
            (CUPTI, WARM, [name for name in traffic if name == limits.MATRIX]),
        )
        for timer_name, cache, names in rounds:
            subjects = [
                Subject(name, limits.CALIBRATION, built.digest, Asked(name))
                for name in names
                if "|".join((_calibration_case(name), name, timer_name, cache))
                not in self._measured
            ]
            if not subjects:
                continue
            rule = _rule_for(timer_name, self._request.rule)
            seen = timer.time(
                [subject.name for subject in subjects],
                timer_name,
                cache,
                rule,
                self._request.seed,
                cache == WARM,
            )
            bench.keep(
                _measurement(
                    seen[subject.name],
                    subject,
                    _BENCH_STAGE,
                    _calibration_case(subject.name),
                    (timer_name, cache),
                    traffic[subject.name],
                )
                for subject in subjects
            )

    def _through_points(
        self,
        kernels: Sequence[Subject],
        peers: Mapping[str, Sequence[Subject]],
        stop_at: float | None,
    ) -> None:
        bench = self._bench
        bench.progress.start(f"timing {self._stage.name}", len(self._points))
        begun, timed = time.monotonic(), 0
        for index, point in enumerate(self._points):
            left = len(self._points) - index
            if stop_at is not None and time.monotonic() >= stop_at:
                bench.tally.notes["stopped"] = f"out of time with {left} points to go"
                break
            names = {variant.name for variant in point.variants}
            own = [
                s
                for s in kernels
                if (s.name in names if s.kind == KERNEL else self._serves_foreign(point))
            ]
            subjects = [*own, *peers.get(point.entry, ())]
            bench.tally.done += self._done_before(point, own)
            if not self._is_done(point, subjects):
                try:
                    self._time_point(point, subjects, index)
                except TimerLostError as error:
                    bench.held.drop()
                    bench.tally.notes.setdefault("lost", {})[point.case] = str(error)
                timed += 1
            minutes = (time.monotonic() - begun) / max(timed, 1) * (left - 1) / 60
            bench.progress.advance(f"{point.case}, about {minutes:.0f} min left")
        bench.progress.finish()

    def _is_measured(self, point: Point, subject: Subject, pair: Pair) -> bool:
        """True for what a resumed run holds."""
        return "|".join((point.case, subject.name, *pair)) in self._measured

    def _done_before(self, point: Point, own: Iterable[Subject]) -> int:
        return sum(
            self._is_measured(point, subject, pair)
            for subject in own
            for pair in self._pairs_of(point, graphs=subject.graphs)
        )

    def _is_done(self, point: Point, subjects: Iterable[Subject]) -> bool:
        return bool(self._measured) and all(
            self._is_measured(point, subject, pair)
            for subject in subjects
            if not subject.why_not and subject.kind != PEER
            for pair in self._pairs_of(point, graphs=subject.graphs)
        )

    def _time_point(self, point: Point, subjects: Sequence[Subject], index: int) -> None:
        timer, bench = self._bench.held.get(), self._bench
        made = sweeps.spec_of(self._stage).point(point.entry, point.axes)
        ready = [subject for subject in subjects if not subject.why_not]
        with tempfile.TemporaryDirectory(prefix="qsa-bench-point-") as folder:
            path = Path(folder) / "program.safetensors"
            whole, kernels = self._with_foreign(made.program)
            program.write(path, whole, kernels)
            loaded = timer.load(path, [s.asked for s in ready], Path(folder), self._flush)
            judged = self._judge(point, made, whole, ready, loaded)
        refused = [subject for subject in (*subjects, *judged) if subject.why_not]
        nothing = Timed((), {}, str(Stop.REFUSED), "", 1, (), {})
        bench.keep(
            replace(_of_point(nothing, subject, point, made, pair), why=subject.why_not)
            for subject in refused
            for pair in self._pairs_of(point, graphs=subject.graphs)
        )
        passed = [subject for subject in judged if not subject.why_not]
        for place, pair in enumerate(self._pairs[point.case]):
            asked = [
                subject
                for subject in passed
                if pair in self._pairs_of(point, graphs=subject.graphs)
                and not self._is_measured(point, subject, pair)
            ]
            if not asked:
                continue
            seen = timer.time(
                [subject.name for subject in asked],
                *pair,
                _rule_for(pair[0], self._request.rule),
                self._request.seed + index * _SEED_STEP,
                place == 0,
            )
            rows = bench.keep(_of_point(seen[s.name], s, point, made, pair) for s in asked)
            bench.tally.done += sum(bool(r.samples_ns) and r.kind != PEER for r in rows)

    def _with_foreign(self, own: Program) -> tuple[Program, list[Kernel]]:
        """Return a point's program with the user's entry as its second call."""
        kernels = list(self._stage.kernels)
        interface = self._stage.interface
        called = (
            None
            if self._foreign is None or interface is None
            else self._foreign.call(own, interface)
        )
        if called is None or self._foreign is None:
            return own, kernels
        view, calls = called
        names = {buffer.name for buffer in own.buffers}
        more = tuple(buffer for buffer in view.buffers if buffer.name not in names)
        whole = Program((*own.buffers, *more), (own.calls[0], calls[0]), own.device)
        return whole, [*kernels, self._foreign.kernel]

    def _judge(
        self,
        point: Point,
        made: SweepPoint,
        whole: Program,
        subjects: Sequence[Subject],
        loaded: Mapping[str, Loaded],
    ) -> list[Subject]:
        """Return the subjects with what their output at this point says of them."""
        judged: list[Subject] = []
        # Equal outputs lie in one file and are judged once.
        known: dict[tuple[str, ...], list[Finding]] = {}
        for subject in subjects:
            seen = loaded[subject.name]
            key = (subject.kind, str(seen.form), seen.error, *map(str, seen.files.values()))
            if key not in known:
                known[key] = self._findings(subject, made, whole, seen)
            self._bench.writer.add_verdicts(
                Verdict(
                    subject.build,
                    point.stage,
                    point.case,
                    sweeps.FAMILY,
                    finding.check,
                    finding.status,
                    finding.evidence,
                )
                for finding in known[key]
            )
            judged.append(_judged(subject, seen, known[key]))
        if any(subject.why_not and subject.kind != PEER for subject in judged):
            self._bench.tally.codes.append(ExitCode.TIMING_REFUSED)
        return judged

    def _findings(
        self, subject: Subject, made: SweepPoint, whole: Program, seen: Loaded
    ) -> list[Finding]:
        interface = self._stage.interface
        if seen.error:
            return [peer_gate.refusal(seen)]
        if subject.kind == PEER and interface is not None:
            return peer_gate.judge_peer(made.program, seen, interface)
        outputs = peer_gate.outputs_of(whole, seen)
        if subject.kind == LIBRARY and interface is not None and self._foreign is not None:
            judge = interface.judge(self._foreign.form, self._foreign.ties)
            return list(judge(made.program, outputs))
        return list(made.judge(made.program, outputs))


def _calibration_case(name: str) -> str:
    return f"{limits.CALIBRATION}/{name}"


def _rule_for(timer: str, rule: Rule) -> Rule:
    if timer != GRAPH:
        return rule
    return replace(rule, least=min(_GRAPH_LEAST, rule.least), most=min(_GRAPH_MOST, rule.most))


def _judged(subject: Subject, seen: Loaded, found: Sequence[Finding]) -> Subject:
    """Return a subject with the pass its output gives it, or with why it is not timed."""
    subject = replace(subject, title=seen.title if subject.kind == PEER else "")
    if seen.error:
        return replace(subject, why_not=seen.error)
    failed = [finding for finding in found if finding.status is not Status.PASS]
    said = "; ".join(f"{f.check}: {f.evidence.note or f.status}" for f in failed)
    if not failed:
        return replace(subject, standing=subject.standing or "equals the oracle here")
    if subject.kind == PEER and all(finding.check in _UP_TO_TIES for finding in failed):
        return replace(subject, standing=f"breaks {said}")
    return replace(subject, why_not=f"its output is wrong: {said}")


# A peer that is right but for these is timed, with what it breaks beside the time.
_UP_TO_TIES = ("ties", "zeros")


def _measurement(
    timed: Timed,
    subject: Subject,
    stage: str,
    case: str,
    pair: Pair,
    traffic: tuple[int, int],
    axes: Mapping[str, str] | None = None,
    entry: str = "",
    requested: int = 0,
    flops: int = 0,
) -> Measurement:
    return Measurement(
        build=subject.build,
        stage=stage,
        case=case,
        name=subject.name,
        timer=pair[0],
        cache=pair[1],
        axes=dict(axes or {}),
        samples_ns=timed.samples_ns,
        dropped=timed.dropped,
        stopped_because=timed.stopped,
        verdict=subject.standing or None,
        clocks=timed.clocks,
        kind=subject.kind,
        entry=entry,
        bytes_requested=requested,
        flops=flops,
        calls=timed.calls,
        bytes_read=traffic[0],
        bytes_written=traffic[1],
        kernels=timed.kernels,
        parts_ns=timed.parts_ns,
        why=timed.why,
    )


def _of_point(
    timed: Timed, subject: Subject, point: Point, made: SweepPoint, pair: Pair
) -> Measurement:
    traffic = (made.bytes_read, made.bytes_written)
    axes = {**point.axes, **({"title": subject.title} if subject.title else {})}
    return _measurement(
        timed,
        subject,
        point.stage,
        point.case,
        pair,
        traffic,
        axes,
        point.entry,
        made.requested,
        made.flops,
    )
