"""Timing on demand: the header with which a client asks for the stages of a request, and the header with them."""

from collections.abc import Sequence
from typing import Final

from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.observe.requests.request_record import Stage

# A client sends this with the value 1 to get the other one. gRPC sends it as metadata and gets a trailer.
TIMING_REQUEST_HEADER: Final = "x-tpuserve-timing"
SERVER_TIMING_HEADER: Final = "server-timing"

_MILLISECONDS: Final = 1e3
_MOST_SHOWN: Final = 32
_SEPARATOR: Final = ", "
# gRPC clients may refuse trailers of more than 8 KiB, and an ensemble may have 256 steps.
MAX_VALUE_BYTES: Final = 4096


def wants_timing(value: bytes | None) -> bool:
    """Return whether the value of TIMING_REQUEST_HEADER asks for the stages; None if the client sent none.

    Raises:
        InvalidArgument: the value is neither 0 nor 1.
    """
    if value is None or value == b"0":
        return False
    if value == b"1":
        return True
    raise InvalidArgument(f"{TIMING_REQUEST_HEADER} must be 0 or 1; was {value[:_MOST_SHOWN].decode('latin-1')!r}")


def server_timing(stages: Sequence[Stage]) -> str:
    """Return the value of a `server-timing` header, in milliseconds (https://www.w3.org/TR/server-timing/).

    Stages that do not fit into MAX_VALUE_BYTES are omitted, except the last one, which is the total.
    """
    *entries, total = map(_entry, stages)
    room = MAX_VALUE_BYTES - len(total)
    kept: list[str] = []
    for entry in entries:
        room -= len(entry) + len(_SEPARATOR)
        if room < 0:
            break
        kept.append(entry)
    return _SEPARATOR.join((*kept, total))


def _entry(stage: Stage) -> str:
    description = f";desc={_quoted(stage.reason)}" if stage.reason else ""
    return f"{stage.name};dur={stage.duration_s * _MILLISECONDS:.3f}{description}"


def _quoted(text: str) -> str:
    """Return a quoted-string (RFC 9110, 5.6.4) in ASCII. Model names may have any character."""
    plain = "".join(each if " " <= each <= "~" else "?" for each in text)
    return '"' + plain.replace("\\", "\\\\").replace('"', '\\"') + '"'
