"""A campaign as one page: survivors, the kill matrix by margin, the source with its mutants.

The page holds everything it shows and loads nothing; page.html, page.css and page.js are its parts.
"""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qsa_bench import pages
from qsa_bench.model import Kill, MutantResult
from qsa_bench.reports import facts
from qsa_bench.store import StoredRun, layouts
from qsa_bench.tables import Mark

_FOLDER = Path(__file__).parent


def text(run: StoredRun) -> str:
    """Return the page."""
    run = facts.campaign(run)
    headline = pages.of_run(run).headline
    parts = {
        "TITLE": html.escape(f"Mutants: {run.run.id}"),
        "TONE": "good" if headline.mark is Mark.GOOD else "bad",
        "HEADLINE": html.escape(headline.text),
        "STYLE": (_FOLDER / "page.css").read_text(),
        "SCRIPT": (_FOLDER / "page.js").read_text(),
        "DATA": _embedded(_data(run)),
    }
    page = (_FOLDER / "page.html").read_text()
    # Split once: what is put in may itself hold a marker.
    pieces = page.split("@")
    return "".join(parts.get(piece, piece) if at % 2 else piece for at, piece in enumerate(pieces))


def _embedded(data: Mapping[str, Any]) -> str:
    """Return JSON that can't end its script element."""
    return json.dumps(data, ensure_ascii=False).replace("<", "\\u003c")


def _data(run: StoredRun) -> dict[str, Any]:
    sources = {source.path: source.text for source in run.sources}
    rows = facts.kills_by_mutant(run.kills)
    alike: dict[tuple[str, str], list[str]] = {}
    for result in run.mutants:
        if result.code:
            alike.setdefault((result.mutant.stage, result.code), []).append(result.mutant.id)
    checks: dict[str, list[str]] = {}
    for kill in run.kills:
        known = checks.setdefault(kill.mutant.partition("/")[0], [])
        if kill.check not in known:
            known.append(kill.check)
    record = run.run
    return {
        "facts": f"{record.started[:19]} UTC, commit {record.commit[:12]}, target {record.target}, "
        f"{record.host}",
        "checks": checks,
        "sources": sources,
        "mutants": [
            _mutant(result, rows.get(result.mutant.id, []), sources, alike)
            for result in facts.survivors_first(run.mutants)
        ],
    }


def _mutant(
    result: MutantResult,
    kills: list[Kill],
    sources: Mapping[str, str],
    alike: Mapping[tuple[str, str], list[str]],
) -> dict[str, Any]:
    mutant = result.mutant
    (place, *_) = facts.places(result, sources)
    same = alike.get((mutant.stage, result.code), [])
    return {
        "id": mutant.id,
        "stage": mutant.stage,
        "operator": mutant.operator,
        "outcome": str(result.outcome),
        "expected": result.as_expected,
        "proves": mutant.proves,
        "why": result.why,
        "patch": mutant.patch,
        "killed_by": list(result.killed_by),
        "margin": _short(result.margin),
        "path": place.path,
        "line": place.line,
        "reused": result.reused,
        "same": [name for name in same if name != mutant.id],
        "cells": {kill.check: [kill.cases, kill.failed, _short(kill.margin)] for kill in kills},
    }


def _short(value: float | None) -> float | str | None:
    number = layouts.number(value)
    return float(f"{number:.4g}") if isinstance(number, float) else number
