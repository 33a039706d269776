"""Control: decides by the address of a client whether it may change the server. Predictions need no permission.

A proxy on the same machine has a loopback address, and so have all its clients.
"""

import ipaddress
from collections.abc import Callable, Mapping
from typing import Final

from tpuserve_formats.messages.official import MODEL_SERVICE
from tpuserve_server.core.errors import PermissionDenied
from tpuserve_server.frontends.control_options import ControlOptions
from tpuserve_server.frontends.oip_grpc.table import OIP_SERVICE
from tpuserve_server.frontends.rpc import CallContext, RpcTable, StreamMethod, UnaryMethod
from tpuserve_server.wire.oip.server_settings import sets_log, sets_trace
from tpuserve_server.wire.profiler_proto import PROFILER_SERVICE

# Methods that change the server, or take its time for as long as the client wants. Shared memory is for clients on the
# server's machine alone, and the keys of its regions are for their owners.
_METHODS: Final = frozenset(
    (
        f"/{MODEL_SERVICE.full_name}/HandleReloadConfigRequest",
        f"/{OIP_SERVICE}/RepositoryModelLoad",
        f"/{OIP_SERVICE}/RepositoryModelUnload",
        f"/{OIP_SERVICE}/SystemSharedMemoryStatus",
        f"/{OIP_SERVICE}/SystemSharedMemoryRegister",
        f"/{OIP_SERVICE}/SystemSharedMemoryUnregister",
        f"/{PROFILER_SERVICE.full_name}/Profile",
        f"/{PROFILER_SERVICE.full_name}/Terminate",
    )
)
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
        """Check a client's address; None is a client of a UNIX socket. Raises PermissionDenied."""
        if self._allows_any or client is None or _is_loopback(client):
            return
        raise PermissionDenied(
            f"Clients at {client} may not control this server: it accepts control requests only from loopback "
            "addresses and its UNIX socket. Start it with --control=any to accept them from every address"
        )

    def wrap_table(self, table: RpcTable) -> RpcTable:
        """Return a table whose control methods check the client first."""
        return {path: self._wrapped(path, method) for path, method in table.items()}

    def _wrapped(self, path: str, method: UnaryMethod | StreamMethod) -> UnaryMethod | StreamMethod:
        changes = _always if path in _METHODS else _CHANGES.get(path)
        if changes is None or not isinstance(method, UnaryMethod):
            return method

        async def handle(body: bytes, context: CallContext) -> bytes:
            if changes(body):
                self.check(context.find_client())
            return await method.handle(body, context)

        return UnaryMethod(handle)


def asgi_client(scope: Mapping[str, object]) -> str | None:
    """Return the address of the client of an ASGI scope, or None for a UNIX socket."""
    client = scope.get("client")
    return str(client[0]) if isinstance(client, tuple | list) else None


def _always(_body: bytes) -> bool:
    return True


def _is_loopback(client: str) -> bool:
    try:
        address = ipaddress.ip_address(client.partition("%")[0])
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback
