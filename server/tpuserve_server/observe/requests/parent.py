"""Parent: the span of a client, read from its trace headers (W3C Trace Context, levels 1 and 2)."""

import re
from typing import Final, NamedTuple

from tpuserve_server.observe.requests.trace_context import TraceHeaders

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
