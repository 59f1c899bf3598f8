"""This process among others: its streams, its signals and what the system refuses it."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType

# What the system says no to for reasons of the machine, not of ours.
_REFUSALS = {
    errno.ENOSPC: "free some space, or name folders elsewhere (-o, XDG_CACHE_HOME, TMPDIR)",
    errno.EDQUOT: "free some space, or name folders elsewhere (-o, XDG_CACHE_HOME, TMPDIR)",
    errno.EFBIG: "raise the limit on file sizes (ulimit -f), or name folders elsewhere",
    errno.EROFS: "name writable folders (-o, XDG_CACHE_HOME, TMPDIR)",
    errno.EACCES: "name folders that you may use (-o, XDG_CACHE_HOME, TMPDIR)",
    errno.EPERM: "name folders that you may use (-o, XDG_CACHE_HOME, TMPDIR)",
    errno.EIO: "look at the disk",
    errno.EMFILE: "raise the limit on open files (ulimit -n), or ask for fewer --jobs",
    errno.ENFILE: "close other programs",
    errno.ENOMEM: "free some memory, or ask for fewer --jobs",
    errno.EAGAIN: "raise the limit on processes (ulimit -u), or ask for fewer --jobs",
}


def prepare() -> None:
    """Fill in closed standard streams and let SIGTERM end a run as Ctrl-C does.

    What is printed to a closed stream is lost; that is no reason for the run to fail.
    """
    if sys.stdin is None:
        sys.stdin = open(os.devnull)  # noqa: SIM115 - for the life of the process
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _interrupt)


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    # Once: cleaning up is not to be cut short by a second one.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


def working_folder_fault() -> str:
    """Say that the working folder is gone, or return ""."""
    try:
        Path.cwd()
    except OSError as error:
        return f"looking at the working folder: {error.strerror}; cd to a folder that exists"
    return ""


def refusal(error: OSError) -> str:
    """Return the line for what the system refused, or "" for what may be our own fault."""
    if error.errno not in _REFUSALS:
        return ""
    where = f"using {error.filename}" if error.filename else "reading or writing"
    return f"{where}: {os.strerror(error.errno)}; {_REFUSALS[error.errno]}"


def drop_stdout() -> None:
    """Let the interpreter's last flush go nowhere: nobody takes our output any more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
