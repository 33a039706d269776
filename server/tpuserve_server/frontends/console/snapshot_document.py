"""The document of a snapshot: the figures of the last seconds, for all subscribers."""

import time
from typing import Any, Final

from tpuserve_server.core.batching.queue_depth import QueueDepth
from tpuserve_server.core.live_figures import DeviceLoad, RecentFigures, VersionTraffic, Window
from tpuserve_server.core.types import ServableId, State
from tpuserve_server.frontends.console.sources import ConsoleSources

_MILLISECONDS: Final = 1e3
_NO_TRAFFIC: Final = VersionTraffic(0.0)
_NONE_QUEUED: Final = QueueDepth()


def describe_snapshot(sources: ConsoleSources, window: Window) -> dict[str, Any]:
    """Measure now, and return the figures of `window` and the present state as JSON. Blocks for milliseconds."""
    figures, queued = window.take(), sources.service.queued()
    return {
        "at": time.time(),
        "uptime_s": sources.uptime_s,
        "state": sources.service.state().value,
        "in_flight": dict(sources.in_flight()),
        "process": {"cpu": figures.cpu, "rss_bytes": figures.resident_bytes},
        "devices": [_describe_device(device) for device in figures.devices],
        "versions": [
            _describe_version(servable, state, _traffic(figures, servable), queued.get(servable, _NONE_QUEUED))
            for name, model in sources.service.states().items()
            for number, state in sorted(model.versions.items())
            if state is not State.END
            for servable in [ServableId(name, number)]
        ],
    }


def _traffic(figures: RecentFigures, servable: ServableId) -> VersionTraffic | None:
    return None if figures.versions is None else figures.versions.get(servable, _NO_TRAFFIC)


def _describe_device(device: DeviceLoad) -> dict[str, Any]:
    memory = device.memory_bytes
    return {
        "name": device.name,
        "busy": None if device.busy is None else _share(device.busy),
        "in_use": memory.get("in_use"),
        "limit": memory.get("limit"),
    }


def _describe_version(
    servable: ServableId, state: State, traffic: VersionTraffic | None, queued: QueueDepth
) -> dict[str, Any]:
    return {
        "model": servable.name,
        "version": servable.version,
        "state": state.name,
        "requests_per_s": None if traffic is None else traffic.requests_per_s,
        "errors_per_s": None if traffic is None else sum(traffic.errors.values()),
        "errors": {} if traffic is None else {code.name: rate for code, rate in traffic.errors.items()},
        "p50_ms": None if traffic is None else _ms(traffic.p50_s),
        "p90_ms": None if traffic is None else _ms(traffic.p90_s),
        "p99_ms": None if traffic is None else _ms(traffic.p99_s),
        "queued_requests": queued.requests,
        "queued_rows": queued.rows,
        "batch_rows": None if traffic is None else traffic.batch_rows,
        "batch_requests": None if traffic is None else traffic.batch_requests,
        "padding": None if traffic is None else traffic.padding,
        "busy": None if traffic is None else _share(traffic.busy),
    }


def _ms(duration_s: float | None) -> float | None:
    return None if duration_s is None else duration_s * _MILLISECONDS


def _share(busy: float) -> float:
    """Return at most 1: a run that ends within the window counts with its whole duration."""
    return min(busy, 1.0)
