"""Runs made by hand, as a gate and a campaign would leave them; records, no behaviour."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

from qsa_bench.model import (
    Build,
    Evidence,
    Expect,
    Kill,
    Mutant,
    MutantResult,
    Outcome,
    Status,
    Verdict,
)
from qsa_bench.store import RunWriter, StoredRun

STAGE = "qsa_select"
COVERAGE = {"rows": 133, "bitwise": 129, "ties": 4, "all_kept": 128, "truncating": 5}


def build(mutant: str | None = None, **fields: object) -> Build:
    """Return a build that worked."""
    made = Build(
        kernel=STAGE,
        target="host",
        mode="plain",
        digest="d" * 32,
        code_digest="c" * 32,
        compiler="g++ 12.2.0",
        flags=("-O2", "-std=c++17"),
        library="/nowhere/lib.so",
        seconds=0.4,
        mutant=mutant,
    )
    return replace(made, **fields)  # type: ignore[arg-type]


def verdict(case: str = "golden/case-0", check: str = "mask", **fields: object) -> Verdict:
    """Return a pass."""
    made = Verdict(
        build="d" * 32,
        stage=STAGE,
        case=f"{STAGE}/{case}",
        family=case.partition("/")[0],
        check=check,
        status=Status.PASS,
        evidence=Evidence(total=40, unit="bits"),
        runs=12,
    )
    return replace(made, **fields)  # type: ignore[arg-type]


WRONG = verdict(
    "golden/case-6",
    status=Status.WRONG,
    evidence=Evidence(
        count=3,
        total=12330,
        unit="bits",
        first="row 2 token 8",
        want="1",
        got="0",
        note="lifo order",
        numbers={"differing_bits": 3.0},
    ),
)
OFF_BY_A_BIT = verdict(
    "small-keys/0",
    "scores",
    evidence=Evidence(total=9, error=1.5e-6, bound=2e-6, where="row 3 block 1"),
)
NOT_A_NUMBER = verdict(
    "small-keys/1",
    "scores",
    status=Status.WRONG,
    evidence=Evidence(count=1, total=9, error=math.nan, bound=2e-6),
)


def mutant(name: str, **fields: object) -> Mutant:
    """Return a mutant that the mask check should kill."""
    made = Mutant(
        id=f"{STAGE}/{name}",
        stage=STAGE,
        proves=f"{name} is seen",
        clause="tail",
        expect=Expect.KILLED,
        patch="--- a/kernels/qsa/select.cu\n+++ b/kernels/qsa/select.cu\n",
        killed_by=("mask",),
    )
    return replace(made, **fields)  # type: ignore[arg-type]


def killed(name: str, bits: int | None = None, **fields: object) -> MutantResult:
    """Return a mutant that died as its manifest says."""
    made = MutantResult(
        mutant=mutant(name, differing_bits=bits),
        target="host",
        outcome=Outcome.KILLED,
        as_expected=True,
        killed_by=("mask", "ids"),
        differing_bits=bits,
        seconds=0.25,
    )
    return replace(made, **fields)  # type: ignore[arg-type]


SURVIVOR = MutantResult(
    mutant=mutant("skips-a-digit", clause="radix"),
    target="host",
    outcome=Outcome.SURVIVED,
    as_expected=False,
    why="expected killed, it survived; not killed by mask, as its manifest says",
    seconds=0.5,
)
EQUIVALENT = MutantResult(
    mutant=mutant(
        "removes-a-spare-barrier",
        expect=Expect.SURVIVES,
        killed_by=(),
        why_survives="the next barrier orders the same accesses",
        equivalent=True,
    ),
    target="host",
    outcome=Outcome.EQUIVALENT,
    as_expected=True,
    why="the next barrier orders the same accesses",
)


def gate(results: Path | None, *verdicts: Verdict, exit_code: int = 0) -> StoredRun:
    """Write a gate run of these verdicts and return it as it reads."""
    writer = RunWriter.create(results, "gate", ("qsa-bench", "gate"), "host", "emulated sm_90")
    writer.add_builds([build()])
    writer.add_verdicts(verdicts)
    cases = len({item.case for item in verdicts})
    notes = {"coverage": {STAGE: COVERAGE}, "golden": {"path": "qsa.safetensors", "digest": "ab"}}
    return writer.finish(cases, cases, exit_code, notes)


def kills_of(
    result: MutantResult, checks: tuple[str, ...] = ("mask", "ids", "races")
) -> list[Kill]:
    """Return a mutant's row of the kill matrix."""
    return [
        Kill(result.mutant.id, check, 40, 7 if check in result.killed_by else 0) for check in checks
    ]


def campaign(results: Path | None, *mutants: MutantResult, exit_code: int = 0) -> StoredRun:
    """Write a mutation run of these results and return it as it reads."""
    writer = RunWriter.create(results, "mutate", ("qsa-bench", "mutate"), "host", "emulated sm_90")
    writer.add_builds([build()])
    writer.add_verdicts([verdict()])
    for result in mutants:
        writer.add_mutants([result])
        writer.add_kills(kills_of(result))
    notes = {
        "score": {"killed": 2, "all": 4, "equivalent": 1, "unviable": 0, "not_run": 0},
        "unneeded_checks": [f"{STAGE}: races"],
        "unbroken_clauses": [f"{STAGE}: both-zeros", f"{STAGE}: live-rows"],
        "timing": {STAGE: {"baseline_seconds": 1.5, "mutants_a_minute": 80.0}},
    }
    return writer.finish(len(mutants), len(mutants), exit_code, notes)
