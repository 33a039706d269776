"""Cases of clients that waste the work or the memory of a server."""

from collections.abc import Callable

from h2.settings import SettingCodes

from tests.server.hosts.http2.case import Case, ended, ignored, response
from tests.server.hosts.http2.peer import (
    CONTINUATION,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    IGNORED,
    PADDED,
    PING,
    PRIORITY,
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
    reset,
    settings,
    whole,
    window_update,
)

# Enough for a server to see that it is a flood.
_FRAMES = 20_000
_STREAMS = 1000
_UNREAD_BYTES = 64 << 20
_NOT_COUNTED = "h2corn does not count these frames. They cost the time of its thread, but no memory."


def _unread(part: bytes, *, begin: bytes = b"", most_bytes: int = _UNREAD_BYTES) -> Callable[[Peer], None]:
    """Flood the server without reading its answers."""

    def send(peer: Peer) -> None:
        peer.send(begin)
        peer.flood(part, most_bytes)

    return send


def _streams(make: Callable[[int], bytes]) -> Callable[[Peer], None]:
    """Open many streams, and end each of them at once. Read only at the end: the server's frames are few."""

    def send(peer: Peer) -> None:
        for first in range(3, 2 * _STREAMS + 3, 100):
            peer.send(*(make(stream) for stream in range(first, first + 100, 2)))

    return send


def _larger_table(peer: Peer) -> None:
    """Put an entry of 4000 bytes into the table, and refer to it for a list of 32 MiB."""
    entry = b"\x40" + literal("x-bomb", "b" * 3900)[1:]
    peer.send(frame(HEADERS, END_HEADERS | END_STREAM, 1, block(request()) + entry + b"\xbe" * 8000))


ABUSE_CASES = [
    Case(
        "5.1.2", "rapid reset (CVE-2023-44487)", _streams(lambda stream: headers(call(), stream) + reset(stream)), ended
    ),
    Case(
        "5.4.2",
        "made-you-reset by a window update of 0 (CVE-2025-8671)",
        _streams(lambda stream: headers(call(), stream) + window_update(stream, 0)),
        ended,
        differs="h2corn counts only the client's resets. At most twice MAX_CONCURRENT_STREAMS calls run at once.",
        differs_in=IGNORED,
    ),
    Case(
        "5.4.2",
        "made-you-reset by data after the end (CVE-2025-8671)",
        _streams(lambda stream: headers(call(), stream) + data(message(), stream, END_STREAM) + data(b"x", stream)),
        ended,
        differs="As above.",
        differs_in=IGNORED,
    ),
    Case(
        "5.4.2",
        "made-you-reset by a length that differs (CVE-2025-8671)",
        _streams(lambda stream: headers(call(content_length="1"), stream) + data(message(), stream, END_STREAM)),
        ended,
        differs="As above.",
        differs_in=IGNORED,
    ),
    Case("6.5", "SETTINGS whose acknowledgements stay unread", _unread(settings()), ended),
    Case("6.7", "PING whose answers stay unread", _unread(frame(PING, payload=bytes(8))), ended),
    Case("6.8", "GOAWAY without end", _unread(frame(GOAWAY, payload=bytes(8))), ended | {"GOAWAY NO_ERROR"}),
    Case(
        "6.10",
        "CONTINUATION without end",
        _unread(frame(CONTINUATION, 0, 1, bytes(1000)), begin=frame(HEADERS, 0, 1, block(request()))),
        ended,
    ),
    Case(
        "6.10",
        "empty CONTINUATION",
        lambda peer: peer.send(
            frame(HEADERS, END_STREAM, 1, block(request())),
            frame(CONTINUATION, 0, 1) * _FRAMES,
            frame(CONTINUATION, END_HEADERS, 1),
        ),
        ended,
        differs=_NOT_COUNTED,
        differs_in="response 200",
    ),
    Case("6.1", "empty DATA", headers(call()) + data() * _FRAMES, ended, differs=_NOT_COUNTED, differs_in=IGNORED),
    Case(
        "6.1",
        "DATA of padding",
        headers(call()) + data(b"\0", flags=PADDED) * _FRAMES,
        ended,
        differs=_NOT_COUNTED,
        differs_in=IGNORED,
    ),
    Case(
        "6.3",
        "PRIORITY without end",
        frame(PRIORITY, 0, 1, bytes(5)) * _FRAMES,
        ended,
        differs=_NOT_COUNTED,
        differs_in=IGNORED,
    ),
    Case(
        "6.9",
        "WINDOW_UPDATE without end",
        window_update(0, 1) * _FRAMES,
        ended,
        differs=_NOT_COUNTED,
        differs_in=IGNORED,
    ),
    Case("5.5", "unknown frames without end", frame(0x99) * _FRAMES, ended, differs=_NOT_COUNTED, differs_in=IGNORED),
    Case("6.5.2", "header list above its limit", whole([*request(), ("x-long", "a" * 300_000)]), ended | response(431)),
    Case("6.5.2", "too many fields", whole([*request(), *[("x-many", "a")] * 1000]), ended | response(431)),
    Case("HPACK 7.3", "list of 32 MiB from 12 KB", _larger_table, ended | response(431)),
    Case(
        "HPACK 4.2",
        "size updates without end",
        frame(
            HEADERS,
            END_HEADERS | END_STREAM,
            1,
            (b"\x20" + integer(4096, bits=5, prefix=0x20)) * 2000 + block(request()),
        ),
        ended | response(200),
    ),
    Case(
        "6.9.2",
        "settings that stop all streams",
        settings((SettingCodes.INITIAL_WINDOW_SIZE, 0)) + whole(request()),
        ignored,
    ),
]
