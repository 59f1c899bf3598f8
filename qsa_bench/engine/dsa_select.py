"""Launches of the DSA kernels over one scratch: what an engine calls, one function a kernel.

Each takes the loaded libraries by kernel, and values: addresses (keys, gate, ape, valid, q, weights,
q_pos, scratch, token_ids; valid and q_pos may be None) and the scalars of DsaSelectGeometry. Each
lays the scratch out anew from the scalars and returns the entry's status, BAD_EXTENT where the
geometry is refused. Standard library only.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

from qsa_bench.engine.dsa_geometry import DsaGeometryError, DsaSelectGeometry

# kernels/common/status.h
OK = 0
BAD_EXTENT = 2

Libraries = Mapping[str, ctypes.CDLL]
Values = Mapping[str, Any]


def geometry_of(values: Values) -> DsaSelectGeometry:
    """Return the geometry of a call's scalars. Raises DsaGeometryError."""
    return DsaSelectGeometry(
        context=values["context"],
        tokens=values["tokens"],
        query_rows=values["query_rows"],
        batch=values["batch"],
        most_rows=values["most_rows"],
        topk=values["topk"],
        kpool=values["kpool"],
        select_tail=bool(values["select_tail"]),
        padded=values.get("valid") is not None,
        replayed=bool(values["replayed"]),
        scratch_bytes=values["scratch_bytes"],
    )


def write_geometry(libraries: Libraries, values: Values) -> int:
    """Write the words of `live` tokens; before the graph, not in it."""
    try:
        layout = geometry_of(values)
        layout.at(max(1, values["live"]))
    except DsaGeometryError:
        return BAD_EXTENT
    place = values["scratch"] + layout.offset("geometry")
    scalars = (values["live"], layout.topk, layout.kpool)
    return _call(libraries, "dsa_write_geom", (place,), scalars, values)


def compress(libraries: Libraries, values: Values) -> int:
    """Pool what the last `fresh` tokens complete."""
    try:
        layout = geometry_of(values)
    except DsaGeometryError:
        return BAD_EXTENT
    pointers = (
        *(values[name] for name in ("keys", "gate", "ape")),
        values.get("valid"),
        _geometry(layout, values),
        *_regions(layout, values, "pool_keys", "first_keys", "slots", "pool_starts"),
    )
    scalars = (
        layout.batch,
        layout.tokens,
        values["fresh"],
        layout.context,
        layout.pool_capacity,
        layout.kpool,
    )
    return _call(libraries, "dsa_kpool_compress", pointers, scalars, values)


def score(libraries: Libraries, values: Values) -> int:
    """Score every row against the pools of its sequence."""
    try:
        layout = geometry_of(values)
    except DsaGeometryError:
        return BAD_EXTENT
    pointers = (
        values["q"],
        values["weights"],
        *_regions(layout, values, "pool_keys"),
        values.get("q_pos"),
        values.get("valid"),
        _geometry(layout, values),
        *_regions(layout, values, "first_keys", "slots", "scores", "visible_pools"),
    )
    scalars = (
        layout.batch,
        layout.query_rows,
        layout.tokens,
        layout.context,
        layout.pool_capacity,
        layout.score_cols,
        layout.kpool,
    )
    return _call(libraries, "dsa_index_scores", pointers, scalars, values)


def select(libraries: Libraries, values: Values) -> int:
    """Keep the highest pools of every row."""
    try:
        layout = geometry_of(values)
    except DsaGeometryError:
        return BAD_EXTENT
    pointers = (
        *_regions(layout, values, "scores", "visible_pools"),
        _geometry(layout, values),
        *_regions(layout, values, "kept_pools", "kept_counts"),
    )
    rows = layout.batch * layout.query_rows
    scalars = (rows, layout.score_cols, layout.whole_pools, layout.topk, layout.kpool)
    return _call(libraries, "dsa_topk_pools", pointers, scalars, values)


def expand(libraries: Libraries, values: Values) -> int:
    """Write every row's token ids."""
    try:
        layout = geometry_of(values)
    except DsaGeometryError:
        return BAD_EXTENT
    pointers = (
        *_regions(layout, values, "kept_pools", "kept_counts"),
        values.get("q_pos"),
        values.get("valid"),
        _geometry(layout, values),
        *_regions(layout, values, "first_keys", "slots", "pool_starts"),
        values["token_ids"],
    )
    scalars = (
        layout.batch,
        layout.query_rows,
        layout.tokens,
        layout.context,
        layout.pool_capacity,
        layout.topk,
        layout.kpool,
        int(layout.select_tail),
    )
    return _call(libraries, "dsa_expand_selection", pointers, scalars, values)


# What a graph holds, in order: write_geometry goes before it.
CAPTURED = (compress, score, select, expand)


def _geometry(layout: DsaSelectGeometry, values: Values) -> int | None:
    """Return the address of the geometry; None for launches whose scalars are live."""
    if not layout.replayed:
        return None
    return int(values["scratch"] + layout.offset("geometry"))


def _regions(layout: DsaSelectGeometry, values: Values, *names: str) -> list[int | None]:
    """Return addresses of regions; None for the lists of sequences without a mask."""
    lists = ("first_keys", "slots", "pool_starts")
    return [
        values["scratch"] + layout.offset(name) if layout.padded or name not in lists else None
        for name in names
    ]


def _call(
    libraries: Libraries,
    kernel: str,
    pointers: tuple[int | None, ...],
    scalars: tuple[int, ...],
    values: Values,
) -> int:
    entry = getattr(libraries[kernel], kernel)
    entry.restype = ctypes.c_int32
    addresses = [ctypes.c_void_p(pointer) for pointer in pointers]
    numbers = [ctypes.c_int64(scalar) for scalar in scalars]
    return int(entry(*addresses, *numbers, ctypes.c_void_p(values.get("stream"))))
