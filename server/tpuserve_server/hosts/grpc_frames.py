"""gRPC's message framing: one byte for the compression flag, four bytes of length, then the message."""

import asyncio
import struct
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from tpuserve_server.core.serving.receiving import Upload
from tpuserve_server.core.system.byte_parts import ByteParts, FindContents
from tpuserve_server.core.system.inflating import ContentTooLarge, inflate
from tpuserve_server.core.terms.errors import Cancelled, Internal, TooLarge, Unimplemented
from tpuserve_server.core.terms.types import Body

if TYPE_CHECKING:
    from starlette.types import Message, Receive

PREFIX_BYTES = 5
_PREFIX = struct.Struct(">BI")

# zlib's window argument for each encoding. `deflate` is the zlib format (RFC 1950), as in HTTP.
_WINDOW_BITS = {b"gzip": 16 + zlib.MAX_WBITS, b"deflate": zlib.MAX_WBITS}
ACCEPTED_ENCODINGS = b"identity,deflate,gzip"

# A thread inflates larger messages. They could block the event loop for milliseconds, because they may grow 1000 times.
_INFLATE_INLINE_BYTES = 16 * 1024


def frame(message: bytes) -> bytes:
    """Frame one uncompressed message."""
    return _PREFIX.pack(0, len(message)) + message


def whole_message(chunk: "Message", max_bytes: int) -> bytes | None:
    """Return the message of a unary request if the first chunk of its body is one uncompressed message.

    Nearly every request is, and needs no reader. Return None for all others, and for messages above `max_bytes`.
    """
    body: bytes = chunk.get("body", b"")
    if len(body) < PREFIX_BYTES or chunk["type"] != "http.request":
        return None
    compressed, length = _PREFIX.unpack_from(body)
    if compressed or len(body) != length + PREFIX_BYTES or length > max_bytes:
        return None
    return body[PREFIX_BYTES:]


class FrameReader:
    """Reads messages from the chunks of one request's body. `receive` follows ASGI.

    It charges messages that are still arriving to a budget. A caller of `next` must close it.
    """

    __slots__ = (
        "_begin_upload", "_chunk", "_encoding", "_ended", "_find_contents", "_max_message_bytes", "_receive", "_start",
        "_upload",
    )  # fmt: skip

    def __init__(
        self,
        receive: "Receive",
        max_message_bytes: int,
        encoding: bytes,
        begin_upload: Callable[[], Upload],
        find_contents: FindContents | None = None,
    ) -> None:
        """Read with `encoding`, the `grpc-encoding` header. Raises Unimplemented for an unsupported one.

        `begin_upload` begins to charge the messages that are still arriving. `find_contents` finds the tensor of a
        large message, whose contents are then aligned.
        """
        if encoding != b"identity" and encoding not in _WINDOW_BITS:
            raise Unimplemented(f"Compression algorithm '{encoding[:32].decode('latin-1')}' is not supported")
        self._receive = receive
        self._max_message_bytes = max_message_bytes
        self._encoding = encoding
        # The last chunk, which is read from `_start` on.
        self._chunk = b""
        self._start = 0
        self._ended = False
        self._begin_upload = begin_upload
        self._find_contents = find_contents
        # Most messages arrive in one chunk and need none.
        self._upload: Upload | None = None

    async def only(self, first: "Message | None" = None) -> Body:
        """Read the message of a unary request. Raises Unimplemented unless there is exactly one.

        A caller that has received the `first` chunk passes it.
        """
        first = await self._receive() if first is None else first
        if (whole := whole_message(first, self._max_message_bytes)) is not None:
            return whole
        self._chunk = self._open(first)
        try:
            message = await self.next()
        finally:
            self.close()
        if message is None or self._rest_bytes:
            raise Unimplemented("A unary call takes exactly one message")
        return message

    async def next(self) -> Body | None:
        """Read the next message. Return None at the end. Raises Internal if the body ends inside a message."""
        if self._upload is None:
            self._upload = self._begin_upload()
        if not await self._prefix_arrives(self._upload):
            return None
        compressed, length = _PREFIX.unpack_from(self._chunk, self._start)
        # Before it arrives.
        if length > self._max_message_bytes:
            self._upload.count_oversized()
            raise TooLarge(f"Received message larger than max ({length} vs. {self._max_message_bytes})")
        self._start += PREFIX_BYTES
        message = await self._take(length, self._upload, None if compressed else self._find_contents)
        self._upload.hold(self._rest_bytes)
        if not compressed:
            return message
        try:
            return await self._inflate(message)
        except TooLarge:
            self._upload.count_oversized()
            raise

    def close(self) -> None:
        """Return the bytes to the budget. Read no more."""
        if self._upload is not None:
            self._upload.end()

    def _open(self, message: "Message") -> bytes:
        if message["type"] == "http.disconnect":
            raise Cancelled("The client disconnected")
        self._ended = not message.get("more_body", False)
        body: bytes = message.get("body", b"")
        return body

    @property
    def _rest_bytes(self) -> int:
        return len(self._chunk) - self._start

    async def _prefix_arrives(self, upload: Upload) -> bool:
        """Wait for a prefix. Return False if the body has ended before any of it."""
        while self._rest_bytes < PREFIX_BYTES:
            rest = self._chunk[self._start :]
            if self._ended and not rest:
                return False
            chunk = await self._next_chunk(len(rest), upload)
            self._chunk, self._start = rest + chunk if rest else chunk, 0
        return True

    async def _next_chunk(self, held_bytes: int, upload: Upload) -> bytes:
        """Receive a chunk, and charge it before it is added to the `held_bytes` of this message."""
        if self._ended:
            raise _ended_inside()
        upload.hold(held_bytes)
        chunk = self._open(await upload.wait(self._receive()))
        upload.hold(held_bytes + len(chunk))
        return chunk

    async def _take(self, length: int, upload: Upload, find_contents: FindContents | None) -> Body:
        """Wait for a message. Its bytes are copied once, from the chunks in which they arrive."""
        start, stop = self._start, self._start + length
        if stop <= len(self._chunk):
            self._start = stop
            return self._chunk[start:stop]
        parts = ByteParts(length, find_contents)
        receive = self._receive
        try:
            parts.add(memoryview(self._chunk)[start:])
            self._chunk, self._start = b"", 0
            upload.hold(parts.size_bytes)
            while (missing_bytes := length - parts.size_bytes) > 0:
                # Not by `_next_chunk`: a large message has a thousand chunks, and each would take a coroutine more.
                if self._ended:
                    raise _ended_inside()
                chunk = self._open(await upload.wait(receive()))
                upload.grow(parts.size_bytes + len(chunk))
                if len(chunk) <= missing_bytes:
                    parts.add(chunk)
                else:
                    parts.add(memoryview(chunk)[:missing_bytes])
                    self._chunk, self._start = chunk, missing_bytes
            return await parts.join()
        except BaseException:
            # The error's traceback refers to the parts, and lives until the host has discarded the rest of the body.
            parts.clear()
            raise

    async def _inflate(self, message: Body) -> bytes:
        if self._encoding == b"identity":
            raise Internal("A message is marked compressed, but the request names no grpc-encoding")
        if len(message) <= _INFLATE_INLINE_BYTES:
            return _inflated(message, self._encoding, self._max_message_bytes)
        return await asyncio.to_thread(_inflated, message, self._encoding, self._max_message_bytes)


def _ended_inside() -> Internal:
    return Internal("The request ended inside a message")


def _inflated(message: Body, encoding: bytes, max_bytes: int) -> bytes:
    """Decompress a message. Stop after `max_bytes`, so that a decompression bomb cannot fill the memory."""
    try:
        inflated, inflater = inflate(message, _WINDOW_BITS[encoding], max_bytes)
    except ContentTooLarge:
        raise TooLarge(f"Received message larger than max ({max_bytes}) after decompression") from None
    except zlib.error:
        raise Internal(f"A message cannot be decompressed as {encoding.decode()}") from None
    if not inflater.eof:
        raise Internal(f"A message ends before its {encoding.decode()} data does")
    return inflated
