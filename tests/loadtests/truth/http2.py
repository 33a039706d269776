"""gRPC side of the scripted server: unary calls over HTTP/2 (RFC 9113), independent of the load tester's client.

Responses are smaller than every client's windows, so the server ignores them.
"""

import asyncio
import struct
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tests.loadtests.truth import answers, oip_answers
from tests.loadtests.truth.desk import Desk, end_pending
from tests.loadtests.truth.script import Fault, Script, Wrong, spoiled

if TYPE_CHECKING:
    from tests.loadtests.truth.request_log import Entry

_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_END_STREAM, _ACK, _END_HEADERS, _PADDED, _PRIORITY = 1, 1, 4, 8, 32
_HEAD: Final = struct.Struct(">BHBBI")
_INTERNAL_ERROR, _REFUSED_STREAM = 2, 7
_MOST_STREAMS: Final = 100_000
_WINDOW_BYTES: Final = 2**31 - 1
_CODES: Final = {Fault.UNAVAILABLE: 14, Fault.INTERNAL: 13, Fault.EXHAUSTED: 8}
_RESETS: Final = {Fault.RESET: _INTERNAL_ERROR, Fault.REFUSED: _REFUSED_STREAM}
_INVALID_ARGUMENT, _UNIMPLEMENTED = 3, 12
# Methods of predictions: protocol, and functions for the model's name and for the response.
_PREDICT: Final[dict[str, tuple[str, Callable[[bytes], str], Callable[[bytes, Wrong | None], bytes]]]] = {
    "/tensorflow.serving.PredictionService/Predict": ("grpc", answers.model_of, answers.grpc_answer),
    "/inference.GRPCInferenceService/ModelInfer": ("oip_grpc", oip_answers.model_of, oip_answers.grpc_answer),
}
_HAS_INPUTS: Final = {"grpc": answers.has_inputs, "oip_grpc": oip_answers.has_inputs}
_OTHERS: Final[dict[str, Callable[[bytes], bytes]]] = {
    "/tensorflow.serving.PredictionService/GetModelMetadata": answers.grpc_metadata,
    "/tensorflow.serving.ModelService/GetModelStatus": answers.grpc_status,
    "/inference.GRPCInferenceService/ModelMetadata": oip_answers.grpc_metadata,
}
_PATH_NAMES: Final = (4, 5)  # entries of HPACK's static table


class GrpcConnection(asyncio.Protocol):
    """A connection with any number of concurrent calls."""

    def __init__(self, number: int, desk: Desk, script: Script) -> None:
        self._number, self._desk, self._script = number, desk, script
        self._buffer = bytearray()
        self._has_preface = False
        self._paths: dict[int, str] = {}
        self._messages: dict[int, bytearray] = {}
        self._entries: dict[int, Entry] = {}
        self._accepted = 0
        self._is_leaving = self._is_closing = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the settings: no dynamic header table, many streams."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        settings = struct.pack(">HIHIHI", 1, 0, 3, _MOST_STREAMS, 4, _WINDOW_BYTES)
        window = struct.pack(">I", _WINDOW_BYTES - 65_535)
        transport.write(_frame(_SETTINGS, 0, 0, settings) + _frame(_WINDOW_UPDATE, 0, 0, window))

    def connection_lost(self, error: Exception | None) -> None:
        """Log that the client left."""
        end_pending(list(self._entries.values()), "abandoned")

    def data_received(self, data: bytes) -> None:
        """Read frames."""
        now_s = time.monotonic()
        buffer = self._buffer
        buffer += data
        if not self._has_preface:
            if len(buffer) < len(_PREFACE):
                return
            assert buffer.startswith(_PREFACE)
            self._has_preface = True
            del buffer[: len(_PREFACE)]
        at = 0
        while len(buffer) - at >= _HEAD.size:
            high, low, kind, flags, stream = _HEAD.unpack_from(buffer, at)
            end = at + _HEAD.size + (high << 16 | low)
            if end > len(buffer):
                break
            self._take(kind, flags, stream & 0x7FFFFFFF, bytes(buffer[at + _HEAD.size : end]), now_s)
            at = end
        del buffer[:at]

    def _take(self, kind: int, flags: int, stream: int, payload: bytes, now_s: float) -> None:
        if kind == _HEADERS:
            self._paths[stream] = _path(_content(flags, payload))
            self._messages[stream] = bytearray()
        elif kind == _DATA and stream in self._messages:
            self._messages[stream] += _content(flags, payload)
        elif kind == _SETTINGS and not flags & _ACK:
            self._transport.write(_frame(_SETTINGS, _ACK, 0, b""))
        elif kind == _PING and not flags & _ACK:
            self._transport.write(_frame(_PING, _ACK, 0, payload))
        elif kind == _RST_STREAM and stream in self._entries:
            end_pending([self._entries.pop(stream)], "abandoned")
        if kind in (_DATA, _HEADERS) and flags & _END_STREAM and stream in self._messages:
            self._call(stream, self._paths.pop(stream), bytes(self._messages.pop(stream)[5:]), now_s)

    def _call(self, stream: int, path: str, message: bytes, now_s: float) -> None:
        if path in _PREDICT:
            self._predict(stream, path, message, now_s)
        elif path in _OTHERS:
            self._answer(stream, _OTHERS[path](message))
        else:
            self._refuse(stream, _UNIMPLEMENTED, f"no method {path}")

    def _predict(self, stream: int, path: str, message: bytes, now_s: float) -> None:
        if self._is_leaving:  # GOAWAY named the last stream, so this request is not processed
            self._transport.write(_frame(_RST_STREAM, 0, stream, struct.pack(">I", _REFUSED_STREAM)))
            return
        protocol, model_of, answer = _PREDICT[path]
        if not _HAS_INPUTS[protocol](message):  # the check of credentials before a load
            self._refuse(stream, _INVALID_ARGUMENT, "no inputs")
            return
        model = model_of(message)
        (other, _), self._desk.latest[model, protocol] = (
            self._desk.latest.get((model, protocol), (message, 0)),
            (message, 0),
        )

        def reply(outcome: Fault | Wrong | None) -> None:
            self._entries.pop(stream, None)
            if outcome in _CODES:
                self._refuse(stream, _CODES[Fault(outcome)], f"scripted: {outcome}")
            elif outcome in _RESETS:
                self._transport.write(_frame(_RST_STREAM, 0, stream, struct.pack(">I", _RESETS[Fault(outcome)])))
            elif outcome is Fault.CUT:
                self._close()
            elif outcome is Fault.TORN:
                self._answer(stream, answer(message, None), torn=True)
            elif outcome is Wrong.SWAPPED:
                self._answer(stream, answer(other, None))
            else:
                right = answer(message, Wrong(outcome) if outcome else None)
                replaced = spoiled(Wrong(outcome), right) if outcome else None
                self._answer(stream, right if replaced is None else replaced)
            if self._is_leaving and not self._entries:
                self._close()

        entry = self._desk.accept(protocol, model, self._number, now_s, message, reply)
        if self._is_closing:
            end_pending([entry], Fault.CUT)
            return
        self._entries[stream] = entry
        self._accepted += 1
        if self._script.eject_every and self._accepted == self._script.eject_every:
            self._is_leaving = True
            self._transport.write(_frame(_GOAWAY, 0, 0, struct.pack(">II", stream, 0)))

    def _answer(self, stream: int, message: bytes, *, torn: bool = False) -> None:
        headers = _frame(_HEADERS, _END_HEADERS, stream, _block({":status": "200", "content-type": "application/grpc"}))
        content = b"\0" + struct.pack(">I", len(message)) + message
        if torn:
            self._transport.write(headers + _frame(_DATA, 0, stream, content[: len(content) // 2]))
            self._close()
            return
        trailers = _frame(_HEADERS, _END_HEADERS | _END_STREAM, stream, _block({"grpc-status": "0"}))
        self._transport.write(headers + _frame(_DATA, 0, stream, content) + trailers)

    def _refuse(self, stream: int, code: int, message: str) -> None:
        block = _block(
            {":status": "200", "content-type": "application/grpc", "grpc-status": str(code), "grpc-message": message}
        )
        self._transport.write(_frame(_HEADERS, _END_HEADERS | _END_STREAM, stream, block))

    def _close(self) -> None:
        """End the connection for the client with its calls, but read on, so that the log has every request."""
        if not self._is_closing:
            self._is_closing = True
            self._transport.write_eof()
            end_pending(list(self._entries.values()), Fault.CUT)


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return _HEAD.pack(len(payload) >> 16, len(payload) & 0xFFFF, kind, flags, stream) + payload


def _content(flags: int, payload: bytes) -> bytes:
    start, end = (1, len(payload) - payload[0]) if flags & _PADDED else (0, len(payload))
    return payload[start + (5 if flags & _PRIORITY else 0) : end]


def _block(headers: dict[str, str]) -> bytes:
    """Encode headers as literals without indexing (RFC 7541, section 6.2.2). Names and values are short."""
    return b"".join(
        bytes([0, len(name)]) + name.encode() + bytes([len(value)]) + value.encode() for name, value in headers.items()
    )


def _path(block: bytes) -> str:
    """Return the `:path` of a header block. Clients send it as a literal without Huffman code."""
    at = 0
    while at < len(block):
        first = block[at]
        if first & 0x80:  # indexed
            _, at = _integer(block, at, 7)
            continue
        if first & 0xE0 == 0x20:  # size of the dynamic table
            _, at = _integer(block, at, 5)
            continue
        index, at = _integer(block, at, 6 if first & 0x40 else 4)
        name = b":path" if index in _PATH_NAMES else b""
        if not index:
            name, at = _text(block, at)
        value, at = _text(block, at)
        if name == b":path":
            return value.decode()
    raise ValueError("no :path")


def _text(block: bytes, at: int) -> tuple[bytes, int]:
    length, start = _integer(block, at, 7)
    return block[start : start + length], start + length


def _integer(block: bytes, at: int, bits: int) -> tuple[int, int]:
    most = (1 << bits) - 1
    value, at, shift = block[at] & most, at + 1, 0
    if value < most:
        return value, at
    while True:
        byte, at = block[at], at + 1
        value, shift = value + ((byte & 0x7F) << shift), shift + 7
        if not byte & 0x80:
            return value, at
