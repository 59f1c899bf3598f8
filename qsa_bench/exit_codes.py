"""Exit codes: one word and one sentence each, none but 0 is success."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum


class ExitCode(IntEnum):
    """What the process answers; README mirrors this table and a test compares them."""

    OK = 0
    BUG = 1
    USAGE = 2
    GATE_FAILED = 3
    MUTATION_MISMATCH = 4
    BASELINE_FAILED = 5
    NOTHING_SELECTED = 6
    ENVIRONMENT_MISSING = 7
    MANIFEST_INVALID = 8
    TIMING_REFUSED = 9
    BLIND_GATE = 10
    INCOMPLETE = 11
    SLOWER = 12
    NOT_COMPARABLE = 13
    INTERRUPTED = 130

    @property
    def sentence(self) -> str:
        """The one sentence that says what this code means."""
        return _SENTENCES[self]


_SENTENCES: dict[ExitCode, str] = {
    ExitCode.OK: "everything asked for was done and is right",
    ExitCode.BUG: "qsa-bench itself failed; the traceback is a bug report",
    ExitCode.USAGE: "the command line or a file given to it is wrong",
    ExitCode.GATE_FAILED: "a kernel failed its parity gate",
    ExitCode.MUTATION_MISMATCH: "a mutant's outcome is not the one its manifest states",
    ExitCode.BASELINE_FAILED: "the unmutated kernel failed, wavered or did not build",
    ExitCode.NOTHING_SELECTED: "the selection matched nothing, so nothing was tested",
    ExitCode.ENVIRONMENT_MISSING: "a compiler, device or package that this needs is not there",
    ExitCode.MANIFEST_INVALID: "a mutant's manifest or patch is invalid or stale",
    ExitCode.TIMING_REFUSED: "this build has no gate pass to time it on",
    ExitCode.BLIND_GATE: "the gate passed a kernel that writes nothing",
    ExitCode.INCOMPLETE: "fewer things were done than asked for",
    ExitCode.SLOWER: "a kernel is slower or larger than allowed",
    ExitCode.NOT_COMPARABLE: "the runs differ in device, timer, schema or cache state",
    ExitCode.INTERRUPTED: "stopped by the user; what was finished is in the run folder",
}

# Several at once: the first of these that applies. The order puts "do not trust anything below"
# before "this is the finding".
_PRECEDENCE: tuple[ExitCode, ...] = (
    ExitCode.INTERRUPTED,
    ExitCode.BUG,
    ExitCode.USAGE,
    ExitCode.ENVIRONMENT_MISSING,
    ExitCode.MANIFEST_INVALID,
    ExitCode.NOTHING_SELECTED,
    ExitCode.BASELINE_FAILED,
    ExitCode.BLIND_GATE,
    ExitCode.INCOMPLETE,
    ExitCode.MUTATION_MISMATCH,
    ExitCode.GATE_FAILED,
    ExitCode.TIMING_REFUSED,
    ExitCode.NOT_COMPARABLE,
    ExitCode.SLOWER,
)


def combine(codes: Iterable[ExitCode]) -> ExitCode:
    """Return the code that stands for all of `codes`; OK when there is none but OK."""
    found = set(codes)
    return next((code for code in _PRECEDENCE if code in found), ExitCode.OK)
