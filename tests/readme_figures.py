"""Figures of the README held to the published runs they are from.

A table of measured figures stands below a paragraph that cites its run:

    From `results/published/<run>` (<device>, commit <first seven digits>, <date>):

and its numbers are those of `qsa-bench report <run> --format markdown`, as printed there. Anywhere
else the README states no duration and no rate.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from qsa_bench import results, store

_CITED = re.compile(r"`(results/published/[^`/]+)`")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_FIGURE = re.compile(
    r"\d[\d.,]*\s*(?:ns|us|µs|ms|GB/s|TB/s|TFLOP/s|FLOPS|GHz|MHz)\b|\d[\d.]*\s*(?:x|times) (?:as )?fast"
)


@dataclass(frozen=True)
class _Block:
    """A paragraph or a table of the README, and the citation that stands over a table."""

    text: str
    citation: str = ""

    @property
    def is_table(self) -> bool:
        return self.text.startswith("|")


def _blocks(readme: str) -> Iterator[_Block]:
    before = ""
    for text in re.split(r"\n\s*\n", readme):
        block = _Block(text.strip())
        if block.is_table and _CITED.search(before):
            yield _Block(block.text, before)
            continue
        yield block
        before = block.text


def stray_figures(readme: str) -> list[str]:
    """Return the durations and rates that stand outside tables which cite a run."""
    return [
        found[0]
        for block in _blocks(readme)
        if not block.citation
        for found in _FIGURE.finditer(block.text)
    ]


def complaints(readme: str, root: Path) -> list[str]:
    """Return what is wrong with the tables that cite runs.

    A run that is not there or failed, a number it does not hold, another device, commit or date.
    """
    found: list[str] = []
    for block in _blocks(readme):
        if block.citation:
            found += _of_table(block, root)
    return found


def _of_table(block: _Block, root: Path) -> Iterator[str]:
    match = _CITED.search(block.citation)
    assert match is not None
    folder = root / match[1]
    if not (folder / "run.json").is_file():
        yield f"{match[1]} is not there"
        return
    run = store.read_run(folder)
    if run.run.exit_code != 0:
        yield f"{match[1]} ended with exit {run.run.exit_code}"
    for told in (run.run.device, f"commit {run.run.commit[:7]}", run.run.started[:10]):
        if told not in block.citation:
            yield f"{match[1]}: its citation does not say {told}"
    known = set(_NUMBER.findall(results.markdown(run)))
    yield from (
        f"{match[1]} holds no {number}"
        for number in _NUMBER.findall(block.text)
        if number not in known
    )
