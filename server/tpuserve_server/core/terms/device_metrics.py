"""DeviceMetrics: measurements of devices, such as the choice of a device, compile time, memory and busy time."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from tpuserve_server.core.terms.types import ServableId


class DeviceGauge(Protocol):
    """One device, read whenever a metric is collected. Thread-safe."""

    @property
    def name(self) -> str:
        """Name of the device, such as `tpu:0`."""
        ...

    def busy_s(self) -> float:
        """Return the seconds in which a run used the device, since the server began to use it."""
        ...

    def memory_bytes(self) -> Mapping[str, int]:
        """Return the memory by kind: `in_use`, `peak` and `limit`, as far as the device reports them."""
        ...


class DeviceMetrics(Protocol):
    """The receiver of measurements of devices. Every method is cheap and thread-safe."""

    def devices_opened(self, *, gauges: Sequence[DeviceGauge]) -> None:
        """Record that these devices are in use from now on. A repeated name refers to the same device."""
        ...

    def device_chosen(self, *, servable: ServableId, device: str, fallback: str = "") -> None:
        """Record that a version is loaded onto `device`: `tpu`, `gpu` or `cpu`.

        `fallback` is a word for the reason why no better device was used.
        """
        ...

    def programs_compiled(self, *, servable: ServableId, duration_s: float) -> None:
        """Record that all programs of a version were compiled, or loaded from a cache, within `duration_s`."""
        ...
