"""Contents of REST messages: assembles and decompresses request bodies within limits, and compresses large responses.

Large bodies are processed on a worker thread; zlib releases the GIL.
"""

import asyncio
import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tpuserve_server.core.serving.receiving import Upload
from tpuserve_server.core.system.byte_parts import ByteParts
from tpuserve_server.core.system.inflating import ContentTooLarge, inflate
from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.core.terms.types import Body
from tpuserve_server.protocols.status import BodyTooLarge, ClientGone, UnsupportedEncoding

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope


# tensorflow_serving/util/net_http/compression/gzip_zlib.h, kMaxUncompressedBytes.
MAX_UNCOMPRESSED_BYTES = 100 * 1024 * 1024
# Smallest response body to compress: below it, compression saves two packets at most. Compression takes about 9 us per
# kilobyte and halves the size of numbers. TensorFlow Serving never compresses responses.
MIN_COMPRESSED_BYTES = 4096
# Half a millisecond of compression. A worker thread compresses larger bodies.
_LARGE_BYTES = 1 << 16
# Largest compressed request body to decompress on the event loop: the content may be a thousand times as large.
_SMALL_COMPRESSED_BYTES = 1 << 11
_COMPRESSED_PART_BYTES = 1 << 15
# Higher levels do not compress numbers better, and take up to 14 times as long.
_LEVEL = 1

_NO_WEIGHT = re.compile(rb"\s*q\s*=\s*0(\.0*)?\s*")


@dataclass(frozen=True, slots=True)
class Coding:
    """A content coding: its name in headers, and zlib's `wbits` for its format and a window of 32 KiB."""

    name: str
    wbits: int

    @property
    def corrupt(self) -> str:
        """Message for a body that is not exactly one compressed document. For gzip it is that of upstream's log."""
        return f"Failed to uncompress the {_PARTICIPLES[self.name]} body"


_PARTICIPLES: Final = {"gzip": "gzipped", "deflate": "deflated"}
GZIP: Final = Coding("gzip", 31)
# The zlib format (RFC 9110, 8.4.1.2).
DEFLATE: Final = Coding("deflate", 15)
_CODINGS: Final = {b"gzip": GZIP, b"x-gzip": GZIP, b"deflate": DEFLATE, b"": None, b"identity": None}


def find_coding(content_encoding: bytes) -> Coding | None:
    """Return the coding of a body, or None for identity. Raises UnsupportedEncoding for any other."""
    name = content_encoding.strip().lower()
    if name not in _CODINGS:
        raise UnsupportedEncoding(content_encoding.decode(errors="replace"))
    return _CODINGS[name]


async def decompress(body: Body, coding: Coding, limit_bytes: int) -> bytes:
    """Decompress a `body`.

    Memory grows to `limit_bytes` plus one piece, and briefly to twice that at the end.

    Raises:
        BodyTooLarge: the content is larger than `limit_bytes` or than upstream's limit.
        InvalidArgument: the body is not exactly one compressed document.
    """
    limit_bytes = min(limit_bytes, MAX_UNCOMPRESSED_BYTES)
    if len(body) <= _SMALL_COMPRESSED_BYTES:
        return _decompress(body, coding, limit_bytes)
    return await asyncio.to_thread(_decompress, body, coding, limit_bytes)


def _decompress(body: Body, coding: Coding, limit_bytes: int) -> bytes:
    try:
        content, decompressor = inflate(body, coding.wbits, limit_bytes)
    except ContentTooLarge:
        raise BodyTooLarge(limit_bytes) from None
    except zlib.error:
        raise InvalidArgument(coding.corrupt) from None
    if not decompressor.eof or decompressor.unused_data:
        raise InvalidArgument(coding.corrupt)
    return content


def accepted_coding(scope: "Scope") -> Coding | None:
    """Return the coding for a response: gzip if the client accepts it, else deflate if it does, else None.

    A client accepts a coding by name or by `*` (RFC 9110, 12.5.3). A weight of zero refuses it.
    """
    weights: dict[bytes, bool] = {}
    for name, value in scope["headers"]:
        if name == b"accept-encoding":
            for item in value.lower().split(b","):
                coding, _, weight = item.partition(b";")
                weights[coding.strip()] = _NO_WEIGHT.fullmatch(weight) is None
    if weights.get(b"gzip", weights.get(b"*", False)):
        return GZIP
    return DEFLATE if weights.get(b"deflate", False) else None


async def compress(body: bytes, coding: Coding) -> bytes:
    """Compress `body` to one document."""
    if len(body) <= _LARGE_BYTES:
        return _compress(body, coding)
    return await asyncio.to_thread(_compress, body, coding)


def _compress(body: bytes, coding: Coding) -> bytes:
    compressor = zlib.compressobj(_LEVEL, wbits=coding.wbits)
    return compressor.compress(body) + compressor.flush()


def compress_parts(parts: Iterable[bytes], coding: Coding) -> Iterator[bytes]:
    """Compress a body of many parts to one document of fewer, larger ones. Blocks."""
    compressor = zlib.compressobj(_LEVEL, wbits=coding.wbits)
    pending: list[bytes] = []
    size_bytes = 0
    for part in parts:
        pending.append(compressor.compress(part))
        size_bytes += len(pending[-1])
        if size_bytes >= _COMPRESSED_PART_BYTES:
            yield b"".join(pending)
            pending, size_bytes = [], 0
    yield b"".join((*pending, compressor.flush()))


# A worker thread decodes larger bodies (up to 10 ms of work), so that other requests need not wait for them. Parsers
# hold the GIL, so the decoders of large JSON bodies parse them in pieces (wire/json/large.py).
LARGE_BODY_BYTES = 1 << 18

# Limit on the chunks that the host delivers: 1 KiB each for the largest default body. Beyond it, the number of chunks
# costs more than their bytes.
_MAX_CHUNKS = 65_536


async def rest_of_body(
    message: "Message", receive: "Receive", limit_bytes: int, upload: Upload, parts: ByteParts | None = None
) -> Body:
    """Return the body that begins with `message`. Read at most one chunk beyond `limit_bytes`.

    `upload` is charged as bytes arrive. `parts` align the contents of a large tensor.

    Raises:
        ClientGone: the client disconnected.
        BodyTooLarge: the body is over the limit.
        InvalidArgument: there are too many chunks.
        ResourceExhausted: the bytes do not fit the budget of unfinished requests.
    """
    parts = parts or ByteParts()
    try:
        await _collect(parts, message, receive, limit_bytes, upload)
        return await parts.join()
    except BaseException:
        # The error's traceback refers to the parts, and lives until the host has discarded the rest of the body.
        parts.clear()
        raise


async def _collect(parts: ByteParts, message: "Message", receive: "Receive", limit_bytes: int, upload: Upload) -> None:
    size_bytes = 0
    for _ in range(_MAX_CHUNKS):
        if message["type"] != "http.request":
            raise ClientGone
        chunk = message.get("body", b"")
        size_bytes += len(chunk)
        if size_bytes > limit_bytes:
            raise BodyTooLarge(limit_bytes)
        upload.grow(size_bytes)
        parts.add(chunk)
        if not message.get("more_body", False):
            return
        message = await upload.wait(receive())
    raise InvalidArgument(f"Request body has more than {_MAX_CHUNKS} chunks")
