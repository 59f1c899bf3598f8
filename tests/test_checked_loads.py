"""Loads that the access checker can't see: g++ instruments no aggregate that an argument reads in place."""

from __future__ import annotations

import re

from qsa_bench import resources

KERNELS = resources.tree_root() / "kernels"
# A vector of words that is read from memory and handed on in one expression; a pointer to a structure
# that is passed on by reference (`prepare(*list)`) reads nothing.
_READ_IN_PLACE = re.compile(
    r"\bunpack\(\s*(?:\*|reinterpret_cast)|[(,] ?\*(?:reinterpret_cast|\w+(?:(?:\.|->)\w+)+\()"
)


def test_no_vector_is_read_inside_an_argument() -> None:
    found = [
        f"{path.relative_to(KERNELS)}:{number}"
        for folder in ("common", "qsa", "dsa")
        for path in sorted((KERNELS / folder).glob("*.cu*"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if _READ_IN_PLACE.search(line)
    ]
    assert found == []
