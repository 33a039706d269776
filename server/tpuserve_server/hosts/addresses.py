"""Listen addresses: their text form, and checks that they are free."""

import errno
import socket

from tpuserve_server.hosts.application import HostOptions
from tpuserve_server.hosts.errors import HostError
from tpuserve_server.hosts.socket_file import socket_file

# Room for a burst of new connections while the event loop is busy; the kernel caps it at net.core.somaxconn.
BACKLOG = 2048


def join(host: str, port: int) -> str:
    """Return `host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def listen(host: str, port: int, what: str) -> socket.socket:
    """Open a listening TCP socket. Port 0 takes any free port. Raises HostError if the address is not available."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise cannot_listen(join(host, port), what, error) from error


def cannot_listen(address: str, what: str, error: OSError | None = None) -> HostError:
    """Return the error for an address that is not available. Without `error`, assume that it is in use."""
    if error is None or error.errno == errno.EADDRINUSE:
        return HostError(
            f"Cannot listen for {what} on {address}: the address is in use. Stop the process that uses it or choose "
            "another port."
        )
    return HostError(f"Cannot listen for {what} on {address}: {error.strerror or error}.")


def check_free(options: HostOptions) -> None:
    """Raise HostError for an address that is in use.

    Check early, because hosts bind their addresses long after the start or in another process.
    """
    for what, port in (("gRPC", options.grpc_port), ("REST", options.rest_port)):
        if port:
            listen(options.bind_address, port, what).close()
    with socket_file(options) as file:
        if file is not None:
            file.check()
