"""Tests for HTTP: sizes, chunks, headers, slow clients, smuggling, methods, names (cases 10, 12 to 16 and 51)."""

import contextlib
import json
import socket
import struct
import threading
from collections.abc import Iterator

import grpc
import pytest

from tests.faults.faulted_server import (
    OIP_GRPC,
    OIP_REST,
    PATHS,
    PATIENCE_S,
    TF_GRPC,
    TF_REST,
    VERTEX,
    Faults,
    good_body,
)
from tests.faults.json_requests import BODY_MB
from tests.faults.proto_requests import X, predict_body
from tests.faults.raw_http1 import CLOSED, connected, exchange, post, received, send, statuses
from tests.server.hosts import raw_http2

REST = (TF_REST, OIP_REST, VERTEX)
MEBIBYTE = 1 << 20
LIMIT = 64 * MEBIBYTE


@pytest.mark.parametrize("protocol", REST)
@pytest.mark.parametrize("length", [LIMIT + 1, 2**63, 10**30])
def test_declared_length_over_the_limit_is_refused_before_the_body(faults: Faults, protocol: str, length: int) -> None:
    with faults.fault(10, f"content-length {length:.0e}", protocol, "413", "400") as attempt:
        attempt.got = statuses(exchange(faults.server, post(PATHS[protocol], content_length=str(length))))


@pytest.mark.parametrize("protocol", REST)
def test_chunks_over_the_limit_are_refused(faults: Faults, protocol: str) -> None:
    chunk = b"%x\r\n%b\r\n" % (MEBIBYTE, b" " * MEBIBYTE)
    head = post(PATHS[protocol], transfer_encoding="chunked")
    with faults.fault(10, "chunked body of 80 MiB", protocol, "413", memory_mb=BODY_MB, beside=True) as attempt:
        attempt.got = statuses(exchange(faults.server, head, *[chunk] * 80))


@pytest.mark.parametrize("protocol", [TF_GRPC, OIP_GRPC])
@pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip])
def test_message_over_the_limit_is_refused(faults: Faults, protocol: str, compression: grpc.Compression) -> None:
    name = "message of 65 MiB" + (", compressed" if compression is grpc.Compression.Gzip else "")
    case = 11 if compression is grpc.Compression.Gzip else 10
    with faults.fault(case, name, protocol, "RESOURCE_EXHAUSTED", memory_mb=BODY_MB) as attempt:
        call = faults.server.channel.unary_unary(PATHS[protocol])
        with pytest.raises(grpc.RpcError) as raised:
            call(bytes(LIMIT + MEBIBYTE), compression=compression, timeout=PATIENCE_S)
        attempt.got = raised.value.code().name


def test_message_over_the_limit_ends_its_stream_alone(faults: Faults) -> None:
    stream = faults.server.channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
    with faults.fault(
        10, "message of 65 MiB on a stream", OIP_GRPC, "RESOURCE_EXHAUSTED", memory_mb=BODY_MB
    ) as attempt:
        with pytest.raises(grpc.RpcError) as raised:
            list(stream(iter([bytes(LIMIT + MEBIBYTE)]), timeout=PATIENCE_S))
        attempt.got = raised.value.code().name


@pytest.mark.parametrize("protocol", REST)
def test_body_in_tiny_chunks_takes_no_memory(faults: Faults, protocol: str) -> None:
    body = good_body(protocol) + b" " * 80_000
    crumbs = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    # The host may merge chunks before the server counts them.
    with faults.fault(12, "80,000 chunks of 1 byte", protocol, "200", "400", "413", beside=True) as attempt:
        attempt.got = statuses(exchange(faults.server, post(PATHS[protocol], transfer_encoding="chunked"), crumbs))


def test_message_in_tiny_frames_takes_no_memory(faults: Faults) -> None:
    message = good_body(TF_GRPC)
    content = struct.pack(">BI", 0, len(message)) + message
    crumbs = b"".join(raw_http2.data(1, bytes([byte])) for byte in content[:-1])
    with faults.fault(12, "70,000 empty data frames, then 1 byte each", TF_GRPC, "served", CLOSED) as attempt:
        attempt.got = CLOSED
        with contextlib.suppress(ConnectionError), contextlib.closing(raw_http2.connect(faults.server.grpc)) as client:
            client.sendall(raw_http2.grpc_call(1, PATHS[TF_GRPC]))
            client.sendall(raw_http2.empty_data(1) * 70_000 + crumbs + raw_http2.data(1, content[-1:]))
            client.sendall(raw_http2.empty_data(1, end=True))
            raw_http2.wait_for_data(client, 1)
            attempt.got = "served"


@pytest.mark.parametrize(
    ("name", "headers"),
    [
        ("one header of 100 KB", {"x_long": "a" * 100_000}),
        ("ten headers of 10 KB", {f"x_{index}": "a" * 10_000 for index in range(10)}),
        ("2,000 headers of 40 bytes", {f"x_{index}": "a" * 34 for index in range(2000)}),
        ("path of 100 KB", {}),
    ],
)
def test_headers_over_the_limit_are_refused(faults: Faults, name: str, headers: dict[str, str]) -> None:
    path = PATHS[TF_REST] if headers else PATHS[TF_REST] + "?" + "a" * 100_000
    with faults.fault(13, name, "HTTP/1.1", "431") as attempt:
        attempt.got = statuses(exchange(faults.server, post(path, good_body(TF_REST), **headers)))


def test_metadata_over_the_limit_ends_its_call_alone(faults: Faults) -> None:
    stream = faults.server.channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
    bodies = _Bodies()
    open_stream = stream(bodies, timeout=PATIENCE_S)
    bodies.give(good_body(OIP_GRPC))
    assert next(open_stream)
    for protocol in (TF_GRPC, OIP_GRPC):
        for name, metadata in (
            ("100 KB of metadata in one field", {"x-long": "a" * 100_000}),
            ("100 KB of metadata in ten fields", {f"x-{index}": "a" * 10_000 for index in range(10)}),
        ):
            with faults.fault(41, name, protocol, "RESOURCE_EXHAUSTED") as attempt:
                attempt.got = faults.server.send(protocol, good_body(protocol), metadata).got
                bodies.give(good_body(OIP_GRPC))
                assert next(open_stream), "the stream on the same connection ended"
    bodies.give(None)
    assert list(open_stream) == []


class _Bodies:
    """Messages of a stream, each sent when a test gives it."""

    def __init__(self) -> None:
        self._given: list[bytes | None] = []
        self._more = threading.Condition()

    def give(self, body: bytes | None) -> None:
        with self._more:
            self._given.append(body)
            self._more.notify()

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        with self._more:
            self._more.wait_for(lambda: self._given)
            body = self._given.pop(0)
        if body is None:
            raise StopIteration
        return body


GET = b"GET /v1/models/m HTTP/1.1\r\nhost: x\r\n"
SMUGGLED = b"GET /v1/models/smuggled HTTP/1.1\r\nhost: x\r\n\r\n"
_FIRST = b"POST /v1/models/m:predict HTTP/1.1\r\nhost: x\r\n"
_END = b"\r\n\r\n0\r\n\r\n" + SMUGGLED
_CHUNKED = _FIRST + b"transfer-encoding: chunked"
REFUSED = ("400", "501", CLOSED)
MALFORMED = {
    "content-length and chunked": _FIRST + b"content-length: 4\r\ntransfer-encoding: chunked" + _END,
    "chunked and content-length": _CHUNKED + b"\r\ncontent-length: 4" + _END,
    "two content-lengths": _FIRST + b"content-length: 0\r\ncontent-length: 46\r\n\r\n" + SMUGGLED,
    "two content-lengths in one header": _FIRST + b"content-length: 0, 46\r\n\r\n" + SMUGGLED,
    "negative content-length": _FIRST + b"content-length: -1\r\n\r\n",
    "content-length with a sign": _FIRST + b"content-length: +1\r\n\r\nx",
    "transfer-encoding: xchunked": _FIRST + b"transfer-encoding: xchunked" + _END,
    "transfer-encoding: chunked, identity": _CHUNKED + b", identity" + _END,
    "space before the colon": _FIRST + b"transfer-encoding : chunked\r\ncontent-length: 0\r\n\r\n" + SMUGGLED,
    "chunk size that is no number": _CHUNKED + b"\r\n\r\nxyz\r\n\r\n" + SMUGGLED,
    "chunk of 2^64 + 1 bytes": _CHUNKED + b"\r\n\r\n10000000000000001\r\nx\r\n0\r\n\r\n" + SMUGGLED,
    "negative chunk size": _CHUNKED + b"\r\n\r\n-1\r\nx\r\n0\r\n\r\n" + SMUGGLED,
    "NUL in a header": GET + b"x-nul: a\0b\r\n\r\n",
    "bare CR in a header": GET + b"x-cr: a\rb\r\n\r\n",
    "unknown method": b"FROB /v1/models/m HTTP/1.1\r\nhost: x\r\n\r\n",
    "CONNECT": b"CONNECT x:80 HTTP/1.1\r\nhost: x\r\n\r\n",
    "space in the path": b"GET /v1/models/m m HTTP/1.1\r\nhost: x\r\n\r\n",
    "HTTP/3.0": b"GET /v1/models/m HTTP/3.0\r\nhost: x\r\n\r\n",
    "TLS on the plain port": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(512),
    "random bytes": bytes(range(256)) * 4,
}  # fmt: skip

# Requests that every server reads in the same way, so that they may have another answer.
UNAMBIGUOUS = {
    # A server may replace a bare CR by a space (RFC 9112, section 2.2).
    "bare CR in a header": ("200",),
    "CONNECT": ("404", "405"),
    "HTTP/3.0": ("200", "505"),
}


_GET = b"GET /v1/models/m HTTP/1.1\r\n"
_BODY = b"17\r\n" + b'{"instances": [[1, 2]]}' + b"\r\n0\r\n\r\n"
_CLOSE = b"connection: close\r\n"
AMBIGUOUS_HEADS = {
    "no Host": _GET + b"\r\n",
    "two Hosts": GET + b"host: y\r\n\r\n",
    "two equal Hosts": GET + b"host: x\r\n\r\n",
    "two hosts in one header": _GET + b"host: x, y\r\n\r\n",
    "lines that end with LF": _GET.replace(b"\r", b"") + b"host: x\n\n",
    "one line that ends with LF": GET + b"a: b\n\r\n",
    "CR at the end of a value": GET + b"a: b\r\r\n\r\n",
    "CR within a value": GET + b"a: b\rc: d\r\n\r\n",
    "transfer-encoding: gzip, chunked": _FIRST + b"transfer-encoding: gzip, chunked\r\n\r\n" + _BODY,
    "gzip and chunked in two headers": _FIRST
    + b"transfer-encoding: gzip\r\ntransfer-encoding: chunked\r\n\r\n"
    + _BODY,
    "HTTP/1.0": b"GET /v1/models/m HTTP/1.0\r\n\r\n",
    "HTTP/1.0 with chunks": _FIRST.replace(b"1.1", b"1.0") + b"transfer-encoding: chunked\r\n\r\n" + _BODY,
}
# The server waits for the end of a line, and closes the connection after the header timeout.
UNFINISHED_HEADS = {"lines that end with LF", "one line that ends with LF"}
ODD_HEADS = {
    "target in absolute form": b"GET http://x/v1/models/m HTTP/1.1\r\nhost: x\r\n" + _CLOSE + b"\r\n",
    "Host with IPv6 and port": _GET + b"host: [::1]:8501\r\n" + _CLOSE + b"\r\n",
    "spaces and tabs around a value": _GET + b"host: \t x \t\r\n" + _CLOSE + b"\r\n",
    "Transfer-Encoding: ChUnKeD": _FIRST + _CLOSE + b"Transfer-Encoding:  ChUnKeD \r\n\r\n" + _BODY,
    "chunk with extensions": _CHUNKED + b"\r\n" + _CLOSE + b"\r\n" + _BODY.replace(b"17", b'17;a="b c";d', 1),
}


@pytest.mark.parametrize("name", AMBIGUOUS_HEADS)
def test_head_that_two_servers_could_read_differently_is_refused(faults: Faults, name: str) -> None:
    # The server knows no coding but `chunked` (RFC 9112, section 6.1).
    expected = CLOSED if name in UNFINISHED_HEADS else "501" if name == "transfer-encoding: gzip, chunked" else "400"
    with faults.fault(51, name, "HTTP/1.1", expected) as attempt, connected(faults.server) as client:
        send(client, [AMBIGUOUS_HEADS[name]])
        attempt.got = statuses(received(client))


@pytest.mark.parametrize("name", ODD_HEADS)
def test_odd_head_is_answered(faults: Faults, name: str) -> None:
    with faults.fault(51, f"valid: {name}", "HTTP/1.1", "200") as attempt:
        attempt.got = statuses(exchange(faults.server, ODD_HEADS[name]))


def first_bytes(client: socket.socket) -> bytes:
    """Return the begin of the response, or nothing if the server still waits."""
    client.settimeout(0.5)
    try:
        return client.recv(1 << 16)
    except (TimeoutError, ConnectionError):
        return b""
    finally:
        client.settimeout(PATIENCE_S)


@pytest.mark.parametrize("name", MALFORMED)
def test_request_that_two_servers_could_read_differently_is_refused(faults: Faults, name: str) -> None:
    with faults.fault(15, name, "HTTP/1.1", *REFUSED, *UNAMBIGUOUS.get(name, ())) as attempt:
        with connected(faults.server) as client:
            send(client, [MALFORMED[name]])
            response = first_bytes(client)
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_WR)
            response += received(client)
        attempt.got = statuses(response)
        assert b"smuggled" not in response


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "HEAD", "TRACE"])
@pytest.mark.parametrize("protocol", REST)
def test_other_methods_are_refused(faults: Faults, protocol: str, method: str) -> None:
    # Open Inference Protocol: servers answer 405 or 404.
    with faults.fault(15, f"method {method}", protocol, "400", "404", "405") as attempt:
        attempt.got = str(faults.server.http.request(method, PATHS[protocol]).status_code)


@pytest.mark.parametrize("protocol", REST)
def test_pipelined_requests_are_answered_in_order(faults: Faults, protocol: str) -> None:
    requests = [post(PATHS[protocol], good_body(protocol), False)] * 99 + [post(PATHS[protocol], good_body(protocol))]
    with faults.fault(15, "100 pipelined requests", protocol, "100 times 200", beside=True) as attempt:
        found = statuses(exchange(faults.server, b"".join(requests))).split()
        attempt.got = f"{len(found)} times {' '.join(sorted(set(found)))}"


NAMES = {
    "../../etc/passwd": "../../../../etc/passwd",
    "%2e%2e%2f": "%2e%2e%2f%2e%2e%2fetc%2fpasswd",
    "..": "..",
    "%2e%2e": "%2e%2e",
    "NUL": "a%00b",
    "only NUL": "%00",
    "empty name": "",
    "invalid escape": "%zz",
    "no UTF-8": "%ff",
    "10,000 characters": "a" * 10_000,
    "newline": "m%0aINFO:%20loaded",
    "terminal escape": "m%1b%5b31m",
    "backslash": "..%5c..%5cetc",
    "fragment": "m%23x",
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("protocol", "path"),
    [
        (TF_REST, "/v1/models/{}:predict"),
        (TF_REST, "/v1/models/m/versions/{}:predict"),
        (TF_REST, "/v1/models/m/labels/{}:predict"),
        (OIP_REST, "/v2/models/{}/infer"),
        (OIP_REST, "/v2/models/m/versions/{}/infer"),
        (OIP_REST, "/v2/repository/models/{}/load"),
    ],
)
def test_strange_name_opens_no_file(faults: Faults, protocol: str, path: str, name: str) -> None:
    body = b"{}" if "repository" in path else good_body(protocol)
    # Triton answers 500 to a load of an unknown model.
    expected = ("400", "404", "500") if "repository" in path else ("400", "404", "405")
    with faults.fault(16, f"{name} in {path.format('NAME')}", protocol, *expected) as attempt:
        response = exchange(faults.server, post(path.format(NAMES[name]), body))
        attempt.got = statuses(response)
        assert b"root:" not in response
    log = faults.server.running.log.read_bytes()
    assert b"\x1b[31m" not in log
    assert b"\nINFO: loaded" not in log


def test_strange_names_over_grpc_open_no_file(faults: Faults) -> None:
    for name in ("../../etc/passwd", "..", "a\0b", "\n", "a" * 1_000_000, "\u202e"):
        shown = json.dumps(name) if len(name) < 20 else "1,000,000 characters"
        with faults.fault(16, f"model {shown}", TF_GRPC, "NOT_FOUND", "INVALID_ARGUMENT") as attempt:
            answer = faults.server.send(TF_GRPC, predict_body(model=name, x=X))
            attempt.got = answer.got
            assert len(answer.content) < 10_000
