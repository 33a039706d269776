"""A body that comes in several chunks, put together within bounds."""

from typing import TYPE_CHECKING

from tpuserve_server.core.errors import InvalidArgument
from tpuserve_server.frontends.http.errors import BodyTooLarge, ClientGone

if TYPE_CHECKING:
    from starlette.types import Message, Receive

# Larger ones (some 10 ms of work) are decoded on a worker thread, or every other request would wait for them. They
# still do while it is parsed: orjson and simdjson keep the interpreter to themselves.
LARGE_BODY_BYTES = 1 << 20

# As the server hands them on: a kilobyte each for the largest body there is by default. What trickles in longer costs
# more by its pieces than by its size.
_MAX_CHUNKS = 65_536


async def rest_of_body(message: "Message", receive: "Receive", limit_bytes: int) -> bytes:
    """The body that begins with `message`; at most a chunk beyond `limit_bytes` is ever read.

    Raises ClientGone on a disconnect, BodyTooLarge over the limit, and InvalidArgument for too many chunks.
    """
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
