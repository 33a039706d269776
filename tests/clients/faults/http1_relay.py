"""Relay of HTTP/1.1 requests and responses, one request at a time."""

from tests.clients.faults.fault import Answer, Fault
from tests.clients.faults.http1_messages import Message, read_message, response
from tests.clients.faults.link import Cut, Link


class Http1Relay:
    """A connection whose first bytes are `start`."""

    def __init__(self, link: Link, start: bytes) -> None:
        self._link = link
        self._start = start

    async def run(self) -> None:
        start = self._start
        while True:
            request = await read_message(self._link.client[0], start)
            start = b""
            fault = self._link.take()
            if fault is Fault.CUT_BEFORE_READ:
                raise Cut
            if isinstance(fault, Answer):
                await self._link.to_client(bytes(response(fault.status, fault.headers, fault.body)))
                continue
            await self._link.to_upstream(bytes(request))
            answer = await read_message(self._link.upstream[0])
            if not await self._reply(answer, fault):
                return

    async def _reply(self, answer: Message, fault: Fault | None) -> bool:
        """Send the response with its fault. Return whether the connection stays open."""
        match fault:
            case Fault.CUT_AFTER_READ:
                raise Cut
            case Fault.CUT_IN_RESPONSE:
                await self._link.to_client(answer.head + answer.body[: len(answer.body) // 2])
            case Fault.TRUNCATE:
                await self._link.to_client(bytes(answer.shortened()))
                return True
            case Fault.DRIP:
                await self._link.drip(bytes(answer))
                return True
            case Fault.HALF_CLOSE:
                self._link.half_close()
            case _:
                await self._link.to_client(bytes(answer))
        return fault is None
