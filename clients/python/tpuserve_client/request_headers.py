"""Headers of a caller's own that go with every request: HTTP's headers, gRPC's metadata."""

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Final

from tpuserve_client.errors import InvalidArgument

# The server's name as requests have it; over gRPC `:authority`.
HOST: Final = "host"
BINARY: Final = "-bin"
# What gRPC takes (doc/PROTOCOL-HTTP2.md), which HTTP takes, too.
_NAME: Final = re.compile(r"[0-9a-z_.-]+")
_VALUE: Final = re.compile(r"[\x20-\x7e]*")
# Those that say how a request is sent are the client's.
_OWN: Final = (
    "accept-encoding",
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "expect",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "user-agent",
    "x-tpuserve-timeout-ms",
)
_GRPCS: Final = "grpc-"
# One frame of HTTP/2 with room for what else is in it; few servers take as much.
MAX_BYTES: Final = 15_000


def read_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """The same with names in lower case. InvalidArgument, which tells no value, for what cannot be sent.

    A value whose name ends in `-bin` is bytes in base64, as gRPC has it.
    """
    read: dict[str, str] = {}
    for given, value in headers.items():
        name = given.lower()
        _check(name, value)
        if name in read:
            raise InvalidArgument(f"The header {name} was given twice.")
        read[name] = value.strip()
    if (size := sum(len(name) + len(value) for name, value in read.items())) > MAX_BYTES:
        raise InvalidArgument(f"Headers of {size:,} bytes were given: {MAX_BYTES:,} can be sent.")
    return read


def binary_value(value: str) -> bytes:
    """What the value of a `-bin` header stands for; padding may be left out. Raises ValueError."""
    return base64.b64decode(value.rstrip("=") + "=" * (-len(value.rstrip("=")) % 4), validate=True)


def _check(name: str, value: str) -> None:
    if not _NAME.fullmatch(name):
        raise InvalidArgument(f"{name!r:.60} is no header's name: letters, digits, '-', '_' and '.' make one.")
    if name in _OWN or name.startswith(_GRPCS):
        raise InvalidArgument(f"The header {name} is the client's own: it cannot be given.")
    if not _VALUE.fullmatch(value):
        raise InvalidArgument(f"The value of the header {name} has characters other than printable ASCII.")
    if name.endswith(BINARY):
        try:
            binary_value(value.strip())
        except binascii.Error:
            raise InvalidArgument(f"The value of the header {name} is not base64, which -bin stands for.") from None
