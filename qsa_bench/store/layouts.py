"""Columns of the files in a run folder, and records to rows and back; standard library only.

Columns are added, never renamed and never given another meaning: a reader fills a column that an
older file lacks with the record's default. A new kind of record is one more layout here.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from qsa_bench import resources
from qsa_bench.model import (
    TARGETS,
    Build,
    Evidence,
    Expect,
    Kill,
    Mutant,
    MutantResult,
    Outcome,
    SourceText,
    Status,
    Verdict,
)
from qsa_bench.store.columns import (
    FLAG,
    INTEGER,
    REAL,
    REALS,
    TEXT,
    TEXTS,
    Layout,
    Row,
    reals,
)
from qsa_bench.store.strength_layouts import ALARMS, STRENGTHS
from qsa_bench.store.timing_layouts import SAMPLES, TIMINGS, USAGES


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


_EVIDENCE = {
    "count": INTEGER,
    "total": INTEGER,
    "unit": TEXT,
    "first": TEXT,
    "want": TEXT,
    "got": TEXT,
    "error": REAL,
    "bound": REAL,
    "margin": REAL,
    "where": TEXT,
    "note": TEXT,
    "numbers": REALS,
}


def _verdict_row(verdict: Verdict) -> Row:
    evidence = verdict.evidence
    return {
        "build": verdict.build,
        "stage": verdict.stage,
        "case": verdict.case,
        "family": verdict.family,
        "check": verdict.check,
        "status": str(verdict.status),
        "runs": verdict.runs,
        "count": evidence.count,
        "total": evidence.total,
        "unit": evidence.unit,
        "first": evidence.first,
        "want": evidence.want,
        "got": evidence.got,
        "error": evidence.error,
        "bound": evidence.bound,
        "margin": evidence.margin,
        "where": evidence.where,
        "note": evidence.note,
        "numbers": reals(evidence.numbers),
        "phase": verdict.phase,
    }


def _verdict(row: Row) -> Verdict:
    evidence = Evidence(
        count=row["count"],
        total=row["total"],
        unit=row["unit"],
        first=row["first"],
        want=row["want"],
        got=row["got"],
        error=row["error"],
        bound=row["bound"],
        where=row["where"],
        note=row["note"],
        numbers=reals(row["numbers"]),
    )
    return Verdict(
        build=row["build"],
        stage=row["stage"],
        case=row["case"],
        family=row["family"],
        check=row["check"],
        status=Status(row["status"]),
        evidence=evidence,
        runs=row["runs"],
        phase=row["phase"],
    )


VERDICTS = Layout[Verdict](
    name="verdicts",
    columns={
        "build": TEXT,
        "stage": TEXT,
        "case": TEXT,
        "family": TEXT,
        "check": TEXT,
        "status": TEXT,
        "runs": INTEGER,
        **_EVIDENCE,
        "phase": TEXT,
    },
    to_row=_verdict_row,
    from_row=_verdict,
    added={"phase": ""},
)


def _mutant_row(result: MutantResult) -> Row:
    mutant = result.mutant
    return {
        "id": mutant.id,
        "stage": mutant.stage,
        "proves": mutant.proves,
        "clause": mutant.clause,
        "patch": mutant.patch,
        "targets": list(mutant.targets),
        "expect": str(mutant.expect),
        "expected_killed_by": list(mutant.killed_by),
        "expected_differing_bits": mutant.differing_bits,
        "least_margin": mutant.least_margin,
        "why_survives": mutant.why_survives,
        "equivalent": mutant.equivalent,
        "control": mutant.control,
        "race": mutant.race,
        "operator": mutant.operator,
        "target": result.target,
        "outcome": str(result.outcome),
        "as_expected": result.as_expected,
        "killed_by": list(result.killed_by),
        "differing_bits": result.differing_bits,
        "margin": result.margin,
        "worst_error": result.worst_error,
        "where": result.where,
        "why": result.why,
        "duration_ns": _nanoseconds(result.seconds),
        "reused": result.reused,
        "code": result.code,
        "orders_killed": result.orders_killed,
        "orders": result.orders,
        "race_hits": result.race_hits,
        "race_runs": result.race_runs,
        "race_cases": result.race_cases,
        "race_left_out": result.race_left_out,
    }


def _mutant(row: Row) -> MutantResult:
    mutant = Mutant(
        id=row["id"],
        stage=row["stage"],
        proves=row["proves"],
        clause=row["clause"],
        expect=Expect(row["expect"]),
        patch=row["patch"],
        killed_by=tuple(row["expected_killed_by"]),
        targets=tuple(row["targets"]) or TARGETS,
        differing_bits=row["expected_differing_bits"],
        least_margin=row["least_margin"],
        why_survives=row["why_survives"],
        equivalent=row["equivalent"],
        control=row["control"],
        race=row["race"],
        operator=row["operator"],
    )
    return MutantResult(
        mutant=mutant,
        target=row["target"],
        outcome=Outcome(row["outcome"]),
        as_expected=row["as_expected"],
        killed_by=tuple(row["killed_by"]),
        differing_bits=row["differing_bits"],
        margin=row["margin"],
        worst_error=row["worst_error"],
        where=row["where"],
        why=row["why"],
        seconds=row["duration_ns"] / 1e9,
        reused=row["reused"],
        code=row["code"],
        orders_killed=row["orders_killed"],
        orders=row["orders"],
        race_hits=row["race_hits"],
        race_runs=row["race_runs"],
        race_cases=row["race_cases"],
        race_left_out=row["race_left_out"],
    )


MUTANTS = Layout[MutantResult](
    name="mutants",
    columns={
        "id": TEXT,
        "stage": TEXT,
        "proves": TEXT,
        "clause": TEXT,
        "patch": TEXT,
        "targets": TEXTS,
        "expect": TEXT,
        "expected_killed_by": TEXTS,
        "expected_differing_bits": INTEGER,
        "least_margin": REAL,
        "why_survives": TEXT,
        "equivalent": FLAG,
        "control": FLAG,
        "race": FLAG,
        "operator": TEXT,
        "target": TEXT,
        "outcome": TEXT,
        "as_expected": FLAG,
        "killed_by": TEXTS,
        "differing_bits": INTEGER,
        "margin": REAL,
        "worst_error": REAL,
        "where": TEXT,
        "why": TEXT,
        "duration_ns": INTEGER,
        "reused": FLAG,
        "code": TEXT,
        "orders_killed": INTEGER,
        "orders": INTEGER,
        "race_hits": INTEGER,
        "race_runs": INTEGER,
        "race_cases": INTEGER,
        "race_left_out": INTEGER,
    },
    to_row=_mutant_row,
    from_row=_mutant,
    added={
        "operator": "",
        "code": "",
        "orders_killed": None,
        "orders": None,
        "race_hits": None,
        "race_runs": None,
        "race_cases": None,
        "race_left_out": None,
    },
    order=("id",),
)

KILLS = Layout[Kill](
    name="kills",
    columns={
        "mutant": TEXT,
        "check": TEXT,
        "cases": INTEGER,
        "failed": INTEGER,
        "margin": REAL,
        "first_case": TEXT,
    },
    to_row=lambda kill: {
        "mutant": kill.mutant,
        "check": kill.check,
        "cases": kill.cases,
        "failed": kill.failed,
        "margin": kill.margin,
        "first_case": kill.first_case,
    },
    from_row=lambda row: Kill(
        mutant=row["mutant"],
        check=row["check"],
        cases=row["cases"],
        failed=row["failed"],
        margin=row["margin"],
        first_case=row["first_case"],
    ),
    order=("mutant",),
)


def _in_cache(library: str | None) -> str | None:
    """Return a library's path within the cache: a run file names no user's home folder."""
    if library is None or not Path(library).is_relative_to(resources.cache_root()):
        return library
    return str(Path(library).relative_to(resources.cache_root()))


def _build_row(build: Build) -> Row:
    return {
        "kernel": build.kernel,
        "target": build.target,
        "mode": build.mode,
        "mutant": build.mutant,
        "digest": build.digest,
        "code_digest": build.code_digest,
        "compiler": build.compiler,
        "flags": list(build.flags),
        "library": _in_cache(build.library),
        "log": build.log,
        "cached": build.cached,
        "duration_ns": _nanoseconds(build.seconds),
    }


def _build(row: Row) -> Build:
    return Build(
        kernel=row["kernel"],
        target=row["target"],
        mode=row["mode"],
        digest=row["digest"],
        code_digest=row["code_digest"],
        compiler=row["compiler"],
        flags=tuple(row["flags"]),
        library=row["library"],
        log=row["log"],
        cached=row["cached"],
        seconds=row["duration_ns"] / 1e9,
        mutant=row["mutant"],
    )


BUILDS = Layout[Build](
    name="builds",
    columns={
        "kernel": TEXT,
        "target": TEXT,
        "mode": TEXT,
        "mutant": TEXT,
        "digest": TEXT,
        "code_digest": TEXT,
        "compiler": TEXT,
        "flags": TEXTS,
        "library": TEXT,
        "log": TEXT,
        "cached": FLAG,
        "duration_ns": INTEGER,
    },
    to_row=_build_row,
    from_row=_build,
    order=("mutant", "kernel", "target", "mode"),
)

SOURCES = Layout[SourceText](
    name="sources",
    columns={"path": TEXT, "text": TEXT},
    to_row=lambda source: {"path": source.path, "text": source.text},
    from_row=lambda row: SourceText(row["path"], row["text"]),
    order=("path",),
)

LAYOUTS: tuple[Layout[Any], ...] = (
    VERDICTS,
    MUTANTS,
    KILLS,
    BUILDS,
    SOURCES,
    TIMINGS,
    SAMPLES,
    USAGES,
    STRENGTHS,
    ALARMS,
)


def number(value: float | None) -> float | str | None:
    """Return a real as JSON can hold it: "inf", "-inf" and "nan" are text, None is unmeasured."""
    if value is None or math.isfinite(value):
        return value
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
