"""Tensors and scalars of a file that a user captured in an engine, each refused by one line."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from qsa_bench.errors import ReplayError

Array = npt.NDArray[Any]
# As long as an int64.
_WHOLE_NUMBER = r"[+-]?\d{1,18}"


@dataclass(frozen=True)
class Captured:
    """What a captured file holds; `name` is the file's name, for messages."""

    name: str
    tensors: Mapping[str, Array]
    dtypes: Mapping[str, str]
    metadata: Mapping[str, str]

    def tensor(self, name: str, dtype: str, dimensions: Sequence[int]) -> Array:
        """Return the tensor of that name; `dimensions` are the numbers of axes it may have."""
        if name not in self.tensors:
            held = ", ".join(sorted(self.tensors)) or "no tensor"
            raise self.error(f"tensor {name!r} is missing; the file holds {held}")
        if self.dtypes[name] != dtype:
            raise self.error(f"tensor {name!r} is {self.dtypes[name]}, not {dtype}")
        array = self.tensors[name]
        if array.ndim not in dimensions:
            allowed = " or ".join(str(number) for number in dimensions)
            raise self.error(
                f"tensor {name!r} has shape {list(array.shape)}, not {allowed} dimension(s)"
            )
        return array

    def scalar(self, name: str) -> int:
        """Return an integer given as metadata string, as a tensor of one element, or as both."""
        given = [
            number
            for number in (self._number_in_metadata(name), self._number_in_tensor(name))
            if number is not None
        ]
        if not given:
            raise self.error(
                f"{name} is missing; give it as a metadata string or a tensor of one element"
            )
        if given[0] != given[-1]:
            raise self.error(f"{name} is {given[0]} in the metadata and {given[-1]} as a tensor")
        return given[0]

    def _number_in_metadata(self, name: str) -> int | None:
        text = self.metadata.get(name)
        if text is None:
            return None
        if re.fullmatch(_WHOLE_NUMBER, text, re.ASCII) is None:
            raise self.error(f"{name} is {text[:40]!r} in the metadata, not a whole number")
        return int(text)

    def _number_in_tensor(self, name: str) -> int | None:
        if name not in self.tensors:
            return None
        array, dtype = self.tensors[name], self.dtypes[name]
        if array.size != 1 or dtype[0] not in "iu":
            raise self.error(
                f"{name} is a {dtype} tensor of shape {list(array.shape)}, not one integer"
            )
        return int(array.reshape(-1)[0])

    def holds(self, name: str) -> bool:
        """True when the file has a tensor or a metadata string of that name."""
        return name in self.tensors or name in self.metadata

    def only(self, names: Sequence[str]) -> None:
        """Refuse tensors that the kernel has no argument for: they are misspelt or superfluous."""
        unknown = sorted(set(self.tensors) - set(names))
        if unknown:
            raise self.error(
                f"tensor {unknown[0]!r} is no argument; the arguments are {', '.join(names)}"
            )

    def error(self, what: str) -> ReplayError:
        """Return the error that says what is wrong with this file."""
        return ReplayError(f"reading {self.name}: {what}")
