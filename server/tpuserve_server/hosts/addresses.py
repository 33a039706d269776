"""Addresses to listen on: how they are written, and whether they can be had."""

import errno
import socket

from tpuserve_server.hosts.application import HostOptions
from tpuserve_server.hosts.errors import HostError
from tpuserve_server.hosts.socket_file import socket_file

# Room for a burst of new connections while the event loop is busy; the kernel caps it at net.core.somaxconn.
BACKLOG = 2048


def join(host: str, port: int) -> str:
    """`host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def listen(host: str, port: int, what: str) -> socket.socket:
    """A listening TCP socket; port 0 takes any free one. Raises HostError with what to do when it cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise cannot_listen(join(host, port), what, error) from error


def cannot_listen(address: str, what: str, error: OSError | None = None) -> HostError:
    """One line for whoever starts the server. Without an error the address is taken to be in use."""
    if error is None or error.errno == errno.EADDRINUSE:
        return HostError(
            f"Cannot listen for {what} on {address}: it is in use. Stop what uses it or choose another port."
        )
    return HostError(f"Cannot listen for {what} on {address}: {error.strerror or error}.")


def check_free(options: HostOptions) -> None:
    """Raise HostError for an address that is in use. Hosts bind long after the start, or in another process."""
    for what, port in (("gRPC", options.grpc_port), ("REST", options.rest_port)):
        if port:
            listen(options.bind_address, port, what).close()
    with socket_file(options) as file:
        if file is not None:
            file.check()
