"""Relay of HTTP/2 frames.

The relay passes each HEADERS frame to the upstream, because header compression depends on all earlier ones. It resets
the stream of a request that the upstream must not execute before the message arrives.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

from tests.clients.faults.fault import Answer, Fault, Injection
from tests.clients.faults.http2_frames import PREFACE, ErrorCode, Frame, Kind, goaway, read_frame, response, rst_stream
from tests.clients.faults.link import Cut, Link

_GOAWAYS: Final = {
    Fault.GOAWAY_UNPROCESSED: (ErrorCode.NO_ERROR, b""),
    Fault.ENHANCE_YOUR_CALM: (ErrorCode.ENHANCE_YOUR_CALM, b"too_many_pings"),
}


class Http2Relay:
    """A connection whose first bytes are `start`, the beginning of the preface."""

    def __init__(self, link: Link, start: bytes) -> None:
        self._link = link
        self._start = start
        self._faults: dict[int, Injection] = {}  # by stream, for the response
        self._refused: set[int] = set()  # streams that the upstream does not execute

    async def run(self) -> None:
        rest = await self._link.client[0].readexactly(len(PREFACE) - len(self._start))
        await self._link.to_upstream(self._start + rest)
        await first_of(self._up(), self._down())

    async def _up(self) -> None:
        while True:
            frame = await read_frame(self._link.client[0])
            if frame.kind == Kind.HEADERS:
                await self._request(frame)
            elif frame.stream not in self._refused:
                await self._link.to_upstream(bytes(frame))

    async def _request(self, frame: Frame) -> None:
        fault = self._link.take()
        if fault is Fault.CUT_BEFORE_READ:
            raise Cut
        await self._link.to_upstream(bytes(frame))
        if instead := _instead(frame.stream, fault):
            self._refused.add(frame.stream)
            await self._link.to_upstream(bytes(rst_stream(frame.stream, ErrorCode.CANCEL)))
            for reply in instead:
                await self._link.to_client(bytes(reply))
        elif fault is not None:
            self._faults[frame.stream] = fault

    async def _down(self) -> None:
        while True:
            frame = await read_frame(self._link.upstream[0])
            fault = self._faults.get(frame.stream)
            if fault is None or frame.kind not in (Kind.HEADERS, Kind.DATA):
                await self._link.to_client(bytes(frame))
            else:
                await self._reply(frame, fault)

    async def _reply(self, frame: Frame, fault: Injection) -> None:
        """Send a frame of a response with its fault."""
        match fault:
            case Fault.CUT_AFTER_READ:
                raise Cut
            case Fault.HALF_CLOSE:
                self._link.half_close()
            case Fault.CUT_IN_RESPONSE if frame.kind == Kind.DATA:
                await self._link.to_client(bytes(frame)[: 9 + len(frame.payload) // 2])
                raise EOFError
            case Fault.TRUNCATE if frame.kind == Kind.DATA:
                half = frame.payload[: len(frame.payload) // 2]
                await self._link.to_client(bytes(Frame(frame.kind, frame.flags, frame.stream, half)))
            case Fault.DRIP:
                await self._link.drip(bytes(frame))
            case _:
                await self._link.to_client(bytes(frame))
        if frame.ends_stream:
            await self._end(frame.stream, fault)

    async def _end(self, stream: int, fault: Injection) -> None:
        if fault is Fault.GOAWAY_AFTER_RESPONSE:
            await self._link.to_client(bytes(goaway(stream, ErrorCode.NO_ERROR)))
        if fault is Fault.CLOSE_AFTER_RESPONSE:
            raise EOFError


async def first_of(*pumps: Coroutine[Any, Any, None]) -> None:
    """Run all until one ends, cancel the others, and raise the error of the first."""
    tasks = [asyncio.ensure_future(pump) for pump in pumps]
    try:
        ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in ended:
        task.result()


def _instead(stream: int, fault: Injection | None) -> list[Frame]:
    """Return the proxy's own response to a request, or no frame if the upstream executes it."""
    if isinstance(fault, Answer):
        return response(stream, {":status": str(fault.status), **fault.headers}, fault.body)
    if fault is Fault.REFUSED_STREAM:
        return [rst_stream(stream, ErrorCode.REFUSED_STREAM)]
    if fault in _GOAWAYS:
        code, debug = _GOAWAYS[fault]
        return [goaway(max(stream - 2, 0), code, debug)]
    return []
