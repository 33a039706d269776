"""Connection: typed messages and file descriptors between two processes of one server, over a UNIX stream socket.

A message is a kind, a length and bytes. The connection sends all messages of one tick of the event loop together, so
that many requests share one system call.
"""

import asyncio
import contextlib
import logging
import os
import socket
import struct
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

_log = logging.getLogger(__name__)

Handler: TypeAlias = Callable[[memoryview], None]

# Kind and length of the payload, little-endian.
_HEAD: Final = struct.Struct("<BI")
_RECEIVED_BYTES: Final = 256 << 10
# File descriptors in one system call. Linux allows 253.
_MOST_DESCRIPTORS: Final = 64
_DESCRIPTOR_SPACE: Final = socket.CMSG_SPACE(_MOST_DESCRIPTORS * 4)
# A sender of large messages waits while more than this is unsent.
_HIGH_WATER_BYTES: Final = 1 << 20


class Connection:
    """One end. The event loop's thread owns it.

    A handler must not keep the view of a payload. Handlers run in the order of the messages. If the other process ends,
    `on_end` runs once, and later messages are dropped.
    """

    def __init__(self, end: socket.socket) -> None:
        """Own one end of a connected UNIX stream socket."""
        end.setblocking(False)
        self._socket = end
        self._handlers: Mapping[int, Handler] = {}
        self._on_end: Callable[[], None] = _ignore
        self._loop: asyncio.AbstractEventLoop | None = None
        # Bytes just received, and a message that is not complete.
        self._buffer = memoryview(bytearray(_RECEIVED_BYTES))
        self._begun = bytearray()
        self._descriptors: deque[int] = deque()
        # Messages of this tick, then bytes that the socket did not take. Descriptors travel before the messages.
        self._tick: list[bytes] = []
        self._unsent = memoryview(b"")
        self._to_pass: list[int] = []
        self._is_due = False
        # Called before the messages of this tick are sent, to add theirs.
        self._collectors: list[Callable[[], None]] = []
        self._writable: asyncio.Future[None] | None = None

    def start(self, handlers: Mapping[int, Handler], on_end: Callable[[], None]) -> None:
        """Receive from now on, with a handler for each kind. Call it on the event loop."""
        self._handlers, self._on_end = handlers, on_end
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket.fileno(), self._receive)

    @property
    def is_open(self) -> bool:
        """Whether messages still reach the other process."""
        return self._loop is not None

    def send(self, kind: int, payload: bytes) -> None:
        """Send a message at the end of this tick, or drop it if the connection has ended. Does not block."""
        if self._loop is None:
            return
        self._tick += (_HEAD.pack(kind, len(payload)), payload)
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._flush)

    def send_from_thread(self, kind: int, payload: bytes) -> None:
        """Send a message as `send` does, from any thread."""
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # The event loop has closed.
                loop.call_soon_threadsafe(self.send, kind, payload)

    def collect(self, collector: Callable[[], None]) -> None:
        """Call `collector` at the end of this tick, so that it sends one message about everything in the tick."""
        self._collectors.append(collector)
        if not self._is_due and self._loop is not None:
            self._is_due = True
            self._loop.call_soon(self._flush)

    def pass_descriptor(self, descriptor: int) -> None:
        """Give the other process a copy of a file descriptor, before the messages of this tick. The caller keeps it."""
        self._to_pass.append(descriptor)

    def take_descriptor(self) -> int:
        """Return the next descriptor that the other process passed. The caller owns it. Raises IndexError without."""
        return self._descriptors.popleft()

    async def drain(self) -> None:
        """Wait until little is unsent, or the connection has ended. Senders of large messages call it after each."""
        if self._tick:
            # The end of this tick, which is due, tries to send its messages. They count as unsent only then.
            await asyncio.sleep(0)
        while self._loop is not None and len(self._unsent) > _HIGH_WATER_BYTES:
            if self._writable is None or self._writable.done():
                self._writable = self._loop.create_future()
            await asyncio.shield(self._writable)

    def close(self) -> None:
        """Drop everything unsent, and end. `on_end` does not run."""
        if self._loop is None:
            return
        self._loop.remove_reader(self._socket.fileno())
        self._loop.remove_writer(self._socket.fileno())
        self._loop = None
        self._socket.close()
        for descriptor in self._descriptors:
            os.close(descriptor)
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)

    # Sending.

    def _flush(self) -> None:
        if self._loop is None:
            return
        try:
            for collector in self._collectors:
                collector()
        except Exception:  # Without these messages, requests of the other process would wait for ever.
            self._fail("A message to another process of the server could not be made")
            return
        self._collectors.clear()
        self._is_due = False
        if self._unsent:
            # The writer sends them after those that wait. Descriptors may overtake them, which is harmless.
            self._unsent = memoryview(b"".join((self._unsent, *self._tick)))
            self._tick.clear()
            return
        self._unsent = memoryview(b"".join(self._tick))
        self._tick.clear()
        if not self._write():
            self._loop.add_writer(self._socket.fileno(), self._resume)

    def _resume(self) -> None:
        if self._loop is not None and self._write():
            self._loop.remove_writer(self._socket.fileno())

    def _write(self) -> bool:
        """Send until the socket is full. Return whether everything is sent."""
        try:
            while self._unsent:
                self._unsent = self._unsent[self._send_some() :]
        except BlockingIOError:
            return False
        except OSError:
            # The reader finds the end, too, after the last messages of the other process.
            self._unsent = memoryview(b"")
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        return True

    def _send_some(self) -> int:
        passed = self._to_pass[:_MOST_DESCRIPTORS]
        if not passed:
            return self._socket.send(self._unsent)
        # The first byte carries them, so that they arrive before every message that names them.
        sent = socket.send_fds(self._socket, [self._unsent[:1]], passed)
        del self._to_pass[: len(passed)]
        return sent

    # Receiving.

    def _receive(self) -> None:
        try:
            size, ancillary, _, _ = self._socket.recvmsg_into([self._buffer], _DESCRIPTOR_SPACE)
        except BlockingIOError:
            return
        except OSError:
            size, ancillary = 0, []
        for level, kind, packed in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                self._descriptors.extend(struct.unpack(f"{len(packed) // 4}i", packed))
        try:
            if size:
                self._accept(self._buffer[:size])
                return
        except Exception:  # A message that the two processes understand differently: neither may go on.
            self._fail("A message of another process of the server could not be handled")
            return
        self._end()

    def _fail(self, what: str) -> None:
        """Log the current exception, and end."""
        _log.exception(what)
        self._end()

    def _end(self) -> None:
        if self._loop is not None:
            self.close()
            self._on_end()

    def _accept(self, data: memoryview) -> None:
        """Handle every complete message, and keep the begun one."""
        if not self._begun:
            self._begun += data[self._dispatch(data) :]
            return
        self._begun += data
        with memoryview(self._begun) as view:
            handled = self._dispatch(view)
        del self._begun[:handled]

    def _dispatch(self, data: memoryview) -> int:
        """Handle every complete message. Return their size in bytes."""
        at, size = 0, len(data)
        while size - at >= _HEAD.size:
            kind, length = _HEAD.unpack_from(data, at)
            end = at + _HEAD.size + length
            if end > size:
                break
            self._handlers[kind](data[at + _HEAD.size : end])
            at = end
        return at


def _ignore() -> None: ...
