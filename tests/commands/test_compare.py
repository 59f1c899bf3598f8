"""The command line of compare, and of a report's plots, on runs made by hand."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from qsa_bench import plots, results
from qsa_bench.compare_runs import compare
from qsa_bench.errors import EnvironmentMissingError, NothingSelectedError
from tests.conftest import Qsa
from tests.made_sweeps import CALIBRATIONS, DEVICE, around, build, peer, sweep, timing, usage

CONTEXTS = (2052, 8192, 65536)


def _name(folder: Path | None) -> str:
    assert folder is not None
    return str(folder)


def test_a_slower_run_is_exit_12_and_says_which(qsa_bench: Qsa, tmp_path: Path) -> None:
    old = sweep(tmp_path / "results", [timing(), timing(context=8192)])
    new = sweep(tmp_path / "results", [timing(), timing(around(2400), context=8192)])
    words = ("compare", old.run.id, new.run.id)
    done = qsa_bench(*words)
    assert done.returncode == 12, done.stderr
    assert "1 slower, 1 same (allowed 5%)" in done.stdout
    assert done.stdout.index("slower") < done.stdout.index("same ")
    assert qsa_bench(*words, "--max-slowdown", "30%").returncode == 0


def test_its_document_holds_every_verdict_with_its_interval(qsa_bench: Qsa, tmp_path: Path) -> None:
    old = sweep(tmp_path / "a", [timing(), peer(), *CALIBRATIONS])
    new = sweep(tmp_path / "b", [timing(around(1600)), peer(), *CALIBRATIONS])
    done = qsa_bench("compare", _name(old.folder), _name(new.folder), "--format", "json")
    document = json.loads(done.stdout)
    assert done.returncode == document["exit_code"] == 0
    change = document["changes"][0]
    assert (change["verdict"], change["old_ns"], change["new_ns"]) == ("faster", 2000.0, 1600.0)
    assert change["ratio"][0] < 0.8 < change["ratio"][1]
    assert document["drift"] == 1.0


def test_runs_of_two_devices_are_exit_13(qsa_bench: Qsa, tmp_path: Path) -> None:
    old = sweep(tmp_path / "a", [timing()])
    new = sweep(tmp_path / "b", [timing()], device="NVIDIA B200")
    done = qsa_bench("compare", _name(old.folder), _name(new.folder))
    assert done.returncode == 13
    assert done.stderr == (
        "qsa-bench: comparing times: the devices differ (NVIDIA H200 and NVIDIA B200)\n"
    )


def test_a_kernel_that_uses_more_is_exit_12(qsa_bench: Qsa, tmp_path: Path) -> None:
    old = build(tmp_path / "a", [usage()])
    new = build(tmp_path / "b", [usage(registers=64, spill_stores=8)])
    words = ("compare", _name(old.folder), _name(new.folder))
    done = qsa_bench(*words)
    assert done.returncode == 12, done.stderr
    assert "spill stores" in done.stdout
    assert "too much" in done.stdout
    assert qsa_bench(*words, "--max-growth", "50%").returncode == 12, "from no spill to some"


def test_a_published_run_is_found_by_its_name(qsa_bench: Qsa, tmp_path: Path) -> None:
    old = sweep(tmp_path / "results" / "published", [timing()])
    new = _name(sweep(tmp_path / "elsewhere", [timing()]).folder)
    assert qsa_bench("compare", old.run.id, new).returncode == 0
    done = qsa_bench("compare", "no-such-run", new)
    assert done.returncode == 2
    assert "there is no such folder" in done.stderr


def test_a_share_is_percent_or_a_fraction(qsa_bench: Qsa, tmp_path: Path) -> None:
    run = _name(sweep(tmp_path / "a", [timing()]).folder)
    assert qsa_bench("compare", run, run, "--max-slowdown", "0.05").returncode == 0
    for share in ("0%", "-5%", "nan", "5 %%"):
        done = qsa_bench("compare", run, run, f"--max-slowdown={share}")
        assert done.returncode == 2, share
        assert done.stderr.count("\n") == 1


def test_what_needs_a_look_stands_first() -> None:
    contexts = dict(zip(CONTEXTS, (2000, 2400, 1500), strict=True))
    old = sweep(None, [timing(context=context) for context in contexts])
    new = sweep(None, [timing(around(ns), context=context) for context, ns in contexts.items()])
    table = results.page(compare(old, new, 0.05, 0.0)).tables[0]
    assert [cells[0].text for cells in table.rows] == ["slower", "faster", "same"]


def _swept(tmp_path: Path) -> Path:
    rows = [
        made
        for context in CONTEXTS
        for made in (
            timing(around(context // 20), context=context),
            timing(around(context // 30), context=context, name="threads=256"),
        )
    ]
    folder = sweep(tmp_path / "results", [*rows, peer(), *CALIBRATIONS]).folder
    assert folder is not None
    return folder


def test_a_report_draws_time_against_context(qsa_bench: Qsa, tmp_path: Path) -> None:
    folder = _swept(tmp_path)
    done = qsa_bench("report", str(folder), "--plots", "drawn")
    assert done.returncode == 0, done.stderr
    names = sorted(path.name for path in (tmp_path / "drawn").iterdir())
    drawn = [f"qsa_select-rows1-relu4-warm.{suffix}" for suffix in ("png", "svg")]
    assert names == ["index.html", *drawn]
    page, picture, lines = ((tmp_path / "drawn" / name).read_bytes() for name in names)
    assert picture.startswith(b"\x89PNG")
    for text in (lines.decode(), page.decode()):
        for words in ("auto", "threads=256", "torch.topk + scatter", "limit", "64k", DEVICE):
            assert words in text or _in_glyphs(words, text), words


def test_the_page_of_plots_holds_every_plot_and_loads_nothing(tmp_path: Path) -> None:
    rows = [
        timing(around(context // 20), context=context, rows=count)
        for context in CONTEXTS
        for count in (1, 8)
    ]
    made = plots.draw(rows, "a <GPU>", tmp_path)
    page = (tmp_path / "index.html").read_text()
    assert tmp_path / "index.html" in made
    assert page.count("<svg ") == 2
    assert "Sweep on a &lt;GPU&gt;" in page
    for name in ("rows1", "rows8"):
        assert f"<figcaption>qsa_select-{name}-relu4-warm</figcaption>" in page
    assert plots.fragment(rows, "a <GPU>").count("<figure>") == 2
    # Names of formats are addresses, and the only ones.
    outside = set(re.findall(r"(?:src|href)=[\"'](?!#)([^\"']*)", page))
    assert outside == set()


def _in_glyphs(words: str, svg: str) -> bool:
    """Matplotlib draws text as paths and keeps it in a comment."""
    return f"<!-- {words} -->" in svg


def test_the_same_run_draws_the_same_files(tmp_path: Path) -> None:
    rows = [timing(around(context // 20), context=context) for context in CONTEXTS]
    first, second = (plots.draw(rows, DEVICE, tmp_path / name) for name in ("a", "b"))
    for left, right in zip(first, second, strict=True):
        if left.suffix == ".png":
            assert left.read_bytes() == right.read_bytes()


def test_one_context_makes_no_line(tmp_path: Path) -> None:
    with pytest.raises(NothingSelectedError, match="no times at two contexts"):
        plots.draw([timing()], DEVICE, tmp_path)


def test_without_matplotlib_plots_are_exit_7_and_name_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(EnvironmentMissingError, match=r"qsa-bench\[plots\]"):
        plots.draw([timing()], DEVICE, tmp_path)
