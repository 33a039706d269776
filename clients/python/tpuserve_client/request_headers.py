"""The caller's headers for every request: HTTP headers or gRPC metadata."""

import base64
import binascii
import os
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Final, TypeAlias

from tpuserve_client.errors import InvalidArgument
from tpuserve_client.names import shown

# A function that returns a header's value. Only `AsyncClient` awaits.
HeaderSource: TypeAlias = Callable[[], str | Awaitable[str]]
HeaderValue: TypeAlias = str | HeaderSource

# The server's name in requests: `:authority` in gRPC.
HOST: Final = "host"
BINARY: Final = "-bin"
# Names and values that gRPC accepts (doc/PROTOCOL-HTTP2.md). HTTP accepts them too.
_NAME: Final = re.compile(r"[0-9a-z_.-]+")
_VALUE: Final = re.compile(r"[\x20-\x7e]*")
# Headers of the message transfer, which the client sets itself.
_OWN: Final = (
    "accept-encoding",
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "expect",
    "inference-header-content-length",
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
# One HTTP/2 frame (16 KiB) with room for the other headers. Few servers accept more.
MAX_BYTES: Final = 15_000


def split_headers(headers: Mapping[str, HeaderValue]) -> tuple[dict[str, str], dict[str, HeaderSource]]:
    """Return the headers whose values are known, and those whose values are functions, with names in lower case.

    Raises InvalidArgument like `read_headers`.
    """
    if not isinstance(headers, Mapping):
        raise InvalidArgument(f"headers must be a mapping from name to value, not {shown(type(headers))}.")
    sources = {name: value for name, value in headers.items() if callable(value)}
    # An empty value checks the name.
    checked = read_headers({name: "" if name in sources else value for name, value in headers.items()})
    lower = {name.lower(): source for name, source in sources.items()}
    return {name: value for name, value in checked.items() if name not in lower}, lower


def read_headers(headers: Mapping[str, object]) -> dict[str, str]:
    """Return the headers with names in lower case.

    A value whose name ends in `-bin` is base64 of the bytes, as in gRPC. Raises InvalidArgument for headers that cannot
    be sent. The error message contains no values.
    """
    read: dict[str, str] = {}
    for key, value in headers.items():
        if not isinstance(key, str):
            raise InvalidArgument(f"The name of a header must be a string, not {shown(key)}.")
        name = key.lower()
        if not isinstance(value, str):
            raise InvalidArgument(f"The value of the header {name} must be a string, not a {type(value).__name__}.")
        _check(name, value)
        if name in read:
            raise InvalidArgument(f"The header {name} is set twice.")
        read[name] = value.strip()
    if (size := sum(len(name) + len(value) for name, value in read.items())) > MAX_BYTES:
        raise InvalidArgument(f"The headers have {size:,} bytes. The maximum is {MAX_BYTES:,}.")
    return read


def parse_headers(texts: Iterable[str]) -> dict[str, str]:
    """Parse headers of a command line: `NAME: VALUE`, or `@FILE` with one such line for each header, as in curl.

    `${VARIABLE}` stands for an environment variable in an option, but not in a file. Raises InvalidArgument like
    `read_headers`.
    """
    pairs = [pair for text in texts for pair in _pairs(text)]
    names = [name.lower() for name, _ in pairs]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise InvalidArgument(f"The header {repeated[0]} is set twice.")
    return read_headers(dict(pairs))


def binary_value(value: str) -> bytes:
    """Decode the value of a `-bin` header, with or without base64 padding. Raises ValueError."""
    return base64.b64decode(value.rstrip("=") + "=" * (-len(value.rstrip("=")) % 4), validate=True)


def _pairs(text: str) -> list[tuple[str, str]]:
    if not text.startswith("@"):
        return [_pair(text, expand=True)]
    try:
        lines = Path(text[1:]).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{text[1:]}: {getattr(error, 'strerror', None) or 'not a text file'}.") from None
    return [_pair(line, expand=False) for line in lines if line.strip()]


def _pair(text: str, *, expand: bool) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    name = name.strip()
    if not colon:
        raise InvalidArgument("Expected 'NAME: VALUE' or @FILE, got a text without a colon.")
    if expand:
        value = _VARIABLE.sub(_of_environment, value)
    if not value.strip():
        raise InvalidArgument(f"The header {name} has no value.")
    return name, value


def _of_environment(variable: re.Match[str]) -> str:
    name = variable[1]
    if name not in os.environ:
        raise InvalidArgument(f"The environment variable {name} is not set.")
    return os.environ[name]


def _check(name: str, value: str) -> None:
    if not _NAME.fullmatch(name):
        raise InvalidArgument(f"{name!r:.60} is not a valid header name. Use letters, digits, '-', '_' and '.'.")
    if name in _OWN or name.startswith(_GRPCS):
        raise InvalidArgument(f"The header {name} is reserved: the client sets it itself.")
    if not _VALUE.fullmatch(value):
        raise InvalidArgument(f"The value of the header {name} has characters other than printable ASCII.")
    if name.endswith(BINARY):
        try:
            binary_value(value.strip())
        except binascii.Error:
            raise InvalidArgument(
                f"The value of the header {name} is not base64, which a name ending in -bin requires."
            ) from None
