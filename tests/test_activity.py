"""Records of the profiler: which launch they belong to, and that none is guessed."""

from __future__ import annotations

import pytest

from qsa_bench.timers.activity import (
    Activity,
    Launched,
    LostRecordsError,
    activities,
    dealt,
    described,
    durations,
    names_of_a_call,
)


class _Event:
    """A raw event as torch's profiler gives it."""

    def __init__(self, name: str, start: int, duration: int, device: str = "DeviceType.CUDA"):
        self._values = name, start, duration, device

    def name(self) -> str:
        return self._values[0]

    def start_ns(self) -> int:
        return self._values[1]

    def duration_ns(self) -> int:
        return self._values[2]

    def device_type(self) -> str:
        return self._values[3]


def _records(*names: str) -> list[Activity]:
    return [Activity(name, 1000 * place, 100 + place) for place, name in enumerate(names)]


def test_only_what_ran_on_the_device_counts_in_order_of_time() -> None:
    events = [
        _Event("later", 200, 5),
        _Event("cudaLaunchKernel", 50, 4000, "DeviceType.CPU"),
        _Event("earlier", 100, 3),
    ]
    assert activities(events) == [Activity("earlier", 100, 3), Activity("later", 200, 5)]


def test_torchs_own_events_are_read() -> None:
    from torch import ones
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        ones(3).sum()
    events = profiled.profiler.kineto_results.events()  # type: ignore[union-attr]
    # Nothing ran on a device here; that every method is there is what is looked at.
    assert activities(events) == []
    assert {type(e.name()) for e in events} == {str}
    assert {type(e.start_ns()) for e in events} | {type(e.duration_ns()) for e in events} == {int}


def test_what_a_call_does_is_the_period_of_equal_calls() -> None:
    assert names_of_a_call(_records("sort", "mark", "sort", "mark", "sort", "mark"), 3) == (
        "sort",
        "mark",
    )


@pytest.mark.parametrize("names", [(), ("a", "b"), ("a", "b", "a", "b", "b", "a"), ("a",)], ids=str)
def test_calls_that_differ_are_refused(names: tuple[str, ...]) -> None:
    with pytest.raises(LostRecordsError):
        names_of_a_call(_records(*names), 3)


def test_an_empty_record_says_that_nothing_was_recorded() -> None:
    with pytest.raises(LostRecordsError, match="recorded nothing on the device"):
        names_of_a_call([], 3)


def test_a_calls_durations_are_those_of_all_it_launched_in_order() -> None:
    launched = [
        Launched(None, ("flush",)),
        Launched("peer", ("sort", "mark")),
        Launched("ours", ("select",)),
    ]
    recorded = _records("flush", "sort", "mark", "select")
    assert durations(recorded, launched) == [(None, (100,)), ("peer", (101, 102)), ("ours", (103,))]


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("select",), "2 records are due, the profiler left 1"),
        (("select", "select", "select"), "2 records are due, the profiler left 3"),
        (("select", "flush"), "a record of select is due, flush is there"),
    ],
)
def test_a_record_that_does_not_fit_is_refused_whole(names: tuple[str, ...], said: str) -> None:
    launched = [Launched("ours", ("select",)), Launched("ours", ("select",))]
    with pytest.raises(LostRecordsError, match=said):
        durations(_records(*names), launched)


def test_a_trace_tells_grid_block_and_registers() -> None:
    trace = {
        "traceEvents": [
            {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 1, "args": {}},
            {
                "cat": "kernel",
                "name": "select_mask_kernel",
                "ts": "3.5",
                "args": {
                    "grid": [64, 1, 1],
                    "block": [512, 1, 1],
                    "registers per thread": 40,
                    "shared memory": 9616,
                },
            },
            {"cat": "kernel", "name": "bare", "ts": 2.25},
        ]
    }
    assert described(trace) == [
        "bare",
        "select_mask_kernel, grid 64x1x1, block 512x1x1, 40 registers, 9616 B shared",
    ]


def test_lines_are_dealt_to_subjects_without_copies_and_fills() -> None:
    names = {"peer": ("sort", "Memset (Device)", "mark"), "ours": ("select",)}
    assert dealt(["a", "b", "c"], names) == {"peer": ["a", "b"], "ours": ["c"]}
    assert dealt(["a", "b"], names) == {}
