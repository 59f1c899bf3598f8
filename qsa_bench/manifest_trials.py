"""Mutants written by hand, one by one: built, every check run, held to their manifests."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from qsa_bench import baseline, mutants, outcomes, repeats, resources, trap_search
from qsa_bench.builder import Builder
from qsa_bench.errors import ManifestError
from qsa_bench.manifest_builds import ManifestBuilds
from qsa_bench.model import Expect, Kill, Mutant, MutantResult, Outcome, Status, Verdict
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
from qsa_bench.shared_builds import without_library
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
        return Trial(with_orders(result, seldom), kills, without_library(made))


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
        if target == HOST:
            seen, result, kills = _gate(mutant, made, workload, limits, python_path)
        else:
            seen, result, kills = _on_a_device(
                mutant, made, builds, workload, limits, tools, python_path
            )
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
    """Gate a mutant on the host on what it meets first; on all where its manifest says more.

    A mutant that should live so meets every case under every order.
    """
    if mutant.expect is not Expect.SURVIVES:
        orders = FIRST_ORDERS if mutant.race else FIRST_ORDER
        seen = workload.gate(made, limits, python_path, first=orders)
        result, kills = _judge(mutant, workload, seen.verdicts)
        if result.as_expected:
            return seen, result, kills
    seen = workload.gate(made, limits, python_path)
    return seen, *_judge(mutant, workload, seen.verdicts)


def _on_a_device(
    mutant: Mutant,
    made: StageBuilds,
    clean: StageBuilds,
    workload: Workload,
    limits: Limits,
    tools: Sanitizer,
    python_path: Sequence[Path],
) -> tuple[Seen, MutantResult, list[Kill]]:
    """Gate a mutant once, search the traps where its manifest names them, repeat a race.

    Cases that the gate gave up are run where its manifest says more than was seen.
    """
    seen = workload.gate(made, limits, python_path, cases_for(mutant, workload))
    given_up = {verdict.case for verdict in seen.verdicts if verdict.status is Status.NOT_RUN}
    if trap_search.CHECK in mutant.killed_by:
        found = trap_search.search(mutant, made, clean, workload, limits, python_path)
        seen = _joined(seen, found)
    if given_up and not _judge(mutant, workload, seen.verdicts)[0].as_expected:
        cases = [case for case in workload.cases if case.id in given_up]
        seen = _joined(seen, workload.gate(made, limits, python_path, cases))
    examined = repeats.cases_of(workload)
    verdicts = [*seen.verdicts, *tools.examine(workload, made, examined, python_path)]
    if not mutant.race:
        return seen, *_judge(mutant, workload, verdicts)
    dear = repeats.dear_of(seen.verdicts)
    repeated = repeats.repeat(workload, made, limits, dear, python_path=python_path)
    result, kills = _judge(mutant, workload, verdicts, (repeated.hits, repeated.runs))
    told = replace(result, race_cases=repeated.cases, race_left_out=repeated.left_out)
    return seen, told, kills


def _joined(seen: Seen, more: Seen) -> Seen:
    """Put two gates together; of a case that both had the second tells."""
    again = {verdict.case for verdict in more.verdicts}
    kept = [verdict for verdict in seen.verdicts if verdict.case not in again]
    return replace(seen, verdicts=[*kept, *more.verdicts], by_clock=seen.by_clock or more.by_clock)


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
    """Return the cases that a mutant is gated on: on a device no trap where it must die.

    A trap shows nothing of a mutant that dies of something else, and costs a context.
    """
    must_die = mutant.expect is not Expect.SURVIVES
    return workload.ordinary if workload.target != HOST and must_die else workload.brief


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
