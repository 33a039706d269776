"""The part of a ModelInferRequest before its raw contents, parsed once: clients send the same one repeatedly.

The raw contents become views of the message. protobuf would copy them twice.
"""

from typing import Final, NamedTuple

from tpuserve_formats.errors import FormatError
from tpuserve_formats.varint import read_varint

# Tags of a ModelInferRequest's fields, all of which have a length. Longer heads are not cached.
_ID, _RAW_CONTENTS = 0x1A, 0x3A
_FIELDS: Final = frozenset({0x0A, 0x12, _ID, 0x22, 0x2A, 0x32, _RAW_CONTENTS})
MAX_CACHED_BYTES: Final = 1 << 10


class SplitRequest(NamedTuple):
    """A request without its id and raw contents, which differ between requests."""

    head: bytes
    id: str
    raw: list[memoryview]


def split_request(body: bytes) -> SplitRequest | None:
    """Split a serialized request, or return None if protobuf must parse it: it is unusual or malformed."""
    view = memoryview(body)
    position, end = 0, len(body)
    heads: list[memoryview] = []
    raw: list[memoryview] = []
    request_id = b""
    try:
        while position < end:
            tag, size = body[position], body[position + 1]
            start = position + 2
            if size > 0x7F:
                size, start = read_varint(body, position + 1)
            stop = start + size
            if stop > end or tag not in _FIELDS:
                return None
            if tag == _RAW_CONTENTS:
                raw.append(view[start:stop])
            elif tag == _ID:
                request_id = body[start:stop]
            else:
                heads.append(view[position:stop])
            position = stop
        return SplitRequest(b"".join(heads), request_id.decode(), raw)
    except (IndexError, FormatError, UnicodeDecodeError):
        return None
