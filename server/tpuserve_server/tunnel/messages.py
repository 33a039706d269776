"""Messages of the tunnel, which carries ASGI calls from a front-end process to the engine process.

A call has a number, which its front-end chooses. The engine requests each message of the request body, so that a body
that it does not read stays in Envoy. It sends the response ahead only as far as the front-end has passed it on.
"""

import enum
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from starlette.types import Message


class TunnelKind(enum.IntEnum):
    """Kinds of messages, of the numbers from 32 to 47."""

    # From the front-end: Opening, pickled.
    OPEN = 32
    # From the front-end: a part of the request message that the engine awaits. BODY_HEAD and bytes.
    REQUEST = 33
    # From the front-end: ROOM_HEAD, with the bytes of the response that it has passed on since the last such message.
    ROOM = 34
    # From the front-end: the client of a call has disconnected. NUMBER.
    GONE = 35
    # From the front-end: a call must end, and nothing waits for it. NUMBER.
    CANCEL = 36
    # From the front-end: all streams must end, because it drains. Empty.
    END_STREAMS = 37
    # From the engine: it waits for the next message of a request. NUMBER.
    ASK = 38
    # From the engine: number of the call, and an ASGI message of the response that is no body. Pickled.
    MESSAGE = 39
    # From the engine: a part of the body of the response. BODY_HEAD and bytes.
    BODY = 40
    # From the engine: a call has ended. BODY_HEAD, with FAILED if the application raised an error.
    ENDED = 41


NUMBER: Final = struct.Struct("<Q")
# Number of the call, and flags.
BODY_HEAD: Final = struct.Struct("<QB")
ROOM_HEAD: Final = struct.Struct("<QI")

# More of the body follows; more of the same ASGI message follows; instead of a message: the client has disconnected.
MORE, PART, DISCONNECTED = 1, 2, 4
FAILED: Final = 1

# Larger bodies travel in pieces, so that the tasks of other requests pass between them.
PIECE_BYTES: Final = 64 << 10
# The engine sends so much of a response ahead of the client. The front-end reports after each half.
WINDOW_BYTES: Final = 256 << 10
# The objects of an unread message take memory, too.
_LEAST_WEIGHT_BYTES: Final = 512

# Keys of a scope that the engine gets. All other values are functions, or the engine finds them itself.
CARRIED_KEYS: Final = (
    "type",
    "asgi",
    "http_version",
    "method",
    "scheme",
    "path",
    "raw_path",
    "query_string",
    "root_path",
    "headers",
    "client",
    "server",
)

# Number of the call, values of the scope, arrival of the request on the monotonic clock of the machine, whether Envoy
# has written the names of the client's certificate into the headers, and the first message of the request: its body
# and whether more follows, if the front-end has read it.
Opening: TypeAlias = tuple[int, dict[str, Any], float, bool, tuple[bytes, bool] | None]


def weight_bytes(body: bytes | memoryview) -> int:
    """Return by how much a part of a response fills the window."""
    return max(len(body), _LEAST_WEIGHT_BYTES)


def pieces(message: "Message") -> Iterator[tuple[bytes | memoryview, int]]:
    """Return the parts of the body of an ASGI message, with the flags of each."""
    body, last = message.get("body", b""), MORE if message.get("more_body", False) else 0
    size = len(body)
    if size <= PIECE_BYTES:
        yield body, last
        return
    view = memoryview(body)
    for start in range(0, size, PIECE_BYTES):
        stop = start + PIECE_BYTES
        yield view[start:stop], last if stop >= size else MORE | PART
