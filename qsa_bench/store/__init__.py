"""Run folders: run.json and Parquet files with versioned schemas. Nothing else touches them.

A run folder is readable at every moment: files are replaced whole, and run.json exists from the
start with no exit code, so that a run that was killed reads as interrupted and never as green.
pyarrow is imported when a row is written or read, not before.
"""

from __future__ import annotations

from qsa_bench.store.reader import find_run, open_run, read_run, read_summary, run_folders
from qsa_bench.store.runs import RUN_FILE, StoredRun
from qsa_bench.store.writer import RunWriter

__all__ = [
    "RUN_FILE",
    "RunWriter",
    "StoredRun",
    "find_run",
    "open_run",
    "read_run",
    "read_summary",
    "run_folders",
]
