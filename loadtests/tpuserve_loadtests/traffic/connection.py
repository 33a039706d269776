"""HTTP/2 connection for unary gRPC calls of any number of greenlets (RFC 9113; gRPC's PROTOCOL-HTTP2).

All calls have the same timeout. The connection supports neither compression nor retries.
"""

import struct
import time
from itertools import islice
from typing import Final
from urllib.parse import unquote

import gevent
from gevent import get_hub, socket
from gevent.event import Event
from gevent.hub import Waiter

from tpuserve_client.errors import Code
from tpuserve_loadtests.traffic.header_block import BadHeaderBlock, decode

_CODES: Final = frozenset(Code)
# Status codes for responses without a gRPC status: gRPC's doc/http-grpc-status-mapping.md.
_OF_HTTP: Final = {
    "400": "INTERNAL",
    "401": "UNAUTHENTICATED",
    "403": "PERMISSION_DENIED",
    "404": "UNIMPLEMENTED",
    "429": "UNAVAILABLE",
    "502": "UNAVAILABLE",
    "503": "UNAVAILABLE",
    "504": "UNAVAILABLE",
}


class GrpcError(Exception):
    """Error for every status except OK. `code` is its name."""

    def __init__(self, code: str, details: str) -> None:
        super().__init__(f"{code}: {details}")
        self.code = code
        self.details = details


class NotProcessed(GrpcError):
    """Error for a request that the server refused unprocessed, so that the client can send it once more."""


# HTTP/2 frames for unary gRPC calls (RFC 9113, section 6).

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DATA: Final = 0
HEADERS: Final = 1
RST_STREAM: Final = 3
SETTINGS: Final = 4
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9

END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
PRIORITY: Final = 0x20

HEADER_TABLE_SIZE: Final = 1
ENABLE_PUSH: Final = 2
MAX_CONCURRENT_STREAMS: Final = 3
INITIAL_WINDOW_SIZE: Final = 4
MAX_FRAME_SIZE: Final = 5

NO_ERROR: Final = 0
REFUSED_STREAM: Final = 7
CANCEL: Final = 8

HEAD_BYTES: Final = 9
# Defaults for the largest frame and for the receive window, until the peer's settings change them.
DEFAULT_FRAME_BYTES: Final = 16_384
DEFAULT_WINDOW_BYTES: Final = 65_535
LARGEST_WINDOW_BYTES: Final = 2**31 - 1

_HEAD: Final = struct.Struct(">BHBBI")
_SETTING: Final = struct.Struct(">HI")


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    length = len(payload)
    return _HEAD.pack(length >> 16, length & 0xFFFF, kind, flags, stream) + payload


def read_head(buffer: bytearray, at: int) -> tuple[int, int, int, int]:
    """Return payload length, kind, flags and stream of the frame at an offset."""
    high, low, kind, flags, stream = _HEAD.unpack_from(buffer, at)
    return high << 16 | low, kind, flags, stream & 0x7FFFFFFF


def settings(values: dict[int, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(*item) for item in values.items()))


def read_settings(payload: bytes) -> dict[int, int]:
    return dict(_SETTING.iter_unpack(payload[: len(payload) // _SETTING.size * _SETTING.size]))


def window_update(stream: int, size_bytes: int) -> bytes:
    """Return a WINDOW_UPDATE frame, which lets the peer send more data."""
    return frame(WINDOW_UPDATE, 0, stream, size_bytes.to_bytes(4, "big"))


def unpadded(flags: int, payload: bytes) -> bytes:
    """Return the payload of a DATA or HEADERS frame without padding and priority."""
    end = len(payload)
    start = 0
    if flags & PADDED:
        start, end = 1, end - payload[0]
    if flags & PRIORITY:
        start += 5
    return payload[start:end]


_READ_BYTES: Final = 256 * 1024
# The connection renews its receive window when half of it is used.
_WINDOW_BYTES: Final = LARGEST_WINDOW_BYTES
_LAST_STREAM: Final = 2**31 - 1
_PREFIX_BYTES: Final = 5


class _Call:
    """An open stream. `outcome` is set once, then `done` wakes the caller."""

    __slots__ = ("answer", "deadline_s", "done", "headers", "outcome", "window")

    def __init__(self, deadline_s: float, window: int) -> None:
        self.deadline_s = deadline_s
        self.window = window
        self.answer = bytearray()
        self.headers: dict[str, str] = {}
        self.outcome: bytes | GrpcError | None = None
        self.done: Waiter[None] = Waiter()


class Connection:
    """A connection that belongs to the gevent hub of one thread. Three greenlets read, write and expire calls."""

    def __init__(self, connected: socket.socket, timeout_s: float) -> None:
        """Take over a connected socket. Block until the server sends its settings. Raises GrpcError if it does not."""
        self._socket = connected
        self._timeout_s = timeout_s
        self._calls: dict[int, _Call] = {}
        self._next_stream = 1
        self._closed: GrpcError | None = None
        self._is_leaving = False
        self._limit = _LAST_STREAM
        self._window = self._call_window = DEFAULT_WINDOW_BYTES
        self._frame_bytes = DEFAULT_FRAME_BYTES
        self._received_bytes = 0
        # The flags and content so far of a header block in several frames.
        self._parts: tuple[int, bytes] = (0, b"")
        self._loop = get_hub().loop
        self._out: list[bytes] = []
        self._has_out = Event()
        self._ready = Event()
        # Set and immediately cleared when a window grows or a call ends.
        self._windows = Event()
        self._greet()
        self._greenlets = [gevent.spawn(run) for run in (self._read, self._write, self._expire)]
        if not self._ready.wait(timeout_s):
            self._end(GrpcError("UNAVAILABLE", "the server does not speak HTTP/2"))
        if self._closed is not None:
            raise self._closed

    @property
    def has_room(self) -> bool:
        """Whether another call can begin."""
        return (
            self._closed is None
            and not self._is_leaving
            and len(self._calls) < self._limit
            and self._next_stream < _LAST_STREAM
        )

    @property
    def is_over(self) -> bool:
        return not self._calls and (self._closed is not None or self._is_leaving or self._next_stream >= _LAST_STREAM)

    def call(self, head: bytes, message: bytes) -> bytes:
        """Send a message with a block of request headers, and return the response. Requires `has_room`.

        Raises GrpcError.
        """
        stream = self._next_stream
        self._next_stream += 2
        call = self._calls[stream] = _Call(time.monotonic() + self._timeout_s, self._call_window)
        size = len(message) + _PREFIX_BYTES
        prefix = b"\0" + len(message).to_bytes(4, "big")
        headers = frame(HEADERS, END_HEADERS, stream, head)
        try:
            if size <= self._window and size <= call.window and size <= self._frame_bytes:
                self._window -= size
                self._send(headers + frame(DATA, END_STREAM, stream, prefix + message))
            else:
                self._send(headers)
                self._send_in_parts(stream, call, prefix + message)
            if call.outcome is None:
                call.done.get()
        finally:
            if self._calls.pop(stream, None) is not None and self._closed is None:
                # The caller's greenlet was interrupted, so cancel the stream.
                self._send(frame(RST_STREAM, 0, stream, CANCEL.to_bytes(4, "big")))
                self._wake_senders()
        if isinstance(call.outcome, bytes):
            return call.outcome
        raise call.outcome or GrpcError("CANCELLED", "the call was interrupted")

    def close(self) -> None:
        """End all calls and close the connection. Block briefly."""
        self._end(GrpcError("CANCELLED", "the channel was closed"))
        gevent.killall(self._greenlets)

    def _greet(self) -> None:
        values = {
            HEADER_TABLE_SIZE: 0,
            ENABLE_PUSH: 0,
            INITIAL_WINDOW_SIZE: _WINDOW_BYTES,
        }
        more = window_update(0, _WINDOW_BYTES - DEFAULT_WINDOW_BYTES)
        self._send(PREFACE + settings(values) + more)

    def _send(self, data: bytes) -> None:
        self._out.append(data)
        self._has_out.set()

    def _send_in_parts(self, stream: int, call: _Call, data: bytes) -> None:
        at = 0
        while at < len(data) and call.outcome is None:
            size = min(len(data) - at, self._window, call.window, self._frame_bytes)
            if size <= 0:
                self._windows.wait()
                continue
            self._window -= size
            call.window -= size
            flags = END_STREAM if at + size == len(data) else 0
            self._send(frame(DATA, flags, stream, data[at : at + size]))
            at += size

    def _wake_senders(self) -> None:
        self._windows.set()
        self._windows.clear()

    def _write(self) -> None:
        """Write all pending data at once, so that calls that begin together share a packet."""
        try:
            while True:
                self._has_out.wait()
                self._has_out.clear()
                out, self._out = self._out, []
                self._socket.sendall(b"".join(out))
        except OSError as error:
            self._end(GrpcError("UNAVAILABLE", f"the connection was lost: {error.strerror or error}"))

    def _expire(self) -> None:
        while self._closed is None:
            oldest = next(islice(self._calls.items(), 1), None)
            if oldest is None:
                gevent.sleep(self._timeout_s)
                continue
            stream, call = oldest
            left_s = call.deadline_s - time.monotonic()
            if left_s > 0:
                gevent.sleep(left_s)
                continue
            self._send(frame(RST_STREAM, 0, stream, CANCEL.to_bytes(4, "big")))
            self._finish(stream, GrpcError("DEADLINE_EXCEEDED", f"no response within {self._timeout_s:g} s"))
            self._wake_senders()

    def _read(self) -> None:
        buffer = bytearray()
        try:
            while chunk := self._socket.recv(_READ_BYTES):
                buffer += chunk
                at = 0
                while len(buffer) - at >= HEAD_BYTES:
                    length, kind, flags, stream = read_head(buffer, at)
                    if kind != SETTINGS and not self._ready.is_set():
                        raise ValueError("the first frame is not SETTINGS")
                    end = at + HEAD_BYTES + length
                    if end > len(buffer):
                        break
                    self._take(kind, flags, stream, bytes(buffer[at + HEAD_BYTES : end]))
                    at = end
                del buffer[:at]
            self._end(GrpcError("UNAVAILABLE", "the server closed the connection"))
        except OSError as error:
            self._end(GrpcError("UNAVAILABLE", f"the connection was lost: {error.strerror or error}"))
        except (BadHeaderBlock, ValueError, IndexError) as error:
            self._end(GrpcError("INTERNAL", f"the server does not speak HTTP/2: {error}"))

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == DATA:
            self._take_data(flags, stream, payload)
        elif kind == HEADERS:
            self._take_headers(flags, stream, unpadded(flags, payload))
        elif kind == CONTINUATION:
            first_flags, block = self._parts
            self._take_headers(first_flags | flags & END_HEADERS, stream, block + payload)
        elif kind == WINDOW_UPDATE:
            self._take_window(stream, int.from_bytes(payload[:4], "big") & 0x7FFFFFFF)
        elif kind == SETTINGS and not flags & ACK:
            self._take_settings(read_settings(payload))
        elif kind == PING and not flags & ACK:
            self._send(frame(PING, ACK, 0, payload))
        elif kind == RST_STREAM:
            self._take_reset(stream, int.from_bytes(payload[:4], "big"))
        elif kind == GOAWAY:
            self._take_goaway(int.from_bytes(payload[:4], "big") & 0x7FFFFFFF)

    def _take_data(self, flags: int, stream: int, payload: bytes) -> None:
        self._received_bytes += len(payload)
        if self._received_bytes > _WINDOW_BYTES // 2:
            self._send(window_update(0, self._received_bytes))
            self._received_bytes = 0
        call = self._calls.get(stream)
        if call is None:
            return
        call.answer += unpadded(flags, payload) if flags & PADDED else payload
        if flags & END_STREAM:
            self._answer(stream, call)

    def _take_headers(self, flags: int, stream: int, block: bytes) -> None:
        if not flags & END_HEADERS:
            self._parts = (flags, block)
            return
        headers = decode(block)
        call = self._calls.get(stream)
        if call is None:
            return
        call.headers = {**call.headers, **headers} if call.headers else headers
        if flags & END_STREAM:
            self._answer(stream, call)

    def _answer(self, stream: int, call: _Call) -> None:
        number = call.headers.get("grpc-status", "")
        if number == "0":
            length = int.from_bytes(call.answer[1:_PREFIX_BYTES], "big")
            if call.answer[:1] == b"\0" and len(call.answer) == length + _PREFIX_BYTES:
                self._finish(stream, bytes(call.answer[_PREFIX_BYTES:]))
            else:
                self._finish(stream, GrpcError("INTERNAL", "the response is not a single uncompressed message"))
        elif number:
            code = Code(int(number)) if number.isdecimal() and int(number) in _CODES else Code.UNKNOWN
            self._finish(stream, GrpcError(code.name, unquote(call.headers.get("grpc-message", ""))))
        else:
            status = call.headers.get(":status", "")
            details = f"HTTP {status or 'without a status'}, and no grpc-status"
            self._finish(stream, GrpcError(_OF_HTTP.get(status, "UNKNOWN"), details))

    def _finish(self, stream: int, outcome: bytes | GrpcError) -> None:
        call = self._calls.pop(stream, None)
        if call is not None:
            call.outcome = outcome
            self._loop.run_callback(call.done.switch, None)

    def _take_settings(self, values: dict[int, int]) -> None:
        self._limit = max(values.get(MAX_CONCURRENT_STREAMS, self._limit), 1)
        self._frame_bytes = values.get(MAX_FRAME_SIZE, self._frame_bytes)
        window = values.get(INITIAL_WINDOW_SIZE, self._call_window)
        for call in self._calls.values():
            call.window += window - self._call_window
        self._call_window = window
        self._send(frame(SETTINGS, ACK, 0))
        self._ready.set()
        self._wake_senders()

    def _take_window(self, stream: int, more_bytes: int) -> None:
        if not stream:
            self._window += more_bytes
        elif (call := self._calls.get(stream)) is not None:
            call.window += more_bytes
        self._wake_senders()

    def _take_reset(self, stream: int, code: int) -> None:
        call = self._calls.get(stream)
        if call is None:
            return
        if code == REFUSED_STREAM:
            self._finish(stream, NotProcessed("UNAVAILABLE", "the server refused the stream"))
        elif code == NO_ERROR and "grpc-status" in call.headers:
            self._answer(stream, call)
        else:
            name = "CANCELLED" if code == CANCEL else "UNAVAILABLE"
            self._finish(stream, GrpcError(name, f"the server reset the stream, code {code}"))

    def _take_goaway(self, last_stream: int) -> None:
        self._is_leaving = True
        for stream in [stream for stream in self._calls if stream > last_stream]:
            self._finish(stream, NotProcessed("UNAVAILABLE", "the server is closing the connection"))
        if not self._calls:
            self._end(GrpcError("UNAVAILABLE", "the server is closing the connection"))

    def _end(self, error: GrpcError) -> None:
        if self._closed is not None:
            return
        self._closed = error
        self._ready.set()
        self._has_out.set()
        self._socket.close()
        for stream in list(self._calls):
            self._finish(stream, error)
        self._wake_senders()
