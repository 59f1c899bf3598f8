"""How another implementation of select, a user's C entry or a peer, goes through select's cases.

What it gives is brought to a mask, outside of what is timed. A row that differs from the stable
oracle's is then told apart: right up to ties, right if -0.0 were below +0.0, or wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from qsa_bench.model import STREAM, Argument, Evidence, Finding, Role, Status
from qsa_bench.oracles.select import RATIO, kept_blocks, structural_fault
from qsa_bench.program import OK, At, Buffer, Program, Value
from qsa_bench.stages.base import Interface, Judge, Outputs, View

Array = npt.NDArray[Any]

EXACT, FREE = "exact", "free"
# Below every number a score can be but zero itself: where -0.0 stands for who orders it there.
_BELOW_ZERO = -1e-300

_MASK = Argument("mask", "u8", Role.OUTPUT, ("row_count", "tokens"), doc="1 for selected tokens")
_BLOCKS = Argument(
    "kept_blocks",
    "i32",
    Role.OUTPUT,
    ("row_count", "top_k"),
    doc="the kept blocks of each row in any order; what follows them is not looked at",
)
_TOKENS = Argument(
    "token_ids",
    "i32",
    Role.OUTPUT,
    ("row_count", "budget + 3"),
    doc="the selected tokens of each row in any order, -1 elsewhere",
)
FORMS = {"mask": _MASK, "blocks": _BLOCKS, "tokens": _TOKENS}

ARGUMENTS: Mapping[str, Argument] = {
    argument.name: argument
    for argument in (
        Argument("scores", "f32", Role.INPUT, ("row_count", "score_cols"), doc="block scores"),
        Argument("rows", "i32", Role.INPUT, ("row_count",), doc="absolute positions"),
        Argument("lengths", "i32", Role.INPUT, ("row_count",), doc="complete blocks of each row"),
        Argument(
            "live_rows", "i32", Role.INPUT, ("1",), optional=True, doc="rows that are no padding"
        ),
        *FORMS.values(),
        Argument("row_count", "i64", Role.SCALAR, doc="rows launched"),
        Argument("tokens", "i64", Role.SCALAR, doc="tokens a mask row holds"),
        Argument("score_cols", "i64", Role.SCALAR, doc="elements between score rows"),
        Argument("budget", "i64", Role.SCALAR, doc="tokens kept at most, beside the tail"),
        Argument("top_k", "i64", Role.SCALAR, doc="blocks kept at most: budget / 4"),
        Argument("most_blocks", "i64", Role.SCALAR, doc="blocks a row holds: tokens / 4"),
        STREAM,
    )
}
CHECKS = {
    "selection": "the blocks kept are those with the highest scores, up to ties",
    "ties": "of equal scores the lowest indices are kept",
    "zeros": "-0.0 and +0.0 are the same score",
}


@dataclass(frozen=True)
class _Launch:
    """What a program of select asks for, read back from its buffers and its first call."""

    program: Program
    positions: Array
    tokens: int
    score_cols: int
    budget: int
    # Where the scores begin: an element of their buffer.
    scores: At

    def prefix(self, row: int) -> Array:
        """Return a row's scores [blocks]."""
        blocks = (int(self.positions[row]) + 1) // RATIO
        start = self.scores.offset + row * self.score_cols
        buffer = self.program.buffer("scores")
        if buffer.data is not None:
            flat: Array = buffer.data.reshape(-1)
            return flat[start : start + blocks]
        held = next((array for offset, array in buffer.segments if offset == start), None)
        return np.zeros(0, np.float32) if held is None else held.reshape(-1)[:blocks]


def _launch(program: Program) -> _Launch:
    values = program.calls[0].values
    positions = program.array("rows").astype(np.int64)
    if values.get("live_rows") is not None:
        live = int(program.array("live_rows")[0])
        positions[min(max(live, 0), len(positions)) :] = -1
    tokens, cols, budget = (int(str(values[name])) for name in ("tokens", "score_cols", "budget"))
    scores = values["scores"]
    scores = scores if isinstance(scores, At) else At("scores")
    return _Launch(program, positions, tokens, cols, budget, scores)


def view(program: Program, form: str) -> View | None:
    """Return a program's inputs and the form's output buffer; None where a call should fail."""
    calls = [call for call in program.calls if call.entry == "qsa_select"]
    if not calls or any(call.expect != OK for call in program.calls):
        return None
    launch = _launch(program)
    count, top_k = len(launch.positions), launch.budget // RATIO
    output = FORMS[form]
    shape = {
        "mask": (count, launch.tokens),
        "blocks": (count, top_k),
        "tokens": (count, launch.budget + RATIO - 1),
    }[form]
    lengths = ((launch.positions + 1) // RATIO).astype(np.int32)
    inputs = tuple(buffer for buffer in program.buffers if buffer.role is Role.INPUT)
    buffers = (
        *inputs,
        Buffer("lengths", "i32", (count,), Role.INPUT, lengths),
        Buffer(output.name, output.dtype, shape, Role.OUTPUT),
    )
    values: dict[str, Value] = {
        **{buffer.name: buffer.name for buffer in buffers},
        "scores": launch.scores,
        "row_count": count,
        "tokens": launch.tokens,
        "score_cols": launch.score_cols,
        "budget": launch.budget,
        "top_k": top_k,
        "most_blocks": launch.tokens // RATIO,
    }
    return View(buffers, tuple(values for _ in calls), form != "blocks" or bool(lengths.any()))


def _mask_of(launch: _Launch, form: str, given: Array, row: int) -> tuple[Array, str]:
    """Return a row's mask [tokens] u8 and, for a list, what of it makes no sense."""
    if form == "mask":
        return given[row], ""
    position = int(launch.positions[row])
    visible = position + 1
    blocks, tail = divmod(visible, RATIO)
    mask = np.zeros(launch.tokens, dtype=np.uint8)
    if form == "tokens":
        chosen = given[row][given[row] != -1].astype(np.int64)
        limit, noun = launch.tokens, "token"
    else:
        listed = given[row][: min(launch.budget // RATIO, blocks)].astype(np.int64)
        chosen, limit, noun = listed, blocks, "block"
    outside = chosen[(chosen < 0) | (chosen >= limit)]
    if outside.size:
        return mask, f"{noun} {int(outside[0])} is none of the row's"
    if np.unique(chosen).size != chosen.size:
        return mask, f"a {noun} is listed twice"
    if form == "blocks":
        chosen = (chosen[:, None] * RATIO + np.arange(RATIO)).reshape(-1)
        mask[visible - tail : visible] = 1
    mask[chosen] = 1
    return mask, ""


class _Oracle:
    """Wanted mask rows; equal prefixes at equal positions are worked out once."""

    def __init__(self, launch: _Launch) -> None:
        self._launch = launch
        self._known: dict[tuple[bytes, int], Array] = {}

    def row(self, row: int) -> Array:
        """Return the mask [tokens] u8 of a row."""
        prefix, position = self._launch.prefix(row), int(self._launch.positions[row])
        key = (prefix.tobytes(), position)
        if key not in self._known:
            self._known[key] = _wanted(self._launch, prefix, position)
        return self._known[key]


def _wanted(launch: _Launch, keys: Array, position: int) -> Array:
    visible = position + 1
    blocks, tail = divmod(visible, RATIO)
    keep = min(launch.budget // RATIO, blocks)
    kept = np.arange(blocks) if keep == blocks else kept_blocks(keys, keep)
    mask = np.zeros(launch.tokens, dtype=np.uint8)
    mask[(kept[:, None] * RATIO + np.arange(RATIO)).reshape(-1).astype(np.int64)] = 1
    mask[visible - tail : visible] = 1
    return mask


def _signed(prefix: Array) -> Array:
    keys = prefix.astype(np.float64)
    keys[(prefix == 0) & np.signbit(prefix)] = _BELOW_ZERO
    return keys


def judge(form: str, ties: str) -> Judge:
    """Return the judge of an output form; with ties "free" it finds "selection" alone."""

    def judged(program: Program, outputs: Outputs) -> Iterable[Finding]:
        launch = _launch(program)
        oracle = _Oracle(launch)
        output = FORMS[form]
        given = outputs[form] if form in outputs else outputs[output.name]
        given = given.reshape(len(launch.positions), -1)
        wrong: dict[str, list[str]] = {name: [] for name in CHECKS}
        for row in range(len(launch.positions)):
            want = oracle.row(row)
            mask, fault = _mask_of(launch, form, given, row)
            if fault:
                wrong["selection"].append(f"row {row}: {fault}")
            elif not np.array_equal(mask, want):
                check, said = _difference(launch, row, mask, want)
                wrong[check].append(f"row {row}: {said}")
        for check, rows in wrong.items():
            if ties == FREE and check != "selection":
                continue
            yield _finding(check, rows, len(launch.positions))

    return judged


def _difference(launch: _Launch, row: int, mask: Array, want: Array) -> tuple[str, str]:
    """Say which check a row fails that is not the oracle's."""
    prefix, position = launch.prefix(row), int(launch.positions[row])
    fault = structural_fault(prefix, position, launch.budget, mask)
    if fault:
        return "selection", fault
    other = int(np.count_nonzero(mask != want)) // (2 * RATIO)
    if np.array_equal(mask, _wanted(launch, _signed(prefix), position)):
        return "zeros", f"+0.0 is kept before -0.0 ({other} blocks are others)"
    return "ties", f"{other} of the equal scores kept are not the lowest indices"


def _finding(check: str, rows: list[str], total: int) -> Finding:
    if not rows:
        return Finding(check, Status.PASS, Evidence(0, total, "rows"))
    evidence = Evidence(len(rows), total, "rows", first=rows[0], note=rows[0])
    return Finding(check, Status.WRONG, evidence)


INTERFACE = Interface(
    arguments=ARGUMENTS,
    forms={form: argument.name for form, argument in FORMS.items()},
    view=view,
    judge=judge,
    checks=CHECKS,
)
