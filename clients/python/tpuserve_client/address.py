"""Where a server is, as people write it."""

from dataclasses import dataclass
from urllib.parse import urlsplit

from tpuserve_client.errors import InvalidArgument

DEFAULT_GRPC_PORT = 8500


@dataclass(frozen=True, slots=True)
class Address:
    """A server's place. `target` is a gRPC target (`host:port`, `unix:/path`), or a base URL if `is_rest`."""

    target: str
    is_rest: bool


def parse_address(text: str) -> Address:
    """Read `host`, `host:port`, `grpc://host:port`, `unix:/path` (all gRPC) or `http(s)://host:port` (REST).

    A gRPC address without a port means 8500; a URL without one means what HTTP says. InvalidArgument otherwise.
    """
    scheme, separator, rest = text.partition("://")
    if scheme in ("http", "https") and separator:
        return Address(_base_url(text), is_rest=True)
    if text.startswith("unix:") and len(text) > len("unix:"):
        return Address(text, is_rest=False)
    if separator and scheme != "grpc":
        raise InvalidArgument(f"Unknown scheme in address {text!r}: grpc://, unix:, http:// and https:// are known.")
    return Address(_host_and_port(rest if separator else text, text), is_rest=False)


def _base_url(text: str) -> str:
    try:
        parts = urlsplit(text)
        _ = parts.port  # checked when it is read
    except ValueError as error:
        raise InvalidArgument(f"Not a server's address: {text!r} ({error})") from None
    if not parts.hostname or parts.query or parts.fragment or any(map(str.isspace, text)):
        raise InvalidArgument(f"Not a server's address: {text!r}")
    return text.rstrip("/")


def _host_and_port(place: str, text: str) -> str:
    try:
        parts = urlsplit(f"//{place}")
        port = parts.port or DEFAULT_GRPC_PORT
    except ValueError as error:
        raise InvalidArgument(f"Not a server's address: {text!r} ({error})") from None
    if not parts.hostname or parts.path.strip("/") or parts.query or "@" in place or place.endswith(":"):
        raise InvalidArgument(f"Not a server's address: {text!r}")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{host}:{port}"
