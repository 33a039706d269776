"""Addresses to listen on: how they are written, and whether they can be had."""

import errno
import socket
from pathlib import Path

from tpuserve_server.hosts.application import HostError, HostOptions

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
    """Raise HostError when an address is taken now. For hosts that bind in another process, long after the start."""
    for what, port in (("gRPC", options.grpc_port), ("REST", options.rest_port)):
        if port:
            listen(options.bind_address, port, what).close()
    if options.grpc_socket_path is not None:
        check_socket_path(options.grpc_socket_path)


def check_socket_path(path: str) -> None:
    """Raise HostError when no UNIX socket can be made there, or a server is listening there now."""
    if not Path(path).absolute().parent.is_dir():
        raise HostError(f"Cannot listen for gRPC on unix:{path}: there is no such folder.")
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except (FileNotFoundError, ConnectionRefusedError):
            return
        except OSError as error:
            raise cannot_listen(f"unix:{path}", "gRPC", error) from error
    raise cannot_listen(f"unix:{path}", "gRPC")
