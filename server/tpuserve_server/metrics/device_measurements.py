"""What the server has measured of its devices so far."""

import threading
from collections.abc import Collection, Sequence
from typing import NamedTuple

from tpuserve_server.core.device_metrics import DeviceGauge
from tpuserve_server.core.types import ServableId


class Choice(NamedTuple):
    """The device that a version got, and in a word why not a better one; empty where there is no better."""

    device: str
    fallback: str


class DeviceMeasurements:
    """core.device_metrics.DeviceMetrics. Safe from any thread; `_lock` guards everything here."""

    def __init__(self) -> None:
        """No device is in use."""
        self._lock = threading.Lock()
        self._gauges: tuple[DeviceGauge, ...] = ()
        self._choices: dict[ServableId, Choice] = {}
        self._compile_s: dict[ServableId, float] = {}

    # Told by executors.

    def devices_opened(self, *, gauges: Sequence[DeviceGauge]) -> None:
        """These are in use."""
        with self._lock:
            self._gauges = tuple(gauges)

    def device_chosen(self, *, servable: ServableId, device: str, fallback: str = "") -> None:
        """A version got a device."""
        with self._lock:
            self._choices[servable] = Choice(device, fallback)

    def programs_compiled(self, *, servable: ServableId, duration_s: float) -> None:
        """A version's programs are ready."""
        with self._lock:
            self._compile_s[servable] = duration_s

    def forget(self, gone: Collection[ServableId]) -> None:
        """These versions have ended."""
        with self._lock:
            for servable in gone:
                self._choices.pop(servable, None)
                self._compile_s.pop(servable, None)

    # Asked by pages.

    def gauges(self) -> tuple[DeviceGauge, ...]:
        """Every device in use."""
        with self._lock:
            return self._gauges

    def choices(self) -> dict[ServableId, Choice]:
        """The device of every version that is there."""
        with self._lock:
            return dict(self._choices)

    def compile_s(self) -> dict[ServableId, float]:
        """How long compiling took, of every version with programs that is there."""
        with self._lock:
            return dict(self._compile_s)
