"""Columns of the files that an audit of the gate leaves: strengths and false alarms."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from qsa_bench.sensitivity import Alarms, Strength
from qsa_bench.store.columns import FLAG, INTEGER, REAL, TEXT, Layout, Row


def _row(record: Any) -> Row:
    return {field.name: getattr(record, field.name) for field in fields(record)}


STRENGTHS = Layout[Strength](
    name="strengths",
    columns={
        "stage": TEXT,
        "target": TEXT,
        "dial": TEXT,
        "check": TEXT,
        "caught": REAL,
        "missed": REAL,
        "hits": INTEGER,
        "repeats": INTEGER,
        "probes": INTEGER,
        "monotone": FLAG,
        "told": TEXT,
        "missed_told": TEXT,
        "turns": TEXT,
    },
    to_row=_row,
    from_row=lambda row: Strength(**row),
)

ALARMS = Layout[Alarms](
    name="alarms",
    columns={
        "stage": TEXT,
        "target": TEXT,
        "build": TEXT,
        "kind": TEXT,
        "inputs": TEXT,
        "trials": INTEGER,
        "alarms": INTEGER,
        "first": TEXT,
    },
    to_row=_row,
    from_row=lambda row: Alarms(**row),
)
