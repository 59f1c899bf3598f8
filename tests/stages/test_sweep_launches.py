"""Every point of every sweep, small: run as it would be timed, on the CPU, and judged."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from qsa_bench import parity, peer_gate, program, resources
from qsa_bench.builder import Builder
from qsa_bench.model import Status, Verdict
from qsa_bench.peers import KERNELS_OF
from qsa_bench.stages import load_stage, stage_names
from qsa_bench.stages.base import Stage, SweepPoint, SweepSpec
from qsa_bench.store import RunWriter
from qsa_bench.sweep_subjects import kernel_of
from qsa_bench.sweeps import Point
from qsa_bench.timer_client import Asked
from tests.local_timer import LocalTimer

Array = npt.NDArray[Any]

# The smallest axes that reach what a point is about, by entry.
SMALL: Mapping[str, Mapping[str, str]] = {
    "qsa_pool": {"context": "64"},
    "qsa_ingest": {"context": "256", "rows": "22"},
    "qsa_ingest_step": {"context": "256", "rows": "1"},
    "qsa_gather": {"context": "8192", "rows": "3"},
    "qsa_decode_attention": {"context": "131", "rows": "9"},
    "qsa_prefill_attention": {"context": "4096", "rows": "3", "input": "neighbours"},
    "qsa_score_and_select": {"context": "4096"},
    "qsa_decode_step": {"context": "4096"},
    "dsa_kpool_compress": {"context": "2048", "rows": "9"},
    "dsa_expand_selection": {"context": "4096", "rows": "9"},
    "dsa_decode_step": {"context": "4096"},
}


def _spec(stage: Stage) -> SweepSpec:
    assert stage.sweep is not None
    return stage.sweep


def _timed() -> list[Any]:
    return [
        pytest.param(name, entry, id=entry)
        for name in stage_names()
        if load_stage(name).sweep is not None
        for entry in _spec(load_stage(name)).entries
        if entry in SMALL
    ]


def _point(stage: Stage, entry: str) -> SweepPoint:
    spec = _spec(stage)
    axes = {name: axis.default[0] for name, axis in spec.axes.items()}
    return spec.point(entry, {**axes, **SMALL[entry]})


def _run(stage: Stage, made: SweepPoint, folder: Path, peer: str = "") -> dict[str, Array]:
    """Return what the stage's kernels, or a peer, give at a point."""
    path = folder / "program.safetensors"
    program.write(path, made.program, stage.kernels)
    kernels, root = stage.kernels, resources.tree_root()
    builder = Builder(resources.cache_root())
    built = parity.build_stage(builder, kernels, "host", root, (parity.PLAIN,))
    libraries = built.libraries(parity.PLAIN)
    if peer:
        kernel = kernel_of(stage, [Point(stage.name, made.entry, {}, (), ())])
        names = tuple(argument.name for argument in kernel.entry(made.entry).arguments)
        asked = Asked(peer, peer=peer, names=names)
    elif _spec(stage).pipeline:
        asked = Asked("auto", libraries=libraries, pipeline=True)
    else:
        asked = Asked("auto", library=libraries[made.program.calls[0].kernel])
    loaded = LocalTimer().load(path, [asked], folder, None)[asked.name]
    assert loaded.error == ""
    return peer_gate.outputs_of(made.program, loaded)


def _failed(made: SweepPoint, outputs: Mapping[str, Array]) -> set[str]:
    found = list(made.judge(made.program, outputs))
    assert found
    return {finding.check for finding in found if finding.status is not Status.PASS}


@pytest.mark.parametrize(("name", "entry"), _timed())
def test_a_point_runs_as_it_is_timed_and_passes_and_a_wrong_output_does_not(
    name: str, entry: str, tmp_path: Path
) -> None:
    stage = load_stage(name)
    made = _point(stage, entry)
    outputs = _run(stage, made, tmp_path)
    assert _failed(made, outputs) == set()
    _keep(made, outputs, tmp_path)
    seen = {
        key
        for key, output in outputs.items()
        if _failed(made, {**outputs, key: _other(output, made)})
    }
    assert seen, "no output of this point is judged"
    assert made.bytes_read > 0
    assert made.bytes_written > 0


def _keep(made: SweepPoint, outputs: Mapping[str, Array], folder: Path) -> None:
    """Write the findings on a right and on a wrong output as a sweep does."""
    wrong = {key: np.full_like(output, 1) for key, output in outputs.items()}
    found = [f for given in (outputs, wrong) for f in made.judge(made.program, given)]
    with RunWriter.create(folder, "sweep", ("qsa-bench", "sweep"), "cuda", "made up") as writer:
        writer.add_verdicts(
            Verdict("d" * 32, "stage", "case", "sweep", f.check, f.status, f.evidence)
            for f in found
        )
        writer.finish(0, 0, 0, {})


def _other(output: Array, made: SweepPoint) -> Array:
    """Return an output with its last element another."""
    changed = output.copy().reshape(-1)
    raw = changed[-1:].view(np.uint8)
    raw ^= 0x55
    return changed.reshape(output.shape)


def test_every_stage_with_a_kernel_of_its_own_can_be_timed() -> None:
    untimed = {name for name in stage_names() if load_stage(name).sweep is None}
    # Five words written before a graph: they are timed with the others of its step.
    assert untimed == {"dsa_write_geom"}


def test_what_a_sweep_names_is_there() -> None:
    for name in stage_names():
        stage = load_stage(name)
        if stage.sweep is None:
            continue
        spec = stage.sweep
        symbols = {entry.symbol for kernel in stage.kernels for entry in kernel.entries}
        assert spec.pipeline or set(spec.entries) <= symbols
        assert set(spec.peers) <= set(spec.entries)
        kernel = kernel_of(stage, [Point(name, spec.entries[0], {}, (), ())])
        known = {"entry", "cache", *spec.axes, *kernel.axes}
        assert all(set(grid) <= known for grid in spec.standard)


PEERS = ("qsa_gather", "qsa_decode_attention", "qsa_prefill_attention")


@pytest.mark.parametrize("name", PEERS)
def test_a_peer_gives_what_the_kernel_owes(name: str, tmp_path: Path) -> None:
    stage = load_stage(name)
    made = _point(stage, name)
    for peer in _spec(stage).peers[name]:
        assert peer not in KERNELS_OF
        assert _failed(made, _run(stage, made, tmp_path, peer)) == set()
