"""The Python around the specimen's kernels: what an engine would do between two of them."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any


def count_step(_libraries: Mapping[str, ctypes.CDLL], values: Mapping[str, Any]) -> int:
    """Add one to the i32 at `values["steps"]`; returns a status."""
    steps = ctypes.c_int32.from_address(values["steps"])
    steps.value += 1
    return 0
