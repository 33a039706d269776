"""Assembles a request body from several chunks, within limits."""

from typing import TYPE_CHECKING

from tpuserve_server.core.errors import InvalidArgument
from tpuserve_server.frontends.http.errors import BodyTooLarge, ClientGone

if TYPE_CHECKING:
    from starlette.types import Message, Receive

# A worker thread decodes larger bodies (about 10 ms of work), so that other requests need not wait for them. Parsing
# still blocks other requests: orjson and simdjson hold the GIL.
LARGE_BODY_BYTES = 1 << 20

# Limit on the chunks that the host delivers: 1 KiB each for the largest default body. Beyond it, the number of chunks
# costs more than their bytes.
_MAX_CHUNKS = 65_536


async def rest_of_body(message: "Message", receive: "Receive", limit_bytes: int) -> bytes:
    """Return the body that begins with `message`. Read at most one chunk beyond `limit_bytes`.

    Raises ClientGone on a disconnect, BodyTooLarge over the limit, and InvalidArgument for too many chunks.
    """
    # One growing buffer: a list of tiny chunks would take many times the memory of their bytes.
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
    raise InvalidArgument(f"Request body has more than {_MAX_CHUNKS} chunks")
