"""The search for the smallest fault that is seen, on made-up gates."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from qsa_bench.sensitivity import Alarms, Bracket, Strength, search

REPEATS = 4


def found(hits: Callable[[int], int], sizes: int = 100) -> tuple[Bracket, list[int]]:
    """Search a gate whose one check sees `hits(place)` of the repeats; also say what was tried."""
    tried: list[int] = []

    def probe(place: int) -> dict[str, int]:
        tried.append(place)
        return {"mask": hits(place)}

    return search(sizes, ["mask"], REPEATS, probe)["mask"], tried


@pytest.mark.parametrize("least", [1, 2, 37, 50, 98, 99])
def test_the_bracket_is_two_neighbours_around_the_least_that_is_seen(least: int) -> None:
    bracket, tried = found(lambda place: REPEATS if place >= least else 0)
    assert (bracket.missed, bracket.caught) == (least - 1, least)
    assert bracket.turns == ()
    assert len(tried) == len(set(tried)) < 15


def test_what_is_seen_in_three_repeats_of_four_is_missed() -> None:
    bracket, _ = found(lambda place: REPEATS if place >= 60 else 3)
    assert (bracket.missed, bracket.caught) == (59, 60)
    assert bracket.tried[59] == 3


def test_a_check_that_sees_the_least_size_has_missed_none_and_a_blind_one_caught_none() -> None:
    assert found(lambda place: REPEATS)[0].missed is None
    blind = found(lambda place: 0)[0]
    assert (blind.caught, blind.missed) == (None, 99)


def test_a_check_that_a_larger_fault_escapes_is_said_to_turn_back() -> None:
    bracket, _ = found(lambda place: 0 if place in (0, 74) else REPEATS)
    assert (bracket.missed, bracket.caught) == (74, 75)
    assert bracket.turns == ((25, 74),)


def test_every_checks_bracket_is_narrowed_whatever_the_others_are() -> None:
    least = {"a": 3, "b": 41, "c": 88}
    brackets = search(
        100, least, 1, lambda place: {name: int(place >= own) for name, own in least.items()}
    )
    assert {name: bracket.caught for name, bracket in brackets.items()} == least
    assert {name: bracket.missed for name, bracket in brackets.items()} == {
        "a": 2,
        "b": 40,
        "c": 87,
    }


def test_a_dial_of_one_size_is_tried_once() -> None:
    bracket, tried = found(lambda place: REPEATS, sizes=1)
    assert (bracket.caught, bracket.missed, tried) == (0, None, [0])


def test_records_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="neither"):
        Strength("s", "host", "scale", "mask", None, None, 0, 4, 5, True)
    with pytest.raises(ValueError, match="5 hits of 4"):
        Strength("s", "host", "scale", "mask", 1.0, 0.5, 5, 4, 5, True)
    with pytest.raises(ValueError, match="7 of 6"):
        Alarms("s", "host", "-O2", "optimisation", "generated", 6, 7)
