"""EventStream: a response of server-sent events (WHATWG HTML, 9.2) from one subscription."""

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from starlette.responses import Response

from tpuserve_server.frontends.console.subscription import Subscription
from tpuserve_server.frontends.http.errors import ClientGone

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send

# The browser connects again after a second. The comment shows at once that the stream is open.
_FIRST: Final = b": tpuserve\nretry: 1000\n\n"
# The server keeps what a client does not read. The browser continues with a new stream after this one.
_MOST_BYTES: Final = 1 << 20
# A client that reads nothing for so long loses its place.
_SEND_TIMEOUT_S: Final = 30.0
# The same at the end of the stream: a drain waits for it.
_LAST_TIMEOUT_S: Final = 0.5


class EventStream(Response):
    """Sends the events until the subscription ends, the client disconnects, or the stream is long."""

    def __init__(self, subscription: Subscription, headers: Mapping[str, str]) -> None:
        """Take over `subscription`, which the response closes at its end."""
        super().__init__(headers={**headers, "content-type": "text/event-stream"})
        # The length is unknown.
        del self.headers["content-length"]
        self._subscription = subscription

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Send the response. Raises ClientGone for a client that does not read."""
        watching = asyncio.create_task(self._watch(receive))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await self._send_events(send)
            await self._send_in_time(send, {"type": "http.response.body", "body": b""})
        except OSError:
            # The client has disconnected (ASGI, 2.4).
            return
        finally:
            watching.cancel()
            self._subscription.close()

    async def _watch(self, receive: "Receive") -> None:
        while (await receive())["type"] != "http.disconnect":
            continue
        self._subscription.end()

    async def _send_events(self, send: "Send") -> None:
        sent_bytes, events = 0, _FIRST
        while events:
            await self._send_in_time(send, {"type": "http.response.body", "body": events, "more_body": True})
            sent_bytes += len(events)
            events = await self._subscription.next() if sent_bytes < _MOST_BYTES else b""

    async def _send_in_time(self, send: "Send", message: "Message") -> None:
        """Send a message. Raises ClientGone if the client does not read it in time."""
        subscription, loop = self._subscription, asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_LAST_TIMEOUT_S if subscription.has_ended else _SEND_TIMEOUT_S) as limit:
                subscription.on_end = lambda: limit.reschedule(loop.time() + _LAST_TIMEOUT_S)
                await send(message)
        except TimeoutError:
            raise ClientGone from None
        finally:
            subscription.on_end = None
