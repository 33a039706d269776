"""W3C trace context and id of a request: the headers that a client sends, and the identifiers of the server's span."""

import re
import uuid
from typing import Final, NamedTuple

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
# Header or trailer of a response that was traced (W3C Trace Context, level 2).
TRACERESPONSE: Final = "traceresponse"


class TraceHeaders(NamedTuple):
    """The trace headers of a request, as the client sent them. They may be invalid."""

    traceparent: bytes
    tracestate: bytes | None = None


class TraceContext(NamedTuple):
    """Identifiers of the server's span of a sampled request, as lower-case hexadecimal digits.

    `trace_id` has 32 digits, `span_id` and `parent_id` have 16. `parent_id` is empty if the server began the trace.
    """

    trace_id: str
    span_id: str
    parent_id: str = ""
    state: str = ""

    @property
    def header(self) -> str:
        """Value of TRACERESPONSE: the server's span, sampled."""
        return f"00-{self.trace_id}-{self.span_id}-01"


_IDENTIFIERS: Final = rb"([0-9a-f]{32})-([0-9a-f]{16})"
# Later versions may add fields. A header that occurs twice is joined by a comma, and matches neither form.
_VERSION_0: Final = re.compile(rb"00-%b-([0-9a-f]{2})\Z" % _IDENTIFIERS)
_LATER_VERSION: Final = re.compile(rb"(?!ff)[0-9a-f]{2}-%b-([0-9a-f]{2})(?:-[^,]*)?\Z" % _IDENTIFIERS)
_SAMPLED: Final = 1
# Bounds of tracestate: the members that a server must be able to pass on, and the length that it should.
_MOST_MEMBERS: Final = 32
_MOST_STATE_BYTES: Final = 512
_KEY: Final = r"(?:[a-z][a-z0-9_\-*/]{0,255}|[a-z0-9][a-z0-9_\-*/]{0,240}@[a-z][a-z0-9_\-*/]{0,13})"
_MEMBER: Final = re.compile(rf"({_KEY})=[ -+\--<>-~]{{0,255}}[!-+\--<>-~]\Z")


class Parent(NamedTuple):
    """A span of another program. Identifiers are lower-case hexadecimal digits, and `state` is its tracestate."""

    trace_id: str
    span_id: str
    is_sampled: bool
    state: str = ""


def read_parent(headers: TraceHeaders) -> Parent | None:
    """Return the client's span, or None if its header is invalid. An invalid tracestate is ignored."""
    value = headers.traceparent.strip(b" \t")
    match = _VERSION_0.match(value) if value.startswith(b"00") else _LATER_VERSION.match(value)
    if match is None:
        return None
    trace_id, span_id = match[1].decode(), match[2].decode()
    if not (trace_id.strip("0") and span_id.strip("0")):
        return None
    state = "" if headers.tracestate is None else read_state(headers.tracestate)
    return Parent(trace_id, span_id, bool(int(match[3], 16) & _SAMPLED), state)


def client_trace_id(headers: TraceHeaders | None) -> str:
    """Return the trace of a client, or an empty text if it sent none or an invalid one."""
    parent = None if headers is None else read_parent(headers)
    return "" if parent is None else parent.trace_id


def read_state(value: bytes) -> str:
    """Return a tracestate without empty members, or an empty text if it is invalid or exceeds the bounds."""
    if len(value) > _MOST_STATE_BYTES:
        return ""
    members = [member for each in value.decode("latin-1").split(",") if (member := each.strip(" \t"))]
    matches = [_MEMBER.match(member) for member in members]
    keys = {match[1] for match in matches if match is not None}
    is_valid = len(keys) == len(members) <= _MOST_MEMBERS
    return ",".join(members) if is_valid else ""


# Header of a request on REST, metadata on gRPC; a header or trailer of its response.
REQUEST_ID_HEADER: Final = "x-request-id"

# Visible ASCII: it fits a header, and an attacker can put no control character or second field into a log line.
_VALID: Final = re.compile(rb"[\x21-\x7e]{1,128}")


def read_request_id(raw: bytes | None) -> str:
    """Return the id that a client sent, or "" for none or an invalid one."""
    return raw.decode() if raw is not None and _VALID.fullmatch(raw) else ""


def echo_request_id(raw: bytes | None, trailers: list[tuple[str, str]]) -> None:
    """Add the id that a client sent to the trailers or headers of its response, if it is valid."""
    if request_id := read_request_id(raw):
        trailers.append((REQUEST_ID_HEADER, request_id))


def identify_response(trailers: list[tuple[str, str]]) -> str:
    """Return the id among the trailers of a response. Add a new one if there is none."""
    for name, value in trailers:
        if name == REQUEST_ID_HEADER:
            return value
    request_id = uuid.uuid4().hex
    trailers.append((REQUEST_ID_HEADER, request_id))
    return request_id
