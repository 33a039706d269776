"""Sockets that know when a whole exchange must be over.

HTTP libraries limit each wait on a socket, not their sum: a server that sends a byte now and then is waited for without
end. Here every wait is cut to what is left.
"""

import ssl
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import httpcore

# A large body is sent in many waits, one for whatever the peer has room for: time is looked at between the pieces.
_PIECE_BYTES: Final = 64 * 2**10


class DeadlineBackend(httpcore.NetworkBackend):
    """httpcore's own sockets, limited by the deadline of the thread that waits on them.

    Safe to share between threads: each has its own deadline, and httpcore works in the thread of its caller.
    """

    def __init__(self) -> None:
        self._sockets = httpcore.SyncBackend()
        self._of_thread = threading.local()

    @contextmanager
    def deadline(self, timeout_s: float | None) -> Iterator[None]:
        """Whatever this thread does with the sockets inside of this is over after `timeout_s` seconds (None: ever).

        Raises httpcore.TimeoutException then. Looking up a host's name is the system's and takes its own time; where
        a name has several addresses, each of them may be tried for as long.
        """
        self._of_thread.expires = None if timeout_s is None else time.monotonic() + timeout_s
        try:
            yield
        finally:
            self._of_thread.expires = None

    def remaining(self) -> float | None:
        """Seconds left to this thread; None without a deadline. httpcore.ReadTimeout where none are."""
        expires: float | None = getattr(self._of_thread, "expires", None)
        if expires is None:
            return None
        if (left := expires - time.monotonic()) <= 0:
            raise httpcore.ReadTimeout("the deadline passed")
        return left

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        stream = self._sockets.connect_tcp(host, port, self.remaining(), local_address, socket_options)
        return _DeadlineStream(stream, self)


class _DeadlineStream(httpcore.NetworkStream):
    """A connection. The thread's deadline takes the place of httpcore's `timeout`, which is for each wait."""

    def __init__(self, stream: httpcore.NetworkStream, backend: DeadlineBackend) -> None:
        self._stream = stream
        self._backend = backend

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, self._backend.remaining())

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        for start in range(0, len(buffer), _PIECE_BYTES):
            self._stream.write(buffer[start : start + _PIECE_BYTES], self._backend.remaining())

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        stream = self._stream.start_tls(ssl_context, server_hostname, self._backend.remaining())
        return _DeadlineStream(stream, self._backend)

    def get_extra_info(self, info: str) -> Any:  # noqa: ANN401  httpcore's
        return self._stream.get_extra_info(info)
