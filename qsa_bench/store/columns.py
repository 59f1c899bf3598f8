"""What a file of a run folder is made of: column types and a layout; standard library only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

Row = dict[str, Any]
R = TypeVar("R")

TEXT = "string"
INTEGER = "int64"
REAL = "double"
FLAG = "bool"
TEXTS = "list<string>"
REALS = "map<string,double>"
COUNTS = "map<string,int64>"
WORDS = "map<string,string>"
INTEGERS = "list<int64>"


@dataclass(frozen=True)
class Layout(Generic[R]):
    """One Parquet file of a run folder.

    `columns` map a name to one of the type words above. `added` holds the value of a column that
    files written before it existed lack; every other column must be there. `order` names the text
    columns that a finished file is sorted by, where rows come in the order that workers end.
    """

    name: str
    columns: Mapping[str, str]
    to_row: Callable[[R], Row]
    from_row: Callable[[Row], R]
    added: Mapping[str, Any] = field(default_factory=dict)
    order: tuple[str, ...] = ()


def reals(value: Any) -> dict[str, float]:
    """Return a map column's value, which Arrow gives as a list of pairs."""
    return {str(key): float(real) for key, real in dict(value or {}).items()}
