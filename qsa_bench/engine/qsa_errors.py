"""What the QSA runtime refuses, one class a rule; each message is one line that says what to do."""

from __future__ import annotations


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
        super().__init__(f"launching {entry}: status {status}, see kernels/common/status.h")
        self.status = status
