"""Goldens: what the reference computed, in files that say which reference and checkpoint.

A kind of golden is one module of this package with a `KIND`; its committed file lies beside it as
`<kind>.safetensors`, and what makes such a file, if anything does, is `dump` of the module
`<kind>_dump`. `load` is the only way to a `Golden`, and it verifies: a stage never sees a
file that is of another checkpoint or breaks its own layout.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

from qsa_bench import tensor_file
from qsa_bench.errors import GoldenError, UsageError
from qsa_bench.tensor_file import Array, TensorFile

FORMAT_VERSION = "1"

# Metadata of every kind: without them a difference between two goldens can't be explained.
PROVENANCE = ("transformers_version", "torch_version", "platform", "seed")


@dataclass(frozen=True)
class Golden:
    """A verified golden file.

    `digest` is the SHA-256 of the file's bytes in hex; `tensors`, `dtypes` and `metadata` are as
    in `TensorFile` (read-only views of the mapped file, bfloat16 as uint16).
    """

    kind: str
    path: Path
    digest: str
    metadata: Mapping[str, str]
    tensors: Mapping[str, Array]
    dtypes: Mapping[str, str]

    @property
    def contents(self) -> TensorFile:
        """What the file holds, without where it came from."""
        return TensorFile(self.tensors, self.dtypes, self.metadata)


class GoldenKind(Protocol):
    """What a module of this package offers to be a kind of golden."""

    KIND: str

    def verify(self, contents: TensorFile) -> list[str]:
        """Return the facts checked; raise GoldenError, without the path, at the first violation."""


class _Dumper(Protocol):
    def dump(
        self, out: Path, seed: int, weights: Path | None, hidden: Path | None, *, force: bool
    ) -> Golden: ...


def kinds() -> tuple[str, ...]:
    """Return the names of all kinds of golden, sorted."""
    return tuple(sorted(_kinds()))


def committed(kind: str) -> Path:
    """Return the path of the golden of `kind` that comes with qsa-bench."""
    _module(kind)
    path = Path(__file__).with_name(f"{kind}.safetensors")
    if not path.is_file():
        raise GoldenError(f"{path}: the {kind} golden is missing from this installation")
    return path


def load(path: Path, kind: str) -> Golden:
    """Read and verify the golden of `kind` at `path`.

    Raises GoldenError, one line, when the file is missing, truncated, of another layout, format
    version or checkpoint, or breaks the layout's own rules; UsageError for an unknown kind.
    """
    _module(kind)
    try:
        contents = tensor_file.read(path)
        digest = tensor_file.sha256(path)
    except UsageError as error:
        raise GoldenError(str(error)) from error
    golden = Golden(kind, path, digest, contents.metadata, contents.tensors, contents.dtypes)
    verify(golden)
    return golden


def verify(golden: Golden) -> list[str]:
    """Return the facts checked of `golden`, a sentence each.

    Raises GoldenError naming the first violation: case, row, what was found, what was expected.
    """
    return verify_contents(golden.contents, golden.kind, golden.path)


def verify_contents(contents: TensorFile, kind: str, path: Path) -> list[str]:
    """As `verify`, for contents that are not (yet) the file at `path`."""
    module = _module(kind)
    try:
        return [_check_provenance(contents.metadata, kind), *module.verify(contents)]
    except GoldenError as error:
        raise GoldenError(f"{path}: {error}") from error


def dump(
    kind: str,
    out: Path,
    seed: int = 0,
    weights: Path | None = None,
    hidden: Path | None = None,
    *,
    force: bool = False,
) -> Golden:
    """Compute a golden of `kind` with the reference, write it to `out` and return it verified.

    `weights` and `hidden` are safetensors files that take the place of the seed's random inputs.
    Raises UsageError when `out` exists (without `force`) or an input is unusable, and
    EnvironmentMissingError when the reference is not installed.
    """
    _module(kind)
    if importlib.util.find_spec(f"{__name__}.{kind}_dump") is None:
        raise UsageError(f"qsa-bench has no dumper for goldens of kind {kind!r}")
    dumper = cast(_Dumper, importlib.import_module(f"{__name__}.{kind}_dump"))
    return dumper.dump(out, seed, weights, hidden, force=force)


def _check_provenance(metadata: Mapping[str, str], kind: str) -> str:
    version = metadata.get("format_version")
    if version is None:
        raise GoldenError(f"not a {kind} golden: its metadata has no format_version")
    if version != FORMAT_VERSION:
        raise GoldenError(f"format_version {version!r}, this qsa-bench reads {FORMAT_VERSION!r}")
    missing = [key for key in PROVENANCE if not metadata.get(key)]
    if missing:
        raise GoldenError(f"metadata lacks {', '.join(missing)}")
    return (
        f"format {version}, transformers {metadata['transformers_version']}, "
        f"torch {metadata['torch_version']} on {metadata['platform']}, seed {metadata['seed']}"
    )


def _module(kind: str) -> GoldenKind:
    try:
        return _kinds()[kind]
    except KeyError:
        raise UsageError(
            f"no golden of kind {kind!r}; the kinds are {', '.join(kinds())}"
        ) from None


@functools.cache
def _kinds() -> dict[str, GoldenKind]:
    # Modules without a KIND (the dumpers) are cheap to import: they import torch when they run.
    modules = [
        importlib.import_module(f"{__name__}.{found.name}")
        for found in pkgutil.iter_modules(__path__)
    ]
    return {module.KIND: cast(GoldenKind, module) for module in modules if hasattr(module, "KIND")}
