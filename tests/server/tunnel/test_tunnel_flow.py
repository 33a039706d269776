"""Tests that the tunnel holds little of a request that the engine does not read, and of a response that waits."""

import asyncio
from typing import TYPE_CHECKING

from tests.server.hosts.asgi_client import body
from tests.server.tunnel.tunnel_house import START, rest_scope, tunnelled, until
from tpuserve_server.tunnel.messages import PIECE_BYTES, WINDOW_BYTES

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send


async def test_unread_request_stays_with_the_host() -> None:
    """Send 64 MiB that the application reads only once it may."""
    count, taken, gate = 1024, 0, asyncio.Event()
    read: list[int] = []

    async def slow(scope: "Scope", receive: "Receive", send: "Send") -> None:
        more = True
        while more:
            message = await receive()
            more = message["more_body"]
            read.append(len(message["body"]))
            if len(read) == 3:
                await gate.wait()
        await send(START)
        await send({"type": "http.response.body", "body": b""})

    async def receive() -> "Message":
        nonlocal taken
        taken += 1
        # Only the message that the application awaits leaves the host.
        assert taken <= len(read) + 1
        return body(bytes(PIECE_BYTES), more=taken < count)

    async with tunnelled(slow) as ends:
        running = asyncio.create_task(ends.tunnel(rest_scope(), receive, _ignore))
        await until(lambda: len(read) == 3)
        await _settle()
        assert taken == 3
        gate.set()
        await running
    assert sum(read) == count * PIECE_BYTES


async def test_response_waits_for_a_client_that_reads_slowly() -> None:
    """Let the application send 64 MiB to a client that reads only once it may."""
    count, gate = 1024, asyncio.Event()
    sent = got_bytes = 0

    async def fast(scope: "Scope", receive: "Receive", send: "Send") -> None:
        nonlocal sent
        await send(START)
        for _ in range(count):
            await send({"type": "http.response.body", "body": bytes(PIECE_BYTES), "more_body": True})
            sent += 1
        await send({"type": "http.response.body", "body": b""})

    async def send(message: "Message") -> None:
        nonlocal got_bytes
        got_bytes += len(message.get("body", b""))
        if got_bytes:
            await gate.wait()

    async with tunnelled(fast) as ends:
        running = asyncio.create_task(ends.tunnel(rest_scope(), _receive_nothing, send))
        await until(lambda: got_bytes > 0)
        await _settle()
        assert sent * PIECE_BYTES <= WINDOW_BYTES
        gate.set()
        await running
    assert got_bytes == count * PIECE_BYTES


async def test_small_messages_fill_the_window_too() -> None:
    sent, gate, stuck = 0, asyncio.Event(), asyncio.Event()

    async def chatty(scope: "Scope", receive: "Receive", send: "Send") -> None:
        nonlocal sent
        await send(START)
        for _ in range(5000):
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
            sent += 1
        await send({"type": "http.response.body", "body": b""})

    async def send(message: "Message") -> None:
        stuck.set()
        await gate.wait()

    async with tunnelled(chatty) as ends:
        running = asyncio.create_task(ends.tunnel(rest_scope(), _receive_nothing, send))
        await stuck.wait()
        await _settle()
        assert sent < 1000
        gate.set()
        await running
    assert sent == 5000


async def _receive_nothing() -> "Message":
    return body(b"")


async def _ignore(message: "Message") -> None: ...


async def _settle() -> None:
    """Let everything happen that waits for nothing outside this process."""
    for _ in range(200):
        await asyncio.sleep(0)
