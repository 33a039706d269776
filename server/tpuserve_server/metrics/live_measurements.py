"""LiveMeasurements: the figures of the last seconds, from differences between totals of the measurements."""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from tpuserve_server.core.deadline import Clock
from tpuserve_server.core.device_metrics import DeviceGauge
from tpuserve_server.core.live_figures import DeviceLoad, RecentFigures, VersionOrigin
from tpuserve_server.core.process_usage import cpu_s, resident_bytes
from tpuserve_server.core.types import ServableId
from tpuserve_server.metrics.measurements import Measurements
from tpuserve_server.metrics.version_totals import VersionTotals, version_totals

WINDOW_S: Final = 5.0


class _Moment(NamedTuple):
    at_s: float
    cpu_s: float
    busy_s: Mapping[str, float]
    versions: Mapping[ServableId, VersionTotals]


class MeasuredWindow:
    """Implementation of core.live_figures.Window."""

    def __init__(self, measured: Measurements, clock: Clock) -> None:
        """Read from `measured`."""
        self._measured = measured
        self._clock = clock
        self._moments: deque[_Moment] = deque()

    def take(self) -> RecentFigures:
        """Measure now, and return the figures of the window."""
        gauges = self._measured.devices.gauges()
        now = self._measure(gauges)
        moments = self._moments
        moments.append(now)
        while len(moments) > 2 and now.at_s - moments[1].at_s >= WINDOW_S:
            moments.popleft()
        then = moments[0]
        duration_s = now.at_s - then.at_s
        if duration_s <= 0:
            loads = [DeviceLoad(gauge.name, None, gauge.memory_bytes()) for gauge in gauges]
            return RecentFigures(None, loads, None, resident_bytes())
        none = VersionTotals()
        return RecentFigures(
            {
                servable: totals.traffic_since(then.versions.get(servable, none), duration_s)
                for servable, totals in now.versions.items()
            },
            [
                DeviceLoad(
                    gauge.name,
                    (now.busy_s[gauge.name] - then.busy_s.get(gauge.name, 0.0)) / duration_s,
                    gauge.memory_bytes(),
                )
                for gauge in gauges
            ],
            (now.cpu_s - then.cpu_s) / duration_s,
            resident_bytes(),
        )

    def _measure(self, gauges: Sequence[DeviceGauge]) -> _Moment:
        busy_s = {gauge.name: gauge.busy_s() for gauge in gauges}
        return _Moment(self._clock.monotonic_s(), cpu_s(), busy_s, version_totals(self._measured))


class LiveMeasurements:
    """Implementation of core.live_figures.LiveFigures."""

    def __init__(self, measured: Measurements, clock: Clock) -> None:
        """Read from `measured`."""
        self._measured = measured
        self._clock = clock

    def open_window(self) -> MeasuredWindow:
        """Return a window without measurements."""
        return MeasuredWindow(self._measured, self._clock)

    def origins(self) -> dict[ServableId, VersionOrigin]:
        """Return the origin of each version that has not ended."""
        choices, warmups = self._measured.devices.choices(), self._measured.warmups()
        origins = {servable: VersionOrigin(*choice) for servable, choice in choices.items()}
        for servable, warmup in warmups.items():
            known = origins.get(servable, VersionOrigin())
            origins[servable] = known._replace(warmup_s=warmup.duration_s, warmup_records=warmup.records)
        return origins

    def devices(self) -> Sequence[DeviceGauge]:
        """Return every device in use."""
        return self._measured.devices.gauges()
