"""Readings of the device, from an NVML that is made up."""

from __future__ import annotations

import os
from typing import Any

import pytest

from qsa_bench.telemetry import LOW_CLOCK, Nvml, Reading, clocks


class _Error(Exception):
    pass


class _Process:
    def __init__(self, pid: int) -> None:
        self.pid = pid


class FakeNvml:
    """As much of pynvml as is used."""

    NVMLError = _Error
    NVML_CLOCK_SM = 1
    NVML_CLOCK_MEM = 2
    NVML_TEMPERATURE_GPU = 0

    def __init__(
        self, reasons: int | None = 0, sm: int = 1980, pids: tuple[int, ...] | None = ()
    ) -> None:
        self.reasons, self.sm, self.pids = reasons, sm, pids
        self.opened: list[object] = []

    def nvmlInit(self) -> None:  # noqa: N802 - NVML's own names
        pass

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        self.opened.append(uuid)
        return "handle"

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:  # noqa: N802
        self.opened.append(index)
        return "handle"

    def nvmlDeviceGetMaxClockInfo(self, handle: str, kind: int) -> int:  # noqa: N802
        return 1980

    def nvmlDeviceGetClockInfo(self, handle: str, kind: int) -> int:  # noqa: N802
        return self.sm if kind == self.NVML_CLOCK_SM else 3201

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:  # noqa: N802
        return 123456

    def nvmlDeviceGetTemperature(self, handle: str, kind: int) -> int:  # noqa: N802
        return 41

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: str) -> int:  # noqa: N802
        if self.reasons is None:
            raise _Error("not supported")
        return self.reasons

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[_Process]:  # noqa: N802
        if self.pids is None:
            raise _Error("no permission")
        return [_Process(pid) for pid in self.pids]


def _read(**given: Any) -> Reading:
    return Nvml(None, FakeNvml(**given)).read()


def test_a_reading_holds_clocks_power_and_temperature() -> None:
    reading = _read()
    assert (reading.sm_mhz, reading.memory_mhz) == (1980, 3201)
    assert (reading.power_w, reading.temperature_c) == (123.456, 41)
    assert reading.throttled == ()


@pytest.mark.parametrize(
    ("bits", "words"),
    [
        (0x01, ()),  # idle
        (0x02, ()),  # clocks that an administrator set
        (0x04, ("software power cap",)),
        (0x08, ("hardware slowdown",)),
        (0x60, ("software thermal slowdown", "hardware thermal slowdown")),
        (0x80, ("hardware power brake",)),
        (0x05, ("software power cap",)),
    ],
)
def test_what_slows_a_kernel_throttles_and_idleness_does_not(
    bits: int, words: tuple[str, ...]
) -> None:
    assert _read(reasons=bits).throttled == words


def test_a_device_that_has_not_woken_up_is_no_device_to_time() -> None:
    assert _read(sm=345).throttled == (LOW_CLOCK,)
    assert _read(sm=1200).throttled == ()


def test_other_processes_are_counted_without_this_one() -> None:
    assert _read(pids=(os.getpid(),)).others == 0
    assert _read(pids=(os.getpid(), 17, 4)).others == 2


def test_in_a_container_one_process_of_a_foreign_number_is_this_one() -> None:
    assert _read(pids=(os.getpid() + 1,)).others == 0
    assert _read(pids=(os.getpid() + 1, os.getpid() + 2)).others == 1
    assert _read(pids=()).others == 0


def test_what_the_device_does_not_support_is_unknown() -> None:
    reading = _read(pids=None, reasons=None)
    assert reading.others is None
    assert reading.throttled == ()


def test_the_device_is_opened_by_uuid_where_one_is_known() -> None:
    nvml = FakeNvml()
    Nvml("GPU-1234", nvml)
    Nvml(None, nvml)
    assert nvml.opened == ["GPU-1234", 0]


def test_a_measurement_keeps_medians_extremes_and_the_most_others() -> None:
    readings = [Reading(1900, 3000, 100.0, 40, (), 0), Reading(1980, 3000, 300.0, 44, (), 2)]
    assert clocks(readings) == {
        "sm_mhz": 1940.0,
        "memory_mhz": 3000.0,
        "power_w": 200.0,
        "temperature_c": 42.0,
        "least_sm_mhz": 1900.0,
        "most_sm_mhz": 1980.0,
        "others": 2.0,
    }


def test_what_nobody_could_read_is_left_out() -> None:
    assert clocks([Reading()]) == {}
