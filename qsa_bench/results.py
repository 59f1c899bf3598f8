"""One way to show any command's result: as a page, as markdown, as JSON; and its exit code."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from qsa_bench import compare_tables, documents, pages, tables
from qsa_bench.campaign_requests import Argued, MutantDiffs
from qsa_bench.compare_campaigns import CampaignComparison
from qsa_bench.compare_runs import Comparison
from qsa_bench.errors import UsageError
from qsa_bench.exit_codes import ExitCode
from qsa_bench.requests import Diagnosis, GoldenReport, Listing, ReplayResult
from qsa_bench.side_by_side import SideBySide
from qsa_bench.store import StoredRun

_VIEWS: dict[type, tuple[Callable[[Any], tables.Page], Callable[[Any], documents.Document]]] = {
    StoredRun: (pages.of_run, documents.of_run),
    SideBySide: (pages.of_side_by_side, documents.of_side_by_side),
    ReplayResult: (pages.of_replay, documents.of_replay),
    Diagnosis: (pages.of_diagnosis, documents.of_diagnosis),
    Listing: (pages.of_listing, documents.of_listing),
    Argued: (pages.of_argued, documents.of_argued),
    MutantDiffs: (pages.of_diffs, documents.of_diffs),
    GoldenReport: (pages.of_goldens, documents.of_goldens),
    CampaignComparison: (compare_tables.campaign_page, documents.of_campaigns),
    Comparison: (compare_tables.page, documents.of_comparison),
}
# GitHub refuses a step summary beyond 1 MiB whole.
SUMMARY_BYTES = 1 << 20
# A format's name on the command line, and the module of reports/ that makes it.
FORMATS = {
    "junit": "junit",
    "github": "github",
    "mutation-json": "elements",
    "html": "html",
}


def page(result: object) -> tables.Page:
    """Return a result's page."""
    return _VIEWS[type(result)][0](result)


def document(result: object) -> documents.Document:
    """Return a result as one JSON object."""
    return _VIEWS[type(result)][1](result)


def markdown(result: object) -> str:
    """Return a result's page as markdown, cut to what a CI's step summary holds."""
    return tables.markdown(page(result), most_bytes=SUMMARY_BYTES)


def exported(result: object, format: str) -> str:  # noqa: A002
    """Return a campaign in one of FORMATS; RunFileError for a run of another kind.

    UsageError for several side by side.
    """
    if isinstance(result, SideBySide):
        raise UsageError(f"--format {format} and --beside: this format tells of one campaign alone")
    module = importlib.import_module(f"qsa_bench.reports.{FORMATS[format]}")
    text: str = module.text(result)
    return text


def exit_code(result: object) -> int:
    """Return what the process answers; a list of nothing is no success."""
    if isinstance(result, StoredRun):
        return result.run.exit_code
    if isinstance(result, ReplayResult | Diagnosis | Comparison | CampaignComparison | Argued):
        return int(result.exit_code)
    if isinstance(result, Listing) and not result.rows:
        return int(ExitCode.NOTHING_SELECTED)
    return int(ExitCode.OK)
