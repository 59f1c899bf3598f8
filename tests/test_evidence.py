"""What an argument's evidence is run on."""

from __future__ import annotations

import threading

import pytest

from qsa_bench import baseline
from qsa_bench.errors import NothingSelectedError
from qsa_bench.evidence import calling
from qsa_bench.model import Role
from qsa_bench.stages import load_stage

STAGE = load_stage("qsa_score")


def test_with_an_entry_a_case_calls_it_alone_on_the_same_inputs() -> None:
    assert STAGE.generated is not None
    whole = STAGE.generated(7)[0]
    alone = calling(whole, "qsa_score_scalar").build()
    assert [call.entry for call in whole.build().calls] == ["qsa_score", "qsa_score_scalar"]
    assert [call.entry for call in alone.calls] == ["qsa_score_scalar"]
    outputs = [buffer.name for buffer in alone.buffers if buffer.role is Role.OUTPUT]
    assert outputs == ["scores_scalar"]
    inputs = [buffer for buffer in whole.build().buffers if buffer.role is Role.INPUT]
    assert [buffer for buffer in alone.buffers if buffer.role is Role.INPUT] == inputs
    assert alone.device == whole.build().device


def test_an_entry_that_no_generated_case_calls_is_refused() -> None:
    assert STAGE.generated is not None
    case = STAGE.generated(7)[0]
    with pytest.raises(NothingSelectedError, match=r"no call of qsa_pool in qsa_score/generated/7"):
        calling(case, "qsa_pool")


def test_what_waits_in_an_interrupted_pool_never_begins() -> None:
    begun: list[int] = []
    stopped = threading.Event()
    under_way = threading.Semaphore(0)

    def task(number: int) -> None:
        begun.append(number)
        under_way.release()
        stopped.wait()

    with pytest.raises(KeyboardInterrupt), baseline.stoppable_pool(2, stopped.set) as pool:
        for number in range(6):
            pool.submit(task, number)
        for _ in range(2):
            under_way.acquire()
        raise KeyboardInterrupt
    assert sorted(begun) == [0, 1]


def test_a_pool_that_nothing_interrupts_ends_its_tasks() -> None:
    stopped = threading.Event()
    with baseline.stoppable_pool(2, stopped.set) as pool:
        futures = [pool.submit(lambda number=number: number) for number in range(6)]
        for future in baseline.as_they_end(futures):
            future.result()
    assert [future.result() for future in futures] == list(range(6))
    assert not stopped.is_set()
