"""Attacks over HTTP/1.1: valid and invalid requests of any protocol, in any framing (RFC 9112)."""

import gzip
import random
from collections.abc import Iterator, Sequence
from typing import Final

_METHODS: Final = (
    b"POST",
    b"GET",
    b"HEAD",
    b"OPTIONS",
    b"PUT",
    b"CONNECT",
    b"TRACE",
    b"post",
    b"",
    b"G" * 300,
    b"\x80",
)
_PATHS: Final = (
    b"/v1/models/m:predict", b"/v1/models/m", b"/v1/models/m/metadata", b"/v1/models/m:classify", b"/v2/models/m/infer",
    b"/v2", b"/v2/health/ready", b"/v2/models/m/config", b"/v2/repository/index", b"/metrics", b"/readyz", b"/docs",
    b"/openapi.json", b"/debug/status", b"/v1/models/%2e%2e%2f%00:predict", b"/v1/models/\xff", b"*", b"", b"http://x/v2",
    b"/v2/models/m/infer?a=%zz#f", b"/" + b"a" * 3000, b"/v2/trace/setting", b"/v2/logging", b"//v2",
)  # fmt: skip
_HEADERS: Final = (
    b"transfer-encoding: chunked", b"transfer-encoding: gzip, chunked", b"transfer-encoding : chunked",
    b"content-length: 5", b"content-length: -1", b"content-length: 99999999999999999999", b"content-length: 5, 5",
    b"content-encoding: gzip", b"content-encoding: br", b"expect: 100-continue", b"expect: x", b"connection: close",
    b"connection: upgrade, http2-settings", b"upgrade: h2c", b"upgrade: websocket", b"host: a\r\nhost: b",
    b" folded: x", b"no-colon", b"x: \0", b": empty", b"x-tpuserve-timeout-ms: 1", b"x-tpuserve-priority: low",
    b"accept-encoding: gzip", b"inference-header-content-length: 10", b"inference-header-content-length: -1",
    b"accept: text/html",
    b"content-type: application/json", b"origin: http://x", b"x: " + b"a" * 5000, b"traceparent: 00-x",
)  # fmt: skip
_VERSIONS: Final = (b"HTTP/1.1",) * 6 + (b"HTTP/1.0", b"HTTP/2.0", b"HTTP/9.9", b"", b"HTTX/1.1")
_LINE_ENDS: Final = (b"\r\n",) * 12 + (b"\n", b"\r", b"\n\n")


class Http1Attack:
    """One connection's bytes. The same random numbers give the same attack. `bodies` are valid bodies."""

    def __init__(self, rng: random.Random, bodies: Sequence[bytes]) -> None:
        self._rng = rng
        self._bodies = bodies

    def pieces(self) -> Iterator[bytes]:
        """Yield what to send, in order: up to five pipelined requests."""
        for _ in range(self._rng.randint(1, 5)):
            request = self._request()
            if self._rng.random() < 0.15:
                request = self._damaged(request)
            cut = self._rng.randint(0, len(request))
            yield request[:cut]
            yield request[cut:]

    def _request(self) -> bytes:
        rng = self._rng
        is_valid = rng.random() < 0.4
        method = b"POST" if is_valid else rng.choice(_METHODS)
        path = rng.choice(_PATHS[:5] if is_valid else _PATHS)
        end = b"\r\n" if is_valid else rng.choice(_LINE_ENDS)
        version = b"HTTP/1.1" if is_valid else rng.choice(_VERSIONS)
        headers = [b"host: x", *rng.choices(_HEADERS, k=0 if is_valid else rng.randint(0, 4))]
        body = self._body()
        if rng.random() < 0.8:
            headers.append(b"content-length: %d" % len(body))
        elif rng.random() < 0.8:
            headers.append(b"transfer-encoding: chunked")
            body = self._chunks(body)
        return end.join([b" ".join((method, path, version)), *headers, b"", body])

    def _body(self) -> bytes:
        rng = self._rng
        body = rng.choice(self._bodies)
        if rng.random() < 0.4:
            body = self._damaged(body)
        return gzip.compress(body) if rng.random() < 0.1 else body

    def _chunks(self, body: bytes) -> bytes:
        rng = self._rng
        parts, rest = [], body
        while rest:
            size = rng.randint(1, len(rest))
            shown = b"%x" % size if rng.random() < 0.9 else rng.choice((b"-1", b"g", b"f" * 20, b"0x5", b"", b"5;a=b"))
            parts.append(shown + b"\r\n" + rest[:size] + (b"\r\n" if rng.random() < 0.95 else b""))
            rest = rest[size:]
        last = b"0\r\n\r\n" if rng.random() < 0.9 else rng.choice((b"", b"0\r\nx: y\r\n\r\n", b"0\r\n" + b"a" * 99))
        return b"".join(parts) + last

    def _damaged(self, piece: bytes) -> bytes:
        rng, content = self._rng, bytearray(piece)
        for _ in range(rng.randint(1, 4)):
            if content:
                content[rng.randrange(len(content))] = rng.randrange(256)
        return bytes(content[: rng.randint(0, len(content))] if rng.random() < 0.3 else content)
