"""How rows about a peer are told from rows about a build."""

from __future__ import annotations

_PREFIX = "peer:"


def build_name(where: str) -> str:
    """Return what stands for a peer in a row's build column."""
    return f"{_PREFIX}{where}"


def is_peer(build: str) -> bool:
    """True for a row about a peer."""
    return build.startswith(_PREFIX)


def peer_of(build: str) -> str:
    """Return the peer that a row is about."""
    return build.removeprefix(_PREFIX)
