"""Control: decides by the address of a client whether it may change the server. Predictions need no permission.

A proxy on the same machine has a loopback address, and so have all its clients. A client that the server has identified
needs the role `control` instead, at any address. The rule refuses requests that a web page of another site makes in a
browser on a trusted machine.
"""

import ipaddress
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final
from urllib.parse import urlsplit

from tpuserve_server.access.access import CONTROL, Identity
from tpuserve_server.access.caller import find_caller
from tpuserve_server.core.terms.errors import PermissionDenied, Unauthenticated
from tpuserve_server.protocols.oip_grpc.methods import OIP_SERVICE
from tpuserve_server.protocols.options import ControlOptions
from tpuserve_server.protocols.rpc import CallContext, RpcTable, StreamMethod, UnaryMethod
from tpuserve_server.wire.oip.control_messages import sets_log, sets_trace

# Methods that change the server by some of their messages, and read it by the others.
_CHANGES: Final[Mapping[str, Callable[[bytes], bool]]] = {
    f"/{OIP_SERVICE}/LogSettings": sets_log,
    f"/{OIP_SERVICE}/TraceSetting": sets_trace,
}


class Control:
    """The rule for control requests of every protocol."""

    def __init__(self, options: ControlOptions) -> None:
        """Allow the clients of `options`."""
        self._allows_any = options.control == "any"

    @property
    def description(self) -> str:
        """The rule as a line for the server's log."""
        if self._allows_any:
            return "The server accepts control requests (reload, load, unload, profile) from every address"
        return (
            "The server accepts control requests (reload, load, unload, profile) only from loopback addresses and its "
            "UNIX socket. --control=any accepts them from every address"
        )

    def check(self, client: str | None) -> None:
        """Check the caller's role if the server identifies clients, and the address of a client without credentials.

        None is the address of a client of a UNIX socket.

        Raises:
            PermissionDenied: the client may not control the server.
            Unauthenticated: clients without credentials may not.
        """
        caller = find_caller()
        if caller is not None:
            caller.require(CONTROL, "A change of the server")
        if _is_known(caller) or self._allows_any or client is None or _is_loopback(client):
            return
        otherwise = "" if caller is None else ", or send a credential with the role control"
        raise PermissionDenied(
            f"Clients at {client} may not control this server: it accepts control requests only from loopback "
            f"addresses and its UNIX socket. Start it with --control=any to accept them from every address{otherwise}"
        )

    def check_rest(self, scope: Mapping[str, object]) -> None:
        """Check the client of an ASGI scope, and that no page of another site makes the request.

        A browser on this machine sends the requests of all pages, and a password that it has with each of them. If only
        this machine may control the server, a page must name it by address: a name may belong to another site, which
        resolves it to this machine. A browser sends a password to no other name.

        Raises:
            PermissionDenied: the client may not control the server.
            Unauthenticated: clients without credentials may not.
        """
        self.check(asgi_client(scope))
        check_browser(scope)
        if not self._trusts_name(scope) and comes_from_page(scope):
            raise PermissionDenied(
                "A web page may control this server only under an IP address or as localhost, because other sites can "
                "use any other name. Start the server with --control=any to allow other names"
            )

    def may_control(self, scope: Mapping[str, object]) -> bool:
        """Return whether the client of an ASGI scope may control the server, from a page of this server or without."""
        try:
            self.check_rest(scope)
        except (PermissionDenied, Unauthenticated):
            return False
        # A browser does not mark a GET of a page without TLS.
        return self._trusts_name(scope)

    def _trusts_name(self, scope: Mapping[str, object]) -> bool:
        return self._allows_any or _is_known(find_caller()) or names_this_machine(scope)

    def wrap_table(self, table: RpcTable) -> RpcTable:
        """Return a table whose control methods check the client first."""
        return {path: self._wrapped(path, method) for path, method in table.items()}

    def _wrapped(self, path: str, method: UnaryMethod | StreamMethod) -> UnaryMethod | StreamMethod:
        changes = _always if method.access.is_control else _CHANGES.get(path)
        if changes is None or not isinstance(method, UnaryMethod):
            return method

        async def handle(body: bytes, context: CallContext) -> bytes:
            if changes(body):
                self.check(context.find_client())
            return await method.handle(body, context)

        return replace(method, handle=handle)


def asgi_client(scope: Mapping[str, object]) -> str | None:
    """Return the address of the client of an ASGI scope, or None for a UNIX socket."""
    client = scope.get("client")
    return str(client[0]) if isinstance(client, tuple | list) else None


def _is_known(caller: Identity | None) -> bool:
    return caller is not None and caller.name != ""


def _always(_body: bytes) -> bool:
    return True


def _is_loopback(client: str) -> bool:
    try:
        address = ipaddress.ip_address(client.partition("%")[0])
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


# A browser sends the requests of every page from its own machine, whose address `Control` may trust. It marks them with
# Sec-Fetch-Site (W3C Fetch Metadata) or Origin (RFC 6454). Other clients send neither.
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
