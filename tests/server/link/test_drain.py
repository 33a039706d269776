"""Tests for the end of a connection that reads slowly."""

import asyncio
import socket

from tpuserve_server.link.connection import Connection

PIECE = bytes(64 << 10)


async def test_sender_that_drains_waits_for_a_reader_that_does_not_read() -> None:
    ends = socket.socketpair()
    sender, reader = Connection(ends[0]), Connection(ends[1])
    sender.start({}, lambda: None)
    sent = 0

    async def send_all() -> None:
        nonlocal sent
        for _ in range(1000):
            sender.send(1, PIECE)
            await sender.drain()
            sent += 1

    sending = asyncio.create_task(send_all())
    for _ in range(200):
        await asyncio.sleep(0)
    assert sent < 100
    got = 0

    def count(payload: memoryview) -> None:
        nonlocal got
        got += len(payload)

    reader.start({1: count}, lambda: None)
    await asyncio.wait_for(sending, 60)
    sender.close()
    reader.close()
    assert got > 900 * len(PIECE)
