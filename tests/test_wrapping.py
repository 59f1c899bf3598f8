"""Words stay whole: what has no room on a line breaks at spaces, then behind separators."""

from __future__ import annotations

import random

import pytest

from qsa_bench import console
from qsa_bench.tables import Cell, Column, Page, Table, row
from qsa_bench.wrapping import pieces, widths, wrap


@pytest.mark.parametrize(
    ("text", "width", "lines"),
    [
        ("score-order, tail", 12, ["score-order,", "tail"]),
        ("golden/qsa_attention.safetensors", 16, ["golden/qsa_", "attention.", "safetensors"]),
        ("killed-by-crash", 11, ["killed-by-", "crash"]),
        ("0123456789", 4, ["0123", "4567", "89"]),
        ("two\nlines", 20, ["two", "lines"]),
        ("", 5, [""]),
        ("a--b//c", 4, ["a--", "b//c"]),
    ],
)
def test_text_breaks_at_spaces_and_behind_separators(
    text: str, width: int, lines: list[str]
) -> None:
    assert wrap(text, width) == lines


def test_nothing_of_a_text_is_lost_and_no_line_is_too_long() -> None:
    draw = random.Random(7)
    for _ in range(300):
        text = "".join(draw.choice("abc/-_. ,") for _ in range(draw.randrange(40)))
        width = draw.randrange(1, 12)
        lines = wrap(text, width)
        assert "".join(lines).replace(" ", "") == text.replace(" ", "")
        assert max(map(len, lines)) <= width
        assert "".join(pieces(text)) == text


def test_columns_with_room_are_as_wide_as_their_text() -> None:
    assert widths([["name", "a-b"], ["a long cell"]], [True, False], 20) == [4, 11]


def test_no_column_becomes_narrower_than_its_words() -> None:
    prose = "words of a sentence that is long"
    made = widths([["bits", "17367"], ["expected", "yes"], [prose]], [False] * 3, 26)
    assert sum(made) == 26
    assert made[:2] == [5, 8]


def test_a_whole_column_gives_way_only_when_the_others_would_break_words() -> None:
    name, prose = "stage/family/label", "a sentence of words"
    assert widths([[name], [prose]], [True, False], 30)[0] == len(name)
    assert widths([[name], [prose]], [True, False], 22) == [11, 11]


def test_too_little_room_is_still_no_error() -> None:
    made = widths([["abcdefgh"], ["ijkl"]], [True, True], 4)
    assert sum(made) == 4
    assert min(made) >= 1
    assert min(widths([["ab"], ["cd"], ["ef"]], [True] * 3, 1)) >= 1


def test_a_table_of_80_columns_breaks_no_word(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    titles = ("mutant", "outcome", "expected", "killed by", "bits")
    columns = tuple(Column(title, whole=index == 0) for index, title in enumerate(titles))
    name = "candidates-overflow-a-fixed-buffer-of-every-warp"
    cells = row(name, "killed-by-crash", "yes", "golden-mask, ids, counts, mask +2", "17367")
    console.show(Page(Cell("done"), (Table("mutants", "mutants", columns, (cells,)),)))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    shown = " ".join(lines)
    for word in (*titles, "golden-mask,", "counts,", "candidates-", "17367", "by-crash"):
        assert word in shown
