"""A mutant's outcome follows from what the checks saw, and is held to its manifest both ways."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from qsa_bench import outcomes
from qsa_bench.model import Evidence, Expect, Kill, MutantResult, Outcome, Status, Verdict
from tests.specimens import killed, mutant, verdict

MUTANT = mutant("m")


def seen(check: str, status: Status, case: str = "golden/a", **fields: object) -> Verdict:
    """Return a verdict of the mutant's build."""
    return verdict(case, check, status=status, **fields)


def wrong(check: str, case: str = "golden/a", **fields: object) -> Verdict:
    return seen(check, Status.WRONG, case, **fields)


def judged(
    verdicts: Sequence[Verdict],
    *,
    target: str = "host",
    race_runs: tuple[int, int] | None = None,
    **fields: object,
) -> MutantResult:
    """Return the result of a mutant whose manifest has these fields."""
    bits = fields.pop("bits", None)
    assert bits is None or isinstance(bits, int)
    chosen = replace(MUTANT, **fields)  # type: ignore[arg-type]
    result, _ = outcomes.result_of(chosen, target, verdicts, bits, 0.5, race_runs)
    return result


SURVIVES = {"expect": Expect.SURVIVES, "killed_by": (), "why_survives": "it must"}
CRASH = seen("no-crash", Status.CRASHED)
ENDLESS = seen("terminates", Status.TIMED_OUT)


def test_a_cell_counts_the_cases_a_check_judged_and_failed() -> None:
    verdicts = [seen("mask", Status.PASS, "f/a"), wrong("mask", "f/b"), wrong("mask", "f/c")]
    (kill,) = outcomes.kills_of("k/m", verdicts)
    assert (kill.cases, kill.failed, kill.first_case) == (3, 2, "qsa_select/f/b")


def test_a_cell_holds_the_largest_margin_of_all_cases() -> None:
    verdicts = [
        seen("scores", Status.PASS, "f/a", evidence=Evidence(error=1, bound=4)),
        wrong("scores", "f/b", evidence=Evidence(error=6, bound=2)),
        wrong("scores", "f/c", evidence=Evidence(error=4, bound=2)),
    ]
    (kill,) = outcomes.kills_of("k/m", verdicts)
    assert kill.margin == 3


def test_a_check_that_was_not_run_has_no_cell() -> None:
    assert outcomes.kills_of("k/m", [seen("terminates", Status.NOT_RUN)]) == []


@pytest.mark.parametrize(
    ("verdicts", "outcome"),
    [
        ([seen("mask", Status.PASS)], Outcome.SURVIVED),
        ([wrong("mask")], Outcome.KILLED),
        ([seen("no-trap", Status.TRAPPED)], Outcome.KILLED),
        ([seen("accepts", Status.REFUSED)], Outcome.KILLED),
        ([CRASH], Outcome.KILLED_BY_CRASH),
        ([ENDLESS], Outcome.KILLED_BY_TIMEOUT),
        ([CRASH, ENDLESS], Outcome.KILLED_BY_CRASH),
        ([CRASH, ENDLESS, wrong("mask", "f/b")], Outcome.KILLED),
        ([seen("mask", Status.PASS), seen("terminates", Status.NOT_RUN)], Outcome.NOT_RUN),
        ([wrong("mask"), seen("terminates", Status.NOT_RUN, "f/b")], Outcome.KILLED),
    ],
)
def test_an_outcome_names_a_crash_or_a_loop_when_no_check_saw_more(
    verdicts: list[Verdict], outcome: Outcome
) -> None:
    assert judged(verdicts).outcome is outcome


def test_a_mutant_that_dies_by_the_check_named_is_as_expected() -> None:
    result = judged([wrong("mask"), wrong("ids"), seen("counts", Status.PASS)])
    assert result.as_expected
    assert result.killed_by == ("mask", "ids")
    assert result.why == ""


def test_a_mutant_that_lives_is_a_complaint() -> None:
    result = judged([seen("mask", Status.PASS)])
    assert not result.as_expected
    assert result.why == "expected killed, it survived; not killed by mask, as its manifest says"


def test_a_mutant_that_should_live_and_dies_is_a_complaint() -> None:
    result = judged([wrong("mask")], **SURVIVES)
    assert not result.as_expected
    assert result.why == "expected survives, it was killed"


def test_a_mutant_that_should_live_and_does_keeps_its_reason() -> None:
    result = judged([seen("mask", Status.PASS)], **SURVIVES)
    assert (result.as_expected, result.outcome) == (True, Outcome.SURVIVED)
    assert result.why == "it must"


def test_an_equivalent_mutant_that_lives_is_named_as_that() -> None:
    result = judged([seen("mask", Status.PASS)], **SURVIVES, equivalent=True)
    assert (result.as_expected, result.outcome) == (True, Outcome.EQUIVALENT)


def test_an_equivalent_mutant_that_dies_is_a_complaint() -> None:
    result = judged([wrong("mask")], **SURVIVES, equivalent=True)
    assert (result.as_expected, result.outcome) == (False, Outcome.KILLED)


@pytest.mark.parametrize(
    ("expect", "check", "verdict_", "as_expected"),
    [
        (Expect.KILLED_BY_CRASH, "no-crash", CRASH, True),
        (Expect.KILLED_BY_TIMEOUT, "terminates", ENDLESS, True),
        (Expect.KILLED, "no-crash", CRASH, False),
        (Expect.KILLED, "terminates", ENDLESS, False),
        (Expect.KILLED_BY_CRASH, "mask", wrong("mask"), False),
    ],
)
def test_a_crash_passes_for_a_kill_only_where_the_manifest_says_crash(
    expect: Expect, check: str, verdict_: Verdict, as_expected: bool
) -> None:
    assert judged([verdict_], expect=expect, killed_by=(check,)).as_expected is as_expected


def test_every_check_named_must_see_the_mutant() -> None:
    result = judged([wrong("mask")], killed_by=("mask", "ids", "races"))
    assert not result.as_expected
    assert result.why == "not killed by ids, races, as its manifest says"


@pytest.mark.parametrize(("bits", "as_expected"), [(201, True), (200, False), (None, False)])
def test_the_count_of_differing_bits_is_exact(bits: int | None, as_expected: bool) -> None:
    result = judged([wrong("mask")], differing_bits=201, bits=bits)
    assert result.as_expected is as_expected
    assert (f"{bits} bits differ, not 201" in result.why) is not as_expected


@pytest.mark.parametrize(("error", "as_expected"), [(6.0, True), (5.0, False)])
def test_a_mutant_must_die_by_the_margin_its_manifest_states(
    error: float, as_expected: bool
) -> None:
    verdicts = [wrong("mask", evidence=Evidence(1, 1, error=error, bound=2.0))]
    result = judged(verdicts, least_margin=3.0)
    assert result.as_expected is as_expected
    assert result.margin == error / 2


def test_only_the_checks_named_count_for_the_margin() -> None:
    verdicts = [
        wrong("mask", evidence=Evidence(1, 1, error=2, bound=1)),
        wrong("other", evidence=Evidence(1, 1, error=900, bound=1)),
    ]
    assert not judged(verdicts, least_margin=3.0).as_expected


def test_the_worst_error_is_shown_with_its_place() -> None:
    verdicts = [
        wrong("scores", "f/a", evidence=Evidence(1, 1, error=2, bound=1, where="s[1]")),
        wrong("scores", "f/b", evidence=Evidence(1, 1, error=8, bound=2, where="s[7]")),
        wrong("mask", "f/c", evidence=Evidence(1, 1, where="mask[3]")),
    ]
    result = judged(verdicts, killed_by=("scores",))
    assert (result.worst_error, result.margin, result.where) == (8, 4, "s[7]")


def test_without_a_measured_error_the_first_failure_gives_the_place() -> None:
    verdicts = [seen("ids", Status.PASS), wrong("mask", evidence=Evidence(1, 1, where="mask[3]"))]
    result = judged(verdicts)
    assert (result.worst_error, result.margin, result.where) == (None, None, "mask[3]")


RESULTS = (
    killed("a"),
    killed("b", as_expected=False),
    killed("crash", outcome=Outcome.KILLED_BY_CRASH),
    killed("crash-unexpected", outcome=Outcome.KILLED_BY_CRASH, as_expected=False),
    killed("loop", outcome=Outcome.KILLED_BY_TIMEOUT),
    killed("lives", outcome=Outcome.SURVIVED, as_expected=False),
    killed("same", outcome=Outcome.EQUIVALENT),
    killed("broken", outcome=Outcome.UNVIABLE),
    killed("ptx", outcome=Outcome.GPU_ONLY),
    killed("late", outcome=Outcome.NOT_RUN),
)


def test_the_score_counts_every_outcome_and_a_crash_only_where_expected() -> None:
    assert outcomes.score_of(RESULTS) == {
        "killed": 2,
        "expected_crash": 1,
        "expected_timeout": 1,
        "all": 10,
        "equivalent": 1,
        "unviable": 1,
        "gpu_only": 1,
        "survived": 1,
        "not_run": 1,
    }


def test_mutants_that_were_never_reached_count_against_the_score() -> None:
    score = outcomes.score_of(RESULTS[:1], never_run=3)
    assert (score["killed"], score["all"], score["not_run"]) == (1, 4, 3)


def test_a_control_is_no_part_of_the_score() -> None:
    control = replace(RESULTS[0], mutant=replace(MUTANT, control=True))
    assert outcomes.score_of([control])["all"] == 0


def test_a_check_is_worth_the_mutants_it_kills_and_those_it_alone_kills() -> None:
    kills = [
        Kill("a", "mask", 3, 1),
        Kill("a", "ids", 3, 2),
        Kill("b", "mask", 3, 3),
        Kill("b", "ids", 3, 0),
        Kill("b", "races", 3, 0),
    ]
    assert outcomes.worth_of_checks(kills) == {
        "mask": {"kills": 2, "alone": 1},
        "ids": {"kills": 1, "alone": 0},
        "races": {"kills": 0, "alone": 0},
    }


def test_a_mutant_stopped_at_its_first_kill_says_nothing_of_other_checks() -> None:
    kills = [Kill("a", "mask", 1, 1), Kill("b", "mask", 3, 1), Kill("b", "ids", 3, 0)]
    assert outcomes.worth_of_checks(kills)["mask"] == {"kills": 2, "alone": 1}


def test_a_check_that_kills_nothing_or_never_ran_is_unneeded() -> None:
    kills = [Kill("a", "mask", 3, 1), Kill("a", "ids", 3, 0)]
    assert outcomes.unneeded_checks(["mask", "ids", "races"], kills) == ["ids", "races"]


def test_a_clause_is_broken_by_a_dead_mutant_alone() -> None:
    results = [
        replace(RESULTS[0], mutant=replace(MUTANT, clause="tail")),
        replace(RESULTS[2], mutant=replace(MUTANT, clause="memory")),
        replace(RESULTS[4], mutant=replace(MUTANT, clause="ends")),
        replace(RESULTS[5], mutant=replace(MUTANT, clause="order")),
    ]
    clauses = ["tail", "memory", "ends", "order", "budget"]
    assert outcomes.unbroken_clauses(clauses, results) == ["order", "budget"]


LOST = seen("device", Status.DEVICE_LOST)
MISSING = seen("memcheck", Status.UNAVAILABLE)


@pytest.mark.parametrize("nothing", [LOST, MISSING, seen("terminates", Status.NOT_RUN)])
def test_what_saw_nothing_kills_nothing(nothing: Verdict) -> None:
    assert outcomes.kills_of("k/m", [nothing]) == []
    result = judged([seen("mask", Status.PASS), nothing], target="cuda")
    assert result.outcome is Outcome.NOT_RUN
    assert not result.as_expected


@pytest.mark.parametrize(
    ("killed_by", "expect", "verdicts", "outcome", "as_expected"),
    [
        # What a device can see must be seen there.
        (("mask",), Expect.KILLED, [wrong("mask")], Outcome.KILLED, True),
        (("mask",), Expect.KILLED, [seen("mask", Status.PASS)], Outcome.SURVIVED, False),
        (("mask", "ids"), Expect.KILLED, [wrong("mask")], Outcome.KILLED, False),
        # What the emulation alone sees need not be.
        (("mask", "bounds"), Expect.KILLED, [wrong("mask")], Outcome.KILLED, True),
        (("races",), Expect.KILLED, [seen("mask", Status.PASS)], Outcome.HOST_ONLY, True),
        (("collectives",), Expect.KILLED, [ENDLESS], Outcome.KILLED_BY_TIMEOUT, True),
        # A fault may end otherwise than on the host.
        (("no-crash",), Expect.KILLED_BY_CRASH, [wrong("mask")], Outcome.KILLED, True),
        (
            ("no-crash",),
            Expect.KILLED_BY_CRASH,
            [seen("mask", Status.PASS)],
            Outcome.SURVIVED,
            False,
        ),
    ],
)
def test_a_device_is_held_to_what_it_can_show(
    killed_by: tuple[str, ...],
    expect: Expect,
    verdicts: Sequence[Verdict],
    outcome: Outcome,
    as_expected: bool,
) -> None:
    result = judged(verdicts, target="cuda", killed_by=killed_by, expect=expect)
    assert (result.outcome, result.as_expected) == (outcome, as_expected), result.why


def test_what_a_device_does_not_show_has_no_margin_there() -> None:
    bounded = seen("score", Status.PASS)
    told = judged([bounded], target="cuda", killed_by=("score", "races"), least_margin=3.0)
    assert (told.outcome, told.as_expected) == (Outcome.HOST_ONLY, True), told.why
    assert not judged(
        [wrong("score")], target="cuda", killed_by=("score",), least_margin=3.0
    ).as_expected


def test_a_survivor_that_dies_on_a_device_is_told() -> None:
    result = judged([wrong("mask")], target="cuda", **SURVIVES)
    assert (result.outcome, result.as_expected) == (Outcome.KILLED, False)


def test_a_race_seen_in_some_of_many_runs_is_killed() -> None:
    clean = [seen("mask", Status.PASS)]
    race = {"killed_by": ("races",), "race": True}
    result = judged(clean, target="cuda", race_runs=(3, 59), **race)
    assert (result.outcome, result.as_expected) == (Outcome.KILLED, True)
    assert (result.race_hits, result.race_runs) == (3, 59)
    assert result.killed_by == ("repeats",)
    result = judged(clean, target="cuda", race_runs=(0, 59), **race)
    assert (result.outcome, result.as_expected) == (Outcome.HOST_ONLY, True)


def test_what_the_emulation_alone_sees_is_left_out_of_a_devices_score() -> None:
    left_out = judged([seen("mask", Status.PASS)], target="cuda", killed_by=("races",))
    assert outcomes.score_of([left_out])["host_only"] == 1
