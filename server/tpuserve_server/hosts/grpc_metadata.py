"""Metadata: the metadata of a gRPC request, as a mapping (grpc/grpc, doc/PROTOCOL-HTTP2.md)."""

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import TypeVar, overload

from tpuserve_server.protocols.raw_headers import find_header

_Default = TypeVar("_Default")

RawHeaders = Iterable[tuple[bytes, bytes]]

# Headers of the transport, or headers already processed. Methods do not use them.
_NOT_METADATA = frozenset(
    {
        b"host",
        b"te",
        b"content-type",
        b"content-length",
        b"connection",
        b"transfer-encoding",
    }
)


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

    @overload
    def get(self, key: str) -> str | None: ...

    @overload
    def get(self, key: str, default: str | _Default) -> str | _Default: ...

    def get(self, key: str, default: str | _Default | None = None) -> str | _Default | None:
        """Return the value of a key, or `default`. Decodes no other value if it can read the headers again."""
        headers = self._headers
        # The metadata of grpcio can be read once only. A check for Sequence would take longer than the search.
        if self._decoded is None and isinstance(headers, (list, tuple)):
            value = find_header(headers, key) if _is_key(key) else None
        else:
            value = self._read().get(key)
        return default if value is None else value

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())

    def _read(self) -> dict[str, str]:
        if self._decoded is None:
            self._decoded = {}
            for name, value in self._headers:
                if _is_metadata(name):
                    self._add(name.decode("ascii").lower(), value.decode("latin-1"), self._decoded)
        return self._decoded

    @staticmethod
    def _add(key: str, value: str, decoded: dict[str, str]) -> None:
        decoded[key] = f"{decoded[key]},{value}" if key in decoded else value


def _is_metadata(name: bytes) -> bool:
    # grpcio passes on names that HTTP does not allow (RFC 9110, 5.1). No method reads those.
    return name not in _NOT_METADATA and not name.startswith((b"grpc-", b":")) and name.isascii()


# The server itself reads few different keys.
@lru_cache(maxsize=32)
def _is_key(key: str) -> bool:
    return _is_metadata(key.encode())
