"""Parser of server addresses."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from ipaddress import ip_address
from urllib.parse import urlsplit, urlunsplit

from tpuserve_client.errors import InvalidArgument
from tpuserve_client.names import shown

DEFAULT_GRPC_PORT = 8500
# Environment variable from which the commands read the server's address.
ADDRESS_VARIABLE = "TPUSERVE_ADDRESS"
# Gateways serve grpcs:// on the HTTPS port.
DEFAULT_GRPCS_PORT = 443


# Resolve the name to all its addresses and balance over them, as gRPC does.
_DNS = "dns:///"
# Prefix of a scheme: the server speaks the Open Inference Protocol (OIP) over it.
_OIP = "oip+"


@dataclass(frozen=True, slots=True)
class Address:
    """Address of a server. `target` is a gRPC target (`host:port`, `unix:/path`), or a base URL if `is_rest`.

    `is_secure` is True if the server uses TLS. `is_dns` is True if the client must balance over all addresses of the
    host. `is_oip` is True for the Open Inference Protocol, and False for TensorFlow Serving's protocol.
    """

    target: str
    is_rest: bool
    is_secure: bool = False
    is_dns: bool = False
    is_oip: bool = False

    @property
    def host(self) -> str | None:
        """Name of the host to look up, or None for a socket file or an IP address."""
        if self.target.startswith("unix:"):
            return None
        name = urlsplit(self._url).hostname
        try:
            ip_address(name or "")
        except ValueError:
            return name
        return None

    @property
    def is_local(self) -> bool:
        """Whether requests stay on this machine: a socket file, localhost, or a loopback address."""
        if self.target.startswith("unix:"):
            return True
        name = urlsplit(self._url).hostname or ""
        try:
            return ip_address(name).is_loopback
        except ValueError:
            return name == "localhost"

    @property
    def authority(self) -> str:
        """Host and port for the Host header or `:authority`."""
        return urlsplit(self._url).netloc.rpartition("@")[2]

    def at(self, ip: str) -> "Address":
        """Return the same address with an IP address in place of the host name."""
        parts = urlsplit(self._url)
        user, at, _ = parts.netloc.rpartition("@")
        place = f"[{ip}]" if ":" in ip else ip
        netloc = f"{user}{at}{place}" if parts.port is None else f"{user}{at}{place}:{parts.port}"
        target = urlunsplit((*parts[:1], netloc, *parts[2:])) if self.is_rest else netloc
        return replace(self, target=target, is_dns=False)

    @property
    def _url(self) -> str:
        return self.target if self.is_rest else f"//{self.target}"


def parse_addresses(addresses: str | Sequence[str]) -> tuple[Address, ...]:
    """Parse one address, several with commas between them, or a sequence of addresses.

    Raises InvalidArgument for an invalid address, for none, and for addresses of different protocols.
    """
    texts = addresses.split(",") if isinstance(addresses, str) else addresses
    if not isinstance(texts, Sequence):
        raise InvalidArgument(f"The address must be a string or a sequence of strings, not {shown(addresses)}.")
    places = tuple(dict.fromkeys(map(parse_address, texts)))
    if not places:
        raise InvalidArgument("The sequence of addresses is empty.")
    if len({(place.is_rest, place.is_secure, place.is_oip) for place in places}) > 1:
        raise InvalidArgument(f"The addresses must have one scheme: {', '.join(texts)}.")
    return places


def parse_address(text: str) -> Address:
    """Parse `host`, `host:port`, `grpc(s)://host:port`, `unix:/path` (all gRPC) or `http(s)://host:port` (REST).

    The default gRPC port is 8500, or 443 with grpcs://. A URL without a port has the default port of its scheme.
    `dns:///host:port` is gRPC to all addresses of the host. `oip+` before a scheme selects the Open Inference Protocol,
    as in `oip+grpc://host:port`. Raises InvalidArgument for any other text.
    """
    if not isinstance(text, str):
        raise InvalidArgument(f"A server address must be a string, not {shown(text)}.")
    text = text.strip()
    if not text.startswith(_OIP):
        return _parse_place(text, text)
    place = text.removeprefix(_OIP)
    if "://" not in place and not place.startswith("unix:"):
        raise InvalidArgument(
            f"Address {text!r} has no scheme after {_OIP}. Use {_OIP}grpc://host:port or {_OIP}http://host:port."
        )
    return replace(_parse_place(place, text), is_oip=True)


def _parse_place(place: str, text: str) -> Address:
    """Parse an address without `oip+`. `text` is the whole address, for messages."""
    if place.startswith(_DNS):
        return Address(_host_and_port(place.removeprefix(_DNS), text, DEFAULT_GRPC_PORT), is_rest=False, is_dns=True)
    scheme, separator, rest = place.partition("://")
    if scheme in ("http", "https") and separator:
        return Address(_base_url(place, text), is_rest=True, is_secure=scheme == "https")
    if place.startswith("unix:") and len(place) > len("unix:"):
        return Address(place, is_rest=False)
    if separator and scheme not in ("grpc", "grpcs"):
        known = "grpc://, grpcs://, dns:///, unix:, http:// or https://"
        raise InvalidArgument(f"Unknown scheme in address {text!r}. Use {known}, or one of them after {_OIP}.")
    is_secure = bool(separator) and scheme == "grpcs"
    default_port = DEFAULT_GRPCS_PORT if is_secure else DEFAULT_GRPC_PORT
    target = _host_and_port(rest if separator else place, text, default_port)
    return Address(target, is_rest=False, is_secure=is_secure)


def _base_url(url: str, text: str) -> str:
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises ValueError if the port is invalid
    except ValueError as error:
        raise InvalidArgument(f"Invalid server address: {text!r} ({error})") from None
    if not parts.hostname or parts.query or parts.fragment or any(map(str.isspace, url)):
        raise InvalidArgument(f"Invalid server address: {text!r}")
    return url.rstrip("/")


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
