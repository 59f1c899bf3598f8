"""Automatic mutants: an operator's edit of a kernel source as a patch, with an id that lasts.

The id is stage, kernel, function, operator and a digest of the statement before and after: an edit
elsewhere in the file moves lines and keeps ids. Only what the compiler sees gets a mutant: a body
that a macro leaves out proves nothing.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from qsa_bench.errors import BuildError
from qsa_bench.model import Expect, Kernel, Mutant
from qsa_bench.operators import OPERATORS, Edit, Operator, Source
from qsa_bench.operators.syntax import function_name, function_of, scope_of, statement_of
from qsa_bench.targets import host

if TYPE_CHECKING:
    from tree_sitter import Node

# What the emulation puts another text in place of, and what no kernel's author edits.
_NOT_OURS = ("kernels/host/", "kernels/common/portability.cuh", "kernels/common/status.h")
_MARKER = re.compile(r'^# (\d+) "([^"]*)"')
_CONTEXT = 3
_DIGITS = 8
_BODIES = ("body", "consequence", "alternative")


@dataclass(frozen=True)
class Derived:
    """A stage's automatic mutants, in the order of the sources.

    `unparsed` are places (file:line) that the grammar did not understand and that have no mutant.
    """

    mutants: tuple[Mutant, ...]
    unparsed: tuple[str, ...]


def derive(root: Path, stage: str, kernels: Sequence[Kernel]) -> Derived:
    """Derive every automatic mutant of a stage's kernels in the tree `root`.

    A header that two kernels include is mutated once, for the first. BuildError when a source does
    not preprocess, EnvironmentMissingError without tree-sitter.
    """
    made: list[Mutant] = []
    unparsed: list[str] = []
    done: set[str] = set()
    names: Counter[str] = Counter()
    for kernel in kernels:
        for path, live in _live_lines(root, kernel).items():
            if path in done:
                continue
            done.add(path)
            source = Source(path, (root / path).read_bytes())
            unparsed += [f"{path}:{line}" for line in source.unparsed() if line in live]
            made += _mutants_of(source, live, stage, kernel.name, names)
    return Derived(tuple(made), tuple(unparsed))


def _live_lines(root: Path, kernel: Kernel) -> dict[str, set[int]]:
    """Return the lines that reach the compiler, by file of this tree, the kernel's own first."""
    command = host.preprocess_command(Path(kernel.source), Path("kernels"), "plain")
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BuildError(f"deriving mutants of {kernel.source}: {done.stderr.strip()}")
    found: dict[str, set[int]] = {kernel.source: set()}
    lines: set[int] = set()
    at = 0
    for line in done.stdout.split("\n"):
        marker = _MARKER.match(line)
        if marker is None:
            if line.strip():
                lines.add(at)
            at += 1
            continue
        at, path = int(marker[1]), marker[2]
        ours = path.startswith("kernels/") and not path.startswith(_NOT_OURS)
        lines = found.setdefault(path, set()) if ours else set()
    return {path: lines for path, lines in found.items() if lines}


def _mutants_of(
    source: Source, live: set[int], stage: str, kernel: str, names: Counter[str]
) -> Iterator[Mutant]:
    seen: set[bytes] = {source.content}
    for node in source.nodes():
        for operator in OPERATORS.values():
            for edit in operator.edits(source, node):
                mutated = (
                    source.content[: edit.begin] + edit.text.encode() + source.content[edit.end :]
                )
                if mutated in seen or not _is_live(edit.node, live):
                    continue
                seen.add(mutated)
                function = function_name(function_of(edit.node))
                name = f"{stage}/auto/{kernel}/{function}/{operator.name}/{_digest(source, edit)}"
                names[name] += 1
                # The same statement stands in this function, or one of its name, more than once.
                if names[name] > 1:
                    name = f"{name}-{names[name]}"
                yield _mutant(source, edit, operator, stage, name, mutated)


def _is_live(node: Node, live: set[int]) -> bool:
    scope = scope_of(node)
    return any(line + 1 in live for line in range(scope.start_point[0], scope.end_point[0] + 1))


def _digest(source: Source, edit: Edit) -> str:
    """Digest the statement before and after, whatever its line breaks; of a loop its head alone."""
    statement = statement_of(edit.node)
    begin, end = min(statement.start_byte, edit.begin), max(statement.end_byte, edit.end)
    for field in _BODIES:
        body = statement.child_by_field_name(field)
        if body is not None and edit.end <= body.start_byte + 1:
            end = min(end, max(body.start_byte, edit.end))
    before, after = source.content[begin : edit.begin], source.content[edit.end : end]
    old = source.content[begin:end].decode()
    new = before.decode() + edit.text + after.decode()
    digest = hashlib.sha256(_folded(old).encode() + b"\0" + _folded(new).encode())
    return digest.hexdigest()[:_DIGITS]


def _folded(text: str) -> str:
    return "".join(text.split())


def _mutant(
    source: Source, edit: Edit, operator: Operator, stage: str, name: str, mutated: bytes
) -> Mutant:
    return Mutant(
        id=name,
        stage=stage,
        proves=f"{operator.fault} is seen",
        clause="",
        expect=Expect.KILLED,
        patch=_diff(source, edit, mutated),
        targets=("host", "cuda"),
        race=operator.race,
        operator=operator.name,
    )


def _diff(source: Source, edit: Edit, mutated: bytes) -> str:
    """Return a unified diff of one hunk whose old text stands once in the source."""
    old, new = source.content.decode().split("\n"), mutated.decode().split("\n")
    first = source.content[: edit.begin].count(b"\n")
    last = source.content[: edit.end].count(b"\n")
    after = last + len(new) - len(old)
    context = _CONTEXT
    while True:
        top, bottom = max(first - context, 0), min(last + context + 1, len(old))
        # The empty text after the file's last line break is no line.
        if bottom == len(old) and old[-1] == "":
            bottom -= 1
        hunk = old[top:bottom]
        stands = sum(
            old[index : index + len(hunk)] == hunk for index in range(len(old) - len(hunk) + 1)
        )
        if stands == 1 or (top == 0 and bottom >= len(old) - 1):
            break
        context += 1
    tail = old[last + 1 : bottom]
    lines = [
        f"--- a/{source.path}",
        f"+++ b/{source.path}",
        f"@@ -{top + 1},{bottom - top} +{top + 1},{bottom - top + len(new) - len(old)} @@",
        *(f" {line}" for line in old[top:first]),
        *(f"-{line}" for line in old[first : last + 1]),
        *(f"+{line}" for line in new[first : after + 1]),
        *(f" {line}" for line in tail),
    ]
    return "\n".join(lines) + "\n"
