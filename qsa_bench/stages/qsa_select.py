"""QSA block selection: scores to a mask, or to an ascending list of token ids.

Contract section 1, "select". Kernel: kernels/qsa/select.cu; mutants: mutations/qsa_select/.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from qsa_bench.captured import Captured
from qsa_bench.compare import bitwise
from qsa_bench.errors import GoldenError
from qsa_bench.goldens import Golden
from qsa_bench.goldens import qsa as qsa_golden
from qsa_bench.model import (
    STREAM,
    Argument,
    Axis,
    Entry,
    Evidence,
    Finding,
    Kernel,
    Role,
    Status,
)
from qsa_bench.oracles.select import RATIO, select, structural_fault
from qsa_bench.program import Program
from qsa_bench.stages._qsa_select_cases import (
    STAGE_NAME,
    Launch,
    families_of_select,
    oracle_judge,
    program,
)
from qsa_bench.stages._qsa_select_edges import edges_of_select
from qsa_bench.stages._qsa_select_faults import refusals_of_select, traps_of_select
from qsa_bench.stages._qsa_select_generated import generated
from qsa_bench.stages._qsa_select_interface import INTERFACE
from qsa_bench.stages._qsa_select_paths import paths_of_select
from qsa_bench.stages._qsa_select_plants import FAULTS
from qsa_bench.stages._qsa_select_sweep import SWEEP
from qsa_bench.stages.base import Capture, Case, Outputs, Stage

Array = npt.NDArray[Any]

_INPUTS = (
    Argument("scores", "f32", Role.INPUT, ("row_count", "score_cols"), doc="block scores"),
    Argument("rows", "i32", Role.INPUT, ("row_count",), doc="absolute positions"),
    Argument("live_rows", "i32", Role.INPUT, ("1",), optional=True, doc="rows that are no padding"),
)
_EXTENTS = (
    Argument("row_count", "i64", Role.SCALAR, doc="rows launched"),
    Argument("tokens", "i64", Role.SCALAR, doc="capacity: tokens a mask row holds"),
    Argument("score_cols", "i64", Role.SCALAR, doc="elements from one score row to the next"),
    Argument("budget", "i64", Role.SCALAR, doc="tokens kept at most, beside the tail"),
    STREAM,
)
# The launch table of kernels/qsa/select.cu: threads, vectors a thread, CTAs a row; what compiles fastest
# (2.9 s for one architecture) first, what compiles slowest (19 s) last.
SHAPES = (
    (256, 1, 1),
    (512, 1, 1),
    (128, 4, 1),
    (512, 1, 8),
    (512, 4, 2),
    (512, 4, 8),
    (512, 8, 1),
    (1024, 8, 1),
    (1024, 8, 2),
    (1024, 8, 8),
)


def _defines(shape: tuple[int, int, int]) -> Mapping[str, int]:
    names = ("QSA_SELECT_THREADS", "QSA_SELECT_VECTORS", "QSA_SELECT_CTAS")
    return dict(zip(names, shape, strict=True))


KERNEL = Kernel(
    STAGE_NAME,
    "kernels/qsa/select.cu",
    (
        Entry(
            "qsa_select",
            (*_INPUTS, Argument("mask", "u8", Role.OUTPUT, ("row_count", "tokens")), *_EXTENTS),
            "1 for every selected token, 0 for every other",
        ),
        Entry(
            "qsa_select_ids",
            (
                *_INPUTS,
                Argument("ids", "i32", Role.OUTPUT, ("row_count", "budget + 3")),
                Argument("counts", "i32", Role.OUTPUT, ("row_count",)),
                *_EXTENTS,
            ),
            "ascending selected token ids, -1 past the count",
        ),
    ),
    axes={
        "threads": Axis("QSA_SELECT_THREADS", (128, 256, 512, 1024), "threads a block"),
    },
    short={"cuda": {"QSA_SELECT_FEW_SHAPES": 1}},
    # Kernels for rows within the budget have no shape, and are in each of these builds.
    parts={
        "short_": _defines(SHAPES[0]),
        **{"kernelILi{}ELi{}ELi{}E".format(*shape): _defines(shape) for shape in SHAPES},
    },
)

CLAUSES = {
    "score-order": "the kept blocks are those with the highest scores",
    "ties-ascending": "equal scores are kept in ascending block index",
    "zeros-equal": "-0.0 and +0.0 are the same score",
    "tail": "the (p + 1) % 4 tokens after the last complete block are always selected",
    "causality": "nothing past the row's position is selected",
    "all-kept": "a row within the budget keeps everything",
    "budget": "min(budget / 4, blocks) blocks are kept, no more and no fewer",
    "every-byte-written": "every byte of a mask row, every id and every count is written",
    "non-finite-traps": "a NaN or an infinity inside a row's block prefix traps",
    "row-range-traps": "a position outside 0..tokens-1 traps",
    "prefix-only": "what lies past a row's block prefix is never read",
    "score-stride": "row r starts at r * score_cols, whatever the buffer's length",
    "live-rows": "rows at or past live_rows are padding: zeros, -1, count 0, inputs never read",
    "ragged-rows": "rows of one launch do not touch one another",
    "capacity-and-length": "tokens and score_cols are capacities; live lengths come from rows",
    "any-distribution": "every row is exact whatever its distribution",
    "long-rows": "rows of 262,144 tokens and of 1M are exact",
    "offsets-64-bit": "offsets are 64-bit: scores may lie beyond 2**31 elements",
    "deterministic": "the same launch gives the same bytes, under every order of threads",
    "memory": "no race, no access outside a buffer, no read of what nothing wrote",
    "refusals": "the C entry refuses malformed arguments by code and launches nothing",
    "termination": "every launch ends",
}
CHECKS = {
    "golden-mask": "the mask equals the reference's bit by bit, on golden rows whose cut is no tie",
    "golden-ties": "on golden rows whose cut ties: whole blocks by score, lowest indices first",
    "mask": "the mask equals the stable oracle's bit by bit",
    "ids": "the id list equals the stable oracle's",
    "counts": "the counts equal the stable oracle's",
}
NUMBERS = {
    "rows": "golden rows judged",
    "bitwise": "rows whose mask equals the reference's bit by bit",
    "ties": "rows equal up to the tie at their cut",
    "all_kept": "rows within the budget",
    "truncating": "rows that drop a block",
    "differing_bits": "mask bits that differ from the stable oracle's",
}


def _tie_rows(scores: Array, rows: Array, budget: int) -> Array:
    """Return which rows [R] bool cut inside a group of equal scores."""
    ties = np.zeros(len(rows), dtype=bool)
    for row, position in enumerate(rows.tolist()):
        blocks = (position + 1) // RATIO
        keep = min(budget // RATIO, blocks)
        if keep == blocks:
            continue
        ordered = np.sort(scores[row, :blocks])[::-1]
        ties[row] = ordered[keep - 1] == ordered[keep]
    return ties


def _golden_judge(case: qsa_golden.QsaCase) -> Callable[[Program, Outputs], Iterable[Finding]]:
    def judge(_program: Program, outputs: Outputs) -> Iterable[Finding]:
        mask = outputs["mask"]
        want = select(
            case.scores.reshape(-1), case.rows, case.tokens, case.scores.shape[1], case.budget
        )
        ties = _tie_rows(case.scores, case.rows, case.budget)
        blocks = (case.rows + 1) // RATIO
        exact = np.equal(mask, case.mask).all(axis=1)
        faults = [
            (row, structural_fault(case.scores[row], int(case.rows[row]), case.budget, mask[row]))
            for row in np.flatnonzero(ties)
        ]
        yield _with_numbers(
            bitwise("golden-mask", "mask", case.mask[~ties], mask[~ties], "bits"),
            {
                "rows": len(case.rows),
                "bitwise": int((exact & ~ties).sum()),
                "ties": sum(not fault for _, fault in faults),
                "all_kept": int((blocks <= case.budget // RATIO).sum()),
                "truncating": int((blocks > case.budget // RATIO).sum()),
                "differing_bits": int((mask != want.mask).sum()),
            },
        )
        wrong = [f"row {row}: {fault}" for row, fault in faults if fault]
        lowest = bitwise("golden-ties", "mask", want.mask[ties], mask[ties], "bits")
        if wrong:
            evidence = Evidence(len(wrong), len(faults), "rows", first=wrong[0], note=wrong[0])
            yield Finding("golden-ties", Status.WRONG, evidence)
        elif ties.any():
            yield lowest
        yield bitwise("ids", "ids", want.ids, outputs["ids"], "ids")
        yield bitwise("counts", "counts", want.counts, outputs["counts"], "rows")

    return judge


def _with_numbers(finding: Finding, numbers: dict[str, int]) -> Finding:
    return replace(finding, evidence=replace(finding.evidence, numbers=numbers))


def _golden_cases(golden: Golden) -> Iterator[Case]:
    coverage = qsa_golden.coverage(golden)
    for claim, count in (
        ("a row with an incomplete tail", coverage.incomplete_tail),
        ("a row that drops a block", coverage.truncating),
        ("a row whose cut ties", coverage.tie_rows),
    ):
        if count == 0:
            raise GoldenError(f"{golden.path}: the golden covers no {claim[2:]}; dump another seed")
    for case in qsa_golden.cases(golden):

        def make(case: qsa_golden.QsaCase = case) -> Launch:
            blocks = (case.rows + 1) // RATIO
            prefixes = [case.scores[row, : blocks[row]] for row in range(len(case.rows))]
            return Launch(
                prefixes, case.rows.tolist(), case.tokens, case.scores.shape[1], case.budget
            )

        yield Case(
            STAGE_NAME,
            "golden",
            f"case{case.index}",
            ("score-order", "ties-ascending", "tail", "causality", "budget", "all-kept"),
            lambda make=make: program(make()),  # type: ignore[misc]
            _golden_judge(case),
            checked=case.scores.size <= 3200,
            counts_bits=True,
        )


def cases(golden: Golden | None) -> Sequence[Case]:
    """Return every case: the golden's (if given), families, traps and refusals."""
    return [
        *(_golden_cases(golden) if golden is not None else ()),
        *families_of_select(),
        *paths_of_select(),
        *edges_of_select(),
        *traps_of_select(),
        *refusals_of_select(),
    ]


def replay(captured: Captured) -> Case:
    """Turn captured `scores` (flat or [rows, score_cols]), `rows` and scalars into a case.

    Raises ReplayError with one line for anything the C entry would refuse.
    """
    captured.only(
        ("scores", "rows", "live_rows", "tokens", "score_cols", "budget"),
    )
    scores = captured.tensor("scores", "f32", (1, 2))
    rows = captured.tensor("rows", "i32", (1,))
    tokens, score_cols = captured.scalar("tokens"), captured.scalar("score_cols")
    budget = captured.scalar("budget")
    live = captured.scalar("live_rows") if captured.holds("live_rows") else None
    if len(rows) < 1:
        raise captured.error("tensor 'rows' is empty; there is nothing to select")
    if not 1 <= tokens <= 2**31 - 1:
        raise captured.error(f"tokens is {tokens}; it must be 1 to {2**31 - 1}")
    if budget < RATIO or budget % RATIO or budget > 2048:
        raise captured.error(
            f"budget is {budget}; it must be a positive multiple of {RATIO}, at most 2048"
        )
    if score_cols < max(1, tokens // RATIO):
        raise captured.error(
            f"score_cols is {score_cols}; {tokens} tokens need {max(1, tokens // RATIO)} at least"
        )
    if scores.ndim == 2 and scores.shape != (len(rows), score_cols):
        raise captured.error(
            f"tensor 'scores' has shape {list(scores.shape)}; "
            f"rows and score_cols say [{len(rows)}, {score_cols}]"
        )
    if scores.size < len(rows) * score_cols:
        raise captured.error(
            f"tensor 'scores' has {scores.size} elements; {len(rows)} rows of {score_cols} "
            f"need {len(rows) * score_cols}"
        )
    return replay_case(scores.reshape(-1), rows.tolist(), tokens, score_cols, budget, live)


def replay_case(
    scores: Array, rows: Sequence[int], tokens: int, score_cols: int, budget: int, live: int | None
) -> Case:
    """Return the case of one captured launch; it must trap where the contract demands it."""
    must_trap = _contract_traps(scores, rows, tokens, score_cols, live)
    prefixes = [scores[row * score_cols : (row + 1) * score_cols] for row in range(len(rows))]
    spare = scores.size - len(rows) * score_cols

    def make() -> Launch:
        return Launch(prefixes, rows, tokens, score_cols, budget, spare, live)

    def build() -> Program:
        return program(make(), "trap" if must_trap else "ok")

    return Case(STAGE_NAME, "replay", "captured", ("score-order",), build, oracle_judge(make))


def captures(built: Program) -> Iterator[Capture]:
    """Yield a launch as captured files: each row alone, shortest first, then all rows.

    Nothing is yielded for a program whose score buffer is sparse or whose arguments are refused.
    """
    values = built.calls[0].values
    if built.buffer("scores").data is None or isinstance(built.calls[0].expect, int):
        return
    scores, rows = built.array("scores"), built.array("rows")
    score_cols, tokens = int(str(values["score_cols"])), int(str(values["tokens"]))
    live = values.get("live_rows")
    count = int(built.array("live_rows")[0]) if live is not None else len(rows)
    scalars = {"tokens": str(tokens), "score_cols": str(score_cols)}
    scalars["budget"] = str(values["budget"])
    dtypes = {"scores": "f32", "rows": "i32"}
    if live is None and len(rows) > 1:
        for row in np.argsort(rows, kind="stable").tolist():
            alone = scores[row * score_cols : (row + 1) * score_cols]
            yield Capture({"scores": alone, "rows": rows[row : row + 1]}, dtypes, scalars)
    if live is not None:
        scalars["live_rows"] = str(count)
    yield Capture({"scores": scores, "rows": rows}, dtypes, scalars)


def _contract_traps(
    scores: Array, rows: Sequence[int], tokens: int, score_cols: int, live: int | None
) -> bool:
    count = len(rows) if live is None else min(max(live, 0), len(rows))
    for row in range(count):
        if not 0 <= rows[row] < tokens:
            return True
        start = row * score_cols
        if not np.isfinite(scores[start : start + (rows[row] + 1) // RATIO]).all():
            return True
    return False


STAGE = Stage(
    name=STAGE_NAME,
    summary="QSA block selection: scores to a mask or an id list",
    kernels=(KERNEL,),
    clauses=CLAUSES,
    checks=CHECKS,
    cases=cases,
    generated=generated,
    golden_kind="qsa",
    replay=replay,
    captures=lambda built: list(captures(built)),
    numbers=NUMBERS,
    sweep=SWEEP,
    interface=INTERFACE,
    faults=FAULTS,
)
