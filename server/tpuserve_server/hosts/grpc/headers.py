"""gRPC's own headers over HTTP/2: timeout, message, metadata (grpc/grpc, doc/PROTOCOL-HTTP2.md)."""

import re
from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import quote_from_bytes

from tpuserve_server.core.deadline import Clock, Deadline
from tpuserve_server.core.errors import Internal

RawHeaders = Iterable[tuple[bytes, bytes]]

_TIMEOUT = re.compile(rb"([0-9]{1,8})([HMSmun])\Z")
_UNIT_S = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}

# Every printable ASCII character except the percent sign stays unencoded.
_PLAIN = "".join(chr(code) for code in range(0x20, 0x7F) if code != 0x25)

# Headers of the transport, or headers already processed. Methods do not use them.
_NOT_METADATA = frozenset(
    {b"host", b"te", b"content-type", b"content-length", b"connection", b"transfer-encoding", b"x-tpuserve-arrived"}
)


def is_grpc(content_type: bytes) -> bool:
    """Return whether the content type is `application/grpc`, with or without a suffix (`+proto`) or parameters."""
    return content_type == b"application/grpc" or content_type.startswith((b"application/grpc+", b"application/grpc;"))


def deadline_of(timeout: bytes | None, clock: Clock, lag_s: float = 0.0) -> Deadline:
    """Return the deadline of a `grpc-timeout` header of a call that arrived `lag_s` seconds ago.

    Raises Internal if it is malformed, as grpc-go does.
    """
    if timeout is None:
        return Deadline.never()
    match = _TIMEOUT.match(timeout)
    if match is None:
        raise Internal(f"malformed grpc-timeout: {timeout[:32].decode('latin-1')!r}")
    return Deadline.after(int(match[1]) * _UNIT_S[match[2]] - lag_s, clock)


def encode_message(message: str) -> bytes:
    """Encode a `grpc-message` value: UTF-8, percent-encoded."""
    return quote_from_bytes(message.encode(errors="replace"), safe=_PLAIN).encode("ascii")


class Metadata(Mapping[str, str]):
    """Metadata of a request. Decoded at the first access, because most methods never read it.

    Keys are lower case. Values of one key are joined by commas, in order. The value of a `-bin` key is its base64 text.
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
