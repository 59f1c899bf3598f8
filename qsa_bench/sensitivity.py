"""How strong a gate is: the smallest fault it sees, searched for, and how often it alarms falsely.

Records and a search over numbered sizes; standard library only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

# The row that stands for all checks together.
GATE = "gate"
# So many sizes, evenly spread, are tried whatever the search needs: they show what turns back.
_SPREAD = 5


@dataclass(frozen=True)
class Strength:
    """The smallest size of a dial that a check saw in every repeat.

    `caught` is None where not even the largest size was seen every time, `missed`, the next smaller
    size, where the smallest was. Of `repeats`, `hits` saw the missed size. `told` and `missed_told`
    are both as a person reads them. Not `monotone`: some size that was tried was missed although a
    smaller one was seen every time, and `turns` says which; `caught` is then the smallest size from
    which on nothing tried was missed.
    """

    stage: str
    target: str
    dial: str
    check: str
    caught: float | None
    missed: float | None
    hits: int
    repeats: int
    probes: int
    monotone: bool
    told: str = ""
    missed_told: str = ""
    turns: str = ""

    def __post_init__(self) -> None:
        if self.caught is None and self.missed is None:
            raise ValueError(f"strength of {self.check}: neither caught nor missed")
        if not 0 <= self.hits <= self.repeats:
            raise ValueError(f"strength of {self.check}: {self.hits} hits of {self.repeats}")


@dataclass(frozen=True)
class Alarms:
    """How often the gate refused a correct build that differs from production.

    `kind` says in what it differs ("threads", "optimisation", "order of sums", "schedules"). A trial
    is one case on one build; `inputs` says of which inputs. `first` names the first alarm.
    """

    stage: str
    target: str
    build: str
    kind: str
    inputs: str
    trials: int
    alarms: int
    first: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.alarms <= self.trials:
            raise ValueError(f"alarms of {self.build}: {self.alarms} of {self.trials}")


@dataclass(frozen=True)
class Bracket:
    """Where a search ended: places of sizes, as in `Strength`, and the hits at each that was tried."""

    caught: int | None
    missed: int | None
    tried: Mapping[int, int]
    turns: tuple[tuple[int, int], ...] = ()


def search(
    sizes: int, checks: Iterable[str], repeats: int, probe: Callable[[int], Mapping[str, int]]
) -> dict[str, Bracket]:
    """Find, by check, the smallest of `sizes` sizes (by place, ascending) seen in all repeats.

    `probe(place)` says how many repeats each check saw; one that it does not name saw none. What
    one check's search tried counts for the others. Ends when no check's bracket can be narrowed.
    """
    names = list(checks)
    known: dict[int, Mapping[str, int]] = {}
    wanted = {round(step * (sizes - 1) / (_SPREAD - 1)) for step in range(_SPREAD)}
    while wanted:
        for place in sorted(wanted):
            known[place] = probe(place)
        wanted = set()
        for name in names:
            caught, missed = _ends(known, name, repeats)
            if caught is not None and missed is not None and caught - missed > 1:
                wanted.add((caught + missed) // 2)
    return {name: _bracket(known, name, repeats) for name in names}


def _ends(
    known: Mapping[int, Mapping[str, int]], name: str, repeats: int
) -> tuple[int | None, int | None]:
    """Return the largest place that was missed, and the smallest tried one above it."""
    missed = max((p for p, hits in known.items() if hits.get(name, 0) < repeats), default=None)
    above = [place for place in known if missed is None or place > missed]
    return min(above, default=None), missed


def _bracket(known: Mapping[int, Mapping[str, int]], name: str, repeats: int) -> Bracket:
    caught, missed = _ends(known, name, repeats)
    tried = {place: known[place].get(name, 0) for place in sorted(known)}
    seen = [place for place, hits in tried.items() if hits == repeats]
    turns = tuple(
        (seen[0], place)
        for place, hits in tried.items()
        if seen and place > seen[0] and hits < repeats
    )
    return Bracket(caught, missed, tried, turns)
