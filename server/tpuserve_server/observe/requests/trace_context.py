"""W3C trace context of a request: the headers that a client sends, and the identifiers of the server's span."""

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
