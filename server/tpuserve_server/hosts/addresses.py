"""Listen addresses: their sockets, the file of the UNIX socket, and their text form."""

import contextlib
import errno
import os
import secrets
import socket
import stat
import sys
from collections.abc import Iterator, Mapping

from tpuserve_server.hosts.application import HostError, HostOptions, Listening
from tpuserve_server.hosts.handover import attach_program, is_shared
from tpuserve_server.hosts.limits import KEEPALIVE_MS, KEEPALIVE_TIMEOUT_MS, UNSENT_BYTES, known_arguments

# Room for a burst of new connections while the event loop is busy; the kernel caps it at net.core.somaxconn.
BACKLOG = 2048
# asm-generic/socket.h; the socket module has no names for them.
_SO_ATTACH_FILTER = 26
_SO_DETACH_FILTER = 27
# Hops that a packet may have left, which linux/in.h and in6.h let a socket require.
_MAX_HOPS = 255
_LEAST_HOPS = ((socket.IPPROTO_IP, 21), (socket.IPPROTO_IPV6, 73))  # IP_MINTTL, IPV6_MINHOPCOUNT
# By field of `Listening`.
_PROTOCOLS = {"grpc": "gRPC", "rest": "REST", "grpc_socket": "gRPC"}
# Time after which the kernel looks for a silent client, and time for its answer.
_KEEPALIVE_S = 300
_KEEPALIVE_TIMEOUT_S = 20


def join(host: str, port: int) -> str:
    """Return `host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@contextlib.contextmanager
def bound(options: HostOptions, file: "SocketFile | None") -> Iterator[dict[str, socket.socket]]:
    """Yield the sockets of all addresses, by their field of `Listening`. They are bound, but do not listen yet.

    Port 0 takes any free port. The sockets are closed at the end.

    Raises:
        HostError: an address is not available.
    """
    if options.reuse_port and sys.platform != "linux":
        raise HostError("--reuse_port works on Linux only: other systems do not share a port among servers.")
    with contextlib.ExitStack() as stack:
        sockets: dict[str, socket.socket] = {}
        for name, port in (("grpc", options.grpc_port), ("rest", options.rest_port)):
            if port is not None:
                sockets[name] = stack.enter_context(_bind(options, port, _PROTOCOLS[name]))
        if file is not None:
            file.check()
            sockets["grpc_socket"] = unix = stack.enter_context(socket.socket(socket.AF_UNIX))
            unix.bind(file.bound)
        yield sockets


def listen(name: str, bound: socket.socket) -> None:
    """Let clients connect to a bound socket. `name` is its field of `Listening`.

    Raises:
        HostError: another process listens on its address since.
    """
    try:
        bound.listen(BACKLOG)
        # The process before this one may have ended while it ignored new connections.
        heed_new_connections(bound)
    except OSError as error:
        own = bound.getsockname()
        address = f"unix:{own}" if bound.family == socket.AF_UNIX else join(*own[:2])
        raise cannot_listen(address, _PROTOCOLS[name], error) from error


def ignore_new_connections(listening: socket.socket, *, for_good: bool) -> None:
    """Ignore clients that begin to connect to a TCP socket (Linux), `for_good` or until `heed_new_connections`.

    The kernel would reset connections that are in the queue of a socket when it closes. A client that it ignores
    begins again after a second, and then connects to another server of the port, or is refused.
    """
    if not _has_packets(listening):
        return
    try:
        # The filter keeps no byte of a packet.
        attach_program(listening, _SO_ATTACH_FILTER, 0)
    except OSError:
        # The memory for filters of processes without privileges is used up (net.core.bpf_jit_limit). No client has as
        # many hops left. A connection that is nearly complete keeps the limit, so it is only for sockets that close.
        for level, option in _LEAST_HOPS if for_good else ():
            # A socket of IPv4 has no option of IPv6.
            with contextlib.suppress(OSError):
                listening.setsockopt(level, option, _MAX_HOPS)


def heed_new_connections(listening: socket.socket) -> None:
    """End `ignore_new_connections`, if it is in effect."""
    if _has_packets(listening):
        with contextlib.suppress(FileNotFoundError):
            listening.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)


def _has_packets(listening: socket.socket) -> bool:
    return sys.platform == "linux" and listening.family != socket.AF_UNIX


def listening(options: HostOptions, sockets: Mapping[str, socket.socket], file: "SocketFile | None") -> Listening:
    """Return the addresses of sockets as a client writes them."""
    tcp = {
        name: join(options.bind_address, sockets[name].getsockname()[1]) for name in ("grpc", "rest") if name in sockets
    }
    return Listening(**tcp, grpc_socket=None if file is None else file.address, tls=options.tls is not None)


def _bind(options: HostOptions, port: int, what: str) -> socket.socket:
    host = options.bind_address
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if options.reuse_port:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if bound.family == socket.AF_INET6:
            # "::" accepts IPv4 connections, too.
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(host != "::"))
        if sys.platform == "linux":
            _set_inherited(bound, options)
        bound.bind((host, port))
        if options.replace_pid is not None and port and is_shared(port):
            raise HostError(
                f"Cannot listen for {what} on {join(host, port)}: two servers already share port {port}. Stop the "
                "older one first."
            )
    except OSError as error:
        bound.close()
        if options.reuse_port and error.errno == errno.EADDRINUSE:
            raise HostError(
                f"Cannot listen for {what} on {join(host, port)}: the address is in use by a server without "
                "--reuse_port, or of another user. Stop that server or choose another port."
            ) from None
        raise cannot_listen(join(host, port), what, error) from error
    except BaseException:
        bound.close()
        raise
    return bound


def _set_inherited(bound: socket.socket, options: HostOptions) -> None:
    """Set options that connections inherit (Linux)."""
    bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
    # The kernel ends the connection of a client that takes no bytes, whatever the protocol above.
    bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(options.write_timeout_s * 1000))
    arguments = known_arguments(options.grpc_arguments)
    idle_s = _seconds(arguments.get(KEEPALIVE_MS), _KEEPALIVE_S)
    interval_s = _seconds(arguments.get(KEEPALIVE_TIMEOUT_MS), _KEEPALIVE_TIMEOUT_S)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle_s)
    bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, interval_s)
    bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 1)


def _seconds(milliseconds: int | None, default_s: int) -> int:
    """Return whole seconds in the kernel's range."""
    return default_s if milliseconds is None else min(max(-(-milliseconds // 1000), 1), 32767)


def cannot_listen(address: str, what: str, error: OSError) -> HostError:
    """Return the error for an address that is not available."""
    if error.errno == errno.EADDRINUSE:
        return HostError(
            f"Cannot listen for {what} on {address}: the address is in use. Stop the process that uses it or choose "
            "another port."
        )
    return HostError(f"Cannot listen for {what} on {address}: {error.strerror or error}.")


# A UNIX socket's path has at most 108 bytes with the terminating zero, or 104 on macOS.
MAX_SOCKET_PATH_BYTES = 103
# A server that does not accept within this time still counts as running.
_PROBE_TIMEOUT_S = 1.0


@contextlib.contextmanager
def socket_file(options: HostOptions) -> Iterator["SocketFile | None"]:
    """Yield the socket file that `options` request, or None, and remove it at the end."""
    if options.grpc_socket_path is None:
        yield None
        return
    file = SocketFile(options.grpc_socket_path, takes_over=options.opens_when_ready)
    try:
        yield file
    finally:
        file.remove()


class SocketFile:
    """The file of gRPC's UNIX socket, which only its owner removes.

    A server binds `bound`, in the directory of `path`. `publish` renames it to `path`.

    With a separate name, `bind` needs no removal of another server's socket, and `path` is never absent during a
    takeover.
    """

    def __init__(self, path: str, *, takes_over: bool) -> None:
        """Choose the names, without access to the file system.

        With `takes_over`, `publish` replaces the socket of a server that still listens at `path`.
        """
        self.path = os.path.abspath(path)
        self.bound = os.path.join(os.path.dirname(self.path), f".{secrets.token_hex(4)}")
        self._takes_over = takes_over
        self._published: os.stat_result | None = None

    @property
    def address(self) -> str:
        """The address as a client writes it."""
        return f"unix:{self.path}"

    def check(self) -> None:
        """Raise HostError if `publish` would fail now."""
        folder = os.path.dirname(self.path)
        if not os.path.isdir(folder):
            raise self._refused("its directory does not exist")
        if not os.access(folder, os.W_OK | os.X_OK):
            raise self._refused("this user cannot create files in its directory")
        longest = max(len(os.fsencode(name)) for name in (self.path, self.bound))
        if longest > MAX_SOCKET_PATH_BYTES:
            raise self._refused(
                f"the path is too long. Choose one that is {longest - MAX_SOCKET_PATH_BYTES} bytes shorter"
            )
        if not self._is_replaceable():
            raise self._refused("the path is a file that is not a socket. Remove it or choose another path")
        if not self._takes_over and self._is_in_use():
            raise self._refused(
                "another server listens on it. Stop that server, choose another path, or take over the path with "
                "--ports_wait_for_models"
            )

    def publish(self) -> None:
        """Rename the bound socket to `path`, and replace a socket there. Raises HostError as `check` does.

        The umask decides about the group. Other users never get access, because clients of the socket may control the
        server.
        """
        self.check()
        try:
            os.chmod(self.bound, stat.S_IMODE(os.lstat(self.bound).st_mode) & ~stat.S_IRWXO)
            os.rename(self.bound, self.path)
            self._published = os.lstat(self.path)
        except OSError as error:
            raise self._refused(error.strerror or str(error)) from error

    def remove(self) -> None:
        """Remove the socket, unless another server has taken the path over."""
        with contextlib.suppress(OSError):
            os.unlink(self.bound)
        with contextlib.suppress(OSError):
            if self._published is not None and os.path.samestat(self._published, os.lstat(self.path)):
                os.unlink(self.path)

    def _is_replaceable(self) -> bool:
        if not os.path.lexists(self.path):
            return True
        try:
            return stat.S_ISSOCK(os.stat(self.path).st_mode)
        except OSError:
            return False

    def _is_in_use(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(_PROBE_TIMEOUT_S)
            try:
                probe.connect(self.path)
            except (FileNotFoundError, ConnectionRefusedError):
                return False
            except OSError:  # A full backlog, or another user's socket.
                return True
        return True

    def _refused(self, why: str) -> HostError:
        return HostError(f"Cannot listen for gRPC on {self.address}: {why}.")
