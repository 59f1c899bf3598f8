"""Tensors and scalars of a file that a user captured in an engine, each refused by one line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from qsa_bench.errors import ReplayError

Array = npt.NDArray[Any]


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
        """Return an integer given as metadata string or as a tensor of one element."""
        if name in self.metadata:
            try:
                return int(self.metadata[name])
            except ValueError:
                raise self.error(
                    f"{name} is {self.metadata[name]!r} in the metadata, not a whole number"
                ) from None
        if name not in self.tensors:
            raise self.error(
                f"{name} is missing; give it as a metadata string or a tensor of one element"
            )
        array = self.tensors[name]
        if array.size != 1 or not np.issubdtype(array.dtype, np.integer):
            raise self.error(
                f"{name} is a {self.dtypes[name]} tensor of shape {list(array.shape)}, "
                "not one integer"
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
