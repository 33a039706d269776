"""Tests for the events of the console, over a real service and its real measurements."""

import asyncio
import json
from typing import Any

import pytest

from tests.support.console_house import ID, ConsoleHouse
from tests.support.stuck_gauge import StuckGauge
from tpuserve_server.core.terms.errors import Unavailable
from tpuserve_server.protocols.console.event_feed import MOST_SUBSCRIBERS, EventFeed, Subscription

TICK_S = 0.01


@pytest.fixture
def feed(house: ConsoleHouse) -> EventFeed:
    return EventFeed(house.sources, TICK_S)


async def read(subscription: Subscription) -> list[tuple[str, Any]]:
    """Return the next events, as names and data."""
    lines = [event.split("\n") for event in (await subscription.next()).decode().split("\n\n") if event]
    return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in lines]


async def find(subscription: Subscription, name: str) -> Any:  # noqa: ANN401 - any JSON
    """Wait for an event of this name, and return its data."""
    while True:
        for found, data in await read(subscription):
            if found == name:
                return data


async def test_a_subscriber_gets_every_kind_of_event_at_once(house: ConsoleHouse, feed: EventFeed) -> None:
    house.be_slow(2.0)
    subscription = feed.subscribe()
    events = dict(await read(subscription))
    assert events.keys() == {"models", "snapshot", "slow"}
    assert events["snapshot"]["state"] == "ready"
    assert events["snapshot"]["versions"][0]["model"] == "m"
    assert events["slow"]["requests"][0]["latency_ms"] == pytest.approx(2000)
    subscription.close()


async def test_a_second_subscriber_gets_the_latest_events(feed: EventFeed) -> None:
    first = feed.subscribe()
    await read(first)
    second = feed.subscribe()
    assert dict(await read(second)).keys() >= {"models", "snapshot", "slow"}
    first.close()
    second.close()


async def test_changes_of_models_and_of_slow_requests_are_events(house: ConsoleHouse, feed: EventFeed) -> None:
    subscription = feed.subscribe()
    before = await find(subscription, "models")
    house.registry.assign_labels("m", {"stable": 3})
    assert await find(subscription, "models") == before + 1
    house.be_slow(3.0)
    assert (await find(subscription, "slow"))["requests"][0]["latency_ms"] == pytest.approx(3000)
    house.registry.unloading(ID)
    assert await find(subscription, "models") == before + 2
    subscription.close()


async def test_an_unchanged_server_sends_only_snapshots(feed: EventFeed) -> None:
    subscription = feed.subscribe()
    await read(subscription)
    for _ in range(3):
        assert [name for name, _ in await read(subscription)] == ["snapshot"]
    subscription.close()


async def test_a_slow_subscriber_misses_snapshots_and_keeps_only_the_latest(feed: EventFeed) -> None:
    slow, quick = feed.subscribe(), feed.subscribe()
    snapshots = [await find(quick, "snapshot") for _ in range(5)]
    events = await read(slow)
    assert sorted(name for name, _ in events) == ["models", "slow", "snapshot"]
    assert dict(events)["snapshot"] == snapshots[-1]
    slow.close()
    quick.close()


async def test_nothing_is_measured_without_subscribers(house: ConsoleHouse, feed: EventFeed) -> None:
    subscription = feed.subscribe()
    await read(subscription)
    subscription.close()
    await asyncio.sleep(0)
    assert {task for task in asyncio.all_tasks() if task is not asyncio.current_task()} == set()
    # The next subscriber gets no rates over the time without one.
    again = feed.subscribe()
    assert (await find(again, "snapshot"))["versions"][0]["requests_per_s"] is None
    again.close()


async def test_the_event_loop_does_not_wait_for_the_figures(house: ConsoleHouse, feed: EventFeed) -> None:
    gauge = StuckGauge()
    house.metrics.devices.devices_opened(gauges=[gauge])
    left = feed.subscribe()
    await asyncio.to_thread(gauge.asked.wait)
    # The measurement of a subscriber that leaves is not the first one of the next subscriber.
    left.close()
    subscription = feed.subscribe()
    gauge.gate.set()
    assert (await find(subscription, "snapshot"))["versions"][0]["requests_per_s"] is None
    subscription.close()


async def test_subscribers_are_limited(feed: EventFeed) -> None:
    subscriptions = [feed.subscribe() for _ in range(MOST_SUBSCRIBERS)]
    with pytest.raises(Unavailable, match="64 clients read the events"):
        feed.subscribe()
    subscriptions.pop().close()
    subscriptions.append(feed.subscribe())
    for subscription in subscriptions:
        subscription.close()


async def test_a_drain_ends_every_subscription_after_a_last_snapshot(house: ConsoleHouse, feed: EventFeed) -> None:
    subscription = feed.subscribe()
    await read(subscription)
    house.service.drain()
    assert (await find(subscription, "snapshot"))["state"] == "draining"
    assert await subscription.next() == b""
    with pytest.raises(Unavailable, match="shutting down"):
        feed.subscribe()
    subscription.close()


async def test_an_error_ends_the_subscriptions_and_the_next_one_begins_again(
    house: ConsoleHouse, feed: EventFeed, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(house.service, "states", lambda: 1 / 0)
        subscription = feed.subscribe()
        assert await subscription.next() == b""
    subscription.close()
    assert "The console's events ended" in caplog.text
    again = feed.subscribe()
    assert (await find(again, "snapshot"))["state"] == "ready"
    again.close()
