"""Assembles a request body from several chunks, within limits."""

from typing import TYPE_CHECKING

from tpuserve_server.core.serving.receiving import Upload
from tpuserve_server.core.system.byte_parts import ByteParts
from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.protocols.http.errors import BodyTooLarge, ClientGone

if TYPE_CHECKING:
    from starlette.types import Message, Receive

# A worker thread decodes larger bodies (up to 10 ms of work), so that other requests need not wait for them. Parsers
# hold the GIL, so the decoders of large JSON bodies parse them in pieces (wire/json/large.py).
LARGE_BODY_BYTES = 1 << 18

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
    parts = ByteParts()
    try:
        await _collect(parts, message, receive, limit_bytes, upload)
        return await parts.join()
    except BaseException:
        # The error's traceback refers to the parts, and lives until the host has discarded the rest of the body.
        parts.clear()
        raise


async def _collect(parts: ByteParts, message: "Message", receive: "Receive", limit_bytes: int, upload: Upload) -> None:
    for _ in range(_MAX_CHUNKS):
        if message["type"] != "http.request":
            raise ClientGone
        chunk = message.get("body", b"")
        size_bytes = parts.size_bytes + len(chunk)
        if size_bytes > limit_bytes:
            raise BodyTooLarge(limit_bytes)
        upload.hold(size_bytes)
        parts.add(chunk)
        if not message.get("more_body", False):
            return
        message = await upload.wait(receive())
    raise InvalidArgument(f"Request body has more than {_MAX_CHUNKS} chunks")
