"""Peers of block selection: torch's top k and sort, cub's.

All of them give the mask: the list they find is scattered into it, and the tail is set. A row's
prefix is the whole score row where every row is as long as the buffer; otherwise the scores are
copied with minus infinity past each prefix first, which is then part of what is timed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from qsa_bench.peers import PeerUnavailableError, Problem, describe

_BLOCK_TOKENS = 4
# Four mask bytes, all 1: the mask of a block as one 32-bit word.
_BLOCK_OF_ONES = 0x01010101
Run = Callable[[], Any]


@dataclass(frozen=True)
class _Rows:
    """What the positions fix, worked out once, outside what is timed.

    `scores` is [rows, score_cols]; `blocks` and `keeps` [rows] i64 on the device, `most_blocks`
    and `most_kept` their largest; `tails` are the mask places of the incomplete tails.
    """

    scores: Any
    positions: Any
    blocks: Any
    keeps: Any
    most_blocks: int
    most_kept: int
    tails: tuple[Any, Any] | None
    mask: Any
    uniform: bool


def _rows(problem: Problem) -> _Rows:
    count = int(problem.scalars["row_count"])
    cols = int(problem.scalars["score_cols"])
    flat = problem.tensors["scores"].reshape(-1)
    positions = problem.tensors["rows"][:count].to(torch.int64)
    if "live_rows" in problem.tensors:
        live = int(problem.tensors["live_rows"][0])
        padding = torch.arange(count, device=positions.device) >= live
        positions = torch.where(padding, torch.full_like(positions, -1), positions)
    blocks = (positions + 1) // _BLOCK_TOKENS
    keeps = torch.clamp(blocks, max=int(problem.scalars["budget"]) // _BLOCK_TOKENS)
    most = int(blocks.max())
    places = [
        (row, token)
        for row, position in enumerate(positions.tolist())
        for token in range((position + 1) // _BLOCK_TOKENS * _BLOCK_TOKENS, position + 1)
    ]
    device = positions.device
    tails = (
        (
            torch.tensor([row for row, _ in places], device=device),
            torch.tensor([token for _, token in places], device=device),
        )
        if places
        else None
    )
    return _Rows(
        flat[: count * cols].view(count, cols),
        positions,
        blocks,
        keeps,
        most,
        int(keeps.max()),
        tails,
        problem.tensors.get("mask"),
        bool((blocks == most).all()),
    )


def _prefixes(rows: _Rows) -> Run:
    """Return what gives the scores [rows, most_blocks] with nothing in them past a prefix."""
    cut = rows.scores[:, : rows.most_blocks]
    if rows.uniform:
        return lambda: cut
    past = torch.arange(rows.most_blocks, device=cut.device)[None, :] >= rows.blocks[:, None]
    return lambda: cut.masked_fill(past, float("-inf"))


def _marker(rows: _Rows) -> Callable[[Any], None]:
    """Return what turns block indices [rows, most_kept], best first, into the mask."""
    mask = rows.mask
    # Of a row that keeps fewer than the longest one, the last indices are no blocks of its own.
    order = torch.arange(rows.most_kept, device=mask.device)[None, :]
    wanted = None if rows.uniform else order < rows.keeps[:, None]
    words = mask.view(torch.int32) if mask.shape[1] % _BLOCK_TOKENS == 0 else None
    per_row = mask.shape[1] // _BLOCK_TOKENS

    def mark(kept: Any) -> None:
        if words is not None:
            target, one = words, _BLOCK_OF_ONES
        else:
            target, one = torch.empty_like(mask[:, :per_row]), 1
        target.zero_()
        if wanted is None:
            target.scatter_(1, kept, one)
        elif rows.most_kept:
            # Both a kept and an unkept index may name a place only once, so the order is free.
            target.scatter_(1, kept, torch.where(wanted, one, 0).to(target.dtype))
        if words is None:
            mask.zero_()
            mask[:, : per_row * _BLOCK_TOKENS] = target.repeat_interleave(_BLOCK_TOKENS, dim=1)
        if rows.tails is not None:
            mask[rows.tails] = 1

    return mark


@describe("torch.topk + scatter")
def topk(problem: Problem) -> Run:
    """Return torch.topk over the prefixes, then the mask."""
    rows = _rows(problem)
    prefixes, mark = _prefixes(rows), _marker(rows)
    return lambda: mark(torch.topk(prefixes(), rows.most_kept, dim=1).indices)


@describe("torch.topk, indices only", form="blocks")
def topk_blocks(problem: Problem) -> Run:
    """Return torch.topk over the prefixes: block indices alone, best first."""
    rows = _rows(problem)
    prefixes = _prefixes(rows)
    return lambda: torch.topk(prefixes(), rows.most_kept, dim=1).indices


@describe("torch.sort(stable) + scatter")
def sort(problem: Problem) -> Run:
    """Return a stable torch.sort over the prefixes, then the mask of the first."""
    rows = _rows(problem)
    prefixes, mark = _prefixes(rows), _marker(rows)

    def run() -> None:
        order = torch.sort(prefixes(), dim=1, descending=True, stable=True).indices
        mark(order[:, : rows.most_kept])

    return run


def _pointer(tensor: Any) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


def _check(status: int, what: str) -> None:
    if status:
        raise PeerUnavailableError(f"{what} answers status {status}")


@describe("cub::DeviceSegmentedRadixSort + mask")
def cub_sort(problem: Problem) -> Run:
    """Return cub's stable segmented sort of the prefixes, then the mask of the first."""
    library = problem.libraries["cub_sort"]
    rows = _rows(problem)
    count, cols = rows.scores.shape
    if count * cols >= 2**31:
        raise PeerUnavailableError(f"{count * cols} scores are more than cub's sort indexes here")
    device = rows.scores.device
    blocks = torch.arange(cols, dtype=torch.int32, device=device).repeat(count)
    begins = torch.arange(count, dtype=torch.int64, device=device) * cols
    ends = begins + rows.blocks
    keeps, positions = rows.keeps.to(torch.int32), rows.positions.to(torch.int32)
    sorted_scores = torch.empty(count * cols, dtype=torch.float32, device=device)
    sorted_blocks = torch.empty_like(blocks)
    library.cub_sort_temporary_bytes.restype = ctypes.c_int64
    size = int(library.cub_sort_temporary_bytes(ctypes.c_int64(count), ctypes.c_int64(cols)))
    if size < 0:
        raise PeerUnavailableError("cub's segmented sort does not say its temporary size")
    temporary = torch.empty(max(size, 1), dtype=torch.uint8, device=device)
    held = (rows.scores, blocks, begins, ends, keeps, positions, sorted_scores, sorted_blocks)
    arguments = (
        *(_pointer(tensor) for tensor in (*held, temporary)),
        ctypes.c_int64(size),
        _pointer(rows.mask),
        ctypes.c_int64(count),
        ctypes.c_int64(rows.mask.shape[1]),
        ctypes.c_int64(cols),
    )
    entry = library.cub_sort_select

    def run(_alive: Any = (*held, temporary)) -> None:
        _check(entry(*arguments, ctypes.c_void_p(problem.stream())), "cub_sort_select")

    return run


# One launch of several kernels a row: beyond this many rows it is no peer of anything.
_MOST_TOPK_ROWS = 64


@describe("cub::DeviceTopK + mask")
def cub_topk(problem: Problem) -> Run:
    """Return cub's device-wide top k, a row at a time, then the mask."""
    library = problem.libraries["cub_topk"]
    rows = _rows(problem)
    count, cols = rows.scores.shape
    if count > _MOST_TOPK_ROWS:
        raise PeerUnavailableError(f"it takes one row a launch; {count} rows are not its problem")
    device = rows.scores.device
    blocks = torch.arange(cols, dtype=torch.int32, device=device)
    host_blocks = (ctypes.c_int64 * count)(*rows.blocks.tolist())
    host_keeps = (ctypes.c_int64 * count)(*rows.keeps.tolist())
    keeps, positions = rows.keeps.to(torch.int32), rows.positions.to(torch.int32)
    width = max(rows.most_kept, 1)
    kept_scores = torch.empty(count * width, dtype=torch.float32, device=device)
    kept_blocks = torch.empty(count * width, dtype=torch.int32, device=device)
    library.cub_topk_temporary_bytes.restype = ctypes.c_int64
    size = int(
        library.cub_topk_temporary_bytes(
            ctypes.c_int64(rows.most_blocks), ctypes.c_int64(rows.most_kept)
        )
    )
    if size < 0:
        raise PeerUnavailableError("cub's top k does not say its temporary size")
    # Its need is not monotonous in the length: short rows get some more.
    temporary = torch.empty(2 * size + (1 << 20), dtype=torch.uint8, device=device)
    held = (rows.scores, blocks, keeps, positions, kept_scores, kept_blocks, temporary)
    arguments = (
        _pointer(rows.scores),
        _pointer(blocks),
        host_blocks,
        host_keeps,
        _pointer(keeps),
        _pointer(positions),
        _pointer(kept_scores),
        _pointer(kept_blocks),
        ctypes.c_int64(width),
        _pointer(temporary),
        ctypes.c_int64(temporary.numel()),
        _pointer(rows.mask),
        ctypes.c_int64(count),
        ctypes.c_int64(rows.mask.shape[1]),
        ctypes.c_int64(cols),
    )
    entry = library.cub_topk_select

    def run(_alive: Any = held) -> None:
        _check(entry(*arguments, ctypes.c_void_p(problem.stream())), "cub_topk_select")

    return run
