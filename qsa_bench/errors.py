"""Exceptions that reach the user as one line, each with its exit code.

A message says what was being done, to what, what was found and what to do.
Anything that is not a `QsaBenchError` is a bug of ours and exits 1 with its traceback.
"""

from __future__ import annotations

from typing import ClassVar

from qsa_bench.exit_codes import ExitCode


class QsaBenchError(Exception):
    """Base of every error a user can cause or cure."""

    exit_code: ClassVar[ExitCode] = ExitCode.BUG


class UsageError(QsaBenchError):
    """A wrong option, or a file that is not what the option takes."""

    exit_code = ExitCode.USAGE


class GoldenError(UsageError):
    """A golden file that is unreadable, of another layout or of another checkpoint."""


class ReplayError(UsageError):
    """A captured file that does not hold what the kernel's contract asks for."""


class RunFileError(UsageError):
    """A run folder that is truncated, foreign or of a newer schema."""


class NothingSelectedError(QsaBenchError):
    """A selection that matched nothing; testing nothing is no success."""

    exit_code = ExitCode.NOTHING_SELECTED


class EnvironmentMissingError(QsaBenchError):
    """A compiler, device or package that is not there."""

    exit_code = ExitCode.ENVIRONMENT_MISSING


class BuildError(QsaBenchError):
    """A production kernel that does not compile."""

    exit_code = ExitCode.BASELINE_FAILED


class ManifestError(QsaBenchError):
    """A mutant whose manifest or patch is invalid or stale."""

    exit_code = ExitCode.MANIFEST_INVALID


class IncompleteError(QsaBenchError):
    """Fewer parts than make a whole."""

    exit_code = ExitCode.INCOMPLETE


class NotComparableError(QsaBenchError):
    """Runs that differ in kind, device, timer or cache state."""

    exit_code = ExitCode.NOT_COMPARABLE
