"""SocketFile: the file of gRPC's UNIX socket. Only its owner removes it, and it appears in one atomic step."""

import contextlib
import os
import secrets
import socket
import stat
from collections.abc import Iterator

from tpuserve_server.hosts.application import HostOptions
from tpuserve_server.hosts.errors import HostError

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
    """The file of a UNIX socket. A server binds `bound`, in the directory of `path`. `publish` renames it to `path`.

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
