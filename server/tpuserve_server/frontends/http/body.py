"""A REST request's body and its client: reading the one within bounds, noticing when the other leaves."""

import asyncio
from types import TracebackType
from typing import TYPE_CHECKING

from tpuserve_server.core.errors import InvalidArgument
from tpuserve_server.core.rare_timers import RareTimers
from tpuserve_server.frontends.http.errors import BodyTooLarge, ClientGone
from tpuserve_server.frontends.http.gzip import gunzip
from tpuserve_server.frontends.http.headers import RequestHeaders

if TYPE_CHECKING:
    from starlette.types import Message, Receive

# Larger ones (some 10 ms of work) are decoded on a worker thread, or every other request would wait for them. They
# still do while it is parsed: orjson and simdjson keep the interpreter to themselves.
LARGE_BODY_BYTES = 1 << 20

# As the server hands them on: a kilobyte each for the largest body there is by default. What trickles in longer costs
# more by its pieces than by its size.
_MAX_CHUNKS = 65_536


async def read_body(headers: RequestHeaders, receive: "Receive", limit_bytes: int) -> bytes:
    """The whole body, decompressed; by a chunk at most is more than `limit_bytes` ever read.

    Raises ClientGone on a disconnect, BodyTooLarge once it is over the limit, compressed or not, and InvalidArgument
    for a broken gzip.
    """
    message = await receive()
    if message["type"] == "http.request" and not message.get("more_body", False):
        body: bytes = message.get("body", b"")
        if len(body) > limit_bytes:
            raise BodyTooLarge(limit_bytes)
    else:
        body = await _rest_of_body(message, receive, limit_bytes)
    return await gunzip(body, limit_bytes) if headers.is_compressed else body


async def _rest_of_body(message: "Message", receive: "Receive", limit_bytes: int) -> bytes:
    # One growing buffer: a list of many tiny chunks would take many times their bytes.
    buffer = bytearray()
    for _ in range(_MAX_CHUNKS):
        if message["type"] != "http.request":
            raise ClientGone
        buffer += message.get("body", b"")
        if len(buffer) > limit_bytes:
            raise BodyTooLarge(limit_bytes)
        if not message.get("more_body", False):
            return bytes(buffer)
        message = await receive()
    raise InvalidArgument(f"Request body comes in more than {_MAX_CHUNKS} chunks")


class ClientWatch:
    """A context manager around waiting for an answer: cancels the wait, as ClientGone, when the client leaves.

    It only looks after `delay_s`: most answers are there before, and then all this costs is a timer that never fires.
    A task waiting on `receive` costs ten times as much.
    """

    __slots__ = ("_delay_s", "_gone", "_receive", "_task", "_timers", "_watcher")

    def __init__(self, receive: "Receive", delay_s: float, timers: RareTimers) -> None:
        """`receive` must have delivered the whole body: the next message can only be the disconnect."""
        self._receive = receive
        self._delay_s = delay_s
        self._timers = timers
        self._gone = False
        self._watcher: asyncio.Task[None] | None = None

    def __enter__(self) -> None:
        """From here on the current task may be cancelled."""
        self._task = asyncio.current_task()
        self._timers.start(self, self._delay_s, self._start)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop watching; our own cancellation becomes ClientGone, any other goes on."""
        self._timers.cancel(self)
        if self._watcher is not None:
            self._watcher.cancel()
        if self._gone and kind is asyncio.CancelledError and self._task is not None and self._task.uncancel() == 0:
            raise ClientGone from None

    def _start(self) -> None:
        self._watcher = asyncio.get_running_loop().create_task(self._watch())

    async def _watch(self) -> None:
        message = await self._receive()
        # Anything but a disconnect breaks the protocol; then nothing can be learned here.
        if message["type"] == "http.disconnect" and self._task is not None:
            self._gone = True
            self._task.cancel()
