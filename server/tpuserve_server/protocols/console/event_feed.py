"""EventFeed: live figures for every open console, measured once for all of them."""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import orjson

from tpuserve_server.core.batching.task import QueueDepth
from tpuserve_server.core.system.changes import ChangeEvent
from tpuserve_server.core.terms.errors import Unavailable
from tpuserve_server.core.terms.types import ServableId, State
from tpuserve_server.observe.metrics.live_measurements import DeviceLoad, MeasuredWindow, RecentFigures, VersionTraffic
from tpuserve_server.protocols.console.documents import describe_slow
from tpuserve_server.protocols.console.sources import ConsoleSources

if TYPE_CHECKING:
    from tpuserve_server.core.models.model_record import ModelStates
    from tpuserve_server.observe.requests.request_record import RequestRecord


class Subscription:
    """The latest event of each name. A slow client misses snapshots, and its memory does not grow.

    The event loop's thread owns it.
    """

    def __init__(self, leave: Callable[["Subscription"], None]) -> None:
        """Begin without events. `close` calls `leave`."""
        self._leave = leave
        self._pending: dict[str, bytes] = {}
        self._changed = asyncio.Event()
        self.has_ended = False
        # Called at the end, if the stream is sending then.
        self.on_end: Callable[[], None] | None = None

    def offer(self, name: str, event: bytes) -> None:
        """Add an event, in place of the pending one of this name."""
        self._pending.pop(name, None)
        self._pending[name] = event
        self._changed.set()

    def end(self) -> None:
        """End the stream after the pending events."""
        self.has_ended = True
        self._changed.set()
        if self.on_end is not None:
            self.on_end()

    async def next(self) -> bytes:
        """Wait for events, and return all that are pending. Return nothing at the end of the stream."""
        await self._changed.wait()
        events = b"".join(self._pending.values())
        self._pending.clear()
        if not self.has_ended:
            self._changed.clear()
        return events

    def close(self) -> None:
        """Leave the feed. May be called more than once."""
        self._leave(self)


_MILLISECONDS: Final = 1e3
_NO_TRAFFIC: Final = VersionTraffic(0.0)
_NONE_QUEUED: Final = QueueDepth()


def describe_snapshot(sources: ConsoleSources, window: MeasuredWindow) -> dict[str, Any]:
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


_log = logging.getLogger(__name__)

INTERVAL_S: Final = 1.0
MOST_SUBSCRIBERS: Final = 64
_MOST_SLOW: Final = 10


class EventFeed:
    """Sends events to subscribers: `snapshot` once a second, `models` and `slow` when they have changed.

    It measures only while it has subscribers, on a worker thread. The event loop's thread owns everything else. A drain
    ends every subscription.
    """

    def __init__(self, sources: ConsoleSources, interval_s: float = INTERVAL_S) -> None:
        """Send the figures of `sources`."""
        self._sources = sources
        self._interval_s = interval_s
        self._subscriptions: dict[Subscription, None] = {}
        self._publishing: asyncio.Task[None] | None = None
        self._models: dict[str, ModelStates] = {}
        self._changes = 0
        self._slow: list[RequestRecord] = []
        self._latest: dict[str, bytes] = {}

    def subscribe(self) -> Subscription:
        """Begin a subscription. The caller must close it.

        Raises:
            Unavailable: there are too many, or the server drains.
        """
        if self._sources.service.is_draining():
            raise Unavailable("The server is shutting down")
        if len(self._subscriptions) >= MOST_SUBSCRIBERS:
            raise Unavailable(
                f"{MOST_SUBSCRIBERS} clients read the events of this server, which is the limit. Close a console, or "
                "read /debug/status instead"
            )
        subscription = Subscription(self._leave)
        self._subscriptions[subscription] = None
        for name, event in self._latest.items():
            subscription.offer(name, event)
        if self._publishing is None:
            self._publishing = asyncio.create_task(self._publish_all())
        return subscription

    def _leave(self, subscription: Subscription) -> None:
        self._subscriptions.pop(subscription, None)
        if not self._subscriptions and self._publishing is not None:
            self._publishing.cancel()
            self._forget()

    def _forget(self) -> None:
        self._publishing = None
        self._latest.clear()
        self._slow = []

    async def _publish_all(self) -> None:
        """Publish until the last subscriber leaves, which cancels this task, or until the server drains."""
        changed = ChangeEvent()
        unsubscribe = self._sources.service.subscribe(changed)
        try:
            await self._publish_until_drain(changed)
        except Exception:
            # The top of a task: the clients must not wait for events that never come.
            _log.exception("The console's events ended")
        finally:
            unsubscribe()
        for subscription in list(self._subscriptions):
            subscription.end()
        self._forget()

    async def _publish_until_drain(self, changed: ChangeEvent) -> None:
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        # The next subscribers get no rates over the time without any.
        window = self._sources.figures.open_window()
        while True:
            changed.clear()
            is_draining = self._sources.service.is_draining()
            is_due = is_draining or loop.time() >= due_s
            # On a worker thread, because it reads every histogram.
            snapshot = await asyncio.to_thread(describe_snapshot, self._sources, window) if is_due else None
            self._publish_models()
            if snapshot is not None:
                self._publish("snapshot", snapshot)
                self._publish_slow()
                due_s = max(due_s + self._interval_s, loop.time())
            if is_draining:
                return
            try:
                async with asyncio.timeout_at(due_s):
                    await changed.wait()
            except TimeoutError:
                continue

    def _publish_models(self) -> None:
        models = self._sources.service.states()
        if models != self._models or "models" not in self._latest:
            self._models = models
            self._changes += 1
            self._publish("models", self._changes)

    def _publish_slow(self) -> None:
        slow = self._sources.slow.slowest(self._sources.clock.monotonic_s(), _MOST_SLOW)
        if "slow" not in self._latest or [id(one) for one in slow] != [id(one) for one in self._slow]:
            self._slow = slow
            self._publish("slow", describe_slow(slow))

    def _publish(self, name: str, data: Any) -> None:  # noqa: ANN401 - any JSON
        event = b"event: %b\ndata: %b\n\n" % (name.encode(), orjson.dumps(data))
        self._latest[name] = event
        for subscription in self._subscriptions:
            subscription.offer(name, event)
