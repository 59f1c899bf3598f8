"""Reads a run folder; builds and runs nothing."""

from __future__ import annotations

from qsa_bench import plots, side_by_side, store
from qsa_bench.requests import Progress, ReportRequest
from qsa_bench.side_by_side import SideBySide


def run(request: ReportRequest, _progress: Progress) -> store.StoredRun | SideBySide:
    """Return the run as its files tell it, with those beside it; RunFileError for bad files."""
    run = store.open_run(request.run, request.results)
    if request.plots is not None:
        plots.draw(run.timings, run.run.device, request.plots)
    if request.beside:
        others = [store.open_run(name, request.results) for name in request.beside]
        return side_by_side.beside(run, others)
    return run
