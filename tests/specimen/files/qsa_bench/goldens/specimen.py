"""Goldens of the specimen: `values` f32 [steps, count] and the `level` f32 [count] they lead to."""

from __future__ import annotations

from qsa_bench.errors import GoldenError
from qsa_bench.tensor_file import TensorFile

KIND = "specimen"


def verify(contents: TensorFile) -> list[str]:
    """Return the facts checked of `contents`; GoldenError at the first violation."""
    for name, axes in (("values", 2), ("level", 1)):
        if name not in contents.tensors:
            raise GoldenError(f"not a {KIND} golden: it has no tensor {name}")
        if contents.dtypes[name] != "f32" or contents.tensors[name].ndim != axes:
            raise GoldenError(f"{name} is not f32 with {axes} axes")
    return ["values and level are f32"]
