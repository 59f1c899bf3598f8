"""Peers: other ways to the same result, timed beside the kernels and put through the same gate.

A peer is a function of a Problem that returns a callable without arguments. Called, it does the
work on the current stream. By default it fills the entry's own outputs in `problem.tensors`; a
function with `form = "blocks"` returns a tensor of block indices [rows, kept] instead (see the
stage's interface for the forms there are). What is prepared outside the callable is not timed.

Users name theirs as `--peer module:function`. This module imports no torch: the parent reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from qsa_bench.model import STREAM, Argument, Entry, Kernel, Role

F = TypeVar("F", bound=Callable[..., Any])


class PeerUnavailableError(RuntimeError):
    """A peer that can't do this problem, or not here; the message says why."""


@dataclass(frozen=True)
class Problem:
    """What a peer is given: device tensors by argument name in their buffers' shapes, scalars.

    `libraries` are the loaded libraries of the peer kernels that the function names. `stream()`
    is the current stream's handle, to be asked for at every call.
    """

    tensors: Mapping[str, Any]
    scalars: Mapping[str, int | float]
    libraries: Mapping[str, Any] = field(default_factory=dict)
    stream: Callable[[], int] = lambda: 0


def describe(title: str, *, form: str | None = None) -> Callable[[F], F]:
    """Return a decorator that names a peer and its output form."""

    def mark(function: F) -> F:
        function.title = title  # type: ignore[attr-defined]
        function.form = form  # type: ignore[attr-defined]
        return function

    return mark


def _kernel(name: str) -> Kernel:
    """Return a peer's kernel; its entries are called from Python, so no argument is described."""
    entry = Entry(f"{name}_select", (Argument("mask", "u8", Role.OUTPUT), STREAM))
    return Kernel(name, f"kernels/peers/{name}.cu", (entry,), targets=("cuda",))


# Built where a peer asks for them; a toolkit that lacks what one includes makes it unavailable.
KERNELS: Mapping[str, Kernel] = {name: _kernel(name) for name in ("cub_sort", "cub_topk")}

# The kernels that a peer calls, for the parent, which builds them before a child loads the peer.
KERNELS_OF: Mapping[str, tuple[str, ...]] = {
    "qsa_bench.peers.select:cub_sort": ("cub_sort",),
    "qsa_bench.peers.select:cub_topk": ("cub_topk",),
}
