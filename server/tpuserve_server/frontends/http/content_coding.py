"""gzip on REST: decompresses request bodies within limits, and compresses large responses for clients that accept it.

Large bodies are processed on a worker thread; zlib releases the GIL.
"""

import asyncio
import re
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tpuserve_server.core.errors import InvalidArgument
from tpuserve_server.frontends.http.errors import BodyTooLarge, UnsupportedEncoding

if TYPE_CHECKING:
    from starlette.types import Scope

# tensorflow_serving/util/net_http/compression/gzip_zlib.h, kMaxUncompressedBytes.
MAX_UNCOMPRESSED_BYTES = 100 * 1024 * 1024
# Smallest response body to compress: below it, compression saves two packets at most. Compression takes about 9 us per
# kilobyte and halves the size of numbers. TensorFlow Serving never compresses responses.
MIN_GZIP_BYTES = 4096
# Half a millisecond of compression. A worker thread compresses larger bodies.
_LARGE_BYTES = 1 << 16
# Largest compressed request body to decompress on the event loop: the content may be a thousand times as large.
_SMALL_COMPRESSED_BYTES = 1 << 11
_PIECE_BYTES = 1 << 20
# zlib's `wbits` for a gzip header and trailer and a window of 32 KiB.
_GZIP = 31
# Higher levels do not compress numbers better, and take up to 14 times as long.
_LEVEL = 1

_NO_WEIGHT = re.compile(rb"\s*q\s*=\s*0(\.0*)?\s*")
# The message of upstream's log. Upstream reports an empty document to its client.
_CORRUPT = "Failed to uncompress the gzipped body"


def is_gzip(content_encoding: bytes) -> bool:
    """Return whether `content_encoding` means gzip. Raises UnsupportedEncoding unless it is gzip or identity."""
    name = content_encoding.strip().lower()
    if name in (b"gzip", b"x-gzip"):
        return True
    if name in (b"", b"identity"):
        return False
    raise UnsupportedEncoding(content_encoding.decode(errors="replace"))


async def gunzip(body: bytes, limit_bytes: int) -> bytes:
    """Decompress a gzip `body`.

    Memory grows to `limit_bytes` plus one piece, and briefly to twice that at the end.

    Raises:
        BodyTooLarge: the content is larger than `limit_bytes` or than upstream's limit.
        InvalidArgument: the body is not exactly one gzip member.
    """
    limit_bytes = min(limit_bytes, MAX_UNCOMPRESSED_BYTES)
    if len(body) <= _SMALL_COMPRESSED_BYTES:
        return _gunzip(body, limit_bytes)
    return await asyncio.to_thread(_gunzip, body, limit_bytes)


def _gunzip(body: bytes, limit_bytes: int) -> bytes:
    decompressor = zlib.decompressobj(_GZIP)
    pieces = []
    left_bytes = limit_bytes
    try:
        for piece in _pieces(body, decompressor):
            left_bytes -= len(piece)
            if left_bytes < 0:
                raise BodyTooLarge(limit_bytes)
            pieces.append(piece)
    except zlib.error:
        raise InvalidArgument(_CORRUPT) from None
    if not decompressor.eof or decompressor.unused_data:
        raise InvalidArgument(_CORRUPT)
    return b"".join(pieces)


def _pieces(body: bytes, decompressor: "zlib._Decompress") -> Iterator[bytes]:
    """Yield the content in bounded pieces. Feed zlib in slices, because it copies its unread input."""
    for start in range(0, len(body), _PIECE_BYTES):
        rest = body[start : start + _PIECE_BYTES]
        while rest:
            yield decompressor.decompress(rest, _PIECE_BYTES)
            rest = decompressor.unconsumed_tail
    while piece := decompressor.decompress(b"", _PIECE_BYTES):
        yield piece


def accepts_gzip(scope: "Scope") -> bool:
    """Return whether the client accepts gzip, by name or by `*` (RFC 9110, 12.5.3). A weight of zero refuses it."""
    weights: dict[bytes, bool] = {}
    for name, value in scope["headers"]:
        if name == b"accept-encoding":
            for item in value.lower().split(b","):
                coding, _, weight = item.partition(b";")
                weights[coding.strip()] = _NO_WEIGHT.fullmatch(weight) is None
    return weights.get(b"gzip", weights.get(b"*", False))


async def compress(body: bytes) -> bytes:
    """Compress `body` to one gzip member."""
    if len(body) <= _LARGE_BYTES:
        return _compress(body)
    return await asyncio.to_thread(_compress, body)


def _compress(body: bytes) -> bytes:
    compressor = zlib.compressobj(_LEVEL, wbits=_GZIP)
    return compressor.compress(body) + compressor.flush()
