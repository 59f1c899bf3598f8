"""What the device says of itself while it is timed: clocks, throttling, power, other users.

Read through NVML around each round of launches. A reading that the device does not support is
None, never a guess.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

# Bits of nvmlDeviceGetCurrentClocksEventReasons that slow a kernel down. Idleness and clocks that
# an administrator has set are the device as it is found.
_REASONS: Mapping[int, str] = {
    0x0000000000000004: "software power cap",
    0x0000000000000008: "hardware slowdown",
    0x0000000000000020: "software thermal slowdown",
    0x0000000000000040: "hardware thermal slowdown",
    0x0000000000000080: "hardware power brake",
}
# An idle H200 runs at 345 of 1,980 MHz; below half the highest clock it has not woken up.
_LEAST_CLOCK_SHARE = 0.5
LOW_CLOCK = "low clock"


@dataclass(frozen=True)
class Reading:
    """One look at the device; None is not supported.

    `throttled` are reasons for which what was just timed is worth nothing. `others` is the number
    of other processes that hold a context on the device.
    """

    sm_mhz: int | None = None
    memory_mhz: int | None = None
    power_w: float | None = None
    temperature_c: int | None = None
    throttled: tuple[str, ...] = ()
    others: int | None = None


class Telemetry(Protocol):
    """A source of readings."""

    def read(self) -> Reading:
        """Look now; takes some ms."""
        ...


class Nvml:
    """Readings of one device through NVML."""

    def __init__(self, uuid: str | None, nvml: Any = None) -> None:
        """Open the device of that UUID, the first one without; NVML's errors pass through."""
        if nvml is None:
            import pynvml

            nvml = pynvml
        self._nvml = nvml
        nvml.nvmlInit()
        self._handle = (
            nvml.nvmlDeviceGetHandleByUUID(uuid) if uuid else nvml.nvmlDeviceGetHandleByIndex(0)
        )
        self._most_sm_mhz = self._ask(nvml.nvmlDeviceGetMaxClockInfo, nvml.NVML_CLOCK_SM)

    def _ask(self, function: Callable[..., Any], *arguments: Any) -> int | None:
        try:
            return int(function(self._handle, *arguments))
        except self._nvml.NVMLError:
            return None

    def read(self) -> Reading:
        """Look at the device now."""
        nvml = self._nvml
        sm_mhz = self._ask(nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_SM)
        power = self._ask(nvml.nvmlDeviceGetPowerUsage)
        return Reading(
            sm_mhz=sm_mhz,
            memory_mhz=self._ask(nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_MEM),
            power_w=None if power is None else power / 1000,
            temperature_c=self._ask(nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU),
            throttled=self._throttled(sm_mhz),
            others=self._others(),
        )

    def _throttled(self, sm_mhz: int | None) -> tuple[str, ...]:
        # The older name is what drivers before 12.3 answer to.
        for name in (
            "nvmlDeviceGetCurrentClocksEventReasons",
            "nvmlDeviceGetCurrentClocksThrottleReasons",
        ):
            function = getattr(self._nvml, name, None)
            bits = None if function is None else self._ask(function)
            if bits is not None:
                break
        reasons = [text for bit, text in _REASONS.items() if (bits or 0) & bit]
        highest = self._most_sm_mhz
        if sm_mhz is not None and highest and sm_mhz < highest * _LEAST_CLOCK_SHARE:
            reasons.append(LOW_CLOCK)
        return tuple(reasons)

    def _others(self) -> int | None:
        try:
            running = self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle)
        except self._nvml.NVMLError:
            return None
        pids = {process.pid for process in running}
        if os.getpid() in pids:
            return len(pids) - 1
        # In a container NVML names processes by numbers of the host's: one of them is this one.
        return max(len(pids) - 1, 0)


def clocks(readings: Iterable[Reading]) -> dict[str, float]:
    """Return what a measurement keeps of its readings; what nobody could read is left out."""
    seen: Sequence[Reading] = tuple(readings)
    kept: dict[str, float] = {}
    for name, values in (
        ("sm_mhz", [r.sm_mhz for r in seen if r.sm_mhz is not None]),
        ("memory_mhz", [r.memory_mhz for r in seen if r.memory_mhz is not None]),
        ("power_w", [r.power_w for r in seen if r.power_w is not None]),
        ("temperature_c", [r.temperature_c for r in seen if r.temperature_c is not None]),
    ):
        if values:
            kept[name] = float(statistics.median(values))
    sm_mhz = [r.sm_mhz for r in seen if r.sm_mhz is not None]
    if sm_mhz:
        kept["least_sm_mhz"] = float(min(sm_mhz))
        kept["most_sm_mhz"] = float(max(sm_mhz))
    others = [r.others for r in seen if r.others is not None]
    if others:
        kept["others"] = float(max(others))
    return kept
