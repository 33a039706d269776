"""One case of HTTP/2 conformance: what a client sends, and what the server may make of it."""

from collections.abc import Callable
from dataclasses import dataclass

from h2.errors import ErrorCodes

from tests.server.hosts.http2.peer import CLOSED, IGNORED, Peer


@dataclass(frozen=True, slots=True)
class Case:
    """A row of a table of cases."""

    # The section of RFC 9113, or of RFC 7541 for "HPACK 2.3".
    section: str
    name: str
    # What the client sends after the settings: bytes, or a function that sends and may read.
    sends: bytes | Callable[[Peer], None]
    # The outcomes that the section allows.
    wanted: frozenset[str]
    # A reason where h2corn differs: it then has `differs_in`, which the section does not allow.
    differs: str = ""
    differs_in: str = ""
    stream: int = 1

    def __str__(self) -> str:
        return f"{self.section} {self.name}"


def connection_error(*codes: ErrorCodes) -> frozenset[str]:
    """Return the outcomes of a connection error: the server says why, and ends the connection."""
    return frozenset(f"GOAWAY {code.name}" for code in codes)


def stream_error(*codes: ErrorCodes) -> frozenset[str]:
    """Return the outcomes of a stream error, which a server may treat as one of the connection (section 5.4.2)."""
    return frozenset(f"RST_STREAM {code.name}" for code in codes) | connection_error(*codes)


def response(*statuses: int) -> frozenset[str]:
    """Return the outcomes of a complete response."""
    return frozenset(f"response {status}" for status in statuses)


# The server goes on as if nothing had happened.
ignored = frozenset({IGNORED})
# The server ends the connection of a client that wastes its work, and may say so.
ended = frozenset({CLOSED, *connection_error(*ErrorCodes)}) - connection_error(ErrorCodes.NO_ERROR)
