"""Attacks over HTTP/2: valid and invalid frames of gRPC calls in any order (RFC 9113; grpc/grpc, PROTOCOL-HTTP2.md)."""

import gzip
import random
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Final

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_END_STREAM, _END_HEADERS, _PADDED, _WITH_PRIORITY = 1, 4, 8, 32
_STREAMS: Final = (1, 3, 5, 7, 9, 0, 2, 2**31 - 1)
_PATHS: Final = (
    "/tensorflow.serving.PredictionService/Predict",
    "/tensorflow.serving.PredictionService/GetModelMetadata",
    "/tensorflow.serving.ModelService/GetModelStatus",
    "/inference.GRPCInferenceService/ModelInfer",
    "/inference.GRPCInferenceService/ModelStreamInfer",
    "/grpc.health.v1.Health/Watch",
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/x",
    "",
    "*",
)
# Values that a header may have instead of a valid one.
_VALUES: Final = (
    "",
    "-1",
    "9" * 200,
    "\r\nx: y",
    "\0",
    "é",
    "gzip",
    "identity",
    "1S",
    "99999999H",
    "application/grpc",
    "%",
)
_NAMES: Final = (
    "grpc-timeout", "grpc-encoding", "content-type", "te", "content-length", "x-bin", "x-tpuserve-priority", "Upper",
    ":path", ":method", ":scheme", ":status", "connection", "transfer-encoding", "traceparent", "host", "cookie",
)  # fmt: skip


def frame(kind: int, flags: int, stream: int, payload: bytes, length: int | None = None) -> bytes:
    """Return a frame, whose head may declare another length."""
    declared = len(payload) if length is None else length
    return struct.pack(">I", declared)[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def header_block(fields: Sequence[tuple[str, str]]) -> bytes:
    """Return fields as HPACK literals without indexing. Lengths over 126 take HPACK's longer form."""
    return b"".join(b"\0" + _text(name) + _text(value) for name, value in fields)


def _text(text: str) -> bytes:
    content = text.encode()
    if len(content) < 127:
        return bytes([len(content)]) + content
    rest = len(content) - 127
    return bytes([127, *([rest & 127 | 128, rest >> 7] if rest > 127 else [rest])]) + content


class Http2Attack:
    """One connection's bytes. The same random numbers give the same attack. `bodies` are valid messages."""

    def __init__(self, rng: random.Random, bodies: Sequence[bytes]) -> None:
        self._rng = rng
        self._bodies = bodies
        self._frames: tuple[Callable[[], bytes], ...] = (
            self._call, self._call, self._call, self._headers, self._data, self._data, self._trailers, self._reset,
            self._window, self._settings, self._ping, self._priority, self._go_away, self._continuation,
            self._unknown, self._noise,
        )  # fmt: skip

    def pieces(self) -> Iterator[bytes]:
        """Yield what to send, in order."""
        rng = self._rng
        begin = _PREFACE + frame(SETTINGS, 0, 0, b"")
        yield self._damaged(begin) if rng.random() < 0.05 else begin
        for _ in range(rng.randint(1, 24)):
            piece = rng.choice(self._frames)()
            yield self._damaged(piece) if rng.random() < 0.15 else piece

    def _call(self) -> bytes:
        """Return a whole call, or one that stops early."""
        rng, stream = self._rng, self._stream()
        fields = self._fields(is_valid=rng.random() < 0.7)
        parts = [frame(HEADERS, _END_HEADERS, stream, header_block(fields))]
        message = self._message()
        cut = rng.randint(0, len(message)) if rng.random() < 0.5 else len(message)
        parts += [frame(DATA, 0, stream, message[:cut]), frame(DATA, _END_STREAM, stream, message[cut:])]
        if rng.random() < 0.3:
            parts.insert(rng.randint(1, len(parts)), self._reset(stream))
        return b"".join(parts[: rng.randint(1, len(parts))] if rng.random() < 0.3 else parts)

    def _headers(self) -> bytes:
        rng = self._rng
        block = header_block(self._fields(is_valid=False))
        flags = rng.choice((0, _END_HEADERS, _END_HEADERS | _END_STREAM, _END_HEADERS | _PADDED, _WITH_PRIORITY, 255))
        cut = rng.randint(0, len(block))
        return frame(HEADERS, flags, self._stream(), block[:cut]) + (
            self._continuation() if rng.random() < 0.5 else b""
        )

    def _data(self) -> bytes:
        rng = self._rng
        flags = rng.choice((0, _END_STREAM, _PADDED, _END_STREAM | _PADDED))
        return frame(DATA, flags, self._stream(), rng.choice((b"", b"\xff", rng.randbytes(40), self._message())))

    def _trailers(self) -> bytes:
        block = header_block([("grpc-status", "0"), *self._odd_fields()])
        return frame(HEADERS, _END_HEADERS | _END_STREAM, self._stream(), block)

    def _reset(self, stream: int | None = None) -> bytes:
        code = struct.pack(">I", self._rng.choice((0, 2, 8, 2**32 - 1)))
        return frame(RST_STREAM, 0, self._stream() if stream is None else stream, code)

    def _window(self) -> bytes:
        step = self._rng.choice((0, 1, 65535, 2**31 - 1, 2**32 - 1))
        return frame(WINDOW_UPDATE, 0, self._rng.choice((0, self._stream())), struct.pack(">I", step))

    def _settings(self) -> bytes:
        rng = self._rng
        if rng.random() < 0.3:
            return frame(SETTINGS, 1, 0, b"")
        pairs = [(rng.randint(0, 9), rng.choice((0, 1, 2, 16383, 65536, 2**31, 2**32 - 1))) for _ in range(3)]
        return frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", *pair) for pair in pairs))

    def _ping(self) -> bytes:
        return frame(PING, self._rng.randint(0, 1), 0, self._rng.randbytes(8)) * self._rng.randint(1, 20)

    def _priority(self) -> bytes:
        stream = self._stream()
        return frame(PRIORITY, 0, stream, struct.pack(">IB", self._rng.choice((stream, self._stream())), 255))

    def _go_away(self) -> bytes:
        return frame(GOAWAY, 0, 0, struct.pack(">II", self._stream(), 0) + b"x")

    def _continuation(self) -> bytes:
        return frame(CONTINUATION, self._rng.choice((0, _END_HEADERS)), self._stream(), self._rng.randbytes(10))

    def _unknown(self) -> bytes:
        rng = self._rng
        length = rng.choice((None, 0, 2**14 + 1, 2**24 - 1))
        return frame(
            rng.randint(0, 255), rng.randint(0, 255), self._stream(), rng.randbytes(rng.randint(0, 60)), length
        )

    def _noise(self) -> bytes:
        return self._rng.randbytes(self._rng.randint(1, 80))

    def _fields(self, *, is_valid: bool) -> list[tuple[str, str]]:
        rng = self._rng
        fields = [
            (":method", "POST"), (":scheme", "http"), (":path", rng.choice(_PATHS[:7] if is_valid else _PATHS)),
            (":authority", "x"), ("te", "trailers"), ("content-type", "application/grpc"),
        ]  # fmt: skip
        if is_valid:
            return fields + ([("grpc-encoding", "gzip")] if rng.random() < 0.3 else [])
        if rng.random() < 0.5:
            fields.pop(rng.randrange(len(fields)))
        fields += self._odd_fields()
        if rng.random() < 0.3:
            rng.shuffle(fields)
        return fields

    def _odd_fields(self) -> list[tuple[str, str]]:
        rng = self._rng
        return [(rng.choice(_NAMES), rng.choice(_VALUES)) for _ in range(rng.randint(0, 3))]

    def _message(self) -> bytes:
        """Return a gRPC frame around a valid or damaged message."""
        rng = self._rng
        body = rng.choice(self._bodies)
        if rng.random() < 0.4:
            body = self._damaged(body)
        is_compressed = rng.random() < 0.3
        if is_compressed and rng.random() < 0.7:
            body = gzip.compress(body)
        length = len(body) if rng.random() < 0.8 else rng.choice((0, len(body) - 1, len(body) + 9, 2**31, 2**32 - 1))
        flag = int(is_compressed) if rng.random() < 0.9 else rng.randint(2, 255)
        return struct.pack(">BI", flag, max(length, 0)) + body

    def _damaged(self, piece: bytes) -> bytes:
        rng, content = self._rng, bytearray(piece)
        for _ in range(rng.randint(1, 3)):
            if content:
                content[rng.randrange(len(content))] = rng.randrange(256)
        return bytes(content[: rng.randint(0, len(content))] if rng.random() < 0.3 else content)

    def _stream(self) -> int:
        # Mostly the low ones, so that frames meet open streams.
        return self._rng.choice(_STREAMS[:3]) if self._rng.random() < 0.7 else self._rng.choice(_STREAMS)
