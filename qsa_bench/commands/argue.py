"""argue: gather evidence that mutants are equivalent, as lines for mutations/<stage>/equivalent.toml.

The reason is a person's to write; without one the file is refused.
"""

from __future__ import annotations

import datetime
import tempfile
from collections.abc import Sequence
from pathlib import Path

from qsa_bench import baseline, equivalence, evidence, mutants, resources
from qsa_bench.builder import Builder
from qsa_bench.campaign_requests import Argued, ArgueRequest
from qsa_bench.exit_codes import ExitCode
from qsa_bench.model import Mutant
from qsa_bench.parity import PLAIN, StageBuilds, build_stage
from qsa_bench.requests import Progress
from qsa_bench.stages import select_stages
from qsa_bench.stages.base import Stage
from qsa_bench.targets import host


def run(request: ArgueRequest, progress: Progress) -> Argued:
    """Return a line for each mutant whose outputs were equal, and the others by name."""
    stages = select_stages(request.stages)
    found = {stage.name: baseline.read_mutants(stage, auto=True) for stage in stages}
    chosen = mutants.select([m for own in found.values() for m in own], request.id_globs)
    lines: list[str] = []
    differing: list[str] = []
    for stage in stages:
        own = [mutant for mutant in chosen if mutant.stage == stage.name]
        if own:
            _argue(stage, own, request, progress, lines, differing)
    progress.finish()
    code = ExitCode.MUTATION_MISMATCH if differing else ExitCode.OK
    return Argued(tuple(lines), tuple(differing), code)


def _argue(
    stage: Stage,
    chosen: Sequence[Mutant],
    request: ArgueRequest,
    progress: Progress,
    lines: list[str],
    differing: list[str],
) -> None:
    builder = Builder(resources.cache_root())
    production = baseline.build_or_raise(builder, stage, "host", modes=(PLAIN,), flags=host.BARE)
    with baseline.stoppable_pool(request.jobs, lambda: None) as pool:  # a compiler ends soon
        made = [pool.submit(_build, builder, stage, mutant) for mutant in chosen]
        for future in baseline.as_they_end(made):
            future.result()
    built: dict[str, StageBuilds] = {}
    for mutant, future in zip(chosen, made, strict=True):
        builds = future.result()
        if builds.failure is None:
            built[mutant.id] = builds
        else:
            differing.append(f"{mutant.id}: does not build")
    progress.start(f"{stage.name}: {request.inputs:,} generated inputs", None)
    seen = evidence.gather(
        stage,
        production,
        built,
        request.inputs,
        request.jobs,
        request.by_contract,
        progress.advance,
        request.entry,
    )
    for mutant in chosen:
        if mutant.id in seen:
            told = seen[mutant.id]
            if told.differing:
                differing.append(f"{mutant.id}: {told.differing}")
            else:
                lines.append(_line(mutant, told))


def _build(builder: Builder, stage: Stage, mutant: Mutant) -> StageBuilds:
    with tempfile.TemporaryDirectory(prefix="qsa-bench-mutant-") as scratch:
        tree = mutants.apply(mutant, resources.tree_root(), Path(scratch))
        return build_stage(
            builder, stage.kernels, "host", tree.root, (PLAIN,), mutant.id, flags=host.BARE
        )


def _line(mutant: Mutant, seen: evidence.Evidence) -> str:
    """Return the TOML table that a person completes by a reason."""
    equal = "contract" if seen.by_contract else "bits"
    return "\n".join(
        (
            "[[equivalent]]",
            f'id = "{mutant.id}"',
            f'context = "{equivalence.context_of(mutant, resources.tree_root())}"',
            'reason = ""',
            f"date = {datetime.date.today().isoformat()}",
            f"inputs = {seen.inputs}",
            f'equal = "{equal}"',
        )
    )
