"""What score must refuse: launches that trap, and arguments that an entry answers by a code.

Each entry by itself: a launch that traps is the last of its program.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from qsa_bench.model import TARGETS
from qsa_bench.program import OK, TRAP, At, Value
from qsa_bench.stages import _qsa_inputs as qsa
from qsa_bench.stages._qsa_score_launch import (
    AUTOMATIC,
    MMA,
    SCALAR,
    STAGE_NAME,
    Launch,
    launch_of,
    program,
)
from qsa_bench.stages.base import FEW_SCHEDULES, ONE_SCHEDULE, Case, no_judge

# Where an entry is called by itself, on which targets, and how the case's label ends.
_ALONE = ((AUTOMATIC, "", TARGETS), (SCALAR, "-scalar", TARGETS), (MMA, "-mma", ("cuda",)))


def traps() -> Iterator[Case]:
    wrong: Mapping[str, tuple[str, Sequence[int], Sequence[int], int]] = {
        "visible-negative": ("visible-range-traps", (20, 21), (21, -1), 0),
        "visible-past-tokens": ("visible-range-traps", (20, 21), (21, 49), 0),
        "visible-least": ("visible-range-traps", (20,), (-(2**31),), 0),
        "row-negative": ("row-range-traps", (20, -1), (21, 8), 0),
        "row-past-tokens": ("row-range-traps", (20, 48), (21, 8), 0),
        "row-before-fused": ("row-range-traps", (20, 7), (21, 8), 8),
        "row-of-no-block": ("row-range-traps", (-1,), (3,), 0),
        **_wrong_rows_of_a_tile(),
    }
    for label, (clause, rows, seen, first) in wrong.items():
        launch = launch_of(qsa.random_inputs(48, "trap"), rows, seen, first)
        # The scalar body has a CTA a row: no tile to hide in.
        entries = [each for each in _ALONE if each[0] != SCALAR or not label.startswith("tile-")]
        yield from _trap(label, clause, launch, {}, entries)
    # One capacity smaller than what the buffers hold: nothing but the check itself stops these.
    smaller: Mapping[str, tuple[str, Mapping[str, Value], Sequence[int], Sequence[int]]] = {
        "row-past-tables": ("row-range-traps", {"tokens": 44}, (20, 44), (21, 8)),
        "row-past-fused": ("row-range-traps", {"fused_rows": 40}, (20, 40), (21, 41)),
        "visible-past-tables": ("visible-range-traps", {"tokens": 40}, (20, 30), (21, 41)),
        "keys-short": ("visible-range-traps", {"block_capacity": 9}, (20, 40), (21, 41)),
        # Without a key to share out there is a CTA all the same, for it looks at the rows.
        "row-without-keys": ("row-range-traps", {"block_capacity": 0}, (20, -1), (3, 3)),
        "rows-without-keys": (
            "row-range-traps",
            {"block_capacity": 0},
            (*[20] * 39, -1),
            (3,) * 40,
        ),
    }
    for label, (clause, change, rows, seen) in smaller.items():
        launch = launch_of(qsa.random_inputs(48, "trap"), rows, seen)
        yield from _trap(label, clause, launch, change, _ALONE)


def _wrong_rows_of_a_tile() -> dict[str, tuple[str, Sequence[int], Sequence[int], int]]:
    """Return 131 rows, more than a tile, one of which is wrong: of the first tile or the last."""
    position, length = (20,) * 131, (21,) * 131
    return {
        "tile-visible-negative": ("visible-range-traps", position, (*length[1:], -1), 0),
        "tile-row-negative": ("row-range-traps", (*position[:9], -1, *position[10:]), length, 0),
        "tile-row-before-fused": ("row-range-traps", (*position[1:], 7), length, 8),
    }


def _trap(
    label: str,
    clause: str,
    launch: Launch,
    change: Mapping[str, Value],
    entries: Sequence[tuple[str, str, tuple[str, ...]]],
) -> Iterator[Case]:
    """Yield each entry's case of a launch that must trap, some of its values changed."""
    for entry, ending, targets in entries:
        made = program(launch, TRAP, (entry,))
        call = replace(made.calls[0], values={**made.calls[0].values, **change})
        yield Case(
            STAGE_NAME,
            "trap",
            f"{label}{ending}",
            (clause,),
            lambda made=made, call=call: replace(made, calls=(call,)),  # type: ignore[misc]
            no_judge,
            checked=True,
            schedules=FEW_SCHEDULES,
            targets=targets,
            writes=False,
        )


def refusals() -> Iterator[Case]:
    pointers = (
        "fused_qk",
        "q_norm_weight",
        "cos",
        "sin",
        "block_keys",
        "rows",
        "visible_len",
        "scores",
    )
    extents = (
        "row_count",
        "tokens",
        "first_position",
        "fused_rows",
        "block_capacity",
        "score_cols",
    )
    most = 2**31 - 1
    launch = launch_of(qsa.random_inputs(32, "refusal"), (31, 12))
    for entry, ending, _ in _ALONE:
        changes: list[tuple[str, Mapping[str, Value], int]] = [
            *((f"null-{name}", {name: None}, qsa.NULL_POINTER) for name in pointers),
            *((f"unaligned-{name}", {name: At(name, 4)}, qsa.UNSUPPORTED) for name in pointers[:5]),
            # Only what comes after it is refused: 16 bytes of alignment, and the last i32, will do.
            ("null-after-16", {"fused_qk": At("fused_qk", 8), "cos": None}, qsa.NULL_POINTER),
            ("null-after-most-rows", {"row_count": most, "cos": None}, qsa.NULL_POINTER),
            (
                "null-after-most-tokens",
                {"tokens": most, "score_cols": most // 4, "cos": None},
                qsa.NULL_POINTER,
            ),
            ("null-after-one-col", {"tokens": 3, "score_cols": 1, "cos": None}, qsa.NULL_POINTER),
            ("rows-beyond-i32", {"row_count": most + 1}, qsa.BAD_EXTENT),
            ("tokens-beyond-i32", {"tokens": most + 1, "score_cols": most}, qsa.BAD_EXTENT),
            *((f"negative-{name}", {name: -1}, qsa.BAD_EXTENT) for name in extents),
            ("stride-639", {"fused_stride": 639}, qsa.BAD_STRIDE),
            ("stride-641", {"fused_stride": 641}, qsa.BAD_STRIDE),
            ("rotary-32", {"rotary_dim": 32}, qsa.BAD_ROTARY),
            ("rotary-128", {"rotary_dim": 128}, qsa.BAD_ROTARY),
            ("negative-eps", {"eps": -1e-6}, qsa.BAD_EPS),
            ("nan-eps", {"eps": float("nan")}, qsa.BAD_EPS),
            ("short-score-cols", {"score_cols": 7}, qsa.BAD_STRIDE),
            ("zero-score-cols", {"score_cols": 0, "tokens": 3}, qsa.BAD_STRIDE),
        ]
        for label, change, code in changes:
            yield _nothing("refusal", f"{label}{ending}", "refusals", launch, change, code, entry)
        for label, change in (
            ("zero", {"row_count": 0}),
            # An eps of nothing is one.
            ("zero-eps", {"row_count": 0, "eps": 0.0}),
        ):
            yield _nothing("no-rows", f"{label}{ending}", "zero-visible", launch, change, OK, entry)
        yield from _no_context(entry, ending)
    older = replace(launch, compute_capability=79)
    yield replace(
        _nothing("refusal", "before-sm80-mma", "refusals", older, {}, qsa.UNSUPPORTED, MMA),
        targets=TARGETS[:1],
    )


def _no_context(entry: str, ending: str) -> Iterator[Case]:
    """Yield an entry's launches of padding rows alone, without a token, a fused row or a key."""
    for count in (2, 40):
        padding = launch_of(qsa.random_inputs(32, "refusal"), (-1,) * count, (0,) * count)
        # Where keys begin there is none.
        end = At("block_keys", padding.block_keys.size)
        change: Mapping[str, Value] = {
            "tokens": 0,
            "fused_rows": 0,
            "block_capacity": 0,
            "block_keys": end,
        }
        label = f"no-tokens-rows{count}{ending}"
        case = _nothing("no-rows", label, "zero-visible", padding, change, OK, entry)
        yield replace(case, checked=True)


def _nothing(
    family: str,
    label: str,
    clause: str,
    launch: Launch,
    change: Mapping[str, Value],
    expect: str | int,
    entry: str,
) -> Case:
    """Return an entry's case of a launch that must do nothing, some of its values changed."""
    made = program(launch, expect, (entry,))
    call = replace(made.calls[0], values={**made.calls[0].values, **change})
    return Case(
        STAGE_NAME,
        family,
        label,
        (clause,),
        lambda: replace(made, calls=(call,)),
        no_judge,
        schedules=ONE_SCHEDULE,
        targets=next(targets for alone, _, targets in _ALONE if alone == entry),
        writes=False,
    )
