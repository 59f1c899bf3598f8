"""Mutants written by hand, one by one: built, every check run, held to their manifests."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from qsa_bench import baseline, mutants, outcomes, repeats, resources
from qsa_bench.builder import Builder
from qsa_bench.errors import ManifestError
from qsa_bench.manifest_builds import ManifestBuilds
from qsa_bench.model import Expect, Kill, Mutant, MutantResult, Outcome, Verdict
from qsa_bench.parity import (
    FIRST_ORDER,
    FIRST_ORDERS,
    Limits,
    Seen,
    StageBuilds,
    Workload,
    build_stage,
    modes_of,
)
from qsa_bench.races import Races
from qsa_bench.runner import HOST
from qsa_bench.sanitizer import Sanitizer
from qsa_bench.stages.base import Case
from qsa_bench.trials import Trial, whole_builds, with_orders


def run(
    mutant: Mutant,
    builder: Builder,
    builds: StageBuilds,
    workload: Workload,
    limits: Limits,
    races: Races | None,
    tools: Sanitizer,
    shared: ManifestBuilds | None = None,
) -> Trial:
    """Run every check on one mutant and hold it to its manifest.

    Its build is one that it shares, where there is one and the mutant dies there as it should; else one
    of its own, from a scratch copy.
    """
    begun = time.perf_counter()
    trial = _in_shared_build(mutant, workload, races, shared) if shared is not None else None
    if trial is None:
        trial = _alone(mutant, builder, builds, workload, limits, races, tools)
    seconds = round(time.perf_counter() - begun, 3)
    return replace(trial, result=replace(trial.result, seconds=seconds))


def _in_shared_build(
    mutant: Mutant, workload: Workload, races: Races | None, shared: ManifestBuilds
) -> Trial | None:
    """Run a mutant on its share of a build; None where it has none or does not die as it should."""
    with shared.lent(mutant) as lent:
        if lent is None:
            return None
        made, limits = lent
        seen, result, kills = _gate(mutant, made, workload, limits, ())
        if not result.as_expected or seen.by_clock:
            return None
        seldom = races.seen(made) if races is not None and mutant.race else None
        # The mutant's library is gone with its turn.
        builds = [replace(build, library="") for build in made.all if build.mutant is not None]
        return Trial(with_orders(result, seldom), kills, builds)


def _alone(
    mutant: Mutant,
    builder: Builder,
    builds: StageBuilds,
    workload: Workload,
    limits: Limits,
    races: Races | None,
    tools: Sanitizer,
) -> Trial:
    target = workload.target
    with tempfile.TemporaryDirectory(prefix="qsa-bench-mutant-") as scratch:
        tree = mutants.apply(mutant, resources.tree_root(), Path(scratch))
        made, same_code = _build(mutant, builder, builds, workload, tree)
        failure = made.failure
        if failure is not None:
            result = _not_built(mutant, target, failure.log)
            return Trial(result, (), made.all, failure.log)
        if same_code and not tree.python:
            return Trial(_same_code(mutant, target), (), made.all)
        python_path = (tree.root,) if tree.python else ()
        seen, result, kills = _gate(mutant, made, workload, limits, python_path)
        if target != HOST:
            examined = repeats.cases_of(workload)
            verdicts = [*seen.verdicts, *tools.examine(workload, made, examined, python_path)]
            race: tuple[int, int] | None = None
            if mutant.race:
                found = repeats.repeat(workload, made, limits, python_path=python_path)
                race = (found.hits, found.runs)
            result, kills = _judge(mutant, workload, verdicts, race)
        ordered = races is not None and mutant.race and not tree.python
        seldom = races.seen(made) if races is not None and ordered else None
    return Trial(with_orders(result, seldom), kills, made.all, by_clock=seen.by_clock)


def _gate(
    mutant: Mutant,
    made: StageBuilds,
    workload: Workload,
    limits: Limits,
    python_path: Sequence[Path],
) -> tuple[Seen, MutantResult, list[Kill]]:
    """Gate a mutant on what it meets first; on everything where that is not all its manifest says.

    A mutant that should live so meets every case under every order. On a device there is one gate.
    """
    cases = cases_for(mutant, workload)
    if workload.target == HOST and mutant.expect is not Expect.SURVIVES:
        orders = FIRST_ORDERS if mutant.race else FIRST_ORDER
        seen = workload.gate(made, limits, python_path, cases, first=orders)
        result, kills = _judge(mutant, workload, seen.verdicts)
        if result.as_expected:
            return seen, result, kills
    seen = workload.gate(made, limits, python_path, cases)
    return seen, *_judge(mutant, workload, seen.verdicts)


def _judge(
    mutant: Mutant,
    workload: Workload,
    verdicts: Sequence[Verdict],
    race: tuple[int, int] | None = None,
) -> tuple[MutantResult, list[Kill]]:
    bits = _differing_bits(workload, verdicts)
    return outcomes.result_of(mutant, workload.target, verdicts, bits, 0.0, race)


def _build(
    mutant: Mutant,
    builder: Builder,
    clean: StageBuilds,
    workload: Workload,
    tree: mutants.Tree,
) -> tuple[StageBuilds, bool]:
    """Build a mutant; also say whether its object code is the production kernel's."""
    stage, target = workload.stage, workload.target
    made = build_stage(
        builder, stage.kernels, target, tree.root, modes_of(target), mutant.id, short=True
    )
    if made.failure is not None or made.code_digest != clean.code_digest:
        return made, False
    whole = whole_builds(mutant, builder, stage, target, tree.root)
    if whole is None:
        return made, True
    production = baseline.build_or_raise(builder, stage, target)
    return whole, whole.code_digest == production.code_digest


def cases_for(mutant: Mutant, workload: Workload) -> Sequence[Case]:
    """Return the cases a mutant is run on: every trap only where its manifest names the traps."""
    return workload.cases if "traps" in mutant.killed_by else workload.brief


def _not_built(mutant: Mutant, target: str, log: str) -> MutantResult:
    line = next((line for line in log.splitlines() if "error" in line), log.strip()[:200])
    return MutantResult(mutant, target, Outcome.UNVIABLE, False, why=f"does not build: {line}")


def _same_code(mutant: Mutant, target: str) -> MutantResult:
    """A patch that leaves the machine code as it is: proof for an equivalent, else an error."""
    if mutant.equivalent:
        why = f"identical object code; {mutant.why_survives}"
        return MutantResult(mutant, target, Outcome.EQUIVALENT, True, why=why)
    raise ManifestError(
        f"building {mutant.id}: its object code is the production kernel's, so it proves nothing; "
        "make the patch change the code, or mark the mutant equivalent and say why"
    )


def _differing_bits(workload: Workload, verdicts: Sequence[Verdict]) -> int | None:
    """Sum the differing bits of the golden's cases; None when a case gave no output to count."""
    counted = {case.id for case in workload.cases if case.counts_bits}
    seen = [
        (verdict.case, verdict.evidence.numbers["differing_bits"])
        for verdict in verdicts
        if verdict.case in counted and "differing_bits" in verdict.evidence.numbers
    ]
    if not counted or {case for case, _ in seen} != counted:
        return None
    return round(sum(bits for _, bits in seen))
