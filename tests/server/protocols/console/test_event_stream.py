"""Tests for the stream of one subscriber: its end by the drain, by the client, and for a client that does not read."""

import asyncio
from typing import Any

import pytest

from tpuserve_server.protocols.console import console
from tpuserve_server.protocols.console.console import EventStream
from tpuserve_server.protocols.console.event_feed import Subscription
from tpuserve_server.protocols.status import ClientGone


class Client:
    """The client of one stream. It reads while `reads` is set, and disconnects with `gone`."""

    def __init__(self) -> None:
        self.left: list[Subscription] = []
        self.subscription = Subscription(self.left.append)
        self.messages: list[Any] = []
        self.reads, self.gone = asyncio.Event(), asyncio.Event()
        self.sending = asyncio.Event()
        self.reads.set()

    async def receive(self) -> dict[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:  # noqa: ANN401 (ASGI's messages)
        self.sending.set()
        await self.reads.wait()
        self.messages.append(message)

    def start(self) -> "asyncio.Task[None]":
        stream = EventStream(self.subscription, {"x-test": "1"})
        return asyncio.create_task(stream({"type": "http"}, self.receive, self.send))

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.messages)


async def test_events_are_sent_until_the_subscription_ends() -> None:
    client = Client()
    client.subscription.offer("a", b"event: a\ndata: 1\n\n")
    running = client.start()
    client.subscription.offer("b", b"event: b\ndata: 2\n\n")
    client.subscription.end()
    await running
    assert client.body == b": tpuserve\nretry: 1000\n\nevent: a\ndata: 1\n\nevent: b\ndata: 2\n\n"
    start, *_, last = client.messages
    headers = dict(start["headers"])
    assert headers[b"content-type"] == b"text/event-stream"
    assert b"content-length" not in headers
    assert not last.get("more_body", False)
    assert client.left == [client.subscription]


async def test_a_disconnect_ends_the_stream() -> None:
    client = Client()
    running = client.start()
    client.gone.set()
    await running
    assert client.left == [client.subscription]


async def test_a_send_to_a_client_that_is_gone_ends_the_stream() -> None:
    client = Client()

    async def fail(message: Any) -> None:  # noqa: ANN401 (ASGI's messages)
        raise OSError("disconnected")

    client.send = fail  # type: ignore[method-assign]  # the send of this one stream
    await client.start()
    assert client.left == [client.subscription]


async def test_a_long_stream_ends_so_that_no_proxy_keeps_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "_MOST_BYTES", 100)
    client = Client()
    running = client.start()
    for number in range(3):
        client.subscription.offer(str(number), b"event: a\ndata: 1234567890123456789012345\n\n")
    await running
    assert client.body.count(b"event: a") == 3
    assert client.left == [client.subscription]


async def test_a_drain_gives_up_a_client_that_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "_LAST_TIMEOUT_S", 0.0)
    client = Client()
    client.reads.clear()
    # The start of the response needs no reader.
    client.subscription.offer("a", b"event: a\ndata: 1\n\n")
    stream = EventStream(client.subscription, {})

    async def send(message: Any) -> None:  # noqa: ANN401 (ASGI's messages)
        if message["type"] == "http.response.body":
            await client.send(message)

    running = asyncio.create_task(stream({"type": "http"}, client.receive, send))
    await client.sending.wait()
    client.subscription.end()
    with pytest.raises(ClientGone):
        await running
    assert client.left == [client.subscription]


async def test_a_client_that_reads_nothing_for_long_loses_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "_SEND_TIMEOUT_S", 0.0)
    client = Client()
    stream = EventStream(client.subscription, {})

    async def send(message: Any) -> None:  # noqa: ANN401 (ASGI's messages)
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    with pytest.raises(ClientGone):
        await stream({"type": "http"}, client.receive, send)
    assert client.left == [client.subscription]
