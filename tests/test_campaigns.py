"""Shards, comparisons and numbers of campaigns, on campaigns made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from qsa_bench import campaign_numbers, compare_campaigns, merging, results, stats, store
from qsa_bench.campaign_requests import MergeRequest
from qsa_bench.errors import IncompleteError, NotComparableError, UsageError
from qsa_bench.exit_codes import ExitCode
from qsa_bench.model import Kill, MutantResult, Outcome
from qsa_bench.requests import NullProgress
from qsa_bench.store import RunWriter, StoredRun
from tests.reports.campaigns import RESULTS, campaign, kills_of, result

KILLED = tuple(result(number, Outcome.KILLED) for number in range(1, 8))


def shard(
    folder: Path, number: int, count: int, made: Sequence[MutantResult], **notes: Any
) -> StoredRun:
    """Write a shard of a campaign of all that KILLED holds."""
    writer = RunWriter.create(folder, "mutate", ("qsa-bench", "mutate"), "host", "emulated")
    writer.add_mutants(made)
    for each in made:
        writer.add_kills(kills_of(each))
    selection = {"list": "abc", "listed": len(KILLED), "whole": False, "shard": [number, count]}
    return writer.finish(len(made), len(made), 0, {"selection": {**selection, **notes}})


def shards(folder: Path, count: int = 3) -> list[StoredRun]:
    return [shard(folder, k, count, KILLED[k - 1 :: count]) for k in range(1, count + 1)]


def test_shards_are_the_campaign_together_in_any_order(tmp_path: Path) -> None:
    from qsa_bench.commands import merge

    parts = shards(tmp_path)
    names = tuple(str(part.folder) for part in parts[::-1])
    merged = merge.run(MergeRequest(names, tmp_path / "merged"), NullProgress())
    assert merged.run.exit_code == 0
    assert {made.mutant.id for made in merged.mutants} == {made.mutant.id for made in KILLED}
    assert len(merged.kills) == 2 * len(KILLED)
    assert merged.run.notes["score"]["killed"] == 7  # type: ignore[index]
    assert merged.run.asked == merged.run.done == 7
    assert store.read_run(merged.folder or tmp_path) == merged


def test_a_lost_shard_is_named_and_never_green(tmp_path: Path) -> None:
    parts = shards(tmp_path)
    with pytest.raises(IncompleteError, match=r"2/3 missing"):
        merging.merge([parts[0], parts[2]])


def test_a_shard_given_twice_is_refused(tmp_path: Path) -> None:
    parts = shards(tmp_path)
    with pytest.raises(UsageError, match=r"2/3 is there twice"):
        merging.merge([*parts, parts[1]])


def test_shards_of_another_list_are_refused(tmp_path: Path) -> None:
    parts = shards(tmp_path, 2)
    other = shard(tmp_path, 2, 2, KILLED[1::2], list="xyz")
    with pytest.raises(NotComparableError, match="lists of mutants differ"):
        merging.merge([parts[0], other])


def test_a_mutant_in_two_shards_is_refused(tmp_path: Path) -> None:
    parts = [shard(tmp_path, 1, 2, KILLED[:4]), shard(tmp_path, 2, 2, KILLED[3:])]
    with pytest.raises(UsageError, match="is in two of them"):
        merging.merge(parts)


def test_what_is_no_shard_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="it is no shard"):
        merging.merge([campaign(tmp_path)])


def test_a_shard_that_lost_mutants_makes_the_whole_incomplete(tmp_path: Path) -> None:
    from qsa_bench.commands import merge

    parts = [shard(tmp_path, 1, 2, KILLED[::2]), shard(tmp_path, 2, 2, KILLED[1:3:2])]
    names = tuple(str(part.folder) for part in parts)
    merged = merge.run(MergeRequest(names, tmp_path), NullProgress())
    assert merged.run.exit_code == ExitCode.INCOMPLETE
    assert (merged.run.asked, merged.run.done) == (7, 5)


def test_a_new_survivor_is_a_mismatch_and_a_fixed_one_is_told() -> None:
    old = campaign(None, (result(1, Outcome.SURVIVED), result(2, Outcome.KILLED)))
    new = campaign(None, (result(1, Outcome.KILLED), result(2, Outcome.SURVIVED)))
    compared = compare_campaigns.compare(old, new)
    assert [made.mutant.id for made in compared.appeared] == [RESULTS[1].mutant.id]
    assert [made.mutant.id for made in compared.fixed] == [RESULTS[0].mutant.id]
    assert results.exit_code(compared) == 4
    assert results.document(compared)["new_survivors"] == [RESULTS[1].mutant.id]
    assert "1 new survivor" in results.page(compared).headline.text
    assert results.exit_code(compare_campaigns.compare(new, new)) == 0


def test_a_survivor_that_was_not_run_again_is_not_fixed() -> None:
    old = campaign(None, (result(1, Outcome.SURVIVED),))
    new = campaign(None, (result(1, Outcome.NOT_RUN),))
    compared = compare_campaigns.compare(old, new)
    assert compared.fixed == ()
    assert compared.exit_code is ExitCode.INCOMPLETE


def test_campaigns_without_a_mutant_in_common_are_not_comparable() -> None:
    with pytest.raises(NotComparableError, match="no mutant in common"):
        compare_campaigns.compare(campaign(None, RESULTS[:1]), campaign(None, RESULTS[1:2]))


def test_near_misses_and_barely_caught_are_told_apart() -> None:
    ids = [result(n, Outcome.KILLED).mutant.id for n in (1, 2, 3, 4, 5)]
    near, caught, bits, far, stopped = ids
    made = (
        result(1, Outcome.SURVIVED),
        *(replace(result(n, Outcome.KILLED), killed_by=("a",)) for n in (2, 3, 4, 5)),
    )
    kills = [
        Kill(near, "a", 9, 0, 0.4),
        Kill(near, "b", 9, 0, 0.05),
        Kill(caught, "a", 9, 1, 2.5),
        Kill(bits, "a", 9, 1, 2.5),
        Kill(bits, "mask", 9, 1, None),
        Kill(far, "a", 9, 1, 40.0),
        *(Kill(name, "quiet", 9, 0) for name in (caught, bits, far)),
        # Run up to its first kill: what else would have seen it, and by how much, is not known.
        Kill(stopped, "a", 1, 1, 1.5),
    ]
    told = [(what, kill.mutant, kill.margin) for what, kill in campaign_numbers.narrow(made, kills)]
    assert told == [("near miss", near, 0.4), ("barely caught", caught, 2.5)]


@pytest.mark.parametrize(
    ("hits", "low", "high"),
    [(0, 0.0, 0.1684), (1, 0.0013, 0.2487), (10, 0.2720, 0.7280), (20, 0.8316, 1.0)],
)
def test_clopper_pearson_of_twenty(hits: int, low: float, high: float) -> None:
    interval = stats.exact_interval(hits, 20)
    assert (interval.low, interval.high) == pytest.approx((low, high), abs=1e-4)


def test_a_race_mutants_share_of_orders_is_told_with_its_interval() -> None:
    made = (replace(result(1, Outcome.KILLED), orders_killed=3, orders=20),)
    (table,) = campaign_numbers.tables("qsa_pool", made, [])
    assert [cell.text for cell in table.rows[0]][1:] == ["3 of 20", "0.03 to 0.38", "silent"]
