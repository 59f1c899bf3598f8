"""Peers of the gather and of the attentions: plain copies and torch's scaled dot-product attention.

What an engine would not do at every step (pages to contiguous keys and values, the mask of a
selection) is prepared outside what is timed, in the peer's favour; writing the context is not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from qsa_bench.peers import Problem, describe

Run = Callable[[], Any]


def _tokens(problem: Problem, name: str, row: int) -> Any:
    """Return a row's keys or values [tokens of its table, kv heads, dims], out of the pages."""
    scalars, tensors = problem.scalars, problem.tensors
    heads, dims = int(scalars["kv_heads"]), int(scalars["head_dim"])
    pages, tokens = int(scalars["page_count"]), int(scalars["page_tokens"])
    stride = int(scalars["page_stride"])
    cache = (
        tensors[name]
        .reshape(-1)
        .as_strided((pages, tokens, heads, dims), (stride, heads * dims, dims, 1))
    )
    table = tensors["block_table"].reshape(-1, int(scalars["table_pages"]))[row]
    return cache[table.long()].reshape(-1, heads, dims)


@describe("a copy of the same bytes")
def copy(problem: Problem) -> Run:
    """Return copies of what was gathered before: as many bytes, all in a row."""
    tensors = problem.tensors
    counts = tensors["counts"].tolist()
    ids = tensors["ids"]
    length, rows = int(counts[0]), len(counts)
    pairs = []
    for name, target in (("k_pages", "k_scratch"), ("v_pages", "v_scratch")):
        source = torch.stack(
            [_tokens(problem, name, row)[ids[row, :length].long()] for row in range(rows)]
        )
        # The widest element there is: a copy between strides is no plain one, but moves as much.
        whole = tensors[target][:, :length].flatten(2)
        pairs.append((whole.view(torch.complex128), source.flatten(2).view(torch.complex128)))
    identity = torch.arange(
        tensors["identity"].numel(), dtype=torch.int32, device=ids.device
    ).reshape(tensors["identity"].shape)

    def run() -> None:
        for target, source in pairs:
            target.copy_(source)
        tensors["identity"].copy_(identity)
        tensors["lengths"].copy_(tensors["counts"])

    return run


@describe("torch SDPA with the selection as a mask")
def sdpa(problem: Problem) -> Run:
    """Return dense attention over the whole context with a boolean mask of what rows selected."""
    tensors = problem.tensors
    heads = int(problem.scalars["query_heads"]) // int(problem.scalars["kv_heads"])
    keys, values = (
        _tokens(problem, name, 0).transpose(0, 1).repeat_interleave(heads, 0)[None].contiguous()
        for name in ("k_pages", "v_pages")
    )
    context = keys.shape[2]
    ids = tensors["ids"].long()
    mask = torch.zeros(ids.shape[0], context + 1, dtype=torch.bool, device=ids.device)
    mask.scatter_(1, torch.where(ids < 0, context, ids), True)
    mask = mask[:, :context].contiguous()
    q = tensors["q"].transpose(0, 1)[None].contiguous()

    def run() -> None:
        found = torch.nn.functional.scaled_dot_product_attention(q, keys, values, attn_mask=mask)
        tensors["context"].copy_(found[0].transpose(0, 1))

    return run


@describe("torch SDPA over the gathered tokens")
def sdpa_decode(problem: Problem) -> Run:
    """Return attention of one token a row over its tokens, all rows of one length."""
    tensors = problem.tensors
    heads = int(problem.scalars["query_heads"]) // int(problem.scalars["kv_heads"])
    lengths = tensors["lengths"].tolist()
    keys, values = (
        torch.stack([_tokens(problem, name, row)[:length] for row, length in enumerate(lengths)])
        .transpose(1, 2)
        .repeat_interleave(heads, 1)
        .contiguous()
        for name in ("k_pages", "v_pages")
    )
    q = tensors["q"].unsqueeze(2)

    def run() -> None:
        found = torch.nn.functional.scaled_dot_product_attention(q, keys, values)
        tensors["context"].copy_(found.squeeze(2))

    return run
