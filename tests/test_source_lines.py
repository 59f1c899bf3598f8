"""Lines of a mutant, told as those of the production source."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from qsa_bench import source_lines

OLD = "one\ntwo\nthree\nfour\nfive\n"


@pytest.mark.parametrize(
    ("new", "wanted"),
    [
        (OLD, OLD),
        ("one\nTWO\nthree\nfour\nfive\n", "one\nTWO\nthree\nfour\nfive\n"),
        ("one\nthree\nfour\nfive\n", "one\n#line 3\nthree\nfour\nfive\n"),
        ("one\ntwo\nmore\nthree\nfour\nfive\n", "one\ntwo\nmore\n#line 3\nthree\nfour\nfive\n"),
        ("one\nthree\nmore\nfour\nfive\n", "one\n#line 3\nthree\nmore\n#line 4\nfour\nfive\n"),
        ("zero\none\ntwo\nthree\nfour\nfive\n", "zero\n#line 1\none\ntwo\nthree\nfour\nfive\n"),
        ("one\ntwo\nmore \\\nthree\nfour\nfive\n", "one\ntwo\nmore \\\nthree\nfour\nfive\n"),
    ],
)
def test_what_stands_in_the_source_too_has_its_line_there(new: str, wanted: str) -> None:
    assert source_lines.told(OLD, new) == wanted


def test_lines_are_counted_from_the_first_given() -> None:
    assert source_lines.told("a\nb\nc", "a\nc", first=40) == "a\n#line 42\nc"


def test_a_compiler_takes_the_lines_told(tmp_path: Path) -> None:
    old = "int a = __LINE__;\nint b = __LINE__;\n\nint c = __LINE__;\n"
    new = old.replace("int b = __LINE__;\n", "int b1 = __LINE__;\nint b2 = __LINE__;\n")
    (tmp_path / "x.cpp").write_text(source_lines.told(old, new))
    command = ["g++", "-E", "-P", str(tmp_path / "x.cpp")]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert said.split("\n") == ["int a = 1;", "int b1 = 2;", "int b2 = 3;", "int c = 4;", ""]
