"""What came back of a run: which of it was written, and what a case says of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from qsa_bench import returned
from qsa_bench.model import Role
from qsa_bench.poison import POISON
from qsa_bench.program import OK, TRAP, Buffer, Call, Program
from qsa_bench.stages.base import Case, no_judge

BUFFERS = (
    Buffer("mask", "u8", (2, 3), Role.OUTPUT),
    Buffer("state", "i32", (2,), Role.INOUT, np.array([4, 5], np.int32)),
)
MASK = np.full((2, 3), POISON, np.uint8)
STATE = np.array([4, 5], np.int32)


def case(expect: str = OK, **fields: bool) -> tuple[Case, Program]:
    """Return a case whose status alone says everything, and its program."""
    built = Program(BUFFERS, (Call("k", "k", {}, expect),))
    made = Case("s", "family", "label", (), lambda: built, no_judge, writes=False)
    return replace(made, **fields), built


def test_written_is_what_is_no_longer_poison_or_no_longer_as_it_was() -> None:
    mask = MASK.copy()
    mask[1, 2] = 0
    assert returned.written(BUFFERS[0], mask).tolist() == [[False] * 3, [False, False, True]]
    assert returned.written(BUFFERS[1], np.array([4, 6], np.int32)).tolist() == [False, True]


def test_a_launch_with_nothing_to_do_that_writes_is_wrong() -> None:
    given = case()
    (finding,) = returned.judged(*given, {"mask": MASK, "state": STATE})
    assert (finding.check, finding.status) == ("accepts", "pass")
    mask = MASK.copy()
    mask[0, 0] = 1
    (finding,) = returned.judged(*given, {"mask": mask, "state": STATE + 1})
    assert (finding.check, finding.status, finding.evidence.count) == ("accepts", "wrong", 3)
    assert finding.evidence.note == "succeeded with nothing to do, but wrote to mask, state"


def test_a_case_that_owes_bytes_or_ends_otherwise_is_not_held_to_that() -> None:
    for given in (case(writes=True), case(TRAP)):
        assert returned.judged(*given, {"mask": MASK, "state": STATE}) == []
