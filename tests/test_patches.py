"""Patches apply where their old text stands, and nowhere else."""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qsa_bench import patches
from qsa_bench.patches import PatchError

OLD = "one\ntwo\nthree\nfour\nfive\nsix\nseven\n"
_LINE = st.text(alphabet="ab-+ @\\\t", max_size=4)


def diff(old: str, new: str, path: str = "kernels/a.cu", context: int = 1) -> str:
    """Return a unified diff as git and diff write them."""
    lines = difflib.unified_diff(
        old.splitlines(keepends=True),
        new.splitlines(keepends=True),
        f"a/{path}",
        f"b/{path}",
        n=context,
    )
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    )


def applied(text: str, patch: str) -> str:
    """Apply a patch of one file."""
    (only,) = patches.parse(patch)
    return patches.apply(only, text)


def test_a_diff_turns_the_old_text_into_the_new() -> None:
    new = OLD.replace("three", "3").replace("six\n", "")
    assert applied(OLD, diff(OLD, new)) == new


@settings(deadline=None)
@given(
    numbers=st.lists(st.integers(0, 99), unique=True, max_size=9),
    texts=st.lists(_LINE, max_size=9),
    data=st.data(),
)
def test_any_diff_of_lines_that_differ_from_one_another_applies(
    numbers: list[int], texts: list[str], data: st.DataObject
) -> None:
    # Every line starts with a number of its own, so that no hunk has two places.
    before = [f"{n}{text}" for n, text in zip(numbers, texts, strict=False)]
    after = list(before)
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(after)))
        fresh = [f"{100 + len(after)}{text}" for text in data.draw(st.lists(_LINE, max_size=2))]
        after[place : place + data.draw(st.integers(0, 2))] = fresh
    old, new = "\n".join(["head", *before, "foot"]), "\n".join(["head", *after, "foot"])
    if old != new:
        assert applied(old, diff(old, new)) == new


def test_a_hunk_is_found_by_its_text_when_its_line_numbers_are_wrong() -> None:
    patch = diff(OLD, OLD.replace("four", "4"))
    assert applied("zero\n" * 5 + OLD, patch) == "zero\n" * 5 + OLD.replace("four", "4")


def test_a_line_that_looks_like_a_file_header_is_a_removed_line_inside_a_hunk() -> None:
    text = "a\n-- sql comment\nb\n"
    assert applied(text, diff(text, "a\nb\n")) == "a\nb\n"


def test_a_missing_newline_at_the_end_is_kept() -> None:
    assert applied("one\ntwo", diff("one\ntwo", "one\n2")) == "one\n2"


def test_files_of_one_patch_are_told_apart() -> None:
    text = diff(OLD, OLD.replace("one", "1"), "a.cu") + diff(OLD, OLD.replace("two", "2"), "b.cu")
    assert [patch.path for patch in patches.parse(text)] == ["a.cu", "b.cu"]


def test_what_git_writes_around_a_diff_is_passed_over() -> None:
    text = "diff --git a/a.cu b/a.cu\nindex 1..2 100644\n" + diff(OLD, OLD.replace("one", "1"))
    assert applied(OLD, text) == OLD.replace("one", "1")


def test_old_text_that_is_gone_is_named_as_that() -> None:
    with pytest.raises(PatchError, match=r"kernels/a\.cu: the old text of hunk 1 is not there"):
        applied(OLD.replace("three", "drei"), diff(OLD, OLD.replace("three", "3")))


def test_old_text_that_has_other_blanks_is_gone() -> None:
    with pytest.raises(PatchError, match="is not there"):
        applied(OLD.replace("three", "three "), diff(OLD, OLD.replace("three", "3")))


def test_old_text_that_stands_twice_is_refused_with_its_places() -> None:
    with pytest.raises(PatchError, match=r"stands 2 times \(lines 3, 10\)"):
        applied(OLD + OLD, diff(OLD, OLD.replace("three", "3"), context=0))


def test_the_second_hunk_that_is_stale_is_counted_as_the_second() -> None:
    patch = diff(OLD, OLD.replace("one", "1").replace("seven", "7"), context=0)
    with pytest.raises(PatchError, match="hunk 2 is not there"):
        applied(OLD.replace("seven", "sieben"), patch)


def test_a_patch_that_changes_nothing_is_refused() -> None:
    patch = "--- a/a.cu\n+++ b/a.cu\n@@ -1 +1 @@\n-one\n+one\n"
    with pytest.raises(PatchError, match=r"a\.cu: the patch changes nothing"):
        applied(OLD, patch)


def test_a_hunk_without_old_lines_has_no_place() -> None:
    with pytest.raises(PatchError, match="no old lines"):
        applied(OLD, "--- a/a.cu\n+++ b/a.cu\n@@ -0,0 +1 @@\n+one\n")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "no '---' line"),
        ("just words\n", "no '---' line"),
        ("--- a/a.cu\n", "without '\\+\\+\\+'"),
        ("--- a/a.cu\n+++ b/a.cu\n", "a.cu: no hunk"),
        ("--- a/a.cu\n+++ b/b.cu\n@@ -1 +1 @@\n-a\n+b\n", "neither renames nor adds"),
        ("--- /dev/null\n+++ b/b.cu\n@@ -0,0 +1 @@\n+b\n", "leads out of the tree"),
        ("--- a/../a.cu\n+++ b/../a.cu\n@@ -1 +1 @@\n-a\n+b\n", "leads out of the tree"),
        ("--- a/a.cu\n+++ b/a.cu\n@@ one @@\n-a\n+b\n", "malformed hunk header"),
        ("--- a/a.cu\n+++ b/a.cu\n@@ -1,2 +1,2 @@\n-a\n+b", "ends early"),
        ("--- a/a.cu\n+++ b/a.cu\n@@ -1,2 +1,2 @@\n-a\n*b\n", "starts with '\\*'"),
        ("--- a/a.cu\n+++ b/a.cu\n@@ -1 +1,2 @@\n-a\n-b\n+c\n+d\n", "counts are wrong"),
        ("--- a/a.cu\n+++ b/a.cu\n@@ -1 +1 @@\n-a\n+b\n+c\n", "says that it has ended"),
        ("--- a/a.cu\n+++ b/a.cu\n@@ -1 +1 @@\n-a\n+b\n" * 2, "a file stands twice"),
    ],
)
def test_a_malformed_patch_is_refused_in_words(text: str, complaint: str) -> None:
    with pytest.raises(PatchError, match=complaint):
        patches.parse(text)


def test_a_tree_is_looked_at_and_not_written(tmp_path: Path) -> None:
    (tmp_path / "a.cu").write_text(OLD)
    new = OLD.replace("one", "1")
    changed = patches.apply_to_tree(diff(OLD, new, "a.cu"), lambda path: tmp_path / path)
    assert changed == {"a.cu": new}
    assert (tmp_path / "a.cu").read_text() == OLD


def test_a_patch_of_a_file_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(PatchError, match=r"gone\.cu: there is no such file"):
        patches.apply_to_tree(diff(OLD, "", "gone.cu"), lambda path: tmp_path / path)
