"""gzip on REST: request bodies decompressed within bounds, responses compressed for who asks and where it pays.

What is large is done on a worker thread, which zlib does not hold the interpreter for.
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
# Of a response: below this compression saves two packets at most. It takes some 9 us a kilobyte and halves what numbers
# take. TensorFlow Serving's responses are never compressed.
MIN_GZIP_BYTES = 4096
# Half a millisecond of compression: more is done beside the event loop.
_LARGE_BYTES = 1 << 16
# Of a request's compressed body: however small, it may hold a thousand times as much.
_SMALL_COMPRESSED_BYTES = 1 << 11
_PIECE_BYTES = 1 << 20
# zlib's name for a gzip header and trailer around a window of 32 KiB.
_GZIP = 31
# Numbers do not compress better at higher ones, and take up to 14 times as long.
_LEVEL = 1

_NO_WEIGHT = re.compile(rb"\s*q\s*=\s*0(\.0*)?\s*")
# The words of upstream's log; its client reads that the document is empty.
_CORRUPT = "Failed to uncompress the gzipped body"


def is_gzip(content_encoding: bytes) -> bool:
    """Whether a body so labelled is compressed; raises UnsupportedEncoding unless by gzip or not at all."""
    name = content_encoding.strip().lower()
    if name in (b"gzip", b"x-gzip"):
        return True
    if name in (b"", b"identity"):
        return False
    raise UnsupportedEncoding(content_encoding.decode(errors="replace"))


async def gunzip(body: bytes, limit_bytes: int) -> bytes:
    """What is in a gzip `body`; memory grows to `limit_bytes` and a piece, twice that for a moment at the end.

    Raises BodyTooLarge beyond `limit_bytes`, or beyond what upstream takes, and InvalidArgument for what is not exactly
    one gzip member.
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
    """The content, bounded piece by bounded piece. In slices: zlib copies what it has not yet looked at."""
    for start in range(0, len(body), _PIECE_BYTES):
        rest = body[start : start + _PIECE_BYTES]
        while rest:
            yield decompressor.decompress(rest, _PIECE_BYTES)
            rest = decompressor.unconsumed_tail
    while piece := decompressor.decompress(b"", _PIECE_BYTES):
        yield piece


def accepts_gzip(scope: "Scope") -> bool:
    """Whether the client takes gzip, by name or by `*` (RFC 9110, 12.5.3); a weight of zero says no."""
    weights: dict[bytes, bool] = {}
    for name, value in scope["headers"]:
        if name == b"accept-encoding":
            for item in value.lower().split(b","):
                coding, _, weight = item.partition(b";")
                weights[coding.strip()] = _NO_WEIGHT.fullmatch(weight) is None
    return weights.get(b"gzip", weights.get(b"*", False))


async def compress(body: bytes) -> bytes:
    """`body` as one gzip member."""
    if len(body) <= _LARGE_BYTES:
        return _compress(body)
    return await asyncio.to_thread(_compress, body)


def _compress(body: bytes) -> bytes:
    compressor = zlib.compressobj(_LEVEL, wbits=_GZIP)
    return compressor.compress(body) + compressor.flush()
