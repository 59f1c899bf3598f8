"""Clean margins beside those of mutants, from records alone."""

from __future__ import annotations

from qsa_bench import headroom
from qsa_bench.model import Evidence, Expect, Kill, Mutant, Status, Verdict


def verdict(check: str, error: float | None, bound: float | None = 1.0) -> Verdict:
    evidence = Evidence(error=error, bound=bound)
    return Verdict(
        "digest", "stage", f"stage/family/{error}", "family", check, Status.PASS, evidence
    )


def mutant(name: str, killed_by: tuple[str, ...], least: float | None, **more: bool) -> Mutant:
    return Mutant(
        f"stage/{name}", "stage", "it", "clause", Expect.KILLED, "", killed_by,
        least_margin=least, **more,
    )  # fmt: skip


CLEAN = (verdict("score", 0.02), verdict("score", 0.3), verdict("lean", 0.1), verdict("mask", None))


def test_the_worst_clean_margin_of_each_measuring_check_is_shown() -> None:
    assert headroom.clean_margins(CLEAN) == {"stage": {"score": 0.3, "lean": 0.1}}


def test_a_stated_margin_counts_for_the_first_measuring_check_that_is_named() -> None:
    mutants = (
        mutant("a", ("mask", "score", "lean"), 50),
        mutant("b", ("score",), 20),
        mutant("c", ("lean",), 400),
        mutant("d", ("mask",), None),
    )
    stated = headroom.stated_margins(mutants, headroom.clean_margins(CLEAN))
    assert stated == {"stage": {"score": 20.0, "lean": 400.0}}


def test_a_measured_margin_counts_where_the_check_killed_and_is_named() -> None:
    mutants = (
        mutant("a", ("score", "lean"), 10),
        mutant("controls/b", ("score",), 1, control=True),
    )
    kills = (
        Kill("stage/a", "score", 3, 1, 70.0),
        Kill("stage/a", "lean", 3, 0, 0.5),  # named, but saw nothing
        Kill("stage/a", "scale", 3, 1, 2.0),  # saw it, but is not named
        Kill("stage/controls/b", "score", 3, 3, 1.5),  # a control says nothing of the bound
        Kill("stage/gone", "score", 3, 3, 1.1),
    )
    assert headroom.measured_margins(mutants, kills) == {"stage": {"score": 70.0}}


def test_the_figures_stand_side_by_side_and_only_where_there_are_some() -> None:
    kills = (Kill("stage/a", "score", 3, 1, 70.0),)
    shown = headroom.headroom(CLEAN, (mutant("a", ("score",), 30),), kills)
    assert shown == {
        "stage": {
            "score": {headroom.CLEAN: 0.3, headroom.STATED: 30.0, headroom.MEASURED: 70.0},
            "lean": {headroom.CLEAN: 0.1},
        }
    }
