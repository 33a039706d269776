"""gRPC's own headers over HTTP/2: timeout, message, metadata (grpc/grpc, doc/PROTOCOL-HTTP2.md)."""

import re
from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import quote_from_bytes

from tpuserve_server.core.deadline import Clock, Deadline
from tpuserve_server.core.errors import Internal

RawHeaders = Iterable[tuple[bytes, bytes]]

_TIMEOUT = re.compile(rb"([0-9]{1,8})([HMSmun])\Z")
_UNIT_S = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}

# Every printable ASCII character but the percent sign stands for itself.
_PLAIN = "".join(chr(code) for code in range(0x20, 0x7F) if code != 0x25)

# The transport's, or already understood: no method has a use for them.
_NOT_METADATA = frozenset({b"host", b"te", b"content-type", b"content-length", b"connection", b"transfer-encoding"})


def is_grpc(content_type: bytes) -> bool:
    """Whether a request of this content type is gRPC: `application/grpc`, with or without `+proto` or parameters."""
    return content_type == b"application/grpc" or content_type.startswith((b"application/grpc+", b"application/grpc;"))


def deadline_of(timeout: bytes | None, clock: Clock) -> Deadline:
    """The deadline that a `grpc-timeout` header sets. Raises Internal when malformed, as grpc-go answers it."""
    if timeout is None:
        return Deadline.never()
    match = _TIMEOUT.match(timeout)
    if match is None:
        raise Internal(f"malformed grpc-timeout: {timeout[:32].decode('latin-1')!r}")
    return Deadline.after(int(match[1]) * _UNIT_S[match[2]], clock)


def encode_message(message: str) -> bytes:
    """A `grpc-message` value: UTF-8, percent-encoded."""
    return quote_from_bytes(message.encode(errors="replace"), safe=_PLAIN).encode("ascii")


class Metadata(Mapping[str, str]):
    """A request's metadata, decoded when first read: most methods never look.

    Keys are lower case. Values of one key are joined by commas, in order. A `-bin` key's value is its base64 text.
    """

    __slots__ = ("_decoded", "_headers")

    def __init__(self, headers: RawHeaders) -> None:
        self._headers = headers
        self._decoded: dict[str, str] | None = None

    def __getitem__(self, key: str) -> str:
        return self._read()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())

    def _read(self) -> dict[str, str]:
        if self._decoded is None:
            self._decoded = {}
            for name, value in self._headers:
                if name not in _NOT_METADATA and not name.startswith((b"grpc-", b":")):
                    self._add(name.decode("ascii").lower(), value.decode("latin-1"), self._decoded)
        return self._decoded

    @staticmethod
    def _add(key: str, value: str, decoded: dict[str, str]) -> None:
        decoded[key] = f"{decoded[key]},{value}" if key in decoded else value
