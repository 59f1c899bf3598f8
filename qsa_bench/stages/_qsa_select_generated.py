"""Random launches of select, for evidence that two kernels give the same bytes and for fresh trials."""

from __future__ import annotations

from functools import cache

import numpy as np

from qsa_bench import families
from qsa_bench.oracles.select import RATIO
from qsa_bench.stages._qsa_select_cases import BUDGET, STAGE_NAME, Launch, oracle_judge, program
from qsa_bench.stages.base import ONE_SCHEDULE, Case

_ROWS = 250
# Of eight launches one has so few and so long rows that a cluster takes each, one rows that a CTA
# reads in several tiles; of sixteen one has rows whose bins can hold more than are ranked. Rows of
# few blocks take half of its time, and a budget's edge, ties and tails show in them as well.
_CLUSTERED, _TILED, _TURNS = 0, 1, 8
_CROWDED, _CROWDED_TURNS = 2, 16
_LEAST_LONG, _MOST_LONG = 1601, 3300
_MOST_CROWDED, _CROWDED_BUDGETS = 160, (4, 8, 16, 64, 252, 512)
_MOST_SHORT, _BUDGETS = 40, (4, 8, 16, 64, 128)


def generated(seed: int) -> tuple[Case, int]:
    """Return a case of random rows of every distribution, and how many rows it has."""
    random = families.seeded(STAGE_NAME, "generated", seed)
    turn = seed % _TURNS
    short = turn not in (_CLUSTERED, _TILED)
    count = _ROWS if short else 2 if turn == _CLUSTERED else 4
    crowded = seed % _CROWDED_TURNS == _CROWDED
    most = _MOST_CROWDED if crowded else _MOST_SHORT if short else _MOST_LONG
    budgets = _BUDGETS if short and not crowded else _CROWDED_BUDGETS
    blocks = random.integers(0 if short else _LEAST_LONG, most + 1, count)
    rows = blocks * RATIO + random.integers(0, RATIO, count) - 1
    # A row without a block and a tail has no position.
    rows = np.maximum(rows, 0)
    budget = int(random.choice(budgets)) if short or random.random() < 0.5 else BUDGET
    live = int(random.integers(0, count + 1)) if random.random() < 0.125 else None
    extra = int(random.integers(0, 5))

    @cache
    def launch() -> Launch:
        # Drawn anew from the seed, whenever it is: the program and the judge see the same.
        scores = families.seeded(STAGE_NAME, "generated-scores", seed)
        names = list(families.SCORE_ROWS)
        prefixes = [
            families.SCORE_ROWS[names[int(scores.integers(len(names)))]](scores, (row + 1) // RATIO)
            for row in rows.tolist()
        ]
        tokens = int(rows.max()) + 1 + extra
        cols = max(tokens // RATIO, 1) + extra
        return Launch(prefixes, rows.tolist(), tokens, cols, budget, live_rows=live)

    made = Case(
        STAGE_NAME,
        "generated",
        str(seed),
        ("score-order", "ties-ascending", "tail", "budget", "any-distribution"),
        lambda: program(launch()),
        oracle_judge(launch),
        schedules=ONE_SCHEDULE,
    )
    return made, count
