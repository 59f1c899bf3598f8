"""From what a child was seen to do to findings: each fault is told by the check it belongs to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qsa_bench import judge
from qsa_bench.checks import COMMON
from qsa_bench.child import Ending
from qsa_bench.compare import bitwise
from qsa_bench.model import Evidence, Finding, Role, Status
from qsa_bench.program import OK, TRAP, Buffer, Call, Program
from qsa_bench.runner import Observation, RunResult, Schedule
from qsa_bench.stages.base import Case, Outputs

FIFO, LIFO, SEEDED = Schedule("fifo"), Schedule("lifo"), Schedule("seeded", 3)
WANT = np.arange(4, dtype=np.int32)
TRAPPED = {"kind": "trap", "message": "not finite", "block": [1, 0, 0], "thread": [7, 0, 0]}


def program(*expected: str | int) -> Program:
    """Return a program of one call for each expectation."""
    buffers = (Buffer("out", "i32", (4,), Role.OUTPUT),)
    calls = [Call("k", f"entry{i}", {"out": "out"}, e) for i, e in enumerate(expected)]
    return Program(buffers, tuple(calls))


def exact(_program: Program, outputs: Outputs) -> Iterable[Finding]:
    """Judge by the bits."""
    yield bitwise("values", "out", WANT, outputs["out"])


CASE = Case("k", "family", "label", (), lambda: program(OK), exact)


def run(*statuses: int, schedule: Schedule = FIFO, **fields: Any) -> RunResult:
    """Return a run that left no trace beside its statuses."""
    made = RunResult(schedule, statuses or (0,), (), (), (), (), 10, None)
    return replace(made, **fields)


class Judged:
    """Findings of an observation, by check, and what was remembered."""

    def __init__(
        self,
        folder: Path,
        *runs: RunResult,
        built: Program | None = None,
        outputs: Mapping[str, np.ndarray] | None = None,
        known: Mapping[str, Sequence[Finding]] | None = None,
        **ending: Any,
    ) -> None:
        for digest, array in (outputs or {}).items():
            (folder / f"0.{digest}.out").write_bytes(array.tobytes())
        observation = Observation(CASE.id, ending.pop("ending", Ending.RAN), tuple(runs), **ending)
        self.remembered: dict[str, Sequence[Finding]] = {}
        found = judge.findings_of(
            CASE,
            built or program(OK),
            observation,
            judge.Memory((known or {}).get, self.remembered.__setitem__),
            folder,
            "0",
        )
        self.findings = {finding.check: finding for finding in found}
        assert len(self.findings) == len(found), "a check had two says"

    def status(self, check: str) -> Status:
        return self.findings[check].status

    def note(self, check: str) -> str:
        return self.findings[check].evidence.note

    @property
    def failed(self) -> set[str]:
        return {c for c, f in self.findings.items() if f.status is not Status.PASS}


def test_runs_that_do_all_they_should_pass_every_check(tmp_path: Path) -> None:
    judged = Judged(tmp_path, run(digest="a"), run(digest="a"), outputs={"a": WANT})
    assert judged.failed == set()
    assert set(judged.findings) == {
        "accepts",
        "no-trap",
        "collectives",
        "terminates",
        "launch-limits",
        "fences",
        "inputs-unchanged",
        "no-crash",
        "values",
        "schedules-agree",
    }
    # One order agrees with no other.
    alone = Judged(tmp_path, run(digest="a"), outputs={"a": WANT})
    assert set(judged.findings) - set(alone.findings) == {"schedules-agree"}


def test_a_wrong_output_is_told_by_the_stages_check_with_the_order_that_showed_it(
    tmp_path: Path,
) -> None:
    outputs = {"a": WANT, "b": WANT + 1}
    judged = Judged(
        tmp_path,
        run(digest="a"),
        run(digest="b", schedule=LIFO),
        run(digest="b", schedule=SEEDED),
        outputs=outputs,
    )
    assert judged.failed == {"values", "schedules-agree"}
    assert judged.note("values") == "4 of 4 elements of out differ [lifo]"
    assert judged.findings["schedules-agree"].evidence.count == 4
    assert judged.note("schedules-agree").startswith("2 different outputs; lifo differs from fifo")


def test_an_output_judged_before_is_not_read_again(tmp_path: Path) -> None:
    known = {"a": [Finding("values", Status.WRONG, Evidence(3, 4))]}
    judged = Judged(tmp_path, run(digest="a"), known=known)
    assert judged.findings["values"].evidence.count == 3
    assert judged.remembered == {}


def test_an_output_judged_is_remembered_and_its_files_are_gone(tmp_path: Path) -> None:
    judged = Judged(tmp_path, run(digest="a"), outputs={"a": WANT})
    assert [f.check for f in judged.remembered["a"]] == ["values"]
    assert list(tmp_path.iterdir()) == []


def test_the_worst_of_several_outputs_stands_for_all(tmp_path: Path) -> None:
    one_off = WANT.copy()
    one_off[2] = 9
    judged = Judged(
        tmp_path,
        run(digest="a"),
        run(digest="b", schedule=LIFO),
        run(digest="c", schedule=SEEDED),
        outputs={"a": one_off, "b": WANT + 1, "c": WANT},
    )
    assert judged.findings["values"].evidence.count == 4
    assert judged.note("values").endswith("[lifo]")


@pytest.mark.parametrize(
    ("status", "check", "how"),
    [
        (judge.HOST_TRAPPED, "no-trap", Status.TRAPPED),
        (judge.HOST_DIVERGED, "collectives", Status.WRONG),
        (judge.HOST_OUT_OF_FUEL, "terminates", Status.TIMED_OUT),
        (judge.HOST_LAUNCH_LIMIT, "launch-limits", Status.WRONG),
        (judge.DEVICE_FAULT, "no-crash", Status.CRASHED),
        (1, "accepts", Status.REFUSED),
        (7, "accepts", Status.REFUSED),
    ],
)
def test_a_status_that_was_not_expected_is_told_by_its_check(
    tmp_path: Path, status: int, check: str, how: Status
) -> None:
    judged = Judged(tmp_path, run(status))
    assert judged.failed == {check}
    assert judged.status(check) is how


def test_a_trap_is_told_with_its_reason_and_place(tmp_path: Path) -> None:
    judged = Judged(tmp_path, run(judge.HOST_TRAPPED, findings=(TRAPPED,), schedule=SEEDED))
    assert judged.note("no-trap") == "not finite [seeded(3)]"
    assert judged.findings["no-trap"].evidence.where == "block (1, 0, 0) thread (7, 0, 0)"


def test_a_trap_that_was_expected_passes(tmp_path: Path) -> None:
    built = program(TRAP)
    judged = Judged(tmp_path, run(judge.HOST_TRAPPED, findings=(TRAPPED,)), built=built)
    assert judged.failed == set()
    assert judged.note("traps") == "not finite"


@pytest.mark.parametrize(
    ("status", "got"), [(0, "it succeeded"), (1, "status 1"), (judge.HOST_DIVERGED, "status 101")]
)
def test_anything_but_the_trap_expected_fails(tmp_path: Path, status: int, got: str) -> None:
    judged = Judged(tmp_path, run(status), built=program(TRAP))
    assert judged.failed == {"traps"}
    assert judged.note("traps") == f"entry0: want a trap, got {got} [fifo]"


def test_a_trap_missing_under_one_order_fails(tmp_path: Path) -> None:
    runs = run(judge.HOST_TRAPPED), run(0, schedule=LIFO)
    assert Judged(tmp_path, *runs, built=program(TRAP)).failed == {"traps"}


def test_the_code_expected_passes_and_another_fails(tmp_path: Path) -> None:
    assert Judged(tmp_path, run(3), built=program(3)).failed == set()
    judged = Judged(tmp_path, run(2), built=program(3))
    assert judged.failed == {"refuses"}
    assert judged.note("refuses") == "entry0: want status 3, got status 2 [fifo]"
    assert Judged(tmp_path, run(0), built=program(3)).failed == {"refuses"}


def test_an_entry_that_refuses_and_writes_fails(tmp_path: Path) -> None:
    judged = Judged(tmp_path, run(3, touched=({"buffer": "out"},)), built=program(3))
    assert judged.failed == {"refuses"}
    assert judged.note("refuses") == "entry0 refused, but wrote to out [fifo]"


def test_an_expectation_of_any_call_of_a_pipeline_is_held(tmp_path: Path) -> None:
    # The worker goes on after a call that should have trapped or refused and did not.
    assert Judged(tmp_path, run(0, 0), built=program(TRAP, OK)).failed == {"traps"}
    assert Judged(tmp_path, run(0, 0), built=program(3, OK)).failed == {"refuses"}
    built = program(OK, TRAP)
    assert Judged(tmp_path, run(0, judge.HOST_TRAPPED), built=built).failed == set()
    assert Judged(tmp_path, run(judge.HOST_TRAPPED), built=built).failed == {"no-trap"}


def test_a_byte_written_beside_a_buffer_is_told_by_the_fences(tmp_path: Path) -> None:
    fence = {"buffer": "out", "side": "after", "byte": 16}
    judged = Judged(tmp_path, run(digest="a", fences=(fence,)), outputs={"a": WANT})
    assert judged.failed == {"fences"}
    assert judged.note("fences") == "out: byte 16 after the buffer was written [fifo]"


def test_a_changed_input_is_told_by_its_check(tmp_path: Path) -> None:
    changed = {"buffer": "scores", "element": 5}
    judged = Judged(tmp_path, run(digest="a", inputs_changed=(changed,)), outputs={"a": WANT})
    assert judged.failed == {"inputs-unchanged"}
    assert judged.note("inputs-unchanged") == "input scores: element 5 changed [fifo]"


def test_a_crash_is_told_with_what_the_runtime_said_of_it(tmp_path: Path) -> None:
    said = {"kind": "crash", "message": "SIGSEGV", "buffer": "out", "offset": 64, "line": 3}
    judged = Judged(tmp_path, ending=Ending.CRASHED, text="exit 86", findings=(said,))
    assert judged.failed == set(judged.findings) == {"no-crash"}
    assert judged.note("no-crash") == "SIGSEGV"
    assert judged.findings["no-crash"].evidence.where == "out[byte 64]"


def test_a_death_without_a_word_is_told_by_how_it_ended(tmp_path: Path) -> None:
    judged = Judged(tmp_path, ending=Ending.CRASHED, text="killed by SIGKILL")
    assert judged.note("no-crash") == "killed by SIGKILL"


def test_silence_is_told_by_the_check_that_kernels_end(tmp_path: Path) -> None:
    judged = Judged(tmp_path, ending=Ending.TIMED_OUT, text="no answer within 5.0 s")
    assert judged.status("terminates") is Status.TIMED_OUT


def test_a_case_that_was_given_up_is_not_run_and_nothing_else(tmp_path: Path) -> None:
    judged = Judged(tmp_path, ending=Ending.NOT_RUN, text="given up")
    assert {c: f.status for c, f in judged.findings.items()} == {"terminates": Status.NOT_RUN}


def test_what_failed_before_a_crash_is_told_beside_it_and_what_passed_is_not(
    tmp_path: Path,
) -> None:
    fence = {"buffer": "out", "side": "after", "byte": 16}
    judged = Judged(
        tmp_path,
        run(digest="a", fences=(fence,)),
        ending=Ending.CRASHED,
        text="killed by SIGSEGV",
        outputs={"a": WANT + 1},
    )
    assert judged.failed == set(judged.findings) == {"no-crash", "fences", "values"}


def checked(*runs: RunResult, expects_end: bool = True, **ending: Any) -> dict[str, Finding]:
    """Return the checker's findings of an observation, by check."""
    observation = Observation(CASE.id, ending.pop("ending", Ending.RAN), tuple(runs), **ending)
    return {f.check: f for f in judge.checker_findings(observation, expects_end)}


def failed(findings: Mapping[str, Finding]) -> set[str]:
    return {check for check, finding in findings.items() if finding.status is not Status.PASS}


def test_a_checked_run_without_findings_passes_the_memory_checks() -> None:
    found = checked(run(), run(schedule=LIFO))
    assert set(found) == {"races", "bounds", "uninitialised", "inputs-unchanged"}
    assert failed(found) == set()


@pytest.mark.parametrize(
    ("kind", "check"),
    [
        ("race", "races"),
        ("bounds", "bounds"),
        ("uninitialised", "uninitialised"),
        ("read-only", "inputs-unchanged"),
    ],
)
def test_what_the_checker_reports_is_told_by_its_check(kind: str, check: str) -> None:
    raw = {
        "kind": kind,
        "message": "as it was",
        "buffer": "out",
        "offset": 8,
        "block": [0, 0, 0],
        "thread": [3, 0, 0],
        "file": "kernels/k.cu",
        "line": 7,
    }
    found = checked(run(findings=(raw,), schedule=LIFO))
    assert failed(found) == {check}
    assert found[check].evidence.note == "as it was [lifo]"
    assert found[check].evidence.where == ("out[byte 8], block (0, 0, 0) thread (3, 0, 0), k.cu:7")


def test_a_checked_run_that_ends_wrongly_is_told_where_it_should_end_well() -> None:
    assert failed(checked(run(judge.HOST_DIVERGED))) == {"collectives"}
    assert failed(checked(run(judge.HOST_TRAPPED), expects_end=False)) == set()


def test_what_the_checker_saw_before_a_crash_is_told_beside_it() -> None:
    crash = {"kind": "crash", "message": "SIGSEGV"}
    found = checked(
        run(findings=({"kind": "race", "message": "r"},)),
        ending=Ending.CRASHED,
        findings=({"kind": "bounds", "message": "far out"}, crash),
    )
    assert failed(found) == set(found) == {"no-crash", "races", "bounds"}
    assert found["no-crash"].evidence.note == "SIGSEGV"
    assert found["bounds"].evidence.note == "far out"


def test_a_crash_alone_is_no_finding_of_the_checker() -> None:
    crash = {"kind": "crash", "message": "SIGFPE"}
    assert set(checked(ending=Ending.CRASHED, findings=(crash,))) == {"no-crash"}


def test_every_check_the_judge_gives_is_a_common_check_with_a_sentence() -> None:
    given = {check for check, _ in judge._HOST_CHECKS.values()}
    given |= set(judge._CHECKER_CHECKS.values()) | set(judge._RAN_CHECKS)
    assert given <= set(COMMON)
