"""What a script of the QSA runtime left, held to the oracles of every kernel on the way."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from qsa_bench.bf16 import to_float32
from qsa_bench.compare import bitwise, bounded
from qsa_bench.model import Evidence, Finding, Status
from qsa_bench.oracles.qsa_attention import Attended, attend
from qsa_bench.oracles.qsa_numerics import Flips, PooledKeys, ScoreOracle, pool_oracle, score_oracle
from qsa_bench.poison import POISON
from qsa_bench.stages import _qsa_inputs as qsa
from qsa_bench.stages._qsa_engine import Script, Simulation, Wanted
from qsa_bench.stages._qsa_pool_launch import judge_keys
from qsa_bench.stages.base import Outputs
from qsa_bench.stages.qsa_chain import against_reference, stable_mask

Array = npt.NDArray[Any]

CHECKS = {
    "codes": "every operation returns what it should, with the tokens and frees that follow from it",
    "ids": "every selection is ascending, as long as budget and tail, and padded with -1",
    "selection": "every selection is the float64 oracle's, but for blocks within the bound of the cut",
    "context": "every context lies within its derived bound, over the tokens that were selected",
    "untouched": "output rows that no operation owes keep every bit",
    "block-keys": "every sequence's keys of complete blocks are the oracle's at the end",
    "equal-rows": "rows and keys that came by other splits, paths or snapshots agree bit by bit",
}


class Oracle:
    """The oracles of a script's rows, computed once."""

    def __init__(self, given: Script, simulation: Simulation) -> None:
        self.given, self.simulation = given, simulation
        self.keys = functools.cache(self._keys)
        self.scores = functools.cache(self._scores)
        self.context = functools.cache(self._context)

    def _keys(self, fused: tuple[int, ...]) -> PooledKeys:
        inputs = self.given.inputs
        tables = (inputs.cos[: len(fused)], inputs.sin[: len(fused)])
        return pool_oracle(inputs.fused_qk[list(fused)], inputs.k_norm_weight, *tables, qsa.EPS)

    def _scores(self, fused: tuple[int, ...]) -> ScoreOracle:
        inputs = self.given.inputs
        row = np.array([len(fused) - 1], dtype=np.int32)
        tables = (inputs.cos[: len(fused)], inputs.sin[: len(fused)])
        image = inputs.fused_qk[list(fused)]
        keys = self.keys(fused)
        return score_oracle(image, inputs.q_norm_weight, *tables, keys, row, row + 1, qsa.EPS)

    def _context(self, sequence: int, query: int, ids: tuple[int, ...]) -> Attended:
        cache = self.given.cache
        held = list(ids)
        keys, values = cache.keys[sequence][held], cache.values[sequence][held]
        return attend(self.given.q[query], keys, values)


def judge_script(oracle: Oracle, outputs: Outputs) -> Iterator[Finding]:
    """Yield the findings on all outputs."""
    given, simulation = oracle.given, oracle.simulation
    yield bitwise("codes", "codes", simulation.codes, outputs["codes"], "words")
    legal = _legal_ids(given, simulation, outputs)
    wrong = sorted(row for row, found in legal.items() if found is None)
    yield _counted("ids", wrong, len(legal), "rows", [f"row {row}" for row in wrong])
    yield _selection(oracle, legal)
    yield _context(oracle, legal, outputs["context_out"])
    yield _untouched(given, simulation, outputs)
    yield _block_keys(oracle, outputs["keys_out"])
    yield _equal(given, simulation, outputs)


def _counted(check: str, wrong: list[int], total: int, unit: str, names: list[str]) -> Finding:
    first = names[0] if names else ""
    note = f"{len(wrong)} of {total} {unit} are wrong" if wrong else ""
    status = Status.WRONG if wrong else Status.PASS
    return Finding(check, status, Evidence(len(wrong), total, unit, first, where=first, note=note))


def _legal_ids(
    given: Script, simulation: Simulation, outputs: Outputs
) -> dict[int, tuple[int, ...] | None]:
    """Return each row's ids, or None where they are no selection of the row's budget and tail."""
    found: dict[int, tuple[int, ...] | None] = {}
    for row, wanted in simulation.rows.items():
        ids, count = outputs["ids_out"][row], int(outputs["counts_out"][row])
        length = len(wanted.fused)
        blocks, tail = divmod(length, qsa.RATIO)
        kept = min(given.budget // qsa.RATIO, blocks) * qsa.RATIO
        listed = ids[: max(count, 0)]
        right = (
            count == kept + tail
            and bool((ids[count:] == -1).all())
            and bool((np.diff(listed) > 0).all())
            and bool((listed >= 0).all() and (listed < max(length, 1)).all())
            and list(listed[kept:]) == list(range(length - tail, length))
        )
        found[row] = tuple(int(token) for token in listed) if right else None
    return found


def _selection(oracle: Oracle, legal: dict[int, tuple[int, ...] | None]) -> Finding:
    """Hold every legal selection to the oracle's scores; whole blocks, the right ones."""
    wrong, total = [], 0
    for row, ids in legal.items():
        wanted = oracle.simulation.rows[row]
        if ids is None or not wanted.fused:
            continue
        length = len(wanted.fused)
        mask = np.zeros((1, length), dtype=np.uint8)
        mask[0, list(ids)] = 1
        scores = oracle.scores(wanted.fused)
        budget = oracle.given.budget
        reference = stable_mask(scores.value, (length - 1,), length, budget)
        finding = against_reference(scores, mask, reference, (length - 1,), budget)
        total += 1
        if finding.status is not Status.PASS:
            wrong.append(row)
    return _counted("selection", wrong, total, "rows", [f"row {row}" for row in wrong])


def _context(oracle: Oracle, legal: dict[int, tuple[int, ...] | None], context: Array) -> Finding:
    rows, want = [], []
    for row, ids in legal.items():
        wanted = oracle.simulation.rows[row]
        if not wanted.attended or ids is None:
            continue
        query = wanted.fused[-1] if wanted.fused else 0
        rows.append(row)
        # Sequences with the same pages have the same keys and values.
        pages = oracle.given.cache.pages
        shared = bool((pages[wanted.sequence] == pages[0]).all())
        want.append(oracle.context(0 if shared else wanted.sequence, query, ids))
    if not rows:
        return Finding("context", Status.PASS)
    value, bound = (np.stack([getattr(w, name) for w in want]) for name in ("value", "bound"))
    got = to_float32(context[rows]).astype(np.float64)
    return bounded("context", "context", value, got, bound)


def _untouched(given: Script, simulation: Simulation, outputs: Outputs) -> Finding:
    """Hold the poison of rows that nothing writes: dense rows of a prefill above all."""
    listed = sorted(simulation.rows)
    attended = [row for row in listed if simulation.rows[row].attended]
    rest = [
        np.delete(outputs["ids_out"], listed, axis=0),
        np.delete(outputs["counts_out"], listed, axis=0),
        np.delete(outputs["context_out"], attended, axis=0),
    ]
    raw = np.concatenate([np.ascontiguousarray(part).view(np.uint8).reshape(-1) for part in rest])
    touched = int(np.count_nonzero(raw != POISON))
    note = f"{touched} bytes of rows that no operation of {given.outs} rows owes" if touched else ""
    status = Status.WRONG if touched else Status.PASS
    return Finding("untouched", status, Evidence(touched, raw.size, "bytes", note=note))


def _block_keys(oracle: Oracle, keys_out: Array) -> Finding:
    worst = Finding("block-keys", Status.PASS)
    for number, fused in enumerate(oracle.simulation.ends):
        blocks = len(fused) // qsa.RATIO
        if not blocks:
            continue
        want = oracle.keys(fused)
        kept = PooledKeys(want.value, want.low, want.high, Flips())
        for finding in judge_keys(kept, keys_out[number, :blocks]):
            if finding.status is not Status.PASS:
                return finding
            worst = finding
    return worst


def _equal(given: Script, simulation: Simulation, outputs: Outputs) -> Finding:
    wrong: list[str] = []
    pairs = 0
    for first, *others in given.equal:
        for other in others:
            pairs += 1
            names = ["ids_out", "counts_out"]
            if _attended(simulation, first) and _attended(simulation, other):
                names.append("context_out")
            if any(
                outputs[name][first].tobytes() != outputs[name][other].tobytes() for name in names
            ):
                wrong.append(f"rows {first} and {other}")
    for number in given.equal_sequences[1:]:
        first = given.equal_sequences[0]
        blocks = len(simulation.ends[first]) // qsa.RATIO
        pairs += 1
        left, right = (outputs["keys_out"][n, :blocks] for n in (first, number))
        if left.tobytes() != right.tobytes():
            wrong.append(f"block keys of sequences {first} and {number}")
    return _counted("equal-rows", [*range(len(wrong))], pairs, "pairs", wrong)


def _attended(simulation: Simulation, row: int) -> bool:
    wanted: Wanted = simulation.rows[row]
    return wanted.attended
