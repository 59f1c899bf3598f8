"""The geometry's words: of the kernel, of the oracle and of the engine, which share no code."""

from __future__ import annotations

import pytest

from qsa_bench.engine.dsa_geometry import DsaSelectGeometry
from qsa_bench.stages import _dsa_inputs as dsa
from qsa_bench.stages import load_stage
from tests.stages.dsa_judged import case_of, faults, untouched
from tests.stages.judged import gated

STAGE = load_stage("dsa_write_geom")


@pytest.mark.parametrize("tokens", [1, 3, 4, 5, 16, 2047, 2048, 2051, 2052, 1 << 20])
@pytest.mark.parametrize(("kpool", "topk"), [(4, 2048), (16, 64), (16, 2048)])
def test_the_engines_words_are_the_oracles(tokens: int, kpool: int, topk: int) -> None:
    layout = DsaSelectGeometry(context=tokens, tokens=tokens, query_rows=1, kpool=kpool, topk=topk)
    assert layout.words == tuple(dsa.geometry_words(tokens, kpool, topk).tolist())


def test_one_wrong_word_is_seen() -> None:
    case = case_of(STAGE, "lengths/one-after-the-other")
    words = dsa.geometry_words(3, 4, 16)[None]
    assert faults(case, {"geometry": words}) == set()
    for place in range(5):
        changed = words.copy()
        changed[0, place] += 1
        assert faults(case, {"geometry": changed}) == {"geometry"}
    assert faults(case, untouched(case.build())) == {"geometry"}


def test_the_kernel_writes_every_length() -> None:
    names = ("kpool4", "kpool16", "longest", "one-after-the-other")
    verdicts = gated(STAGE, [case_of(STAGE, f"lengths/{name}") for name in names])
    assert {verdict.status for verdict in verdicts} == {"pass"}
