"""Parser of server addresses."""

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from tpuserve_client.errors import InvalidArgument

DEFAULT_GRPC_PORT = 8500
# Environment variable from which the commands read the server's address.
ADDRESS_VARIABLE = "TPUSERVE_ADDRESS"
# Gateways serve grpcs:// on the HTTPS port.
DEFAULT_GRPCS_PORT = 443


@dataclass(frozen=True, slots=True)
class Address:
    """Address of a server. `target` is a gRPC target (`host:port`, `unix:/path`), or a base URL if `is_rest`.

    `is_secure` is True if the server uses TLS.
    """

    target: str
    is_rest: bool
    is_secure: bool = False


def parse_address(text: str) -> Address:
    """Parse `host`, `host:port`, `grpc(s)://host:port`, `unix:/path` (all gRPC) or `http(s)://host:port` (REST).

    The default gRPC port is 8500, or 443 with grpcs://. A URL without a port has the default port of its scheme. Raises
    InvalidArgument for any other text.
    """
    scheme, separator, rest = text.partition("://")
    if scheme in ("http", "https") and separator:
        return Address(_base_url(text), is_rest=True, is_secure=scheme == "https")
    if text.startswith("unix:") and len(text) > len("unix:"):
        return Address(text, is_rest=False)
    if separator and scheme not in ("grpc", "grpcs"):
        known = "grpc://, grpcs://, unix:, http:// or https://"
        raise InvalidArgument(f"Unknown scheme in address {text!r}. Use {known}.")
    is_secure = bool(separator) and scheme == "grpcs"
    default_port = DEFAULT_GRPCS_PORT if is_secure else DEFAULT_GRPC_PORT
    place = _host_and_port(rest if separator else text, text, default_port)
    return Address(place, is_rest=False, is_secure=is_secure)


def _base_url(text: str) -> str:
    try:
        parts = urlsplit(text)
        _ = parts.port  # raises ValueError if the port is invalid
    except ValueError as error:
        raise InvalidArgument(f"Invalid server address: {text!r} ({error})") from None
    if not parts.hostname or parts.query or parts.fragment or any(map(str.isspace, text)):
        raise InvalidArgument(f"Invalid server address: {text!r}")
    return text.rstrip("/")


def _host_and_port(place: str, text: str, default_port: int) -> str:
    try:
        parts = urlsplit(f"//{place}")
        port = parts.port or default_port
    except ValueError as error:
        raise InvalidArgument(f"Invalid server address: {text!r} ({error})") from None
    if not parts.hostname or parts.path.strip("/") or parts.query or re.search("[ @]|:$", place):
        raise InvalidArgument(f"Invalid server address: {text!r}")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{host}:{port}"
