"""compare: two runs of one kind against each other; builds and runs nothing."""

from __future__ import annotations

from pathlib import Path

from qsa_bench import compare_campaigns, compare_runs, defaults, store
from qsa_bench.compare_campaigns import CampaignComparison
from qsa_bench.compare_runs import Comparison
from qsa_bench.errors import RunFileError
from qsa_bench.requests import CompareRequest, Progress
from qsa_bench.store import StoredRun


def run(request: CompareRequest, _progress: Progress) -> Comparison | CampaignComparison:
    """Return the comparison; NotComparableError (exit 13) where there is none."""
    old, new = (_read(name, request.results) for name in (request.old, request.new))
    if old.run.command == new.run.command == "mutate":
        return compare_campaigns.compare(old, new)
    return compare_runs.compare(old, new, request.max_slowdown, request.max_growth)


def _read(name: str, results: Path) -> StoredRun:
    """Read a run of that name or path, of the published ones too."""
    try:
        return store.open_run(name, results)
    except RunFileError as error:
        published = results / defaults.PUBLISHED.name
        if "there is no such folder" not in str(error) or not (published / name).is_dir():
            raise
        return store.read_run(store.find_run(name, published))
