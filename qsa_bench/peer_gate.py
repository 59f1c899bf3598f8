"""Peers through the gate's cases: which break the contract, and on what.

A peer is held to the same inputs as the kernels and by the stage's interface. It fails no run: it
is not ours, and what it breaks is a finding.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from qsa_bench import program
from qsa_bench.model import DTYPES, Entry, Evidence, Finding, Status, Verdict
from qsa_bench.peer_names import build_name
from qsa_bench.program import Program
from qsa_bench.stages.base import Case, Interface, Stage, expects_output
from qsa_bench.timer_client import Asked, HeldTimer, Loaded, TimerLostError

# A list of indices comes as torch gives it, the entry's own outputs as the program says.
_LIST_DTYPE = "int64"
# Programs beyond this (offsets past 2**31 elements) are about addressing, which a peer has not.
_MOST_BYTES = 1 << 31


def outputs_of(built: Program, loaded: Loaded) -> dict[str, npt.NDArray[np.generic]]:
    """Read what a subject gave: the entry's outputs in their shapes, or its list by its form."""
    if loaded.form is not None:
        path = loaded.files[loaded.form]
        return {loaded.form: np.fromfile(path, dtype=_LIST_DTYPE)}
    return {
        name: np.fromfile(path, dtype=DTYPES[built.buffer(name).dtype][0]).reshape(
            built.buffer(name).shape
        )
        for name, path in loaded.files.items()
    }


def refusal(loaded: Loaded) -> Finding:
    """Return what a subject that could not be run amounts to."""
    return Finding("accepts", Status.REFUSED, Evidence(1, 1, "runs", note=loaded.error))


def judge_peer(built: Program, loaded: Loaded, interface: Interface) -> list[Finding]:
    """Return the interface's findings on what a peer gave, or its refusal."""
    if loaded.error:
        return [refusal(loaded)]
    form = loaded.form or next(iter(interface.forms))
    judge = interface.judge(form, "exact")
    return list(judge(built, outputs_of(built, loaded)))


def gate_peers(
    held: HeldTimer,
    stage: Stage,
    cases: Sequence[Case],
    entry: Entry,
    peers: Mapping[str, Asked],
    on_case: Callable[[], None],
) -> list[Verdict]:
    """Run peers (by `module:function`) over every case that calls `entry` and should succeed.

    A peer that costs the child its device is left out from then on, with a verdict that says so.
    """
    interface = stage.interface
    assert interface is not None
    verdicts: list[Verdict] = []
    left = dict(peers)
    for case in cases:
        on_case()
        built = _for_peers(case, entry)
        if built is None:
            continue
        with tempfile.TemporaryDirectory(prefix="qsa-bench-peer-") as folder:
            path = Path(folder) / "program.safetensors"
            program.write(path, built, stage.kernels)
            # One at a time: a peer that kills the child must not take the others along.
            for where, asked in list(left.items()):
                timer = held.get()
                try:
                    loaded = timer.load(path, [asked], Path(folder), None)[asked.name]
                except TimerLostError as error:
                    held.drop()
                    del left[where]
                    loaded = Loaded(error=f"the device was lost: {error}")
                verdicts += [
                    _verdict(where, stage, case, finding)
                    for finding in judge_peer(built, loaded, interface)
                ]
    return verdicts


def _for_peers(case: Case, entry: Entry) -> Program | None:
    """Return a case's program cut to one call of the entry; None where peers have no part in it."""
    if "cuda" not in case.targets:
        return None
    built = case.build()
    if not expects_output(built) or built.bytes > _MOST_BYTES:
        return None
    calls = [call for call in built.calls if call.entry == entry.symbol]
    return Program(built.buffers, (calls[0],), built.device) if calls else None


def _verdict(where: str, stage: Stage, case: Case, finding: Finding) -> Verdict:
    return Verdict(
        build_name(where),
        stage.name,
        case.id,
        case.family,
        finding.check,
        finding.status,
        finding.evidence,
    )
