"""Decompression of data from clients, in pieces and up to a limit."""

import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from tpuserve_server.core.terms.types import Body

if TYPE_CHECKING:
    from zlib import _Decompress

_PIECE_BYTES: Final = 1 << 20


class ContentTooLarge(Exception):
    """The content is larger than the limit."""


def inflate(data: Body, wbits: int, max_bytes: int) -> "tuple[bytes, _Decompress]":
    """Return the content of one zlib or gzip stream, and the decompressor, which knows whether the stream ended.

    Memory grows to `max_bytes` plus one piece, and briefly to twice that at the end. `wbits` is that of
    zlib.decompressobj.

    Raises:
        ContentTooLarge: the content is larger than `max_bytes`.
        zlib.error: the data is corrupt.
    """
    decompressor = zlib.decompressobj(wbits)
    pieces: list[bytes] = []
    left_bytes = max_bytes
    for piece in _pieces(data, decompressor):
        left_bytes -= len(piece)
        if left_bytes < 0:
            # The traceback refers to this frame, and may live for long.
            pieces.clear()
            raise ContentTooLarge
        pieces.append(piece)
    return b"".join(pieces), decompressor


def _pieces(data: Body, decompressor: "_Decompress") -> Iterator[bytes]:
    """Yield the content in bounded pieces. Feed zlib in slices, because it copies its unread input."""
    for start in range(0, len(data), _PIECE_BYTES):
        rest = data[start : start + _PIECE_BYTES]
        while rest:
            yield decompressor.decompress(rest, _PIECE_BYTES)
            rest = decompressor.unconsumed_tail
    while piece := decompressor.decompress(b"", _PIECE_BYTES):
        yield piece
