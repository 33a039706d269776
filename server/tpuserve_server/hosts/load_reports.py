"""ReportedResponses: adds the load of the server to responses of inference, for clients and proxies that balance by it.

A client asks with the header `endpoint-load-metrics-format`, as of Triton and vLLM. gRPC's clients cannot ask: with
`--load_reports=always`, every response of inference has a report.
"""

from typing import TYPE_CHECKING, Final

from tpuserve_server.hosts.application import LoadReporting
from tpuserve_server.hosts.refusals import is_inference
from tpuserve_server.observe.metrics.load_report import LOAD_FORMATS, LoadFormat, LoadReports

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping

    from starlette.types import Message, Scope, Send

_ASK: Final = b"endpoint-load-metrics-format"
_HEADER: Final = b"endpoint-load-metrics"
_TRAILER: Final = b"endpoint-load-metrics-bin"
_FORMATS: "Final[dict[bytes, LoadFormat]]" = {form.encode(): form for form in LOAD_FORMATS}


class ReportedResponses:
    """Chooses the responses with a report, and adds it to the end of a call of gRPC or to the headers of REST."""

    def __init__(self, reports: LoadReports, mode: LoadReporting) -> None:
        """Add `reports`. `mode` is not `never`."""
        self._reports = reports
        self._always = mode == "always"

    def reported(self, scope: "Scope", headers: "Mapping[bytes, bytes]", send: "Send", *, is_grpc: bool) -> "Send":
        """Return a `send` that adds a report, or `send` itself for a request that gets none."""
        asked = headers.get(_ASK)
        if asked is None and not self._always:
            return send
        # Clients of vLLM write it in upper case. Other formats than these have no report, as in Triton.
        form = None if asked is None else _FORMATS.get(asked.lower())
        if form is None and self._always:
            form = "text"
        if form is None or not is_inference(scope):
            return send
        reports = self._reports

        def send_on(message: "Message") -> "Awaitable[None]":
            kind = message["type"]
            # A call of gRPC that fails before its response has only headers, which are its trailers.
            ends = kind == "http.response.trailers" or (
                kind == "http.response.start" and not (is_grpc and message.get("trailers", False))
            )
            if ends:
                entry = (_TRAILER, reports.message()) if is_grpc else (_HEADER, reports.header(form))
                message = {**message, "headers": [*message.get("headers", ()), (entry[0], entry[1].encode())]}
            return send(message)

        return send_on
