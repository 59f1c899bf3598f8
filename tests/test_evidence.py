"""What an argument's evidence is run on."""

from __future__ import annotations

import pytest

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
