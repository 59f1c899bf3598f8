"""Reads a run folder; builds and runs nothing."""

from __future__ import annotations

from qsa_bench import plots, store
from qsa_bench.requests import Progress, ReportRequest


def run(request: ReportRequest, _progress: Progress) -> store.StoredRun:
    """Return the run as its files tell it; RunFileError where they can't be trusted."""
    run = store.open_run(request.run, request.results)
    if request.plots is not None:
        plots.draw(run.timings, run.run.device, request.plots)
    return run
