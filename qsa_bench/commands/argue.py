"""argue: gather evidence that mutants are equivalent, as lines for mutations/<stage>/equivalent.toml.

The reason is a person's to write; without one the file is refused.
"""

from __future__ import annotations

import datetime
import tempfile
from pathlib import Path

from qsa_bench import baseline, equivalence, evidence, mutants, resources
from qsa_bench.builder import Builder
from qsa_bench.campaign_requests import Argued, ArgueRequest
from qsa_bench.exit_codes import ExitCode
from qsa_bench.model import Mutant
from qsa_bench.parity import PLAIN, build_stage
from qsa_bench.requests import Progress
from qsa_bench.stages import select_stages
from qsa_bench.stages.base import Stage


def run(request: ArgueRequest, progress: Progress) -> Argued:
    """Return a line for each mutant whose outputs were equal, and the others by name."""
    stages = select_stages(request.stages)
    found = [(stage, mutant) for stage in stages for mutant in baseline.read_mutants(stage, True)]
    chosen = mutants.select([mutant for _, mutant in found], request.id_globs)
    stage_of = {mutant.id: stage for stage, mutant in found}
    builder = Builder(resources.cache_root())
    lines: list[str] = []
    differing: list[str] = []
    progress.start("generated inputs", len(chosen))
    for mutant in chosen:
        seen = _evidence(stage_of[mutant.id], mutant, builder, request)
        if seen is None or seen.differing:
            differing.append(f"{mutant.id}: {seen.differing if seen else 'does not build'}")
        else:
            lines.append(_line(mutant, seen))
        progress.advance(mutant.id)
    progress.finish()
    return Argued(
        tuple(lines), tuple(differing), ExitCode.MUTATION_MISMATCH if differing else ExitCode.OK
    )


def _evidence(
    stage: Stage, mutant: Mutant, builder: Builder, request: ArgueRequest
) -> evidence.Evidence | None:
    production = baseline.build_or_raise(builder, stage, "host")
    with tempfile.TemporaryDirectory(prefix="qsa-bench-mutant-") as scratch:
        tree = mutants.apply(mutant, resources.tree_root(), Path(scratch))
        built = build_stage(builder, stage.kernels, "host", tree.root, (PLAIN,), mutant.id)
    if built.failure is not None:
        return None
    return evidence.gather(
        stage, production, built, request.inputs, request.jobs, request.by_contract
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
