"""Peers on CPU tensors: right up to ties on every case, and what they break is named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from qsa_bench import peer_gate
from qsa_bench.model import Status, Verdict
from qsa_bench.peer_names import build_name, is_peer, peer_of
from qsa_bench.peers import KERNELS, KERNELS_OF
from qsa_bench.resources import tree_root
from qsa_bench.stages import load_stage
from qsa_bench.stages.base import Case
from qsa_bench.timer_client import Asked, HeldTimer
from tests.local_timer import LocalTimer

STAGE = load_stage("qsa_select")
ENTRY = STAGE.kernels[0].entry("qsa_select")
NAMES = tuple(argument.name for argument in ENTRY.arguments)
TORCH = ("topk", "sort", "topk_blocks")


def _where(name: str) -> str:
    return f"qsa_bench.peers.select:{name}"


def _gate(
    cases: Sequence[Case], *peers: str, timer: LocalTimer | None = None
) -> dict[str, list[Verdict]]:
    held = HeldTimer(lambda: timer or LocalTimer())
    asked = {where: Asked(where, peer=where, names=NAMES) for where in peers}
    try:
        verdicts = peer_gate.gate_peers(held, STAGE, cases, ENTRY, asked, lambda: None)
    finally:
        held.close()
    return {where: [v for v in verdicts if v.build == build_name(where)] for where in peers}


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    """Return the cases that are quick on a CPU: all but the longest rows."""
    return [
        case
        for case in STAGE.cases(None)
        if case.family in ("distribution", "position", "ragged", "padding", "repeat")
    ]


@pytest.fixture(scope="module")
def verdicts(cases: list[Case]) -> dict[str, list[Verdict]]:
    """Return what the torch peers do on them."""
    return _gate(cases, *map(_where, TORCH))


@pytest.mark.parametrize("name", TORCH)
def test_a_torch_peer_selects_right_up_to_ties_on_every_case(
    verdicts: dict[str, list[Verdict]], cases: list[Case], name: str
) -> None:
    found = [v for v in verdicts[_where(name)] if v.check == "selection"]
    assert len(found) == len(cases)
    assert [v for v in found if not v.passed] == []


def test_a_stable_sort_breaks_nothing(verdicts: dict[str, list[Verdict]]) -> None:
    assert [v for v in verdicts[_where("sort")] if not v.passed] == []


@pytest.mark.parametrize("name", ["topk", "topk_blocks"])
def test_top_k_breaks_ties_on_inputs_that_tie_and_on_no_other(
    verdicts: dict[str, list[Verdict]], name: str
) -> None:
    broken = {v.case.rpartition("/")[2] for v in verdicts[_where(name)] if not v.passed}
    assert any(label.startswith("equal-") for label in broken)
    assert any(label.startswith("plateau-at-cut-") for label in broken)
    distinct = ("ramp-up-", "ramp-down-", "fine-steps-")
    assert [label for label in broken if label.startswith(distinct)] == []


def test_peers_have_no_part_in_traps_refusals_and_buffers_of_many_gb() -> None:
    left_out = [c for c in STAGE.cases(None) if c.family in ("trap", "refusal", "far-offset")]
    assert len(left_out) > 20
    assert _gate(left_out, _where("sort")) == {_where("sort"): []}


def test_a_peer_that_costs_the_device_is_left_out_from_then_on(cases: list[Case]) -> None:
    timer = LocalTimer(loses=lambda name: name == _where("topk"))
    found = _gate(cases[:3], _where("topk"), _where("sort"), timer=timer)
    lost = found[_where("topk")]
    assert [(v.status, v.check) for v in lost] == [(Status.REFUSED, "accepts")]
    assert "the device was lost: an illegal memory access" in lost[0].evidence.note
    assert len({v.case for v in found[_where("sort")]}) == 3


def test_a_peer_that_is_not_there_is_refused_by_name(cases: list[Case]) -> None:
    where = "no_such_module:function"
    found = _gate(cases[:1], where)[where]
    assert [v.status for v in found] == [Status.REFUSED]
    assert "loading the peer no_such_module:function" in found[0].evidence.note


def test_a_case_of_two_calls_is_one_call_of_a_peer() -> None:
    case = next(case for case in STAGE.cases(None) if case.family == "repeat")
    built = peer_gate._for_peers(case, ENTRY)
    assert built is not None
    assert [call.entry for call in built.calls] == ["qsa_select"]
    assert peer_gate._for_peers(replace(case, targets=("host",)), ENTRY) is None


def test_rows_about_peers_are_told_from_rows_about_builds() -> None:
    name = build_name(_where("topk"))
    assert is_peer(name)
    assert peer_of(name) == _where("topk")
    assert not is_peer("d" * 32)


def test_every_peer_kernel_has_its_source_and_a_peer_that_calls_it() -> None:
    assert {name for names in KERNELS_OF.values() for name in names} == set(KERNELS)
    for kernel in KERNELS.values():
        assert (tree_root() / kernel.source).is_file()
    assert STAGE.sweep is not None
    offered = {where for peers in STAGE.sweep.peers.values() for where in peers}
    assert set(KERNELS_OF) <= offered
