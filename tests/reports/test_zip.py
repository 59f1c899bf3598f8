"""report reads the zip that CI keeps, as it is."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from qsa_bench import store
from qsa_bench.errors import RunFileError
from tests.reports.campaigns import campaign


def packed(folder: Path, archive: Path, prefix: str = "") -> Path:
    with zipfile.ZipFile(archive, "w") as file:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                file.write(path, f"{prefix}{path.relative_to(folder)}")
    return archive


@pytest.mark.parametrize("prefix", ["", "results/some-run/"])
def test_a_zip_reads_as_its_run(tmp_path: Path, prefix: str) -> None:
    run = campaign(tmp_path / "results")
    assert run.folder is not None
    archive = packed(run.folder, tmp_path / "artifact.zip", prefix)
    read = store.open_run(str(archive), tmp_path)
    assert (read.mutants, read.kills, read.sources) == (run.mutants, run.kills, run.sources)
    assert read.folder == archive


def test_a_zip_of_no_run_or_two_is_refused(tmp_path: Path) -> None:
    campaign(tmp_path / "results")
    campaign(tmp_path / "results")
    with pytest.raises(RunFileError, match="holds 2 runs"):
        store.open_run(str(packed(tmp_path / "results", tmp_path / "two.zip")), tmp_path)
    with zipfile.ZipFile(tmp_path / "none.zip", "w") as file:
        file.writestr("readme", "nothing")
    with pytest.raises(RunFileError, match="holds 0 runs"):
        store.open_run(str(tmp_path / "none.zip"), tmp_path)


def test_what_is_no_zip_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "bad.zip").write_bytes(b"PK but no more")
    with pytest.raises(RunFileError, match="it is no zip, or cut short"):
        store.open_run(str(tmp_path / "bad.zip"), tmp_path)


def test_a_zip_that_leads_out_of_its_folder_writes_nowhere_else(tmp_path: Path) -> None:
    run = campaign(tmp_path / "results")
    assert run.folder is not None
    archive = packed(run.folder, tmp_path / "evil.zip", "../../../")
    before = set(tmp_path.parent.iterdir())
    store.open_run(str(archive), tmp_path)
    assert set(tmp_path.parent.iterdir()) == before
