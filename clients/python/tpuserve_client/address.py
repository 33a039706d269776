"""Where a server is, as people write it."""

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from tpuserve_client.errors import InvalidArgument

DEFAULT_GRPC_PORT = 8500
# The environment variable that commands read their server's address from.
ADDRESS_VARIABLE = "TPUSERVE_ADDRESS"
# A gateway's, as of https.
DEFAULT_GRPCS_PORT = 443


@dataclass(frozen=True, slots=True)
class Address:
    """A server's place. `target` is a gRPC target (`host:port`, `unix:/path`), or a base URL if `is_rest`.

    `is_secure`: it speaks TLS.
    """

    target: str
    is_rest: bool
    is_secure: bool = False


def parse_address(text: str) -> Address:
    """Read `host`, `host:port`, `grpc(s)://host:port`, `unix:/path` (all gRPC) or `http(s)://host:port` (REST).

    A gRPC address without a port means 8500, with grpcs:// 443; a URL without one means what HTTP says. InvalidArgument
    otherwise.
    """
    scheme, separator, rest = text.partition("://")
    if scheme in ("http", "https") and separator:
        return Address(_base_url(text), is_rest=True, is_secure=scheme == "https")
    if text.startswith("unix:") and len(text) > len("unix:"):
        return Address(text, is_rest=False)
    if separator and scheme not in ("grpc", "grpcs"):
        known = "grpc://, grpcs://, unix:, http:// and https://"
        raise InvalidArgument(f"Unknown scheme in address {text!r}: {known} are known.")
    is_secure = bool(separator) and scheme == "grpcs"
    default_port = DEFAULT_GRPCS_PORT if is_secure else DEFAULT_GRPC_PORT
    place = _host_and_port(rest if separator else text, text, default_port)
    return Address(place, is_rest=False, is_secure=is_secure)


def _base_url(text: str) -> str:
    try:
        parts = urlsplit(text)
        _ = parts.port  # checked when it is read
    except ValueError as error:
        raise InvalidArgument(f"Not a server's address: {text!r} ({error})") from None
    if not parts.hostname or parts.query or parts.fragment or any(map(str.isspace, text)):
        raise InvalidArgument(f"Not a server's address: {text!r}")
    return text.rstrip("/")


def _host_and_port(place: str, text: str, default_port: int) -> str:
    try:
        parts = urlsplit(f"//{place}")
        port = parts.port or default_port
    except ValueError as error:
        raise InvalidArgument(f"Not a server's address: {text!r} ({error})") from None
    if not parts.hostname or parts.path.strip("/") or parts.query or re.search("[ @]|:$", place):
        raise InvalidArgument(f"Not a server's address: {text!r}")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{host}:{port}"
