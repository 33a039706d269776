"""Cases of messages and header compression: RFC 9113, section 8, and RFC 7541."""

from collections.abc import Callable

from h2.errors import ErrorCodes

from tests.server.hosts.http2.case import Case, connection_error, response, stream_error
from tests.server.hosts.http2.peer import (
    CONTINUATION,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    Peer,
    block,
    call,
    data,
    frame,
    headers,
    integer,
    literal,
    message,
    request,
    whole,
)

PROTOCOL_ERROR = ErrorCodes.PROTOCOL_ERROR
_malformed = stream_error(PROTOCOL_ERROR)
_compression = connection_error(ErrorCodes.COMPRESSION_ERROR)
_HELLO = block(request())


def _with(name: str | bytes, value: str | bytes) -> bytes:
    return whole([*request(), (name, value)])


def _without(name: str) -> bytes:
    return whole([(each, value) for each, value in request() if each != name])


def _twice(name: str) -> bytes:
    fields = request()
    return whole([*(field for field in fields if field[0] == name), *fields])


def _hpack(encoded: bytes) -> bytes:
    return frame(HEADERS, END_HEADERS | END_STREAM, 1, encoded)


def _trailers_after_data(peer: Peer) -> None:
    peer.send(headers(call(), 3), data(message(), 3, END_STREAM))
    assert peer.outcome(stream=3) == "response 200"
    assert peer.fields[3]["grpc-status"] == "0"
    peer.send(whole(request(), 5))


def _compressed(peer: Peer) -> None:
    """Fill the dynamic table beyond its size, and refer to it, as libraries do."""
    for stream in range(3, 23, 2):
        fields = [(name, value) for name, value in request(x_filler=str(stream) * 600)]
        peer.send(frame(HEADERS, END_HEADERS | END_STREAM, stream, peer.encoder.encode(fields)))
    peer.send(frame(HEADERS, END_HEADERS | END_STREAM, 23, peer.encoder.encode(request())))


def _huffman(bits: str) -> bytes:
    raw = int(bits, 2).to_bytes(len(bits) // 8, "big")
    return _hpack(_HELLO + b"\x00" + b"\x01a" + integer(len(raw), bits=7, prefix=0x80) + raw)


def _sends(*parts: bytes) -> Callable[[Peer], None]:
    return lambda peer: peer.send(*parts)


MESSAGE_CASES = [
    Case("8.1", "request without a body", whole(request()), response(200)),
    Case("8.1", "request with HEAD", whole(request(method="HEAD")), response(200, 405)),
    Case("8.1", "response with trailers", _trailers_after_data, response(200), stream=5),
    Case(
        "8.1", "request with trailers", headers(call()) + data(message()) + whole([("x-checksum", "1")]), response(200)
    ),
    Case(
        "8.1",
        "trailers without END_STREAM",
        headers(call()) + data(message()) + headers([("x-checksum", "1")]),
        _malformed,
    ),
    Case(
        "8.1", "trailers with a pseudo-header", headers(call()) + data(message()) + whole([(":path", "/")]), _malformed
    ),
    Case(
        "8.1",
        "trailers with an uppercase name",
        headers(call()) + data(message()) + whole([("X-Checksum", "1")]),
        _malformed,
    ),
    Case("8.1.1", "content-length and no data", whole(request(method="POST", content_length="1")), _malformed),
    Case(
        "8.1.1",
        "content-length below one DATA",
        headers(call(content_length="1")) + data(message(), flags=END_STREAM),
        _malformed,
    ),
    Case(
        "8.1.1",
        "content-length above one DATA",
        headers(call(content_length="99")) + data(message(), flags=END_STREAM),
        _malformed,
    ),
    Case(
        "8.1.1",
        "content-length below two DATA",
        headers(call(content_length="11")) + data(message()) + data(b"ab", flags=END_STREAM),
        _malformed,
    ),
    Case(
        "8.1.1",
        "two values of content-length",
        whole([*request(content_length="0"), ("content-length", "1")]),
        _malformed,
    ),
    Case(
        "8.1.1",
        "content-length with a sign",
        headers(call(content_length="+10")) + data(message(), flags=END_STREAM),
        _malformed,
    ),
    Case("8.2.1", "uppercase name", _with("X-Test", "1"), _malformed),
    Case("8.2.1", "empty name", _with("", "1"), _malformed),
    Case("8.2.1", "name with a space", _with("x test", "1"), _malformed),
    Case("8.2.1", "name with a colon", _with("x:test", "1"), _malformed),
    Case("8.2.1", "name with a line feed", _with("x\ntest", "1"), _malformed),
    Case("8.2.1", "name beyond ASCII", _with(b"x-\xe4", "1"), _malformed),
    Case("8.2.1", "value with CR and LF", _with("x-test", "1\r\nhost: b"), _malformed),
    Case("8.2.1", "value with NUL", _with("x-test", b"1\0"), _malformed),
    Case("8.2.1", "value with a space before it", _with("x-test", " 1"), _malformed),
    Case("8.2.1", "value with a tab after it", _with("x-test", "1\t"), _malformed),
    *(
        Case("8.2.2", f"header {name} of one connection", _with(name, value), _malformed)
        for name, value in (
            ("connection", "keep-alive"),
            ("keep-alive", "timeout=5"),
            ("proxy-connection", "keep-alive"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "h2c"),
        )
    ),
    Case("8.2.2", "te of other values", _with("te", "trailers, deflate"), _malformed),
    Case("8.2.2", "te: trailers", _with("te", "trailers"), response(200)),
    Case("8.2.3", "cookies in two fields", whole([*request(cookie="a=1"), ("cookie", "b=2")]), response(200)),
    Case("8.3", "unknown pseudo-header", whole([(":unknown", "1"), *request()]), _malformed),
    Case("8.3", "pseudo-header of responses", whole([*request()[:4], (":status", "200")]), _malformed),
    Case(
        "8.3",
        "pseudo-header after a header",
        whole([*request()[:3], ("x-test", "1"), (":authority", "localhost")]),
        _malformed,
    ),
    Case("8.3.1", "without :method", _without(":method"), _malformed),
    Case("8.3.1", "without :scheme", _without(":scheme"), _malformed),
    Case("8.3.1", "without :path", _without(":path"), _malformed),
    Case("8.3.1", "empty :path", whole(request(path="")), _malformed),
    Case("8.3.1", ":path without a slash", whole(request(path="hello")), _malformed),
    Case("8.3.1", ":path with a space", whole(request(path="/hello HTTP/1.1")), _malformed),
    Case("8.3.1", "two :method", _twice(":method"), _malformed),
    Case("8.3.1", "two :scheme", _twice(":scheme"), _malformed),
    Case("8.3.1", "two :path", _twice(":path"), _malformed),
    Case("8.3.1", "two :authority", _twice(":authority"), _malformed),
    Case("8.3.1", "host differs from :authority", _with("host", "elsewhere"), _malformed),
    Case("8.3.1", "host without :authority", whole([*request()[:3], ("host", "localhost")]), response(200)),
    Case("8.3.1", "two host", whole([*request()[:3], ("host", "localhost"), ("host", "localhost")]), _malformed),
    Case("8.5", "CONNECT with :path", whole(request(method="CONNECT")), _malformed),
    Case("8.5", "CONNECT without :authority", whole([(":method", "CONNECT")]), _malformed),
    # Header compression.
    Case("HPACK 2.3.3", "index 0", _hpack(_HELLO + b"\x80"), _compression),
    Case("HPACK 2.3.3", "index beyond the tables", _hpack(_HELLO + b"\xc6"), _compression),
    Case("HPACK 2.3.3", "name beyond the tables", _hpack(_HELLO + b"\x7e\x01a"), _compression),
    Case("HPACK 4.1", "dynamic table with evictions", _compressed, response(200), stream=23),
    Case(
        "HPACK 4.1",
        "entry larger than the table",
        _hpack(_HELLO + b"\x40\x01a" + integer(5000, bits=7) + bytes([97]) * 5000),
        response(200),
    ),
    Case("HPACK 4.2", "size update after a field", _hpack(_HELLO + b"\x20"), _compression),
    Case(
        "HPACK 4.2", "size update above the setting", _hpack(integer(4097, bits=5, prefix=0x20) + _HELLO), _compression
    ),
    Case(
        "HPACK 4.2",
        "size update to 0 and back",
        _hpack(b"\x20" + integer(4096, bits=5, prefix=0x20) + _HELLO),
        response(200),
    ),
    Case("HPACK 5.1", "integer beyond 64 bits", _hpack(_HELLO + b"\xff" + b"\xff" * 20 + b"\x7f"), _compression),
    Case("HPACK 5.1", "integer without its end", _hpack(_HELLO + b"\xff\x80"), _compression),
    Case("HPACK 5.2", "string beyond the block", _hpack(_HELLO + b"\x00\x05abc"), _compression),
    Case("HPACK 5.2", "Huffman padding of zeros", _huffman("00011000"), _compression),
    Case("HPACK 5.2", "Huffman padding of 8 bits", _huffman("00011111" + "11111111"), _compression),
    Case("HPACK 5.2", "Huffman code of the end", _huffman("1" * 32), _compression),
    Case(
        "HPACK 6.1",
        "block within a literal",
        _sends(frame(HEADERS, END_STREAM, 1, _HELLO[:-3]) + frame(CONTINUATION, END_HEADERS, 1)),
        _compression,
    ),
    Case("HPACK 6.2", "literal that is never indexed", _hpack(_HELLO + b"\x10" + literal("a", "b")[1:]), response(200)),
]
