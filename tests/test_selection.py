"""Which mutants a campaign runs: each narrowing on its own, and what it says of itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from qsa_bench import campaign_requests, selection
from qsa_bench.errors import NothingSelectedError, UsageError
from qsa_bench.model import Expect, Mutant
from qsa_bench.selection import Selection, choose

SOURCE = "\n".join(f"line {number}" for number in range(1, 31)) + "\n"


def mutant(number: int, operator: str = "constant") -> Mutant:
    """Return a mutant of one line of the source."""
    patch = (
        "--- a/kernels/x.cu\n+++ b/kernels/x.cu\n"
        f"@@ -{number},1 +{number},1 @@\n-line {number}\n+LINE {number}\n"
    )
    name = f"stage/auto/k/f/{operator}/{number:02}"
    return Mutant(name, "stage", "seen", "", Expect.KILLED, patch, operator=operator)


FOUND = [mutant(n, "barrier" if n % 5 == 0 else "constant") for n in range(1, 25)]


@pytest.fixture(name="locate")
def source(tmp_path: Path) -> selection.Callable[[str], Path]:
    (tmp_path / "x.cu").write_text(SOURCE)
    return lambda _path: tmp_path / "x.cu"


Locate = selection.Callable[[str], Path]


def numbers(chosen: selection.Chosen) -> list[int]:
    return [int(m.id.rpartition("/")[2]) for m in chosen.mutants]


def test_nothing_asked_for_is_everything_and_the_whole(locate: Locate) -> None:
    chosen = choose(FOUND, Selection(), locate)
    assert chosen.whole
    assert chosen.mutants == tuple(FOUND)


def test_an_operator_is_a_glob(locate: Locate) -> None:
    chosen = choose(FOUND, Selection(operators=("bar*",)), locate)
    assert numbers(chosen) == [5, 10, 15, 20]
    assert not chosen.whole
    with pytest.raises(UsageError, match="no such operator; use relational, "):
        choose(FOUND, Selection(operators=("barier",)), locate)


def test_shards_are_counted_from_one_and_are_the_whole_together(locate: Locate) -> None:
    parts = [choose(FOUND, Selection(shard=(k, 5)), locate) for k in range(1, 6)]
    assert sorted(n for part in parts for n in numbers(part)) == list(range(1, 25))
    assert len({part.notes["list"] for part in parts}) == 1
    assert [part.notes["shard"] for part in parts] == [[k, 5] for k in range(1, 6)]
    assert parts[0].notes["listed"] == 24


@pytest.mark.parametrize("text", ["0/4", "5/4", "4", "a/b", "1/0", "-1/4"])
def test_a_shard_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"K from 1 to N"):
        campaign_requests.shard_of(text)


def test_a_shard_with_nothing_in_it_is_no_success(locate: Locate) -> None:
    with pytest.raises(NothingSelectedError, match="leave none for it"):
        choose(FOUND[:2], Selection(shard=(3, 3)), locate)


def test_a_sample_is_the_seeds_alone(locate: Locate) -> None:
    first = choose(FOUND, Selection(sample=6, seed=3), locate)
    assert len(first.mutants) == 6
    assert first == choose(FOUND, Selection(sample=6, seed=3), locate)
    assert numbers(first) != numbers(choose(FOUND, Selection(sample=6, seed=4), locate))
    assert numbers(first) == sorted(numbers(first))


def test_a_diff_chooses_what_it_touches(locate: Locate, tmp_path: Path) -> None:
    diff = tmp_path / "a.diff"
    diff.write_text(
        "diff --git a/kernels/x.cu b/kernels/x.cu\n--- a/kernels/x.cu\n+++ b/kernels/x.cu\n"
        "@@ -2,3 +2,4 @@ head\n line 2\n-old\n+line 3\n+line 4\n line 5\n"
        "@@ -20,2 +21,1 @@\n line 21\n-gone\n"
        "--- a/old\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n"
    )
    touched = selection.touched_by(diff)
    assert numbers(choose(FOUND, Selection(touched=touched), locate)) == [2, 3, 4, 21, 22]


def test_a_diff_that_touches_no_mutant_is_no_success(locate: Locate) -> None:
    with pytest.raises(NothingSelectedError, match="--in-diff"):
        choose(FOUND, Selection(touched={"kernels/y.cu": {1}}), locate)


def test_a_file_that_is_no_diff_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.diff"
    path.write_text("nothing\n")
    with pytest.raises(UsageError, match="no unified diff"):
        selection.touched_by(path)
