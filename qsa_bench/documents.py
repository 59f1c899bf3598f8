"""Results as one JSON object each: what `--format json` prints.

Reals that JSON can't hold are the texts "inf", "-inf" and "nan"; what was not measured is null.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from qsa_bench.campaign_requests import Argued, MutantDiffs
from qsa_bench.compare_campaigns import CampaignComparison
from qsa_bench.compare_runs import Comparison
from qsa_bench.model import SCHEMA_VERSION, Status
from qsa_bench.requests import Diagnosis, GoldenReport, Listing, ReplayResult
from qsa_bench.side_by_side import SideBySide
from qsa_bench.store import StoredRun, layouts, strength_layouts, timing_layouts
from qsa_bench.store.columns import Layout

Document = dict[str, Any]


def of_run(run: StoredRun) -> Document:
    """Return a run: what was asked and done, the counts, then every row under its file's name.

    Rows have the columns of the run's files. `mutants` and `kills` stand in a mutation run only.
    """
    record = run.run
    document: Document = {
        "schema_version": SCHEMA_VERSION,
        "id": record.id,
        "command": record.command,
        "argv": list(record.argv),
        "complete": run.complete,
        "exit_code": record.exit_code,
        "folder": None if run.folder is None else str(run.folder),
        "started": record.started,
        "seconds": record.seconds,
        "commit": record.commit,
        "dirty": record.dirty,
        "versions": dict(record.versions),
        "host": record.host,
        "target": record.target,
        "device": record.device,
        "asked": record.asked,
        "done": record.done,
    }
    if record.command == "mutate":
        outcomes = Counter(str(result.outcome) for result in run.mutants)
        document["summary"] = {
            "mutants": len(run.mutants),
            "unexpected": sum(not result.as_expected for result in run.mutants),
            "outcomes": dict(outcomes),
            "score": record.notes.get("score"),
        }
        document["mutants"] = _rows(layouts.MUTANTS, run.mutants)
        document["kills"] = _rows(layouts.KILLS, run.kills)
    if record.command == "gate":
        document["summary"] = _gate_summary(run)
    if run.timings:
        document["timings"] = _rows(timing_layouts.TIMINGS, run.timings)
        document["samples"] = {timing.key: list(timing.samples_ns) for timing in run.timings}
    if run.usages:
        document["resources"] = _rows(timing_layouts.USAGES, run.usages)
    if run.strengths:
        document["strengths"] = _rows(strength_layouts.STRENGTHS, run.strengths)
    if run.alarms:
        document["alarms"] = _rows(strength_layouts.ALARMS, run.alarms)
    document["verdicts"] = _rows(layouts.VERDICTS, run.verdicts)
    document["builds"] = _rows(layouts.BUILDS, run.builds)
    document["notes"] = _finite(record.notes)
    return document


def _gate_summary(run: StoredRun) -> Document:
    statuses = Counter(verdict.status for verdict in run.verdicts)
    failed = {verdict.case for verdict in run.verdicts if not verdict.passed}
    return {
        "cases": len({verdict.case for verdict in run.verdicts}),
        "failed_cases": len(failed),
        "verdicts": {str(status): statuses[status] for status in Status if statuses[status]},
    }


def of_comparison(comparison: Comparison) -> Document:
    """Return a comparison: what was compared, each verdict with the ratio's interval."""
    return {
        "schema_version": SCHEMA_VERSION,
        "command": "compare",
        "exit_code": int(comparison.exit_code),
        "kind": comparison.kind,
        "old": comparison.old.id,
        "new": comparison.new.id,
        "device": comparison.new.device,
        "max_slowdown": comparison.max_slowdown,
        "max_growth": comparison.max_growth,
        "drift": comparison.drift,
        "changes": [
            {
                "key": compared.new.key,
                "verdict": str(compared.change),
                "old_ns": compared.old_ns,
                "new_ns": compared.new_ns,
                "ratio": None
                if compared.ratio is None
                else [layouts.number(compared.ratio.low), layouts.number(compared.ratio.high)],
                "why": compared.why,
            }
            for compared in comparison.rows
        ],
        "growths": [
            {
                "key": growth.usage.key,
                "number": growth.field,
                "old": growth.old,
                "new": growth.new,
                "too_much": growth.too_much,
            }
            for growth in comparison.growths
        ],
        "only_old": list(comparison.only_old),
        "only_new": list(comparison.only_new),
        "notes": list(comparison.notes),
    }


def of_side_by_side(sides: SideBySide) -> Document:
    """Return a run with `targets`, what each target's gate kills of what exists, and `beside`."""
    return {
        **of_run(sides.run),
        "targets": [{**asdict(score), "share": score.share} for score in sides.scores],
        "beside": {
            "alarms": _rows(strength_layouts.ALARMS, sides.alarms),
            "notes": list(sides.notes),
        },
    }


def of_campaigns(comparison: CampaignComparison) -> Document:
    """Return what two campaigns differ in, ids of mutants by what became of them."""
    lists = {
        "new_survivors": comparison.appeared,
        "fixed": comparison.fixed,
        "remaining": comparison.remaining,
        "unknown": comparison.unknown,
    }
    return {
        "schema_version": SCHEMA_VERSION,
        "command": "compare",
        "exit_code": int(comparison.exit_code),
        "kind": "mutate",
        "old": comparison.old.id,
        "new": comparison.new.id,
        "target": comparison.new.target,
        **{name: [result.mutant.id for result in results] for name, results in lists.items()},
        "only_old": comparison.only_old,
        "only_new": comparison.only_new,
    }


def of_replay(result: ReplayResult) -> Document:
    """Return what a replay saw."""
    return {
        "schema_version": SCHEMA_VERSION,
        "command": "replay",
        "kernel": result.kernel,
        "inputs": str(result.inputs),
        "mutant": result.mutant,
        "target": result.target,
        "case": result.case,
        "status": str(result.status),
        "exit_code": int(result.exit_code),
        "trap": {
            "reason": result.trap_reason,
            "where": result.trap_where,
            "expected": result.trap_expected,
        }
        if result.trap_reason
        else None,
        "output": None if result.output is None else str(result.output),
        "findings": [
            {
                "check": finding.check,
                "status": str(finding.status),
                **_finite(asdict(finding.evidence)),
                "margin": layouts.number(finding.evidence.margin),
            }
            for finding in result.findings
        ],
    }


def of_listing(listing: Listing) -> Document:
    """Return a list as one object per row."""
    columns = [column.replace(" ", "_") for column in listing.columns]
    return {
        "schema_version": SCHEMA_VERSION,
        "command": "list",
        "what": listing.what,
        listing.what.replace("-", "_"): [
            dict(zip(columns, row, strict=True)) for row in listing.rows
        ],
    }


def of_diffs(diffs: MutantDiffs) -> Document:
    """Return mutants with their patches."""
    return {
        "schema_version": SCHEMA_VERSION,
        "command": "mutants",
        "mutants": [
            {
                "id": mutant.id,
                "operator": mutant.operator,
                "proves": mutant.proves,
                "patch": mutant.patch,
            }
            for mutant in diffs.mutants
        ],
    }


def of_argued(argued: Argued) -> Document:
    """Return the evidence gathered."""
    return {
        "schema_version": SCHEMA_VERSION,
        "command": "argue",
        "exit_code": int(argued.exit_code),
        "equal": list(argued.lines),
        "differing": list(argued.differing),
    }


def of_diagnosis(diagnosis: Diagnosis) -> Document:
    """Return what the doctor found."""
    return {
        "schema_version": SCHEMA_VERSION,
        "command": "doctor",
        "target": diagnosis.target,
        "exit_code": int(diagnosis.exit_code),
        "probes": [
            {
                "name": probe.name,
                "state": probe.state.lower(),
                "found": probe.found,
                "remedy": probe.remedy,
            }
            for probe in diagnosis.probes
        ],
    }


def of_goldens(report: GoldenReport) -> Document:
    """Return the goldens that were dumped or verified."""
    return {
        "schema_version": SCHEMA_VERSION,
        "command": f"golden {report.action}",
        "exit_code": 0,
        "goldens": [
            {
                "path": str(golden.path),
                "kind": golden.kind,
                "bytes": golden.bytes,
                "sha256": golden.digest,
                "metadata": dict(golden.metadata),
                "facts": list(golden.facts),
            }
            for golden in report.files
        ],
    }


def _rows(layout: Layout[Any], records: Iterable[Any]) -> list[Document]:
    return [_finite(layout.to_row(record)) for record in records]


def _finite(value: Any) -> Any:
    """Return a value as JSON can hold it."""
    if isinstance(value, float):
        return layouts.number(value)
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    return value
