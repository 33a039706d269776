"""Cases of frames, streams, settings and windows: RFC 9113, sections 3 to 7."""

from collections.abc import Callable

from h2.errors import ErrorCodes
from h2.settings import SettingCodes
from hyperframe.frame import DataFrame, PingFrame, RstStreamFrame

from tests.server.hosts.http2.case import Case, connection_error, ignored, response, stream_error
from tests.server.hosts.http2.peer import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    MAX_WINDOW,
    PADDED,
    PING,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    WITH_PRIORITY,
    Peer,
    block,
    call,
    data,
    frame,
    headers,
    message,
    request,
    reset,
    sent_bytes,
    settings,
    whole,
    window_update,
)

PROTOCOL_ERROR = ErrorCodes.PROTOCOL_ERROR
FLOW_CONTROL_ERROR = ErrorCodes.FLOW_CONTROL_ERROR
FRAME_SIZE_ERROR = ErrorCodes.FRAME_SIZE_ERROR
STREAM_CLOSED = ErrorCodes.STREAM_CLOSED

_UNKNOWN = 0x99
_HELLO = block(request())
_OPEN = headers(call())
# A request whose response cannot end, because its window is closed.
_HELD = settings((SettingCodes.INITIAL_WINDOW_SIZE, 0)) + whole(request())
# 5 bytes of data, too large for a window of 1.
_SMALL = data(message(b""), flags=END_STREAM)


def _too_large(kind: int, flags: int, *, begin: bytes = b"") -> Callable[[Peer], None]:
    def send(peer: Peer) -> None:
        peer.send(begin, frame(kind, flags, 1, bytes(peer.limit(SettingCodes.MAX_FRAME_SIZE) + 1)))

    return send


def _largest_data(peer: Peer) -> None:
    size_bytes = peer.limit(SettingCodes.MAX_FRAME_SIZE)
    peer.send(_OPEN, data(message(bytes(size_bytes - 5)), flags=END_STREAM), window_update(0, 1 << 20))
    peer.send(window_update(1, 1 << 20))


def _one_stream_too_many(peer: Peer) -> None:
    limit = peer.limit(SettingCodes.MAX_CONCURRENT_STREAMS)
    last = 2 * limit + 1
    peer.send(*(headers(call(), stream) for stream in range(1, last + 2, 2)))
    refused = peer.wait_for(RstStreamFrame)
    assert (refused.stream_id, refused.error_code) == (last, ErrorCodes.REFUSED_STREAM)


def _after_response(*parts: bytes) -> Callable[[Peer], None]:
    def send(peer: Peer) -> None:
        peer.send(whole(request()))
        next(each for each in peer.frames() if isinstance(each, DataFrame) and "END_STREAM" in each.flags)
        peer.send(*parts)

    return send


def _acknowledged_ping(peer: Peer) -> None:
    peer.send(frame(PING, payload=b"8 octets"))
    answer = peer.wait_for(PingFrame)
    assert (answer.opaque_data, set(answer.flags)) == (b"8 octets", {"ACK"})


def _window_of_one(peer: Peer) -> None:
    peer.send(settings((SettingCodes.INITIAL_WINDOW_SIZE, 1)), whole(request()))
    assert len(peer.wait_for(DataFrame).data) == 1
    assert sent_bytes(peer) == 0
    peer.send(window_update(1, 100))


def _last_value_counts(peer: Peer) -> None:
    window = SettingCodes.INITIAL_WINDOW_SIZE
    peer.send(settings((window, 100), (window, 1)), whole(request()))
    assert len(peer.wait_for(DataFrame).data) == 1
    peer.send(settings((window, 100)))


def _negative_window(peer: Peer) -> None:
    window = SettingCodes.INITIAL_WINDOW_SIZE
    peer.send(settings((window, 3)), whole(request()))
    assert len(peer.wait_for(DataFrame).data) == 3
    # 3 bytes sent of a window of 1: the stream owes 2.
    peer.send(settings((window, 1)), window_update(1, 2))
    assert sent_bytes(peer) == 0
    peer.send(window_update(1, 100))


def _beyond_stream_window(peer: Peer) -> None:
    _overrun(peer, [1])


def _beyond_connection_window(peer: Peer) -> None:
    _overrun(peer, [3, 5])


def _overrun(peer: Peer, streams: list[int]) -> None:
    """Send more than the windows allow, to streams of which the application reads nothing: half a message's head."""
    stream_bytes = peer.limit(SettingCodes.INITIAL_WINDOW_SIZE)
    for stream in streams:
        peer.send(headers(request("/unread", "POST"), stream))
    for stream in streams:
        for start in range(0, stream_bytes + 1, 1 << 14):
            peer.send(data(bytes(min(1 << 14, stream_bytes + 1 - start)), stream))
            if len(streams) > 1 and start + (1 << 14) >= stream_bytes:
                break


CONNECTION_CASES = [
    # Frames.
    Case("4.1", "unknown type", frame(_UNKNOWN, 0xFF, 0, bytes(8)), ignored),
    Case("4.1", "unknown flags", frame(PING, 0xFE, 0, bytes(8)), ignored),
    Case("4.1", "reserved bit", frame(PING, 0, 1 << 31, bytes(8)), ignored),
    Case("4.2", "largest DATA", _largest_data, response(200)),
    Case("4.2", "DATA too large", _too_large(DATA, 0, begin=_OPEN), stream_error(FRAME_SIZE_ERROR)),
    Case("4.2", "HEADERS too large", _too_large(HEADERS, END_HEADERS), connection_error(FRAME_SIZE_ERROR)),
    Case(
        "4.3",
        "PRIORITY within a header block",
        frame(HEADERS, 0, 1, _HELLO) + frame(PRIORITY, 0, 1, bytes(5)),
        connection_error(PROTOCOL_ERROR),
    ),
    Case(
        "4.3",
        "HEADERS of another stream within a header block",
        frame(HEADERS, 0, 1, _HELLO) + whole(request(), 3),
        connection_error(PROTOCOL_ERROR),
    ),
    # States of a stream.
    Case("5.1", "DATA on an idle stream", data(b"x"), connection_error(PROTOCOL_ERROR)),
    Case("5.1", "RST_STREAM on an idle stream", reset(1), connection_error(PROTOCOL_ERROR)),
    Case("5.1", "WINDOW_UPDATE on an idle stream", window_update(1, 1), connection_error(PROTOCOL_ERROR)),
    Case("5.1", "CONTINUATION on an idle stream", frame(CONTINUATION, 4, 1, _HELLO), connection_error(PROTOCOL_ERROR)),
    Case("5.1", "PRIORITY on an idle stream", frame(PRIORITY, 0, 1, b"\0\0\0\0\1"), ignored),
    Case("5.1", "DATA after the end of the request", _HELD + data(b"x"), stream_error(STREAM_CLOSED)),
    Case("5.1", "HEADERS after the end of the request", _HELD + whole(request()), stream_error(STREAM_CLOSED)),
    Case(
        "5.1",
        "CONTINUATION after the end of the request",
        _HELD + frame(CONTINUATION, END_HEADERS, 1, _HELLO),
        connection_error(STREAM_CLOSED, PROTOCOL_ERROR),
    ),
    Case("5.1", "DATA on a closed stream", _after_response(data(b"x")), stream_error(STREAM_CLOSED)),
    Case("5.1", "HEADERS on a closed stream", _after_response(whole(request())), connection_error(STREAM_CLOSED)),
    Case(
        "5.1",
        "CONTINUATION on a closed stream",
        _after_response(frame(CONTINUATION, END_HEADERS, 1, _HELLO)),
        connection_error(STREAM_CLOSED, PROTOCOL_ERROR),
    ),
    Case("5.1", "WINDOW_UPDATE on a closed stream", _after_response(window_update(1, 1)), ignored),
    Case("5.1", "RST_STREAM on a closed stream", _after_response(reset(1)), ignored),
    Case("5.1", "DATA after RST_STREAM", _OPEN + reset(1) + data(b"x"), stream_error(STREAM_CLOSED)),
    Case("5.1", "HEADERS after RST_STREAM", _OPEN + reset(1) + whole(request()), connection_error(STREAM_CLOSED)),
    Case("5.1.1", "even stream", whole(request(), 2), connection_error(PROTOCOL_ERROR)),
    Case("5.1.1", "lower stream", whole(request(), 5) + whole(request(), 3), connection_error(PROTOCOL_ERROR)),
    Case("5.1.2", "one stream too many", _one_stream_too_many, ignored),
    Case(
        "5.5",
        "unknown type within a header block",
        frame(HEADERS, 0, 1, _HELLO) + frame(_UNKNOWN),
        connection_error(PROTOCOL_ERROR),
    ),
    # DATA, HEADERS, PRIORITY, RST_STREAM.
    Case("6.1", "DATA on stream 0", data(b"x", stream=0), connection_error(PROTOCOL_ERROR)),
    Case(
        "6.1", "padding of DATA", _OPEN + data(b"\x03" + message() + bytes(3), flags=PADDED | END_STREAM), response(200)
    ),
    Case(
        "6.1",
        "padding longer than DATA",
        _OPEN + data(b"\x05" + bytes(4), flags=PADDED),
        connection_error(PROTOCOL_ERROR),
    ),
    Case(
        "6.1",
        "DATA without its length of padding",
        _OPEN + data(flags=PADDED),
        connection_error(PROTOCOL_ERROR, FRAME_SIZE_ERROR),
    ),
    Case("6.2", "HEADERS on stream 0", whole(request(), 0), connection_error(PROTOCOL_ERROR)),
    Case(
        "6.2",
        "padding and priority of HEADERS",
        frame(HEADERS, 0x2D, 1, b"\x02" + b"\0\0\0\0\x10" + _HELLO + bytes(2)),
        response(200),
    ),
    Case(
        "6.2", "padding longer than HEADERS", frame(HEADERS, 0xD, 1, b"\xff" + _HELLO), connection_error(PROTOCOL_ERROR)
    ),
    Case(
        "6.2",
        "HEADERS without its priority",
        frame(HEADERS, END_HEADERS | WITH_PRIORITY, 1, bytes(4)),
        connection_error(PROTOCOL_ERROR, FRAME_SIZE_ERROR),
    ),
    Case("6.3", "PRIORITY on stream 0", frame(PRIORITY, payload=bytes(5)), connection_error(PROTOCOL_ERROR)),
    Case("6.3", "PRIORITY of 4 bytes", _OPEN + frame(PRIORITY, 0, 1, bytes(4)), stream_error(FRAME_SIZE_ERROR)),
    Case("6.4", "RST_STREAM on stream 0", reset(0), connection_error(PROTOCOL_ERROR)),
    Case("6.4", "RST_STREAM of 3 bytes", _OPEN + frame(RST_STREAM, 0, 1, bytes(3)), connection_error(FRAME_SIZE_ERROR)),
    # SETTINGS.
    Case("6.5", "SETTINGS ACK with a payload", frame(SETTINGS, ACK, 0, bytes(6)), connection_error(FRAME_SIZE_ERROR)),
    Case("6.5", "SETTINGS on a stream", frame(SETTINGS, 0, 1, b""), connection_error(PROTOCOL_ERROR)),
    Case("6.5", "SETTINGS of 3 bytes", frame(SETTINGS, payload=bytes(3)), connection_error(FRAME_SIZE_ERROR)),
    Case("6.5.2", "ENABLE_PUSH of 2", settings((SettingCodes.ENABLE_PUSH, 2)), connection_error(PROTOCOL_ERROR)),
    Case(
        "6.5.2",
        "INITIAL_WINDOW_SIZE too large",
        settings((SettingCodes.INITIAL_WINDOW_SIZE, MAX_WINDOW + 1)),
        connection_error(FLOW_CONTROL_ERROR),
        differs="The connection ends with the error of other settings.",
        differs_in="GOAWAY PROTOCOL_ERROR",
    ),
    Case(
        "6.5.2",
        "MAX_FRAME_SIZE too small",
        settings((SettingCodes.MAX_FRAME_SIZE, (1 << 14) - 1)),
        connection_error(PROTOCOL_ERROR),
    ),
    Case(
        "6.5.2",
        "MAX_FRAME_SIZE too large",
        settings((SettingCodes.MAX_FRAME_SIZE, 1 << 24)),
        connection_error(PROTOCOL_ERROR),
    ),
    Case("6.5.2", "unknown setting", settings((0xFF, 1)), ignored),
    Case("6.5.3", "last value of a setting", _last_value_counts, response(200)),
    # PUSH_PROMISE, PING, GOAWAY.
    Case(
        "6.6",
        "PUSH_PROMISE of a client",
        frame(PUSH_PROMISE, END_HEADERS, 1, bytes([0, 0, 0, 2]) + _HELLO),
        connection_error(PROTOCOL_ERROR),
    ),
    Case("6.7", "PING", _acknowledged_ping, ignored),
    Case("6.7", "PING ACK", frame(PING, ACK, 0, bytes(8)), ignored),
    Case("6.7", "PING on a stream", frame(PING, 0, 1, bytes(8)), connection_error(PROTOCOL_ERROR)),
    Case("6.7", "PING of 6 bytes", frame(PING, payload=bytes(6)), connection_error(FRAME_SIZE_ERROR)),
    Case("6.8", "GOAWAY on a stream", frame(GOAWAY, 0, 1, bytes(8)), connection_error(PROTOCOL_ERROR)),
    Case("6.8", "GOAWAY of 7 bytes", frame(GOAWAY, payload=bytes(7)), connection_error(FRAME_SIZE_ERROR)),
    Case(
        "6.8",
        "GOAWAY with an unknown error and a stream",
        whole(request()) + frame(GOAWAY, payload=bytes(4) + b"\0\0\0\xff"),
        response(200),
    ),
    # Windows.
    Case("6.9", "WINDOW_UPDATE of 0 for the connection", window_update(0, 0), connection_error(PROTOCOL_ERROR)),
    Case("6.9", "WINDOW_UPDATE of 0 for a stream", _OPEN + window_update(1, 0), stream_error(PROTOCOL_ERROR)),
    Case("6.9", "WINDOW_UPDATE of 3 bytes", frame(WINDOW_UPDATE, payload=bytes(3)), connection_error(FRAME_SIZE_ERROR)),
    Case("6.9.1", "window of one byte", _window_of_one, response(200)),
    Case(
        "6.9.1",
        "window of the connection overflows",
        window_update(0, MAX_WINDOW) * 2,
        connection_error(FLOW_CONTROL_ERROR),
    ),
    Case(
        "6.9.1",
        "window of a stream overflows",
        _OPEN + window_update(1, MAX_WINDOW) * 2,
        stream_error(FLOW_CONTROL_ERROR),
    ),
    Case("6.9.1", "DATA beyond the window of its stream", _beyond_stream_window, stream_error(FLOW_CONTROL_ERROR)),
    Case(
        "6.9.1",
        "DATA beyond the window of the connection",
        _beyond_connection_window,
        connection_error(FLOW_CONTROL_ERROR),
    ),
    Case("6.9.2", "negative window", _negative_window, response(200)),
    Case(
        "6.9.2",
        "INITIAL_WINDOW_SIZE overflows the window of a stream",
        _OPEN + window_update(1, MAX_WINDOW - (1 << 16) + 1) + settings((SettingCodes.INITIAL_WINDOW_SIZE, MAX_WINDOW)),
        connection_error(FLOW_CONTROL_ERROR),
    ),
    # CONTINUATION.
    Case(
        "6.10",
        "header block of three frames",
        frame(HEADERS, END_STREAM, 1, _HELLO[:5])
        + frame(CONTINUATION, 0, 1, _HELLO[5:9])
        + frame(CONTINUATION, END_HEADERS, 1, _HELLO[9:]),
        response(200),
    ),
    Case(
        "6.10",
        "CONTINUATION of another stream",
        frame(HEADERS, 0, 1, _HELLO) + frame(CONTINUATION, 4, 3, b""),
        connection_error(PROTOCOL_ERROR),
    ),
    Case(
        "6.10",
        "CONTINUATION on stream 0",
        frame(HEADERS, 0, 1, _HELLO) + frame(CONTINUATION, 4, 0, b""),
        connection_error(PROTOCOL_ERROR),
    ),
    Case(
        "6.10",
        "CONTINUATION after END_HEADERS",
        _OPEN + frame(CONTINUATION, 4, 1, _HELLO),
        connection_error(PROTOCOL_ERROR),
    ),
    Case(
        "6.10",
        "DATA within a header block",
        frame(HEADERS, 0, 1, _HELLO) + data(b"x"),
        connection_error(PROTOCOL_ERROR),
    ),
    Case("7", "unknown error code of RST_STREAM", _OPEN + reset(1, 0xFF), ignored),
]
