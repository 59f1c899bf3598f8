"""The sampling loop on made-up clocks: when it stops, what it drops, that nothing is invented."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence

import pytest

from qsa_bench.timing import Round, Rule, Sampled, Stop, measure

QUICK = Rule(half_width=0.01, least=20, most=100, limit_s=1000.0)


class Fake:
    """A clock with made-up durations; a second passes in every round."""

    def __init__(
        self,
        values: Mapping[str, Sequence[int]],
        throttled: Mapping[int, tuple[str, ...]] | None = None,
        refused: Mapping[str, str] | None = None,
        per_block: int = 5,
    ) -> None:
        self.values = values
        self.throttled = throttled or {}
        self.refused = refused or {}
        self.per_block = per_block
        self.orders: list[list[str]] = []

    def seconds(self) -> float:
        return float(len(self.orders))

    def round(self, order: Sequence[str]) -> Round:
        self.orders.append(list(order))
        counts = Counter(order)
        samples = {
            name: [
                self.values[name][place % len(self.values[name])]
                for place in range(count * self.per_block)
            ]
            for name, count in counts.items()
        }
        return Round(samples, self.throttled.get(len(self.orders), ()), self.refused)


def _measure(clock: Fake, *subjects: str, rule: Rule = QUICK) -> dict[str, Sampled]:
    return measure(clock, subjects or tuple(clock.values), rule, random.Random(3))


def test_equal_samples_stop_at_the_least_number() -> None:
    found = _measure(Fake({"a": [2000]}))["a"]
    assert found.stopped is Stop.PRECISE
    assert found.samples_ns == (2000,) * 20


def test_a_wide_spread_goes_on_to_the_most_samples_and_not_beyond() -> None:
    found = _measure(Fake({"a": [1000, 9000]}, per_block=7))["a"]
    assert found.stopped is Stop.MOST_SAMPLES
    assert len(found.samples_ns) == 100


def test_the_time_limit_stops_with_what_there_is() -> None:
    rule = Rule(half_width=0.01, least=20, most=1000, limit_s=3.0)
    found = _measure(Fake({"a": [1000, 9000]}), rule=rule)["a"]
    assert found.stopped is Stop.TIME_LIMIT
    assert len(found.samples_ns) == 30


def test_precision_is_relative_to_the_median() -> None:
    # The middle half spans 40 ns: 1% of 4,000 ns and 4% of 1,000 ns.
    spread = [-40, -20, 0, 20, 40]
    narrow, wide = ([base + step for step in spread] for base in (4000, 1000))
    found = _measure(Fake({"narrow": narrow, "wide": wide}))
    assert found["narrow"].stopped is Stop.PRECISE
    assert found["wide"].stopped is Stop.MOST_SAMPLES


def test_throttled_rounds_are_dropped_and_counted_by_reason() -> None:
    clock = Fake({"a": [2000]}, throttled={1: ("low clock",), 3: ("power", "heat")})
    found = _measure(clock)["a"]
    assert found.dropped == {"low clock": 10, "heat and power": 10}
    assert found.samples_ns == (2000,) * 20
    assert len(clock.orders) == 4


def test_a_device_that_is_always_throttled_gives_no_sample_and_no_zero() -> None:
    clock = Fake({"a": [2000]}, throttled=dict.fromkeys(range(1, 2000), ("heat",)))
    rule = Rule(half_width=0.01, least=20, most=100, limit_s=5.0)
    found = _measure(clock, rule=rule)["a"]
    # Four limits of five rounds each: a device that sleeps at first is given the time to wake up.
    assert found == Sampled((), {"heat": 200}, Stop.TIME_LIMIT)


def test_a_device_that_slept_past_the_limit_is_waited_for() -> None:
    clock = Fake({"a": [1000, 9000]}, throttled=dict.fromkeys(range(1, 8), ("low clock",)))
    rule = Rule(half_width=0.01, least=20, most=1000, limit_s=5.0)
    found = _measure(clock, rule=rule)["a"]
    assert found.stopped is Stop.TIME_LIMIT
    assert (len(found.samples_ns), found.dropped) == (10, {"low clock": 70})


def test_what_is_compared_is_interleaved_in_an_order_that_changes() -> None:
    clock = Fake({"a": [1000, 2000], "b": [1000, 3000]})
    _measure(clock)
    assert all(Counter(order) == {"a": 2, "b": 2} for order in clock.orders)
    assert len({tuple(order) for order in clock.orders}) > 1


def test_the_order_is_that_of_the_seed() -> None:
    first, second = Fake({"a": [1, 9], "b": [1, 9]}), Fake({"a": [1, 9], "b": [1, 9]})
    _measure(first)
    _measure(second)
    assert first.orders == second.orders


def test_a_subject_that_is_done_is_launched_no_more() -> None:
    clock = Fake({"steady": [2000], "noisy": [1000, 9000]})
    found = _measure(clock)
    assert len(found["steady"].samples_ns) == 20
    assert set(clock.orders[-1]) == {"noisy"}


def test_a_refused_subject_says_why_and_does_not_hold_up_the_others() -> None:
    clock = Fake({"a": [2000], "b": [2000]}, refused={"b": "it takes no stream"})
    found = _measure(clock)
    assert found["b"] == Sampled((), {}, Stop.REFUSED, "it takes no stream")
    assert found["a"].stopped is Stop.PRECISE


def test_results_come_in_the_order_of_asking() -> None:
    clock = Fake({"slow": [1000, 9000], "quick": [2000]})
    assert list(_measure(clock)) == ["slow", "quick"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"half_width": 0.0},
        {"half_width": 1.0},
        {"confidence": 1.0},
        {"least": 0},
        {"least": 10, "most": 9},
        {"limit_s": 0.0},
    ],
)
def test_a_rule_that_makes_no_sense_cant_be_built(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="rule"):
        Rule(**wrong)  # type: ignore[arg-type]


def test_too_few_samples_for_an_interval_are_never_precise() -> None:
    assert Rule(least=1, most=400).stop([5, 5, 5], 0.0) is None
