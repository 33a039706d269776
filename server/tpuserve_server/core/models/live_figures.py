"""LiveFigures: what the server did in the last seconds, as the metrics measure it."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from tpuserve_server.core.terms.errors import Code
from tpuserve_server.core.terms.servable import DeviceGauge
from tpuserve_server.core.terms.types import ServableId

_NO_ERRORS: Final[Mapping[Code, float]] = MappingProxyType({})


class VersionTraffic(NamedTuple):
    """Requests and batches of one version within the window. None: there was no request, or no batch.

    Percentiles are those of successful requests. `padding` is the mean share of padding in a batch. `busy` is the share
    of the time in which a batch ran, or the number of batches at a time if it is above 1. `errors` are errors a second
    by code.
    """

    requests_per_s: float
    errors: Mapping[Code, float] = _NO_ERRORS
    p50_s: float | None = None
    p90_s: float | None = None
    p99_s: float | None = None
    batch_rows: float | None = None
    batch_requests: float | None = None
    padding: float | None = None
    busy: float = 0.0


class DeviceLoad(NamedTuple):
    """One device. `busy` is the share of the window in which a run used it. `memory_bytes` is that of DeviceGauge."""

    name: str
    busy: float | None
    memory_bytes: Mapping[str, int]


class RecentFigures(NamedTuple):
    """Figures of the window. `cpu` is the number of cores that the process used.

    They are None without a window, except the present ones: `devices`, and `resident_bytes`, which is None if the
    system does not report it.
    """

    versions: Mapping[ServableId, VersionTraffic] | None
    devices: Sequence[DeviceLoad]
    cpu: float | None
    resident_bytes: int | None


class VersionOrigin(NamedTuple):
    """The device of a version, as DeviceMetrics has it, and its warm-up. None: it had no warm-up."""

    device: str = ""
    fallback: str = ""
    warmup_s: float | None = None
    warmup_records: int | None = None


class Window(Protocol):
    """The measurements of one reader. One thread at a time may call it."""

    def take(self) -> RecentFigures:
        """Measure now, and return the figures since the measurement about 5 s ago, or the oldest one. Blocks.

        It takes about 6 us for each signature with traffic, and 0.1 ms for each version.
        """
        ...


class LiveFigures(Protocol):
    """Reads the measurements. Any thread may call it."""

    def open_window(self) -> Window:
        """Return a window without measurements."""
        ...

    def origins(self) -> Mapping[ServableId, VersionOrigin]:
        """Return the origin of each version that has not ended."""
        ...

    def devices(self) -> Sequence[DeviceGauge]:
        """Return every device in use."""
        ...
