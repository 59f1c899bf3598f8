"""What every dumper needs of the reference: that it is there, and that its bytes repeat."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from qsa_bench import goldens
from qsa_bench.errors import EnvironmentMissingError
from qsa_bench.tensor_file import Array

if TYPE_CHECKING:
    import torch

# The release whose modelling code the contract was read from; another may compute another thing.
TRANSFORMERS = "5.16.1"


def require(kind: str) -> None:
    """Raise EnvironmentMissingError unless torch and the reference's release are installed."""
    remedy = "install it with: pip install 'qsa-bench[reference]'"
    for package, wanted in (("torch", None), ("transformers", TRANSFORMERS)):
        needed = f"{package} {wanted}" if wanted else package
        try:
            found = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            raise EnvironmentMissingError(
                f"dumping a {kind} golden needs {needed}, which is not installed; {remedy}"
            ) from None
        if wanted and found != wanted:
            raise EnvironmentMissingError(
                f"dumping a {kind} golden needs {needed}, found {found}; {remedy}"
            )


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep the order of torch's sums, and so the file's bytes, from following the core count."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def provenance(seed: int) -> dict[str, str]:
    """Return the metadata that every kind of golden has."""
    import torch

    cpu = torch.backends.cpu.get_cpu_capability()
    return {
        "format_version": goldens.FORMAT_VERSION,
        "transformers_version": importlib.metadata.version("transformers"),
        "torch_version": str(torch.__version__),
        "platform": f"{platform.system()}-{platform.machine()}-{cpu}",
        "seed": str(seed),
    }


def bits(tensor: torch.Tensor) -> Array:
    """Return a bfloat16 tensor's bits as uint16."""
    import torch

    return tensor.detach().contiguous().view(torch.int16).numpy().view(np.uint16)
