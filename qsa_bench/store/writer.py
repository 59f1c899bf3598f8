"""Writes a run folder while the run goes on."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from qsa_bench import environment, resources
from qsa_bench.errors import QsaBenchError, UsageError
from qsa_bench.exit_codes import ExitCode
from qsa_bench.model import (
    SCHEMA_VERSION,
    Build,
    Kill,
    Measurement,
    MutantResult,
    Run,
    SourceText,
    Usage,
    Verdict,
)
from qsa_bench.sensitivity import Alarms, Strength
from qsa_bench.store import columns, layouts, strength_layouts, timing_layouts
from qsa_bench.store.columns import Layout
from qsa_bench.store.layouts import LAYOUTS
from qsa_bench.store.reader import read_run
from qsa_bench.store.runs import RUN_FILE, TIMED_KINDS, StoredRun, done_of

# Rows wait at most this long for the disk, and longer once writing takes long: at most a
# twentieth of the time goes into it.
_FLUSH_S = 2.0
_FLUSH_SHARE = 20.0

R = TypeVar("R")


@dataclass
class _Rows:
    """Rows of one file: those already in Arrow's form and those that wait."""

    layout: Layout[Any]
    batches: list[Any] = field(default_factory=list)
    waiting: list[Any] = field(default_factory=list)
    count: int = 0


class RunWriter:
    """Writes one run folder while the run goes on. Safe to use from several threads.

    As a context manager it ends the run with the exit code of the error that leaves the block, so
    that a run which failed half-way does not read as one that was killed.
    """

    def __init__(self, run: Run, folder: Path | None) -> None:
        self._run = run
        self._folder = folder
        self._rows = {layout.name: _Rows(layout) for layout in LAYOUTS}
        self._lock = threading.Lock()
        self._begun = time.monotonic()
        self._next_flush = self._begun + _FLUSH_S
        self._compilers: dict[str, None] = {}
        self._cases: set[str] = set()
        self._timed = 0
        self._audits: set[tuple[str, ...]] = set()
        self._finished = False
        if folder is not None:
            try:
                self._write_run(run, complete=False)
            except OSError:
                shutil.rmtree(folder, ignore_errors=True)
                raise

    @classmethod
    def create(
        cls,
        results: Path | None,
        command: str,
        argv: Sequence[str],
        target: str,
        device: str,
        asked: int = 0,
    ) -> RunWriter:
        """Make a new folder under `results` and write its run.json; None keeps nothing on disk.

        UsageError when the folder can't be made.
        """
        commit = environment.commit()
        versions = environment.versions()
        if target == "cuda":
            found = environment.gpus()
            versions.update({"driver": found.driver, "cuda": found.cuda})
        now = datetime.now(UTC)
        name = f"{now:%Y%m%dT%H%M%SZ}-{command}-{commit.short}{'-dirty' if commit.dirty else ''}"
        folder = None if results is None else _new_folder(results, name)
        run = Run(
            id=name if folder is None else folder.name,
            command=command,
            argv=tuple(argv),
            started=now.isoformat(timespec="milliseconds"),
            commit=commit.name,
            dirty=commit.dirty,
            versions=versions,
            host=environment.host_line(),
            target=target,
            device=device,
            asked=asked,
            done=0,
            exit_code=int(ExitCode.INTERRUPTED),
            seconds=0.0,
        )
        return cls(run, folder)

    @classmethod
    def resume(cls, folder: Path, argv: Sequence[str]) -> tuple[RunWriter, StoredRun]:
        """Go on with a run that was interrupted; returns what it holds, too.

        Rows without samples are left out: they are to be tried again. UsageError when the run has
        ended by itself, RunFileError when it can't be read.
        """
        before = read_run(folder)
        if before.complete and before.run.exit_code != ExitCode.INTERRUPTED:
            raise UsageError(
                f"resuming {folder}: this run ended by itself (exit {before.run.exit_code})"
            )
        timed = tuple(timing for timing in before.timings if timing.samples_ns)
        before = replace(before, timings=timed)
        writer = cls(replace(before.run, argv=tuple(argv)), folder)
        writer._begun -= before.run.seconds
        writer.add_verdicts(before.verdicts)
        writer.add_builds(before.builds)
        writer.add_timings(before.timings)
        return writer, before

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None or self._finished:
            return
        code = ExitCode.BUG
        if isinstance(error, QsaBenchError):
            code = error.exit_code
        elif isinstance(error, KeyboardInterrupt):
            code = ExitCode.INTERRUPTED
        done = done_of(
            self._run.command,
            mutants=self._rows["mutants"].count,
            cases=len(self._cases),
            builds=self._rows["builds"].count,
            timings=self._timed,
            audits=len(self._audits),
        )
        try:
            self.finish(self._run.asked, done, code, {"error": str(error) or type(error).__name__})
        except OSError:
            # A disk that is full, or gone, is why the run ends: that is told, not this.
            if not isinstance(error, OSError):
                raise

    @property
    def folder(self) -> Path | None:
        """The run folder, None when nothing is kept on disk."""
        return self._folder

    @property
    def run(self) -> Run:
        """The run as it is known so far."""
        return self._run

    def expect(self, asked: int) -> None:
        """Record how many things the run will do, as soon as that is known."""
        with self._lock:
            self._run = replace(self._run, asked=asked)
            if self._folder is not None:
                self._write_run(self._run, complete=False)

    def add_verdicts(self, verdicts: Iterable[Verdict]) -> None:
        """Add rows to verdicts.parquet."""
        records = list(verdicts)
        self._cases.update(verdict.case for verdict in records)
        self._add(layouts.VERDICTS, records)

    def add_mutants(self, results: Iterable[MutantResult]) -> None:
        """Add rows to mutants.parquet."""
        self._add(layouts.MUTANTS, results)

    def add_kills(self, kills: Iterable[Kill]) -> None:
        """Add cells to kills.parquet."""
        self._add(layouts.KILLS, kills)

    def add_builds(self, builds: Iterable[Build]) -> None:
        """Add rows to builds.parquet."""
        records = list(builds)
        self._compilers.update(dict.fromkeys(build.compiler for build in records))
        self._add(layouts.BUILDS, records)

    def add_timings(self, timings: Iterable[Measurement]) -> None:
        """Add rows to timings.parquet and samples.parquet, on the disk when this returns."""
        records = list(timings)
        self._timed += sum(
            timing.kind in TIMED_KINDS and bool(timing.samples_ns) for timing in records
        )
        self._add(timing_layouts.TIMINGS, records)
        self._add(timing_layouts.SAMPLES, [(timing.key, timing.samples_ns) for timing in records])
        with self._lock:
            if self._folder is not None:
                self._flush()

    def add_usages(self, usages: Iterable[Usage]) -> None:
        """Add rows to resources.parquet."""
        self._add(timing_layouts.USAGES, usages)

    def add_strengths(self, strengths: Iterable[Strength]) -> None:
        """Add rows to strengths.parquet."""
        records = list(strengths)
        self._audits.update((row.stage, row.dial) for row in records)
        self._add(strength_layouts.STRENGTHS, records)

    def add_alarms(self, alarms: Iterable[Alarms]) -> None:
        """Add rows to alarms.parquet."""
        records = list(alarms)
        self._audits.update((row.stage, row.kind, row.build) for row in records)
        self._add(strength_layouts.ALARMS, records)

    def add_sources(self, sources: Iterable[SourceText]) -> None:
        """Add rows to sources.parquet."""
        self._add(layouts.SOURCES, sources)

    def log(self, name: str, text: str) -> Path | None:
        """Write logs/<name>.log and return its path; other characters than [A-Za-z0-9._-] fold."""
        if self._folder is None:
            return None
        path = self._folder / "logs" / f"{re.sub(r'[^A-Za-z0-9._-]+', '-', name)}.log"
        path.parent.mkdir(exist_ok=True)
        _replace(path, text.encode(errors="replace"))
        return path

    def finish(
        self, asked: int, done: int, exit_code: int, notes: Mapping[str, object] | None = None
    ) -> StoredRun:
        """Write what waits and the end of run.json, and return the run as it reads from disk."""
        with self._lock:
            self._finished = True
            self._run = replace(
                self._run,
                asked=asked,
                done=done,
                exit_code=int(exit_code),
                seconds=round(time.monotonic() - self._begun, 3),
                versions={**self._run.versions, **self._compiler_version()},
                notes=_plain(dict(notes or {})),
            )
            if self._folder is None:
                return StoredRun(
                    run=self._run,
                    verdicts=tuple(self._rows["verdicts"].waiting),
                    mutants=tuple(self._rows["mutants"].waiting),
                    kills=tuple(self._rows["kills"].waiting),
                    builds=tuple(self._rows["builds"].waiting),
                    timings=tuple(self._rows["timings"].waiting),
                    usages=tuple(self._rows["resources"].waiting),
                    sources=tuple(self._rows["sources"].waiting),
                    strengths=tuple(self._rows["strengths"].waiting),
                    alarms=tuple(self._rows["alarms"].waiting),
                )
            self._flush(last=True)
            self._write_run(self._run, complete=True)
        return read_run(self._folder)

    def _compiler_version(self) -> dict[str, str]:
        return {"compiler": "; ".join(self._compilers)} if self._compilers else {}

    def _add(self, layout: Layout[R], records: Iterable[R]) -> None:
        with self._lock:
            rows = self._rows[layout.name]
            before = len(rows.waiting)
            rows.waiting.extend(records)
            rows.count += len(rows.waiting) - before
            now = time.monotonic()
            if self._folder is not None and now >= self._next_flush:
                self._flush()
                ended = time.monotonic()
                self._next_flush = ended + max(_FLUSH_S, (ended - now) * _FLUSH_SHARE)

    def _flush(self, *, last: bool = False) -> None:
        for rows in self._rows.values():
            if rows.waiting or (last and rows.count):
                self._write_rows(rows, ordered=last)

    def _write_rows(self, rows: _Rows, *, ordered: bool) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        assert self._folder is not None
        schema = _arrow_schema(rows.layout)
        converted = [rows.layout.to_row(record) for record in rows.waiting]
        rows.batches.append(pa.RecordBatch.from_pylist(converted, schema=schema))
        rows.waiting.clear()
        table = pa.Table.from_batches(rows.batches)
        if ordered and rows.layout.order:
            table = table.take(_places(table, rows.layout.order))
        table = table.replace_schema_metadata(self._metadata())
        path = self._folder / f"{rows.layout.name}.parquet"
        made = path.with_name(f".{path.name}.tmp")
        pq.write_table(table, made, compression="zstd")
        os.replace(made, path)

    def _metadata(self) -> dict[str, str]:
        run = self._run
        versions = {**run.versions, **self._compiler_version()}
        on_gpu = run.target == "cuda"
        return {
            "schema_version": str(SCHEMA_VERSION),
            "run": run.id,
            "commit": f"{run.commit}{'-dirty' if run.dirty else ''}",
            "argv": json.dumps(list(run.argv)),
            "host": run.host,
            "device": run.device,
            "gpu": run.device if on_gpu else "none",
            "driver": versions.get("driver", "none"),
            "cuda": versions.get("cuda", "none"),
            "torch": versions.get("torch", "none"),
            "python": versions["python"],
            "compiler": versions.get("compiler", "none"),
        }

    def _write_run(self, run: Run, *, complete: bool) -> None:
        assert self._folder is not None
        document = {
            "schema_version": SCHEMA_VERSION,
            "id": run.id,
            "command": run.command,
            "argv": list(run.argv),
            "status": "finished" if complete else "running",
            "exit_code": run.exit_code if complete else None,
            "started": run.started,
            "seconds": run.seconds if complete else None,
            "commit": run.commit,
            "dirty": run.dirty,
            "versions": dict(run.versions),
            "host": run.host,
            "target": run.target,
            "device": run.device,
            "asked": run.asked,
            "done": run.done if complete else None,
            "files": {name: rows.count for name, rows in self._rows.items() if rows.count},
            "notes": run.notes,
        }
        _replace(self._folder / RUN_FILE, json.dumps(document, indent=2).encode())


def _places(table: Any, columns: Sequence[str]) -> list[int]:
    """Return the rows' places when sorted by text columns; rows that are equal keep their order."""
    texts = zip(*(table.column(name).to_pylist() for name in columns), strict=True)
    keys = [tuple(text or "" for text in row) for row in texts]
    return sorted(range(len(keys)), key=keys.__getitem__)


def _arrow_schema(layout: Layout[Any]) -> Any:
    import pyarrow as pa

    types = {
        columns.TEXT: pa.string(),
        columns.INTEGER: pa.int64(),
        columns.REAL: pa.float64(),
        columns.FLAG: pa.bool_(),
        columns.TEXTS: pa.list_(pa.string()),
        columns.REALS: pa.map_(pa.string(), pa.float64()),
        columns.COUNTS: pa.map_(pa.string(), pa.int64()),
        columns.WORDS: pa.map_(pa.string(), pa.string()),
        columns.INTEGERS: pa.list_(pa.int64()),
    }
    return pa.schema([pa.field(name, types[word]) for name, word in layout.columns.items()])


def _new_folder(results: Path, name: str) -> Path:
    """Make results/<name>, or <name>-2, -3, ... when two runs begin in the same second."""
    try:
        str(results).encode()
    except UnicodeEncodeError:
        raise UsageError(
            f"making a run folder in {str(results)!a}: its name is no UTF-8; "
            "name another folder with -o"
        ) from None
    try:
        results.mkdir(parents=True, exist_ok=True)
        for attempt in range(1, 1000):
            folder = results / (name if attempt == 1 else f"{name}-{attempt}")
            try:
                folder.mkdir()
            except FileExistsError:
                continue
            return folder
    except OSError as error:
        raise UsageError(
            f"making a run folder in {results}: {error.strerror}; name a writable folder with -o"
        ) from None
    raise UsageError(f"making a run folder in {results}: {name} is taken 999 times over")


def _replace(path: Path, content: bytes) -> None:
    made = path.with_name(f".{path.name}.tmp")
    made.write_bytes(content)
    os.replace(made, path)


def _without_places(text: str) -> str:
    """Return a text without the folders of this machine: cache, scratch, working directory.

    A run folder may be published: it says what was done, not where someone lives.
    """
    scratch = rf"{re.escape(tempfile.gettempdir())}/(?:qsa-bench-|building-)[^/\s]*"
    text = re.sub(scratch, "SCRATCH", text)
    text = text.replace(str(resources.cache_root()), "CACHE")
    return text.replace(f"{Path.cwd()}/", "")


def _plain(value: Any) -> Any:
    """Return notes as they read back from JSON; TypeError for what JSON can't hold."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, str | Path):
        return _without_places(str(value))
    if isinstance(value, float):
        return layouts.number(value)
    if isinstance(value, bool | int) or value is None:
        return value
    if isinstance(value, Sequence | set | frozenset):
        return [_plain(item) for item in value]
    raise TypeError(f"a note can't hold a {type(value).__name__}: {value!r}")
