"""Reads run folders; RunFileError, one line each, for what can't be trusted."""

from __future__ import annotations

import json
import tempfile
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from qsa_bench.errors import RunFileError
from qsa_bench.exit_codes import ExitCode
from qsa_bench.model import SCHEMA_VERSION, Run
from qsa_bench.store.columns import Layout
from qsa_bench.store.layouts import LAYOUTS
from qsa_bench.store.runs import RUN_FILE, TIMED_KINDS, StoredRun, done_of
from qsa_bench.store.timing_layouts import with_samples

LATEST = "latest"
_FIELDS: Mapping[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("id", "command", "started", "commit", "host", "target", "device"), str),
    "argv": list,
    "dirty": bool,
    **dict.fromkeys(("versions", "files", "notes"), dict),
    **dict.fromkeys(("asked", "done", "exit_code"), int),
    "seconds": (int, float),
}
_AT_THE_END = ("done", "exit_code", "seconds")

R = TypeVar("R")


def find_run(run: str, results: Path) -> Path:
    """Return the folder of a run: a path, a folder's name under `results`, or "latest".

    RunFileError says which runs there are when there is no such one.
    """
    if run == LATEST:
        newest = run_folders(results)
        if not newest:
            raise RunFileError(f"reading the latest run: {results} holds no run folder")
        return newest[-1]
    for candidate in (Path(run), results / run):
        try:
            if candidate.is_dir():
                return candidate
            if candidate.name == RUN_FILE and candidate.is_file():
                return candidate.parent
        except OSError:
            continue  # no name that a file can have
    known = ", ".join(folder.name for folder in run_folders(results)[-3:])
    raise RunFileError(
        f"reading run {run[:200]}: there is no such folder, here or in {results}"
        + (f"; the newest there are {known}" if known else "")
    )


def open_run(run: str, results: Path) -> StoredRun:
    """Read a run by path, by name under `results`, or "latest"; or out of a zip as CI keeps it.

    RunFileError as for `find_run` and `read_run`, and for a zip that holds no run or several.
    """
    archive = Path(run)
    if not (archive.suffix == ".zip" and archive.is_file()):
        return read_run(find_run(run, results))
    with tempfile.TemporaryDirectory(prefix="qsa-bench-zip-") as scratch:
        try:
            with zipfile.ZipFile(archive) as file:
                runs = [name for name in file.namelist() if Path(name).name == RUN_FILE]
                if len(runs) != 1:
                    raise RunFileError(
                        f"reading {archive}: it holds {len(runs)} runs; one {RUN_FILE} is needed"
                    )
                folder = runs[0].removesuffix(RUN_FILE)
                # The logs are for people.
                wanted = [f"{folder}{layout.name}.parquet" for layout in LAYOUTS]
                for name in [runs[0], *(name for name in wanted if name in file.namelist())]:
                    (Path(scratch) / Path(name).name).write_bytes(file.read(name))
        except (zipfile.BadZipFile, OSError, EOFError, zlib.error) as error:
            raise RunFileError(f"reading {archive}: it is no zip, or cut short ({error})") from None
        return replace(read_run(Path(scratch)), folder=archive)


def run_folders(results: Path) -> list[Path]:
    """Return the run folders under `results`, oldest first."""
    if not results.is_dir():
        return []

    def began(folder: Path) -> tuple[str, int, str]:
        try:
            started = str(json.loads((folder / RUN_FILE).read_text()).get("started", ""))
        except (OSError, ValueError, AttributeError):
            started = ""
        return started, len(folder.name), folder.name

    return sorted((path.parent for path in results.glob(f"*/{RUN_FILE}")), key=began)


def read_run(folder: Path) -> StoredRun:
    """Read a run folder; RunFileError with one line for a file that can't be trusted."""
    document = _read_json(folder / RUN_FILE)
    counts = document.get("files", {}) if _is_complete(document) else None
    rows = {layout.name: _read_rows(folder, layout, counts) for layout in LAYOUTS}
    return _stored(folder, document, rows)


def read_summary(folder: Path) -> StoredRun:
    """Read a run's run.json alone: a StoredRun without rows. RunFileError as for `read_run`."""
    document = _read_json(folder / RUN_FILE)
    return _stored(folder, document, {layout.name: () for layout in LAYOUTS})


def _is_complete(document: Mapping[str, Any]) -> bool:
    return document.get("status") == "finished"


def _stored(
    folder: Path, document: Mapping[str, Any], rows: Mapping[str, tuple[Any, ...]]
) -> StoredRun:
    complete = _is_complete(document)
    try:
        run = Run(
            id=document["id"],
            command=document["command"],
            argv=tuple(document["argv"]),
            started=document["started"],
            commit=document["commit"],
            dirty=document["dirty"],
            versions=document["versions"],
            host=document["host"],
            target=document["target"],
            device=document["device"],
            asked=document["asked"],
            done=document["done"] if complete else _done(document["command"], rows),
            exit_code=document["exit_code"] if complete else int(ExitCode.INTERRUPTED),
            seconds=document["seconds"] if complete else 0.0,
            notes=document["notes"],
        )
    except KeyError as error:
        raise RunFileError(f"reading {folder / RUN_FILE}: it has no {error}") from None
    except TypeError as error:
        raise RunFileError(f"reading {folder / RUN_FILE}: it makes no sense ({error})") from None
    return StoredRun(
        run=run,
        verdicts=rows["verdicts"],
        mutants=rows["mutants"],
        kills=rows["kills"],
        builds=rows["builds"],
        timings=with_samples(rows["timings"], rows["samples"]),
        usages=rows["resources"],
        sources=rows["sources"],
        strengths=rows["strengths"],
        alarms=rows["alarms"],
        folder=folder,
        complete=complete,
    )


def _refuse_constant(word: str) -> float:
    raise ValueError(f"it holds {word}")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
    except FileNotFoundError:
        raise RunFileError(
            f"reading run {path.parent}: it holds no {RUN_FILE}, so it is no run folder"
        ) from None
    except OSError as error:
        raise RunFileError(f"reading {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise RunFileError(f"reading {path}: it is no JSON, or cut short ({error})") from None
    version = document.get("schema_version") if isinstance(document, dict) else None
    _check_version(path, version)
    assert isinstance(document, dict)
    _check_fields(path, document)
    return document


def _check_fields(path: Path, document: Mapping[str, Any]) -> None:
    """Hold the fields of a run.json to their types; a field that is missing is told elsewhere."""
    finished = _is_complete(document)
    for name, kind in _FIELDS.items():
        value = document.get(name)
        open_end = value is None and name in _AT_THE_END and not finished
        wrong = isinstance(value, bool) and kind is not bool
        if name in document and not open_end and (wrong or not isinstance(value, kind)):
            raise RunFileError(
                f"reading {path}: {name} is {json.dumps(value)[:60]}, which makes no sense"
            )
    if not all(isinstance(count, int) for count in document.get("files", {}).values()):
        raise RunFileError(f"reading {path}: files does not state numbers of rows")


def _check_version(path: Path, version: object) -> None:
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise RunFileError(f"reading {path}: it has no schema_version; qsa-bench did not write it")
    if version > SCHEMA_VERSION:
        raise RunFileError(
            f"reading {path}: its schema_version is {version}, this qsa-bench reads up to "
            f"{SCHEMA_VERSION}; use a newer qsa-bench"
        )


def _read_rows(folder: Path, layout: Layout[R], counts: Mapping[str, int] | None) -> tuple[R, ...]:
    """Read one file. `counts` are the rows that a finished run states, None for another."""
    path = folder / f"{layout.name}.parquet"
    stated = None if counts is None else counts.get(layout.name, 0)
    if not path.exists():
        if stated:
            raise RunFileError(
                f"reading {path}: it is missing, but {RUN_FILE} states {stated} rows"
            )
        return ()
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            schema = file.schema_arrow
            version = (schema.metadata or {}).get(b"schema_version", b"")
            _check_version(path, int(version) if version.isdigit() else None)
            names = [name for name in layout.columns if name in schema.names]
            lacking = set(layout.columns) - set(names) - set(layout.added)
            if lacking:
                raise RunFileError(
                    f"reading {path}: it has no column {', '.join(sorted(lacking))}; it is damaged "
                    "or no run of qsa-bench"
                )
            rows = file.read(columns=names).to_pylist()
        records = tuple(layout.from_row({**layout.added, **row}) for row in rows)
    except (pa.ArrowException, OSError) as error:
        first = str(error).strip().splitlines()[0]
        raise RunFileError(
            f"reading {path}: it is no Parquet file, or cut short ({first})"
        ) from None
    except (ValueError, TypeError) as error:
        raise RunFileError(f"reading {path}: a row makes no sense ({error})") from None
    if stated is not None and len(records) != stated:
        raise RunFileError(
            f"reading {path}: it holds {len(records)} rows, but {RUN_FILE} states {stated}"
        )
    return records


def _done(command: str, rows: Mapping[str, tuple[Any, ...]]) -> int:
    """Count what an unfinished run got done."""
    return done_of(
        command,
        mutants=len(rows["mutants"]),
        cases=len({verdict.case for verdict in rows["verdicts"]}),
        builds=len(rows["builds"]),
        timings=sum(
            timing.kind in TIMED_KINDS and bool(timing.samples_ns)
            for timing in with_samples(rows["timings"], rows["samples"])
        ),
        audits=len({(row.stage, row.dial) for row in rows["strengths"]}) + len(rows["alarms"]),
    )
