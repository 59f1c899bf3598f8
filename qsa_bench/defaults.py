"""What a request holds when nobody says otherwise; apart, so that `--help` loads little."""

from __future__ import annotations

from pathlib import Path

RESULTS = Path("results")
PUBLISHED = RESULTS / "published"
SEEDS = 10
# Per mutant: what FIFO, LIFO and two seeds do not show is a race, which the access checker sees.
MUTATE_SEEDS = 2
