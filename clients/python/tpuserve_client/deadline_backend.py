"""Sockets with one deadline for a whole exchange.

HTTP libraries limit each wait on a socket, not the sum of the waits. A server that sends a byte from time to time could
block such a client forever. These sockets limit every wait to the time that is left.
"""

import ssl
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import httpcore

# Write a large body in pieces and check the deadline between them: one write can wait many times.
_PIECE_BYTES: Final = 64 * 2**10


class DeadlineBackend(httpcore.NetworkBackend):
    """httpcore's own sockets, limited by the deadline of the thread that waits on them.

    Safe to share between threads: each thread has its own deadline, and httpcore runs in the thread of its caller.
    """

    def __init__(self) -> None:
        self._sockets = httpcore.SyncBackend()
        self._of_thread = threading.local()

    @contextmanager
    def deadline(self, timeout_s: float | None) -> Iterator[None]:
        """Limit this thread's socket operations in the `with` block to `timeout_s` seconds (None: no limit).

        Raises httpcore.TimeoutException after that time. The limit does not cover the system's host-name lookup. For a
        name with several addresses, each connection attempt may take that long.
        """
        self._of_thread.expires = None if timeout_s is None else time.monotonic() + timeout_s
        try:
            yield
        finally:
            self._of_thread.expires = None

    def remaining(self) -> float | None:
        """Return this thread's remaining seconds, or None without a deadline. Raises httpcore.ReadTimeout at zero."""
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
    """A connection that uses the thread's deadline instead of httpcore's `timeout`, which limits each wait."""

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
