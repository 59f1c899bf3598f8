"""A campaign in the mutation-testing report schema (version 2), which existing viewers open.

Checks are its tests. The schema has no word for an equivalent mutant or for one of the GPU alone:
they are Ignored, with the reason; a kill by a crash is Killed, as no-crash is a check.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import qsa_bench
from qsa_bench.model import MutantResult, Outcome
from qsa_bench.reports import facts
from qsa_bench.store import StoredRun

SCHEMA_VERSION = "2.0"
_STATUS = {
    Outcome.KILLED: "Killed",
    Outcome.KILLED_BY_CRASH: "Killed",
    Outcome.KILLED_BY_TIMEOUT: "Timeout",
    Outcome.SURVIVED: "Survived",
    Outcome.EQUIVALENT: "Ignored",
    Outcome.GPU_ONLY: "Ignored",
    Outcome.UNVIABLE: "CompileError",
    Outcome.STALE: "RuntimeError",
    Outcome.NOT_RUN: "Pending",
}
_HIGH, _LOW = 100, 80


def text(run: StoredRun) -> str:
    """Return the JSON, indented."""
    return json.dumps(document(run), indent=1, ensure_ascii=False) + "\n"


def document(run: StoredRun) -> dict[str, Any]:
    """Return a campaign as the schema's object; controls are no mutants of it."""
    run = facts.campaign(run)
    sources = {source.path: source.text for source in run.sources}
    rows = facts.kills_by_mutant(run.kills)
    files: dict[str, dict[str, Any]] = {}
    for result in run.mutants:
        if result.mutant.control:
            continue
        (place, *_) = facts.places(result, sources)
        entry = files.setdefault(
            place.path,
            {
                "language": "python" if place.path.endswith(".py") else "cpp",
                "source": sources.get(place.path, ""),
                "mutants": [],
            },
        )
        kills = rows.get(result.mutant.id, [])
        stage = result.mutant.stage
        mutant = _mutant(result, place)
        mutant["coveredBy"] = [f"{stage}/{kill.check}" for kill in kills]
        mutant["killedBy"] = [f"{stage}/{kill.check}" for kill in kills if kill.failed]
        entry["mutants"].append(mutant)
    checks = dict.fromkeys((kill.mutant.partition("/")[0], kill.check) for kill in run.kills)
    tests: dict[str, Any] = {}
    for stage, check in checks:
        suite = tests.setdefault(f"checks of {stage}", {"tests": []})
        suite["tests"].append({"id": f"{stage}/{check}", "name": check})
    return {
        "schemaVersion": SCHEMA_VERSION,
        "thresholds": {"high": _HIGH, "low": _LOW},
        "files": files,
        "testFiles": tests,
        "framework": {"name": "qsa-bench", "version": qsa_bench.__version__},
        "performance": _performance(run.run.notes),
    }


def _mutant(result: MutantResult, place: facts.Place) -> dict[str, Any]:
    reason = result.why or result.where
    return {
        "id": result.mutant.id,
        "mutatorName": result.mutant.operator or "by hand",
        "description": result.mutant.proves,
        "replacement": place.replacement,
        "location": {
            "start": {"line": place.line, "column": place.column},
            "end": {"line": place.end_line, "column": place.end_column},
        },
        "status": _STATUS[result.outcome],
        "duration": round(result.seconds * 1000),
        **({"statusReason": reason} if reason else {}),
    }


def _performance(notes: Mapping[str, Any]) -> dict[str, int]:
    """Return milliseconds: the schema wants all three."""
    timing = notes.get("timing")
    spent = list(timing.values()) if isinstance(timing, Mapping) else []

    def total(name: str) -> int:
        return round(1000 * sum(float(part.get(name, 0.0)) for part in spent))

    return {
        "setup": 0,
        "initialRun": total("baseline_seconds"),
        "mutation": total("mutant_seconds"),
    }
