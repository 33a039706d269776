"""Measurements of the server's devices."""

import threading
from collections.abc import Collection, Sequence
from typing import NamedTuple

from tpuserve_server.core.device_metrics import DeviceGauge
from tpuserve_server.core.types import ServableId


class Choice(NamedTuple):
    """Device of a version. `fallback` is a word for the reason against a better device, or empty on the best one."""

    device: str
    fallback: str


class DeviceMeasurements:
    """Implementation of core.device_metrics.DeviceMetrics. Thread-safe: `_lock` guards every field."""

    def __init__(self) -> None:
        """Start with no device in use."""
        self._lock = threading.Lock()
        self._gauges: tuple[DeviceGauge, ...] = ()
        self._choices: dict[ServableId, Choice] = {}
        self._compile_s: dict[ServableId, float] = {}

    # Called by executors.

    def devices_opened(self, *, gauges: Sequence[DeviceGauge]) -> None:
        """Record the devices in use."""
        with self._lock:
            self._gauges = tuple(gauges)

    def device_chosen(self, *, servable: ServableId, device: str, fallback: str = "") -> None:
        """Record the device of a version."""
        with self._lock:
            self._choices[servable] = Choice(device, fallback)

    def programs_compiled(self, *, servable: ServableId, duration_s: float) -> None:
        """Record the time in which a version's programs were compiled."""
        with self._lock:
            self._compile_s[servable] = duration_s

    def forget(self, removed: Collection[ServableId]) -> None:
        """Remove the records of versions that have ended."""
        with self._lock:
            for servable in removed:
                self._choices.pop(servable, None)
                self._compile_s.pop(servable, None)

    # Read by the metrics page.

    def gauges(self) -> tuple[DeviceGauge, ...]:
        """Return every device in use."""
        with self._lock:
            return self._gauges

    def choices(self) -> dict[ServableId, Choice]:
        """Return the device of each version that has not ended."""
        with self._lock:
            return dict(self._choices)

    def compile_s(self) -> dict[ServableId, float]:
        """Return the compile time in seconds of each version with device programs that has not ended."""
        with self._lock:
            return dict(self._compile_s)
