"""Select's oracle against one that shares no step with it, and its barriers against its mutants."""

from __future__ import annotations

import re

import numpy as np
import pytest

from qsa_bench import patches, resources
from qsa_bench.oracles.select import RATIO, kept_blocks, kept_blocks_by_counting, select
from qsa_bench.stages import qsa_select

KERNELS = resources.tree_root() / "kernels"
SOURCES = (*sorted((KERNELS / "common").glob("select_*.cuh")), KERNELS / "qsa" / "select.cu")
BARRIER = re.compile(r"^\s*(__syncthreads|cluster_sync)\(\);")


def rows(seed: int) -> np.ndarray:
    """Return a row of up to 40 scores with ties, both zeros, negative and very close ones."""
    random = np.random.default_rng(seed)
    values = np.array([0.0, -0.0, 1.0, -1.0, np.nextafter(1.0, 2.0), 1e-45, -1e-45, 3e38])
    picked = random.choice(values.astype(np.float32), random.integers(1, 41))
    return np.where(random.random(picked.size) < 0.3, random.standard_normal(picked.size), picked)


@pytest.mark.parametrize("seed", range(60))
def test_the_sorting_oracle_keeps_what_the_counting_one_does(seed: int) -> None:
    scores = rows(seed).astype(np.float32)
    for keep in range(1, scores.size + 1):
        kept = kept_blocks(scores, keep)
        assert kept.tolist() == kept_blocks_by_counting(scores, keep).tolist(), keep


@pytest.mark.parametrize("seed", range(20))
def test_the_whole_oracle_marks_the_counted_blocks_and_the_tail(seed: int) -> None:
    scores = rows(seed).astype(np.float32)
    for tail in range(RATIO):
        position = RATIO * scores.size + tail - 1
        chosen = select(scores, np.array([position]), position + 3, scores.size, 5 * RATIO)
        blocks = kept_blocks_by_counting(scores, min(5, scores.size))
        tokens = [RATIO * block + i for block in blocks.tolist() for i in range(RATIO)]
        tokens += list(range(RATIO * scores.size, position + 1))
        assert np.flatnonzero(chosen.mask[0]).tolist() == tokens
        assert chosen.ids[0, : len(tokens)].tolist() == tokens
        assert (chosen.ids[0, len(tokens) :] == -1).all()
        assert chosen.counts.tolist() == [len(tokens)]


def test_every_barrier_is_removed_by_a_mutant() -> None:
    folder = resources.tree_root() / "mutations" / "qsa_select"
    removed = {
        (patch.path.rpartition("/")[2], line[1:].strip())
        for file in folder.rglob("*.patch")
        for patch in patches.parse(file.read_text())
        for line in file.read_text().splitlines()
        if line.startswith("-") and BARRIER.match(line[1:])
    }
    barriers = {
        (source.name, line.strip())
        for source in SOURCES
        for line in source.read_text().splitlines()
        if BARRIER.match(line)
    }
    assert len(barriers) > 10
    assert barriers - removed == set()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("family", ["ragged", "cluster-rows"])
def test_nan_and_both_infinities_lie_beyond_prefixes_where_no_kernel_may_read(
    family: str, value: float
) -> None:
    found = 0
    for case in qsa_select.STAGE.cases(None):
        if case.family == family:
            scores = case.build().buffer("scores")
            flat = np.asarray(scores.data)
            beyond = np.zeros(flat.size, dtype=bool)
            for start, stop in scores.uninitialised:
                beyond[start:stop] = True
            # Nothing of the kind inside a prefix, so whoever meets one has read past it.
            assert np.isfinite(flat[~beyond]).all(), case.id
            want = np.full(int(beyond.sum()), value, dtype=np.float32)
            found += beyond.any() and np.array_equal(flat[beyond], want, equal_nan=True)
    assert found


def test_generated_launches_pass_and_reach_every_road() -> None:
    made = [qsa_select.generated(seed) for seed in range(16)]
    assert len({case.id for case, _ in made}) == 16
    roads = set()
    for case, rows in made:
        built, again = case.build(), case.build()
        assert built.buffer("rows").elements == rows
        assert built.array("scores").tobytes() == again.array("scores").tobytes()
        positions, values = built.array("rows"), built.calls[0].values
        blocks = (positions + 1) // 4
        truncates = bool((blocks > int(str(values["budget"])) // 4).any())
        roads.add((int(blocks.max()) > 1600, rows <= 2, truncates))
    assert {(True, True, True), (True, False, True), (False, False, True)} <= roads
