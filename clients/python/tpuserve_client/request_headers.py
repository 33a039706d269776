"""Headers of a caller's own that go with every request: HTTP's headers, gRPC's metadata."""

import base64
import binascii
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
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
_VARIABLE: Final = re.compile(r"\$\{(\w+)\}")
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


def parse_headers(texts: Iterable[str]) -> dict[str, str]:
    """Headers as a command line has them: `NAME: VALUE`, or `@FILE` with such a line for each, as curl takes them.

    `${VARIABLE}` in a text, not in a file, is the environment's. InvalidArgument as of `read_headers`.
    """
    pairs = [pair for text in texts for pair in _pairs(text)]
    names = [name.lower() for name, _ in pairs]
    if twice := [name for name in names if names.count(name) > 1]:
        raise InvalidArgument(f"The header {twice[0]} was given twice.")
    return read_headers(dict(pairs))


def binary_value(value: str) -> bytes:
    """What the value of a `-bin` header stands for; padding may be left out. Raises ValueError."""
    return base64.b64decode(value.rstrip("=") + "=" * (-len(value.rstrip("=")) % 4), validate=True)


def _pairs(text: str) -> list[tuple[str, str]]:
    if not text.startswith("@"):
        return [_pair(text, expand=True)]
    try:
        lines = Path(text[1:]).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{text[1:]}: {getattr(error, 'strerror', None) or 'is no text'}.") from None
    return [_pair(line, expand=False) for line in lines if line.strip()]


def _pair(text: str, *, expand: bool) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    name = name.strip()
    if not colon:
        raise InvalidArgument("Expected 'NAME: VALUE' or @FILE, received a text without a colon.")
    if expand:
        value = _VARIABLE.sub(_of_environment, value)
    if not value.strip():
        raise InvalidArgument(f"The header {name} has no value.")
    return name, value


def _of_environment(variable: re.Match[str]) -> str:
    name = variable[1]
    if name not in os.environ:
        raise InvalidArgument(f"There is no variable {name} in the environment.")
    return os.environ[name]


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
