"""The QSA golden: the token indexer of Qwen3.8-Flash-Next on seven cases.

The layout fixes everything but the numbers: tokens, evaluated rows and budgets of the seven cases
are part of it, so the counts of rows, scores, truncating rows and of every negative control follow
from the layout, whatever the weights. Only ties follow from the scores.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from qsa_bench import bf16
from qsa_bench.errors import GoldenError
from qsa_bench.goldens import Golden
from qsa_bench.tensor_file import TensorFile

KIND = "qsa"

U8 = npt.NDArray[np.uint8]
U16 = npt.NDArray[np.uint16]
I32 = npt.NDArray[np.int32]
F32 = npt.NDArray[np.float32]

HIDDEN = 2560
HEADS = 4
HEAD_DIM = 128
FUSED = (HEADS + 1) * HEAD_DIM
RATIO = 4
ROTARY_DIM = 64
ROPE_THETA = 10000000.0

# The reference's own config, cut to the keys that decide what the indexer computes.
CONFIG: dict[str, Any] = {
    "head_dim": 256,
    "hidden_size": HIDDEN,
    "indexer_budget": 2048,
    "indexer_compress_ratio": RATIO,
    "indexer_head_dim": HEAD_DIM,
    "indexer_kv_heads": 1,
    "indexer_n_heads": HEADS,
    "rms_norm_eps": 1e-06,
    "rope_parameters": {
        "mrope_section": [11, 11, 10],
        "partial_rotary_factor": 0.25,
        "rope_theta": ROPE_THETA,
        "rope_type": "default",
    },
}
CONFIG_SHA256 = "d186167b69fbb586b4291692b8e0663ebd7445361123a9b792e1d8a6339c192c"

_CASE_OF = re.compile(r"case(\d+)\.")

# How far a table entry may be from the cosine or sine of its angle. Rounding to bfloat16 takes half
# of it; the rest is for the float32 angle, whose error is some 1e-4 at position 2054.
_TABLE_BOUND = 2.0**-8


@dataclass(frozen=True)
class CaseShape:
    """What the layout fixes of one case: evaluated are the rows `first_row`..`tokens` - 1."""

    tokens: int
    first_row: int
    budget: int

    @property
    def rows(self) -> I32:
        """Absolute positions of the evaluated rows."""
        return np.arange(self.first_row, self.tokens, dtype=np.int32)

    @property
    def score_cols(self) -> int:
        """Columns of the scores: a block each, one at least."""
        return max(self.tokens // RATIO, 1)


CASES = (
    CaseShape(5, 0, 2048),
    CaseShape(8, 0, 2048),
    CaseShape(64, 0, 2048),
    CaseShape(14, 0, 2048),
    CaseShape(16, 0, 2048),
    CaseShape(20, 0, 16),
    CaseShape(2055, 2049, 2048),
)


@dataclass(frozen=True)
class QsaCase:
    """One case: T tokens, R evaluated rows, bfloat16 as uint16, all arrays read-only.

    `fused_qk` [T, 640] u16: four query heads, then the key head; `cos`, `sin` [T, 64] u16 by
    absolute position; `rows` [R] i32 absolute positions; `scores` [R, max(T/4, 1)] f32, NaN past
    each row's blocks; `mask` [R, T] u8; `budget` in tokens. Methods take the row's index 0..R-1.
    """

    index: int
    fused_qk: U16
    cos: U16
    sin: U16
    rows: I32
    scores: F32
    mask: U8
    budget: int

    @property
    def tokens(self) -> int:
        """Tokens of the case, T."""
        return int(self.fused_qk.shape[0])

    @property
    def score_cols(self) -> int:
        """Row stride of the scores."""
        return int(self.scores.shape[1])

    @property
    def visible_len(self) -> I32:
        """Tokens each row sees, itself included: [R] i32."""
        return (self.rows + 1).astype(np.int32)

    @property
    def blocks(self) -> I32:
        """Complete blocks of each row: [R] i32."""
        return (self.visible_len // RATIO).astype(np.int32)

    @property
    def keep(self) -> I32:
        """Blocks that each row keeps: [R] i32."""
        return np.minimum(self.blocks, np.int32(self.budget // RATIO))

    @property
    def tails(self) -> I32:
        """Tokens of each row past its last complete block: [R] i32, 0..3."""
        return (self.visible_len % RATIO).astype(np.int32)

    def blocks_of_row(self, row: int) -> int:
        """Return how many complete blocks row `row` sees."""
        return int(self.blocks[row])

    def scores_of_row(self, row: int) -> F32:
        """Return the scores of row `row`'s complete blocks, without the padding."""
        return self.scores[row, : self.blocks_of_row(row)]

    def truncates(self, row: int) -> bool:
        """Tell whether row `row` has more blocks than it may keep."""
        return bool(self.keep[row] < self.blocks[row])

    def ties(self, row: int) -> bool:
        """Tell whether row `row`'s cut separates equal scores, so that the kept are a choice."""
        if not self.truncates(row):
            return False
        descending = -np.sort(-self.scores_of_row(row))
        keep = int(self.keep[row])
        return bool(descending[keep - 1] == descending[keep])


@dataclass(frozen=True)
class QsaCoverage:
    """What the cases exercise, counted in rows (and `scores` in scores)."""

    rows: int
    scores: int
    all_kept: int
    truncating: int
    tie_rows: int
    incomplete_tail: int


# All but ties follow from `CASES`; written out so that a change of the layout is seen.
EXPECTED_COVERAGE = {
    "rows": 133,
    "scores": 3674,
    "all_kept": 128,
    "truncating": 5,
    "incomplete_tail": 101,
}


def cases(source: Golden | TensorFile) -> tuple[QsaCase, ...]:
    """Return the seven cases of a QSA golden."""
    return tuple(_case(source.tensors, index) for index in range(len(CASES)))


def norm_weights(source: Golden | TensorFile) -> tuple[U16, U16]:
    """Return the query's and the key's RMSNorm weight w (the norm multiplies by 1 + w), [128]."""
    return source.tensors["q_norm_weight"], source.tensors["k_norm_weight"]


def tie_rows(case: QsaCase) -> tuple[int, ...]:
    """Return the indices of the rows whose cut separates equal scores.

    The reference picks among the tied blocks arbitrarily, so these rows compare up to the tie and
    all others bit by bit.
    """
    return tuple(row for row in range(len(case.rows)) if case.ties(row))


def coverage(source: Golden | TensorFile) -> QsaCoverage:
    """Count what the golden's cases exercise."""
    return coverage_of(cases(source))


def coverage_of(of: tuple[QsaCase, ...]) -> QsaCoverage:
    """Count what the cases `of` exercise."""
    truncating = sum(int((case.keep < case.blocks).sum()) for case in of)
    rows = sum(len(case.rows) for case in of)
    return QsaCoverage(
        rows=rows,
        scores=sum(int(case.blocks.sum()) for case in of),
        all_kept=rows - truncating,
        truncating=truncating,
        tie_rows=sum(len(tie_rows(case)) for case in of),
        incomplete_tail=sum(int((case.tails > 0).sum()) for case in of),
    )


def config_text(config: Mapping[str, Any]) -> str:
    """Return the text whose SHA-256 names a checkpoint: `config` as JSON, keys sorted."""
    return json.dumps(config, sort_keys=True)


def config_sha256(text: str) -> str:
    """Return the SHA-256 in hex of a config's text."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def verify(contents: TensorFile) -> list[str]:
    """Return the facts checked of `contents`, a sentence each.

    Raises GoldenError at the first violation; the message names the case, the row, what was found
    and what was expected.
    """
    facts = [_check_config(contents.metadata), _check_layout(contents)]
    _check_weights(contents)
    of = cases(contents)
    for case, shape in zip(of, CASES, strict=True):
        _check_geometry(case, shape)
        _check_inputs(case)
        _check_scores(case)
        _check_mask(case)
    facts += [
        "rows and budgets are the layout's; inputs are finite; cos and sin follow rope_theta",
        "scores are finite and not negative on every row's blocks, NaN past them",
        "every mask is the tail and whole blocks, as many as the budget keeps, the highest scores",
    ]
    return [*facts, _check_coverage(coverage_of(of))]


def _case(tensors: Mapping[str, Any], index: int) -> QsaCase:
    names = ("fused_qk", "cos", "sin", "rows", "scores", "mask")
    arrays = {name: tensors[f"case{index}.{name}"] for name in names}
    return QsaCase(index=index, budget=int(tensors[f"case{index}.budget"][0]), **arrays)


def _check_config(metadata: Mapping[str, str]) -> str:
    text, digest = metadata.get("config"), metadata.get("config_sha256")
    if text is None or digest is None:
        missing = "config" if text is None else "config_sha256"
        other = "" if digest in (None, CONFIG_SHA256) else f" and config_sha256 is {digest}"
        raise GoldenError(f"metadata lacks {missing}{other}; expected {CONFIG_SHA256}")
    try:
        config = json.loads(text)
    except (ValueError, RecursionError):
        config = None
    if not isinstance(config, dict):
        raise GoldenError("metadata's config is not a JSON object")
    differing = _first_difference("", config, CONFIG)
    if differing is not None:
        raise GoldenError(f"of another checkpoint: config {differing}")
    recomputed = config_sha256(text)
    if digest != recomputed:
        raise GoldenError(f"config_sha256 is {digest}, its config's is {recomputed}")
    if digest != CONFIG_SHA256:  # the same values in another spelling
        raise GoldenError(f"config_sha256 is {digest}, expected {CONFIG_SHA256}")
    return f"config {digest[:12]} is this checkpoint's"


def _first_difference(name: str, found: Any, expected: Any) -> str | None:
    """Name the first key by which two configs differ, with both values."""
    if not isinstance(found, dict) or not isinstance(expected, dict):
        return None if found == expected else f"{name} is {found!r}, expected {expected!r}"
    for key in sorted(found.keys() | expected.keys()):
        full = f"{name}.{key}" if name else key
        if key not in found:
            return f"lacks {full}, expected {expected[key]!r}"
        if key not in expected:
            return f"has {full} {found[key]!r}, expected no such key"
        differing = _first_difference(full, found[key], expected[key])
        if differing is not None:
            return differing
    return None


def _expected_tensors() -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return every tensor's dtype and shape by name."""
    expected: dict[str, tuple[str, tuple[int, ...]]] = {
        "q_norm_weight": ("bf16", (HEAD_DIM,)),
        "k_norm_weight": ("bf16", (HEAD_DIM,)),
    }
    for index, shape in enumerate(CASES):
        rows, tokens = len(shape.rows), shape.tokens
        expected |= {
            f"case{index}.fused_qk": ("bf16", (tokens, FUSED)),
            f"case{index}.cos": ("bf16", (tokens, ROTARY_DIM)),
            f"case{index}.sin": ("bf16", (tokens, ROTARY_DIM)),
            f"case{index}.rows": ("i32", (rows,)),
            f"case{index}.scores": ("f32", (rows, shape.score_cols)),
            f"case{index}.mask": ("u8", (rows, tokens)),
            f"case{index}.budget": ("i32", (1,)),
        }
    return expected


def _check_layout(contents: TensorFile) -> str:
    expected = _expected_tensors()
    for name, (dtype, shape) in expected.items():
        if name not in contents.tensors:
            raise GoldenError(f"not of the qsa layout: it has no tensor {name}")
        found = contents.dtypes[name], contents.tensors[name].shape
        if found != (dtype, shape):
            raise GoldenError(
                f"tensor {name} is {found[0]} {list(found[1])}, expected {dtype} {list(shape)}"
            )
    extra = sorted(contents.tensors.keys() - expected.keys())
    for name in extra:  # an eighth case that nothing runs would look tested
        case = _CASE_OF.match(name)
        if case and int(case[1]) >= len(CASES):
            raise GoldenError(f"not of the qsa layout: it has {name}, expected {len(CASES)} cases")
    fact = f"{len(expected)} tensors of {len(CASES)} cases have the layout's names and shapes"
    return f"{fact}; not read: {', '.join(extra)}" if extra else fact


def _check_weights(contents: TensorFile) -> None:
    for name in ("q_norm_weight", "k_norm_weight"):
        _check_finite(name, contents.tensors[name])


def _check_geometry(case: QsaCase, shape: CaseShape) -> None:
    if case.budget != shape.budget:
        raise GoldenError(f"case {case.index}: budget is {case.budget}, expected {shape.budget}")
    if place := _first(case.rows != shape.rows):
        row = place[0]
        raise GoldenError(
            f"case {case.index}, row {row}: position is {case.rows[row]}, "
            f"expected {shape.rows[row]} of {case.tokens} tokens"
        )


def _check_inputs(case: QsaCase) -> None:
    _check_finite(f"case {case.index}: fused_qk", case.fused_qk)
    half = ROTARY_DIM // 2
    angles = np.arange(case.tokens)[:, None] * ROPE_THETA ** (-np.arange(half) / half)
    _check_table(f"case {case.index}: cos", case.cos, np.cos(angles))
    _check_table(f"case {case.index}: sin", case.sin, np.sin(angles))


def _check_table(what: str, bits: U16, exact: npt.NDArray[np.float64]) -> None:
    half = exact.shape[1]
    values = bf16.to_float32(bits)
    # "not within" rather than "beyond", so that a NaN is a violation
    if place := _first(~(np.abs(values[:, :half] - exact) <= _TABLE_BOUND)):
        raise GoldenError(
            f"{what} at position {place[0]}, column {place[1]} is {values[place]:g}, "
            f"expected {exact[place]:.4g} of rope_theta {ROPE_THETA:g}"
        )
    if place := _first(bits[:, :half] != bits[:, half:]):
        position, column = place
        raise GoldenError(
            f"{what} at position {position}, column {column + half} is "
            f"{values[position, column + half]:g}, expected the first half's {values[place]:g}"
        )


def _check_finite(what: str, bits: U16) -> None:
    values = bf16.to_float32(bits)
    if place := _first(~np.isfinite(values)):
        raise GoldenError(f"{what} at {list(place)} is {values[place]}, expected a finite number")


def _check_scores(case: QsaCase) -> None:
    inside = np.arange(case.score_cols)[None, :] < case.blocks[:, None]
    scores = case.scores
    wrong = np.where(inside, ~(np.isfinite(scores) & (scores >= 0)), ~np.isnan(scores))
    if place := _first(wrong):
        row, column = place
        expected = (
            "a finite number that is not negative"
            if inside[place]
            else f"NaN past the row's {case.blocks[row]} blocks"
        )
        raise GoldenError(
            f"{_at(case, row)}: score {column} is {scores[place]}, expected {expected}"
        )


def _check_mask(case: QsaCase) -> None:
    for row in range(len(case.rows)):
        mask = case.mask[row]
        complete = case.blocks_of_row(row) * RATIO
        seen = int(case.rows[row]) + 1
        tokens = np.arange(case.tokens)
        for wrong, expected in (
            (mask > 1, "0 or 1"),
            ((tokens >= seen) & (mask == 1), "0 past the row's position"),
            ((tokens >= complete) & (tokens < seen) & (mask == 0), "1 in the incomplete tail"),
        ):
            if place := _first(wrong):
                raise GoldenError(
                    f"{_at(case, row)}: mask of token {place[0]} is {mask[place]}, "
                    f"expected {expected}"
                )
        _check_selection(case, row, mask[:complete].reshape(-1, RATIO))


def _check_selection(case: QsaCase, row: int, by_block: U8) -> None:
    """Check one row's kept blocks; `by_block` [blocks, 4] is the mask of its complete blocks."""
    per_block = by_block.sum(axis=1)
    if place := _first(per_block % RATIO != 0):
        raise GoldenError(
            f"{_at(case, row)}: mask keeps {per_block[place]} tokens of block {place[0]}, "
            f"expected all {RATIO} or none"
        )
    kept = per_block == RATIO
    if int(kept.sum()) != int(case.keep[row]):
        raise GoldenError(
            f"{_at(case, row)}: mask keeps {int(kept.sum())} blocks, expected {case.keep[row]}"
        )
    scores = case.scores_of_row(row)
    if kept.all() or not kept.any():
        return
    lowest = int(np.where(kept, scores, np.inf).argmin())
    highest = int(np.where(kept, -np.inf, scores).argmax())
    if scores[lowest] < scores[highest]:  # equal is a tie, which the reference breaks at will
        raise GoldenError(
            f"{_at(case, row)}: mask keeps block {lowest} of score {scores[lowest]:g}, "
            f"expected block {highest} of score {scores[highest]:g} before it"
        )


def _check_coverage(found: QsaCoverage) -> str:
    for name, expected in EXPECTED_COVERAGE.items():
        if getattr(found, name) != expected:
            raise GoldenError(f"{name} counts {getattr(found, name)}, expected {expected}")
    counts = (f"{field.name} {getattr(found, field.name)}" for field in fields(found))
    return f"coverage: {', '.join(counts)}"


def _first(wrong: npt.NDArray[np.bool_]) -> tuple[int, ...] | None:
    """Return the index of the first True, if there is one."""
    places = np.argwhere(wrong)
    return tuple(int(extent) for extent in places[0]) if len(places) else None


def _at(case: QsaCase, row: int) -> str:
    return f"case {case.index}, row {row} (position {case.rows[row]})"
