"""Assembles a request body from several chunks, within limits."""

import asyncio
from typing import TYPE_CHECKING, Final

from tpuserve_server.core.budgets.receiving import Upload
from tpuserve_server.core.errors import InvalidArgument
from tpuserve_server.frontends.http.errors import BodyTooLarge, ClientGone

if TYPE_CHECKING:
    from starlette.types import Message, Receive

# A worker thread decodes larger bodies (up to 10 ms of work), so that other requests need not wait for them. Parsers
# hold the GIL, so the decoders of large JSON bodies parse them in pieces (wire/json/large.py).
LARGE_BODY_BYTES = 1 << 18

_PART_BYTES: Final = 1 << 20
# The copy of more bytes takes more than a few milliseconds.
_INLINE_BYTES: Final = 1 << 22

# Limit on the chunks that the host delivers: 1 KiB each for the largest default body. Beyond it, the number of chunks
# costs more than their bytes.
_MAX_CHUNKS = 65_536


async def rest_of_body(message: "Message", receive: "Receive", limit_bytes: int, upload: Upload) -> bytes:
    """Return the body that begins with `message`. Read at most one chunk beyond `limit_bytes`.

    `upload` is charged as bytes arrive.

    Raises:
        ClientGone: the client disconnected.
        BodyTooLarge: the body is over the limit.
        InvalidArgument: there are too many chunks.
        ResourceExhausted: the bytes do not fit the budget of unfinished requests.
    """
    parts: list[bytes] = []
    try:
        return await _collect(parts, message, receive, limit_bytes, upload)
    except BaseException:
        # The error's traceback refers to the parts, and lives until the host has discarded the rest of the body.
        parts.clear()
        raise


async def _collect(
    parts: list[bytes], message: "Message", receive: "Receive", limit_bytes: int, upload: Upload
) -> bytes:
    # Joins tiny chunks: a list of them would take many times the memory of their bytes.
    tail = bytearray()
    size_bytes = 0
    for _ in range(_MAX_CHUNKS):
        if message["type"] != "http.request":
            raise ClientGone
        chunk = message.get("body", b"")
        size_bytes += len(chunk)
        if size_bytes > limit_bytes:
            raise BodyTooLarge(limit_bytes)
        upload.hold(size_bytes)
        tail += chunk
        if len(tail) >= _PART_BYTES:
            parts.append(bytes(tail))
            tail.clear()
        if not message.get("more_body", False):
            parts.append(bytes(tail))
            if size_bytes <= _INLINE_BYTES:
                return b"".join(parts)
            # It copies bytes without the GIL.
            return await asyncio.to_thread(b"".join, parts)
        message = await upload.wait(receive())
    raise InvalidArgument(f"Request body has more than {_MAX_CHUNKS} chunks")
