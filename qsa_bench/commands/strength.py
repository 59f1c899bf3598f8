"""strength: how small a fault the gate still sees, and how often it refuses a build that is right.

Dials are turned on what the production kernel returned; builds that are right get inputs and orders
of threads that no gate has. A gate that refuses the production kernel has no strength.
"""

from __future__ import annotations

import fnmatch
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from qsa_bench import baseline, doses, resources
from qsa_bench.alternatives import Alternative, FreshInputs, alternatives
from qsa_bench.builder import Builder
from qsa_bench.campaign_requests import StrengthRequest
from qsa_bench.dials import Dial
from qsa_bench.errors import NothingSelectedError
from qsa_bench.exit_codes import ExitCode, combine
from qsa_bench.parity import StageBuilds, Workload
from qsa_bench.requests import Progress
from qsa_bench.sensitivity import GATE, Alarms, Strength
from qsa_bench.stages.base import Case, Stage
from qsa_bench.store import RunWriter, StoredRun
from qsa_bench.targets.toolchain import device_name


def run(request: StrengthRequest, progress: Progress) -> StoredRun:
    """Audit the requested stages and return the run as it was written."""
    goldens = baseline.Goldens(request.golden, request.stages)
    stages = goldens.stages(request.stages)
    device = device_name(request.target)
    with RunWriter.create(
        request.results, "strength", request.argv, request.target, device
    ) as writer:
        audit = _Audit(request, writer, progress)
        try:
            for stage in stages:
                audit.stage(stage, stage.cases(goldens.of(stage)))
        except KeyboardInterrupt:
            audit.codes.append(ExitCode.INTERRUPTED)
        progress.finish()
        if not audit.asked and ExitCode.BASELINE_FAILED not in audit.codes:
            raise NothingSelectedError(
                f"auditing {', '.join(stage.name for stage in stages)}: no dial "
                f"{', '.join(request.dials)} goes with its outputs, and --trials is 0"
            )
        if audit.done != audit.asked:
            audit.codes.append(ExitCode.INCOMPLETE)
        notes = {"failed": audit.failed} if audit.failed else {}
        return writer.finish(audit.asked, audit.done, combine(audit.codes), notes)


class _Audit:
    """What a run has so far."""

    def __init__(self, request: StrengthRequest, writer: RunWriter, progress: Progress) -> None:
        self._request = request
        self._writer = writer
        self._progress = progress
        self._builder = Builder(resources.cache_root())
        self.codes: list[ExitCode] = [ExitCode.OK]
        self.failed: list[str] = []
        self.asked = 0
        self.done = 0

    def stage(self, stage: Stage, cases: Sequence[Case]) -> None:
        """Audit one stage: dials first, then the builds that are right."""
        request = self._request
        builds = baseline.build_or_raise(self._builder, stage, request.target, short=True)
        self._writer.add_builds(builds.all)
        self._progress.start(f"{stage.name}: outputs of the production kernel", None)
        with Workload(stage, cases, request.target, 0) as workload:
            taken, lost = doses.take(workload, builds)
        if taken.failed or lost:
            self.codes.append(ExitCode.BASELINE_FAILED)
            self.failed += [f"{failed.case}: {failed.why}" for failed in (*taken.failed, *lost)]
            return
        dials = [dial for dial in taken.dials() if self._wants(dial)]
        self._expect(len(dials))
        self._progress.start(f"{stage.name}: dials", len(dials))
        for dial in dials:
            self._strength(list(taken.strengths(dial, request.target, request.repeats)))
            self._progress.advance(dial.name)
        if request.trials:
            self._alarms(stage, cases, builds)

    def _wants(self, dial: Dial) -> bool:
        globs = self._request.dials
        return not globs or any(fnmatch.fnmatchcase(dial.name, glob) for glob in globs)

    def _expect(self, more: int) -> None:
        self.asked += more
        self._writer.expect(self.asked)

    def _strength(self, rows: Sequence[Strength]) -> None:
        self._writer.add_strengths(rows)
        self.done += 1
        # Like a mutant that lives: the largest fault there is went by unseen.
        if any(row.check == GATE and row.caught is None for row in rows):
            self.codes.append(ExitCode.MUTATION_MISMATCH)

    def _alarms(self, stage: Stage, cases: Sequence[Case], builds: StageBuilds) -> None:
        request = self._request
        with (
            tempfile.TemporaryDirectory(prefix="qsa-bench-alternatives-") as scratch,
            FreshInputs(stage, cases, request.target, request.trials, request.seed) as fresh,
        ):
            made: list[Alternative] = []
            for build in alternatives(stage, request.target, self._builder, builds, Path(scratch)):
                made.append(build)
                self._writer.add_builds(build.builds.all if build.builds is not builds else ())
            self._expect(len(made))
            self._progress.start(f"{stage.name}: builds that are right", len(made))
            pool = ThreadPoolExecutor(request.jobs if request.target == "host" else 1)
            try:
                for future in baseline.as_they_end([pool.submit(fresh.alarms, b) for b in made]):
                    self._alarm(future.result())
            finally:
                fresh.stop()
                pool.shutdown(wait=True, cancel_futures=True)

    def _alarm(self, row: Alarms) -> None:
        self._writer.add_alarms([row])
        self.done += 1
        self._progress.advance(row.build)
        if row.alarms:
            self.codes.append(ExitCode.GATE_FAILED)
