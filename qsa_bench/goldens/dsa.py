"""The DSA golden: the pooled-key indexer of GLM-5.3 on cases of any shape.

The layout fixes names, dtypes and how extents hang together; how many cases there are, how long
they are and which query rows they keep is the file's own affair. What a file must show (a cut, a
tail, padding) is counted by `coverage`, and a stage that needs it says so.
"""

from __future__ import annotations

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

KIND = "dsa"

Array = npt.NDArray[Any]

HEADS = 32
HEAD_DIM = 128
# What the reference writes where a pool is no candidate.
MASKED = float(np.finfo(np.float32).min)

_CASE_OF = re.compile(r"case(\d+)\.")
_KPOOLS = (4, 16)


@dataclass(frozen=True)
class DsaCase:
    """One case: B sequences of T slots, Q query rows, P pools; bfloat16 as uint16, read-only.

    `k_normed`, `gate` [B, T, 128]; `valid` [B, T] u8; `ape` [kpool, 128]; `q_pos` [Q] i32, the slot
    of each query row; `q` [B, Q, 32, 128]; `weights` [B, Q, 32] f32, with heads^-0.5. The
    reference's: `pool_keys` [B, P, 128]; `pool_indices` [B, P, kpool] i32, -1 where a slot is no
    key; `pool_valid` [B, P] u8; `scores` [B, Q, P] f32, the least f32 where a pool is no candidate;
    `token_ids` [B, Q, topk + kpool - 1] i32.
    """

    index: int
    kpool: int
    topk: int
    k_normed: Array
    gate: Array
    valid: Array
    ape: Array
    q_pos: Array
    q: Array
    weights: Array
    pool_keys: Array
    pool_indices: Array
    pool_valid: Array
    scores: Array
    token_ids: Array

    @property
    def batch(self) -> int:
        """Sequences of the case, B."""
        return int(self.valid.shape[0])

    @property
    def tokens(self) -> int:
        """Slots of a sequence, padding included, T."""
        return int(self.valid.shape[1])


@dataclass(frozen=True)
class DsaCoverage:
    """What the cases exercise, counted in query rows of all sequences."""

    rows: int
    scores: int
    truncating: int
    tails: int
    masked: int
    padded: int


def cases(source: Golden | TensorFile) -> tuple[DsaCase, ...]:
    """Return the cases of a DSA golden, by number."""
    tensors = source.tensors
    return tuple(_case(tensors, index) for index in range(_case_count(tensors)))


def coverage(source: Golden | TensorFile) -> DsaCoverage:
    """Count what the golden's cases exercise."""
    counts = np.zeros(len(fields(DsaCoverage)), dtype=np.int64)
    for case in cases(source):
        candidates = (case.scores > MASKED).sum(axis=2)
        masked = case.valid[:, case.q_pos] == 0
        seen = _visible_keys(case)
        counts += (
            masked.size,
            int(candidates.sum()),
            int((truncating(case) & ~masked).sum()),
            int(((seen % case.kpool > 0) & ~masked).sum()),
            int(masked.sum()),
            case.q_pos.size * int((case.valid[:, 0] == 0).sum()),
        )
    return DsaCoverage(*(int(count) for count in counts))


def truncating(case: DsaCase) -> Array:
    """Return which rows have more candidates than they may keep, [B, Q] bool."""
    return np.asarray((case.scores > MASKED).sum(axis=2) > case.topk // case.kpool)


def verify(contents: TensorFile) -> list[str]:
    """Return the facts checked of `contents`, a sentence each.

    Raises GoldenError at the first violation; the message names the case, what was found and what
    was expected.
    """
    count = _case_count(contents.tensors)
    for index in range(count):
        _check_layout(contents, index)
        case = _case(contents.tensors, index)
        _check_inputs(case)
        _check_pools(case)
        _check_scores(case)
        _check_ids(case)
    found = coverage(contents)
    counts = ", ".join(f"{field.name} {getattr(found, field.name)}" for field in fields(found))
    return [
        f"{count} cases have the layout's names, dtypes and shapes; inputs are finite",
        "pools begin at each sequence's first valid key; a pool is valid where all its slots are",
        "scores are finite on candidates and the least f32 elsewhere",
        "token ids are visible keys; a masked row has none",
        f"coverage: {counts}",
    ]


def _case_count(tensors: Mapping[str, Array]) -> int:
    numbers = {int(found[1]) for name in tensors if (found := _CASE_OF.match(name))}
    if not numbers:
        raise GoldenError("not of the dsa layout: it has no tensor case0.geometry")
    if numbers != set(range(len(numbers))):
        missing = min(set(range(len(numbers))) - numbers)
        raise GoldenError(f"not of the dsa layout: cases are {sorted(numbers)}, {missing} is none")
    return len(numbers)


def _case(tensors: Mapping[str, Array], index: int) -> DsaCase:
    kpool, topk = (int(value) for value in tensors[f"case{index}.geometry"])
    names = [
        field.name for field in fields(DsaCase) if field.name not in ("index", "kpool", "topk")
    ]
    arrays = {name: tensors[f"case{index}.{name}"] for name in names}
    return DsaCase(index=index, kpool=kpool, topk=topk, **arrays)


def _check_layout(contents: TensorFile, index: int) -> None:
    tensors = contents.tensors

    def shape(name: str, dimensions: int) -> tuple[int, ...]:
        full = f"case{index}.{name}"
        if full not in tensors:
            raise GoldenError(f"not of the dsa layout: it has no tensor {full}")
        if tensors[full].ndim != dimensions:
            raise GoldenError(
                f"tensor {full} has {tensors[full].ndim} dimensions, expected {dimensions}"
            )
        return tensors[full].shape

    if shape("geometry", 1) != (2,):
        raise GoldenError(f"tensor case{index}.geometry is not [kpool, topk]")
    kpool, topk = (int(value) for value in tensors[f"case{index}.geometry"])
    if kpool not in _KPOOLS or topk < kpool or topk % kpool:
        raise GoldenError(
            f"case {index}: kpool {kpool}, topk {topk}; expected a kpool of "
            f"{' or '.join(map(str, _KPOOLS))} and a topk that it divides"
        )
    batch, tokens = shape("valid", 2)
    rows, pools = shape("q_pos", 1)[0], shape("pool_valid", 2)[1]
    expected: dict[str, tuple[str, tuple[int, ...]]] = {
        "k_normed": ("bf16", (batch, tokens, HEAD_DIM)),
        "gate": ("bf16", (batch, tokens, HEAD_DIM)),
        "valid": ("u8", (batch, tokens)),
        "ape": ("bf16", (kpool, HEAD_DIM)),
        "q_pos": ("i32", (rows,)),
        "q": ("bf16", (batch, rows, HEADS, HEAD_DIM)),
        "weights": ("f32", (batch, rows, HEADS)),
        "geometry": ("i32", (2,)),
        "pool_keys": ("bf16", (batch, pools, HEAD_DIM)),
        "pool_indices": ("i32", (batch, pools, kpool)),
        "pool_valid": ("u8", (batch, pools)),
        "scores": ("f32", (batch, rows, pools)),
        "token_ids": ("i32", (batch, rows, topk + kpool - 1)),
    }
    if batch == 0 or tokens == 0 or rows == 0:
        raise GoldenError(f"case {index}: {batch} sequences of {tokens} slots, {rows} query rows")
    for name, (dtype, extents) in expected.items():
        full = f"case{index}.{name}"
        found = shape(name, len(extents))
        if (contents.dtypes[full], found) != (dtype, extents):
            raise GoldenError(
                f"tensor {full} is {contents.dtypes[full]} {list(found)}, "
                f"expected {dtype} {list(extents)}"
            )


def _check_inputs(case: DsaCase) -> None:
    for name in ("k_normed", "gate", "ape", "q"):
        if not np.isfinite(bf16.to_float32(getattr(case, name))).all():
            raise GoldenError(f"case {case.index}: {name} holds a number that is not finite")
    if not np.isfinite(case.weights).all():
        raise GoldenError(f"case {case.index}: weights hold a number that is not finite")
    if (case.valid > 1).any():
        raise GoldenError(f"case {case.index}: valid is {int(case.valid.max())}, expected 0 or 1")
    outside = (case.q_pos < 0) | (case.q_pos >= case.tokens)
    if outside.any():
        raise GoldenError(
            f"case {case.index}: q_pos is {int(case.q_pos[outside][0])}, "
            f"expected 0..{case.tokens - 1}"
        )


def _check_pools(case: DsaCase) -> None:
    full: Array = np.asarray((case.pool_indices >= 0).all(axis=2))
    if (full != (case.pool_valid == 1)).any():
        raise GoldenError(
            f"case {case.index}: pool_valid is not 1 exactly where all slots are keys"
        )
    for row in range(case.batch):
        keys = np.flatnonzero(case.valid[row])
        starts = case.pool_indices[row, full[row], 0]
        if starts.size and (
            keys.size == 0 or ((starts - keys[0]) % case.kpool).any() or starts.min() < keys[0]
        ):
            raise GoldenError(
                f"case {case.index}, sequence {row}: a pool begins at slot {int(starts[0])}, "
                f"expected a multiple of {case.kpool} past the first valid key"
            )


def _check_scores(case: DsaCase) -> None:
    last = case.pool_indices[:, :, -1]
    candidate = (case.pool_valid == 1)[:, None] & (last[:, None] <= case.q_pos[None, :, None])
    wrong = np.where(candidate, ~np.isfinite(case.scores), case.scores != np.float32(MASKED))
    if wrong.any():
        place = tuple(int(index) for index in np.argwhere(wrong)[0])
        expected = "a finite number" if candidate[place] else "the least f32"
        raise GoldenError(
            f"case {case.index}: scores{list(place)} is {case.scores[place]}, expected {expected}"
        )


def _check_ids(case: DsaCase) -> None:
    for row in range(case.batch):
        for query, position in enumerate(case.q_pos.tolist()):
            listed = case.token_ids[row, query]
            ids: Array = listed[np.not_equal(listed, -1)].astype(np.int64)
            place = f"case {case.index}, sequence {row}, row {query}"
            if not case.valid[row, position] and ids.size:
                raise GoldenError(f"{place}: a masked row selects token {int(ids[0])}")
            seen = bool(((ids >= 0) & (ids <= position)).all())
            if not seen or not case.valid[row][ids].all():
                raise GoldenError(f"{place} (position {position}): an id is no visible key")


def _visible_keys(case: DsaCase) -> Array:
    """Return how many valid keys each query row sees, [B, Q]."""
    return np.asarray(np.cumsum(case.valid, axis=1, dtype=np.int64)[:, case.q_pos])
