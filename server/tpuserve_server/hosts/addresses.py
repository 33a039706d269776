"""Listen addresses: their text form, and checks that they are free."""

import errno
import ipaddress
import socket
import sys

from tpuserve_server.hosts.application import HostOptions
from tpuserve_server.hosts.errors import HostError
from tpuserve_server.hosts.limits import UNSENT_BYTES
from tpuserve_server.hosts.reuse_port import is_shared
from tpuserve_server.hosts.socket_file import socket_file

# Room for a burst of new connections while the event loop is busy; the kernel caps it at net.core.somaxconn.
BACKLOG = 2048


def join(host: str, port: int) -> str:
    """Return `host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def listen(host: str, port: int, what: str, *, reuse_port: bool = False) -> socket.socket:
    """Open a listening TCP socket. Port 0 takes any free port. Raises HostError if the address is not available."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family, backlog=BACKLOG, reuse_port=reuse_port)
    except OSError as error:
        raise cannot_listen(join(host, port), what, error) from error
    if sys.platform == "linux":
        # Its connections inherit the option.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
    return listening


def cannot_listen(address: str, what: str, error: OSError | None = None) -> HostError:
    """Return the error for an address that is not available. Without `error`, assume that it is in use."""
    if error is None or error.errno == errno.EADDRINUSE:
        return HostError(
            f"Cannot listen for {what} on {address}: the address is in use. Stop the process that uses it or choose "
            "another port."
        )
    return HostError(f"Cannot listen for {what} on {address}: {error.strerror or error}.")


def is_loopback(options: HostOptions) -> bool:
    """Return whether only clients on this machine can connect. A name other than localhost counts as open."""
    if options.grpc_port is None and options.rest_port is None:
        return True
    try:
        return ipaddress.ip_address(options.bind_address).is_loopback
    except ValueError:
        return options.bind_address == "localhost"


def check_free(options: HostOptions) -> None:
    """Raise HostError for an address that is in use.

    Check early, because hosts bind their addresses long after the start or in another process.
    """
    if options.reuse_port and sys.platform != "linux":
        raise HostError("--reuse_port works on Linux only: other systems do not share a port among servers.")
    for what, port in (("gRPC", options.grpc_port), ("REST", options.rest_port)):
        if port and options.reuse_port:
            _check_shareable(options.bind_address, port, what)
        elif port:
            listen(options.bind_address, port, what).close()
    with socket_file(options) as file:
        if file is not None:
            file.check()


def _check_shareable(host: str, port: int, what: str) -> None:
    """Bind without listening: the kernel would give connections of the other server to a socket that listens."""
    address = join(host, port)
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise cannot_listen(address, what, error) from error
            raise HostError(
                f"Cannot listen for {what} on {address}: the address is in use by a server without --reuse_port, or of "
                "another user. Stop that server or choose another port."
            ) from None
    if is_shared(port):
        raise HostError(
            f"Cannot listen for {what} on {address}: two servers already share port {port}. Stop the older one first."
        )
