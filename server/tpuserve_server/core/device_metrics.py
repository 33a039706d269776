"""What is measured of devices: which a version got and why, what compiling took, memory and time used."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from tpuserve_server.core.types import ServableId


class DeviceGauge(Protocol):
    """One device, looked at whenever somebody asks. Safe from any thread."""

    @property
    def name(self) -> str:
        """`tpu:0`"""
        ...

    def busy_s(self) -> float:
        """Seconds in which a run was on it, since the server began to use it."""
        ...

    def memory_bytes(self) -> Mapping[str, int]:
        """By what it is: `in_use`, `peak`, `limit`; without those that the device does not tell."""
        ...


class DeviceMetrics(Protocol):
    """Where measurements of devices go. Cheap, and callable from any thread."""

    def devices_opened(self, *, gauges: Sequence[DeviceGauge]) -> None:
        """These devices are in use from now on; those told before are the same ones."""
        ...

    def device_chosen(self, *, servable: ServableId, device: str, fallback: str = "") -> None:
        """A version is loaded onto `device`: `tpu`, `gpu` or `cpu`. `fallback` says in a word why not onto a better."""
        ...

    def programs_compiled(self, *, servable: ServableId, duration_s: float) -> None:
        """All of a version's programs were compiled, or found compiled, within this time."""
        ...
