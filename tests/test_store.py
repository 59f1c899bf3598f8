"""Run folders: what is written reads back, a kill leaves a readable run, bad files are refused."""

from __future__ import annotations

import io
import json
import math
import os
import re
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from qsa_bench import environment, resources, store
from qsa_bench.errors import BuildError, RunFileError, UsageError
from qsa_bench.exit_codes import ExitCode
from qsa_bench.model import SCHEMA_VERSION
from qsa_bench.store import RunWriter, columns, layouts, writer
from tests import specimens
from tests.schema_1 import SCHEMA_1


def _new(results: Path, command: str = "mutate") -> RunWriter:
    return RunWriter.create(results, command, ("qsa-bench", command), "host", "emulated")


def test_everything_written_reads_back(tmp_path: Path) -> None:
    verdicts = (specimens.verdict(), specimens.WRONG, specimens.OFF_BY_A_BIT)
    results = (specimens.killed("drop-the-tail", 201), specimens.EQUIVALENT, specimens.SURVIVOR)
    builds = (specimens.build(), specimens.build("x", library=None, log="no such type"))
    kills = tuple(kill for result in results for kill in specimens.kills_of(result))
    run = _new(tmp_path)
    run.add_verdicts(verdicts)
    run.add_mutants(results)
    run.add_kills(kills)
    run.add_builds(builds)
    notes = {"coverage": {"rows": 133}, "worst": math.inf, "path": Path("a/b"), "seen": ("x",)}
    written = run.finish(3, 3, ExitCode.MUTATION_MISMATCH, notes)
    assert run.folder is not None
    read = store.read_run(run.folder)
    assert read == written
    assert read.verdicts == verdicts
    assert set(read.mutants) == set(results)
    assert sorted(read.kills, key=repr) == sorted(kills, key=repr)
    assert set(read.builds) == set(builds)
    assert read.complete
    assert read.run.exit_code == 4
    assert (read.run.asked, read.run.done) == (3, 3)
    assert read.run.argv == ("qsa-bench", "mutate")
    assert read.run.notes == {
        "coverage": {"rows": 133},
        "worst": "inf",
        "path": "a/b",
        "seen": ["x"],
    }


def test_an_error_that_is_no_number_reads_back(tmp_path: Path) -> None:
    read = specimens.gate(tmp_path, specimens.NOT_A_NUMBER)
    error = read.verdicts[0].evidence.error
    assert error is not None
    assert math.isnan(error)
    assert read.verdicts[0].evidence.margin == math.inf


@pytest.mark.parametrize("layout", layouts.LAYOUTS, ids=lambda layout: layout.name)
def test_no_column_of_schema_1_was_renamed(layout: columns.Layout[object]) -> None:
    for word, names in SCHEMA_1[layout.name].items():
        for name in names.split():
            assert layout.columns[name] == word
    known = {name for names in SCHEMA_1[layout.name].values() for name in names.split()}
    assert set(layout.columns) - known == set(layout.added), "a new column needs a default"


def test_every_file_says_where_it_comes_from(tmp_path: Path) -> None:
    read = specimens.campaign(tmp_path, specimens.killed("drop-the-tail", 201))
    assert read.folder is not None
    files = sorted(read.folder.glob("*.parquet"))
    assert [path.stem for path in files] == ["builds", "kills", "mutants", "verdicts"]
    for path in files:
        said = {k.decode(): v.decode() for k, v in pq.read_schema(path).metadata.items()}
        assert said["schema_version"] == str(SCHEMA_VERSION)
        assert said["run"] == read.run.id
        assert json.loads(said["argv"]) == ["qsa-bench", "mutate"]
        assert said["commit"].startswith(read.run.commit)
        assert said["host"] == environment.host_line()
        assert said["torch"] == environment.package_version("torch")
        assert said["compiler"] == "g++ 12.2.0"
        assert said["python"] == sys.version.split()[0]
        assert (said["gpu"], said["driver"], said["cuda"]) == ("none", "none", "none")


def test_a_run_names_neither_the_machine_nor_a_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/home/somebody/.cache")
    library = str(resources.cache_root() / "libraries" / "ab" / "qsa_select.so")
    run = _new(tmp_path, "gate")
    run.add_builds([specimens.build(library=library)])
    read = run.finish(0, 0, 0)
    assert read.builds[0].library == "libraries/ab/qsa_select.so"
    assert read.folder is not None
    text = (read.folder / "run.json").read_text()
    assert json.loads(text)["host"].startswith(os.uname().machine)
    assert f'"{os.uname().nodename}"' not in text


def test_a_run_file_holds_no_folder_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/home/somebody/.cache")
    monkeypatch.chdir(tmp_path)
    run = _new(Path("results"), "gate")
    made = resources.cache_root() / "objects" / "building-x1y2" / "out.o"
    scratch = Path(tempfile.gettempdir()) / "qsa-bench-mutant-ab12" / "kernels" / "a.cu"
    notes = {"error": f"g++ -c {scratch} -o {made}", "saved": [tmp_path / "results" / "a.st"]}
    read = run.finish(0, 0, 0, notes)
    assert read.run.notes == {
        "error": "g++ -c SCRATCH/kernels/a.cu -o CACHE/objects/building-x1y2/out.o",
        "saved": ["results/a.st"],
    }
    assert read.folder is not None
    text = (read.folder / "run.json").read_text()
    for place in ("/home/", tempfile.gettempdir(), str(tmp_path)):
        assert place not in text


def test_runs_of_the_same_second_get_folders_of_their_own(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        folders = list(pool.map(lambda _: _new(tmp_path).folder, range(8)))
    assert len(set(folders)) == 8
    for folder in folders:
        assert folder is not None
        assert re.fullmatch(r"\d{8}T\d{6}Z-mutate-[0-9a-z.]+(-dirty)?(-\d+)?", folder.name)


def test_a_killed_run_reads_as_interrupted_with_what_reached_the_disk(tmp_path: Path) -> None:
    script = f"""
import sys, time
sys.path.insert(0, {str(Path(__file__).parent.parent)!r})
from pathlib import Path
from qsa_bench.store import writer
from tests import specimens
writer._FLUSH_S = 0.0
run = writer.RunWriter.create(Path({str(tmp_path)!r}), "mutate", (), "host", "emulated", 30)
run.add_mutants([specimens.killed("drop-the-tail", 201)])
print("ready", flush=True)
time.sleep(60)
"""
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    read = store.read_run(store.find_run("latest", tmp_path))
    assert not read.complete
    assert read.run.exit_code == ExitCode.INTERRUPTED
    assert [result.mutant.id for result in read.mutants] == ["qsa_select/drop-the-tail"]
    assert (read.run.asked, read.run.done) == (30, 1)


def test_rows_reach_the_disk_before_the_run_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "_FLUSH_S", 0.0)
    monkeypatch.setattr(writer, "_FLUSH_SHARE", 0.0)
    run = _new(tmp_path, "gate")
    assert run.folder is not None
    for index in range(3):
        run.add_verdicts([specimens.verdict(f"golden/case-{index}")])
        time.sleep(0.001)
        assert len(store.read_run(run.folder).verdicts) == index + 1


def test_rows_wait_so_that_writing_stays_cheap(tmp_path: Path) -> None:
    run = _new(tmp_path, "gate")
    assert run.folder is not None
    for index in range(100):
        run.add_verdicts([specimens.verdict(f"golden/case-{index}")])
    assert not (run.folder / "verdicts.parquet").exists()
    assert len(run.finish(100, 100, 0).verdicts) == 100


def test_a_write_that_fails_leaves_the_file_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "_FLUSH_S", 0.0)
    run = _new(tmp_path)
    run.add_mutants([specimens.killed("drop-the-tail", 201)])
    run.add_mutants([])
    assert run.folder is not None
    assert len(store.read_run(run.folder).mutants) == 1

    def fail(_table: object, path: Path, **_options: object) -> None:
        path.write_bytes(b"PAR1 half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pq, "write_table", fail)
    with pytest.raises(OSError, match="No space"):
        run.finish(2, 2, 0)
    assert len(store.read_run(run.folder).mutants) == 1


def test_the_order_in_which_workers_end_never_shows(tmp_path: Path) -> None:
    results = [specimens.killed(f"mutant-{index}") for index in range(6)]
    tables = []
    for order in (results, results[::-1]):
        folder = specimens.campaign(tmp_path, *order).folder
        assert folder is not None
        tables.append([pq.read_table(folder / f"{name}.parquet") for name in ("mutants", "kills")])
    assert tables[0] == tables[1]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (BuildError("building qsa_select: it does not compile"), ExitCode.BASELINE_FAILED),
        (KeyboardInterrupt(), ExitCode.INTERRUPTED),
        (RuntimeError("a slip of ours"), ExitCode.BUG),
    ],
    ids=["an error", "an interrupt", "a bug"],
)
def test_an_error_on_the_way_is_the_end_of_the_run(
    tmp_path: Path, error: BaseException, code: ExitCode
) -> None:
    with pytest.raises(type(error)), _new(tmp_path) as run:
        run.add_mutants([specimens.killed("drop-the-tail", 201)])
        run.expect(9)
        raise error
    read = store.read_run(store.find_run("latest", tmp_path))
    assert read.complete
    assert read.run.exit_code == code
    assert (read.run.asked, read.run.done) == (9, 1)
    assert read.run.notes["error"] == (str(error) or "KeyboardInterrupt")


def test_a_run_without_a_folder_keeps_its_rows(tmp_path: Path) -> None:
    run = RunWriter.create(None, "build", (), "host", "emulated")
    run.add_builds([specimens.build()])
    assert run.log("x", "text") is None
    read = run.finish(1, 1, 0)
    assert read.folder is None
    assert read.builds == (specimens.build(),)
    assert not list(tmp_path.iterdir())


def test_a_log_stays_inside_its_folder(tmp_path: Path) -> None:
    run = _new(tmp_path)
    path = run.log("build-qsa_select/../../x y", "line\n")
    assert run.folder is not None
    assert path == run.folder / "logs" / "build-qsa_select-..-..-x-y.log"
    assert path.read_text() == "line\n"


def test_a_note_that_json_cannot_hold_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="a note can't hold a complex"):
        _new(tmp_path).finish(0, 0, 0, {"z": 1j})


def test_a_results_folder_that_cannot_be_made_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="making a run folder in .*file/results: .*with -o"):
        _new(tmp_path / "file" / "results")


# What may be wrong with a run folder: how it is made so, and what the error says.
BROKEN = {
    "no run.json": (lambda folder: (folder / "run.json").unlink(), "it is no run folder"),
    "run.json cut short": (lambda folder: _cut(folder / "run.json"), "run.json: .*cut short"),
    "run.json of something else": (
        lambda folder: (folder / "run.json").write_text('["a list"]'),
        "run.json: it has no schema_version; qsa-bench did not write it",
    ),
    "run.json without a commit": (
        lambda folder: _edit(folder, commit=None, remove=True),
        "run.json: it has no 'commit'",
    ),
    "run.json of a newer schema": (
        lambda folder: _edit(folder, schema_version=SCHEMA_VERSION + 1),
        f"its schema_version is {SCHEMA_VERSION + 1}, .* up to {SCHEMA_VERSION}; use a newer",
    ),
    "a file that is missing": (
        lambda folder: (folder / "mutants.parquet").unlink(),
        "mutants.parquet: it is missing, but run.json states 2 rows",
    ),
    "a file cut short": (
        lambda folder: _cut(folder / "mutants.parquet"),
        "mutants.parquet: it is no Parquet file, or cut short",
    ),
    "an empty file": (
        lambda folder: (folder / "mutants.parquet").write_bytes(b""),
        "mutants.parquet: it is no Parquet file, or cut short",
    ),
    "a foreign Parquet file": (
        lambda folder: pq.write_table(pa.table({"id": ["x"]}), folder / "mutants.parquet"),
        "mutants.parquet: it has no schema_version; qsa-bench did not write it",
    ),
    "a Parquet file of a newer schema": (
        lambda folder: _restamp(folder / "mutants.parquet", b"99"),
        "mutants.parquet: its schema_version is 99",
    ),
    "a column that is missing": (
        lambda folder: _without(folder / "mutants.parquet", "outcome"),
        "mutants.parquet: it has no column outcome; it is damaged",
    ),
    "rows of another run": (
        lambda folder: _repeat(folder / "mutants.parquet"),
        "mutants.parquet: it holds 4 rows, but run.json states 2",
    ),
    "an outcome that is none": (
        lambda folder: _respell(folder / "mutants.parquet", "outcome", "slain"),
        "mutants.parquet: a row makes no sense .*slain",
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_run_that_cannot_be_trusted_is_refused_in_one_line(tmp_path: Path, what: str) -> None:
    folder = specimens.campaign(
        tmp_path, specimens.killed("drop-the-tail", 201), specimens.EQUIVALENT
    ).folder
    assert folder is not None
    break_it, said = BROKEN[what]
    break_it(folder)  # type: ignore[no-untyped-call]
    with pytest.raises(RunFileError, match=said) as caught:
        store.read_run(folder)
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)


def test_a_column_that_an_older_file_lacks_has_its_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = specimens.campaign(tmp_path, specimens.killed("drop-the-tail", 201)).folder
    assert folder is not None
    _without(folder / "mutants.parquet", "reused")
    newer = replace(layouts.MUTANTS, added={"reused": True})
    monkeypatch.setattr(
        "qsa_bench.store.reader.LAYOUTS",
        tuple(newer if layout is layouts.MUTANTS else layout for layout in layouts.LAYOUTS),
    )
    assert store.read_run(folder).mutants[0].reused


def test_a_run_that_is_not_there_is_said_with_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(RunFileError, match="holds no run folder"):
        store.find_run("latest", tmp_path)
    first = _new(tmp_path, "gate").folder
    second = _new(tmp_path).folder
    assert first is not None
    assert second is not None
    os.utime(first, (2**31, 2**31))
    with pytest.raises(RunFileError, match=f"no such folder.*{second.name}"):
        store.find_run("nowhere", tmp_path)
    assert store.find_run(first.name, tmp_path) == first
    assert store.find_run(str(first / "run.json"), tmp_path) == first
    assert store.find_run("latest", tmp_path) == second


def test_a_commit_is_the_checkouts_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*words: str) -> str:
        who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        done = subprocess.run(
            ["git", *who, *words], cwd=tmp_path, check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    monkeypatch.setattr(resources, "checkout", lambda: None)
    assert environment.commit().name.startswith("v")
    monkeypatch.setattr(resources, "checkout", lambda: tmp_path)
    assert environment.commit().name.startswith("v")
    git("init", "-q")
    assert environment.commit().name.startswith("v")
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "a.cu").write_text("1")
    git("add", ".")
    git("commit", "-q", "-m", "one")
    clean = environment.commit()
    assert clean == environment.Commit(git("rev-parse", "HEAD"), dirty=False)
    assert len(clean.short) == 7
    (tmp_path / "out.safetensors").write_text("a stray output")
    assert not environment.commit().dirty
    (tmp_path / "kernels" / "b.cu").write_text("an untracked kernel")
    assert environment.commit().dirty


def test_the_tree_of_a_git_archive_names_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*words: str) -> bytes:
        who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        return subprocess.run(
            ["git", *who, *words], cwd=tmp_path, check=True, capture_output=True
        ).stdout

    for name in (".gitattributes", "qsa_bench/commit.txt"):
        target = tmp_path / name
        target.parent.mkdir(exist_ok=True)
        target.write_bytes((resources.PACKAGE.parent / name).read_bytes())
    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "one")
    with tarfile.open(fileobj=io.BytesIO(git("archive", "HEAD"))) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    monkeypatch.setattr(resources, "checkout", lambda: None)
    monkeypatch.setattr(resources, "PACKAGE", tmp_path / "qsa_bench")
    assert environment.commit().name.startswith("v")
    monkeypatch.setattr(resources, "PACKAGE", tmp_path / "unpacked" / "qsa_bench")
    head = git("rev-parse", "HEAD").decode().strip()
    assert environment.commit() == environment.Commit(head, dirty=False)


def _cut(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def _edit(folder: Path, *, remove: bool = False, **fields: object) -> None:
    document = json.loads((folder / "run.json").read_text())
    document.update(fields)
    if remove:
        for name in fields:
            del document[name]
    (folder / "run.json").write_text(json.dumps(document))


def _restamp(path: Path, version: bytes) -> None:
    table = pq.read_table(path)
    stamped = {**table.schema.metadata, b"schema_version": version}
    pq.write_table(table.replace_schema_metadata(stamped), path)


def _without(path: Path, column: str) -> None:
    pq.write_table(pq.read_table(path).drop_columns([column]), path)


def _repeat(path: Path) -> None:
    table = pq.read_table(path)
    pq.write_table(pa.concat_tables([table, table]), path)


def _respell(path: Path, column: str, text: str) -> None:
    table = pq.read_table(path)
    place = table.schema.get_field_index(column)
    pq.write_table(table.set_column(place, column, [[text] * table.num_rows]), path)
