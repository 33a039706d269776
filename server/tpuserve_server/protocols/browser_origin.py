"""Refuses control requests that a web page of another site makes in a browser on a trusted machine.

A browser sends the requests of every page from its own machine, whose address `Control` may trust. It marks them with
Sec-Fetch-Site (W3C Fetch Metadata) or Origin (RFC 6454). Other clients send neither.
"""

import ipaddress
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from tpuserve_server.core.terms.errors import PermissionDenied

_OWN_SITES: Final = frozenset((b"same-origin", b"none"))
_DEFAULT_PORTS: Final = {"http": ":80", "https": ":443"}
_MOST_SHOWN: Final = 100


def check_browser(scope: Mapping[str, object]) -> None:
    """Check that no page of another site makes the request of an ASGI scope. Raises PermissionDenied."""
    host, origins, sites = _headers(scope)
    for site in sites:
        if site not in _OWN_SITES:
            raise _refusal(f"Sec-Fetch-Site is {_shown(site)}, expected same-origin")
    for origin in origins:
        if not _is_same(origin, host):
            raise _refusal(f"Origin is {_shown(origin)}, expected the address of the server, {_shown(host)}")


def names_this_machine(scope: Mapping[str, object]) -> bool:
    """Return whether the request names the server by an IP address or as localhost, or names none.

    A page cannot make its browser do so under another name: DNS can resolve any other name to this machine later.
    """
    host, _, _ = _headers(scope)
    name = host.decode("latin-1")
    name = name.rpartition("]")[0].removeprefix("[") if name.startswith("[") else name.partition(":")[0]
    if not name or name.lower() == "localhost":
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def comes_from_page(scope: Mapping[str, object]) -> bool:
    """Return whether a browser marked the request as that of a page."""
    _, origins, sites = _headers(scope)
    return bool(origins or sites)


def _headers(scope: Mapping[str, object]) -> tuple[bytes, list[bytes], list[bytes]]:
    """Return the values of Host, Origin and Sec-Fetch-Site."""
    found: dict[bytes, list[bytes]] = {b"host": [], b"origin": [], b"sec-fetch-site": []}
    headers = scope["headers"]
    assert isinstance(headers, list | tuple)
    for name, value in headers:
        if name in found:
            found[name].append(value)
    return b",".join(found[b"host"]), found[b"origin"], found[b"sec-fetch-site"]


def _is_same(origin: bytes, host: bytes) -> bool:
    """Return whether an origin is the host that the request names. Both omit the default port, or one of them."""
    try:
        parts = urlsplit(origin.decode("latin-1"))
    except ValueError:
        return False
    default = _DEFAULT_PORTS.get(parts.scheme)
    if default is None:
        return False
    wanted = host.decode("latin-1").lower().removesuffix(default)
    return bool(wanted) and parts.netloc.lower().removesuffix(default) == wanted


def _shown(value: bytes) -> str:
    return ascii(value.decode("latin-1")[:_MOST_SHOWN])


def _refusal(why: str) -> PermissionDenied:
    return PermissionDenied(
        f"The request comes from a web page that this server has not sent: {why}. Only pages of this server, and "
        "clients that are no browsers, may control it"
    )
