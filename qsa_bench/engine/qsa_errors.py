"""What the QSA runtime refuses, one class a rule; each message is one line that says what to do."""

from __future__ import annotations

from operator import index
from typing import SupportsIndex

# kernels/include/qsa.h, and kernels/common/status.h for those of the emulation.
HOST_STATUSES = 100
STATUS_NAMES = {
    1: "QSA_NULL_POINTER",
    2: "QSA_BAD_EXTENT",
    3: "QSA_BAD_BUDGET",
    4: "QSA_BAD_STRIDE",
    5: "QSA_BAD_ROTARY",
    6: "QSA_BAD_EPS",
    7: "QSA_LAUNCH_FAILED",
    8: "QSA_UNSUPPORTED",
    100: "QSA_HOST_TRAPPED",
    101: "QSA_HOST_DIVERGED",
    102: "QSA_HOST_OUT_OF_FUEL",
    103: "QSA_HOST_LAUNCH_LIMIT",
}


class QsaEngineError(ValueError):
    """A step that was refused; the sequence is as it was."""


class QsaTensorError(QsaEngineError):
    """A tensor of the wrong dtype, device, shape or layout."""


class QsaOrderError(QsaEngineError):
    """A position that is not the next one."""


class QsaCapacityError(QsaEngineError):
    """More tokens, rows or pages than there is room for."""


class QsaReleasedError(QsaEngineError):
    """A sequence, snapshot or slab that is no longer there."""


class QsaLaunchError(RuntimeError):
    """A C entry that returned anything but success."""

    def __init__(self, entry: str, status: int) -> None:
        name = STATUS_NAMES.get(status, "a status that no header names")
        header = "include/qsa.h" if status < HOST_STATUSES else "common/status.h"
        super().__init__(f"launching {entry}: it returned {status}, {name}: see kernels/{header}")
        self.status = status


def whole_number(
    doing: str, name: str, value: SupportsIndex, kind: type[QsaEngineError] = QsaOrderError
) -> int:
    """Return `value` as an int. Raises `kind` for what is none, a float or None among it."""
    try:
        return index(value)
    except (TypeError, ValueError):
        raise kind(f"{doing}: {name} is {value!r}, expected a whole number") from None
