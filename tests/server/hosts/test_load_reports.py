"""Tests for reports of the load in responses: which responses have one, and where."""

from typing import TYPE_CHECKING, Any

import pytest

from tpuserve_server.hosts.application import LoadReporting
from tpuserve_server.hosts.load_reports import ReportedResponses
from tpuserve_server.observe.metrics.load_report import LoadFormat, LoadReports

if TYPE_CHECKING:
    from starlette.types import Message

RPC = "/tensorflow.serving.PredictionService/Predict"
REST = "/v1/models/m:predict"
START: "Message" = {"type": "http.response.start", "status": 200, "headers": [(b"a", b"b")]}
BODY: "Message" = {"type": "http.response.body", "body": b"x"}
TRAILERS: "Message" = {"type": "http.response.trailers", "headers": [(b"grpc-status", b"0")]}
# A call that fails before its response: headers alone.
FAILED: "Message" = {"type": "http.response.start", "status": 200, "headers": [(b"grpc-status", b"5")]}


class Fixed(LoadReports):
    """Reports with the same value at any time."""

    def __init__(self) -> None:
        """Measure nothing."""

    def header(self, form: LoadFormat) -> str:
        return f"{form.upper()} figures"

    def message(self) -> str:
        return "bytes"


async def respond(
    mode: LoadReporting, path: str, messages: "list[Message]", ask: bytes | None = None
) -> "list[Message]":
    """Return the messages that reach the client."""
    sent: list[Message] = []

    async def send(message: "Message") -> None:
        sent.append(message)

    headers = [(b"x", b"y")] + ([] if ask is None else [(b"endpoint-load-metrics-format", ask)])
    scope: dict[str, Any] = {"path": path, "headers": headers}
    reported = ReportedResponses(Fixed(), mode).reported(scope, dict(headers), send, is_grpc=path == RPC)
    for message in messages:
        await reported(message)
    return sent


@pytest.mark.parametrize(
    ("ask", "value"),
    [(b"text", b"TEXT figures"), (b"TEXT", b"TEXT figures"), (b"JSON", b"JSON figures"), (b"bin", b"BIN figures")],
)
@pytest.mark.parametrize("mode", ["asked", "always"])
async def test_rest_response_has_the_report_that_the_client_asks_for(
    mode: LoadReporting, ask: bytes, value: bytes
) -> None:
    start, body = await respond(mode, REST, [START, BODY], ask)
    assert start["headers"] == [(b"a", b"b"), (b"endpoint-load-metrics", value)]
    assert body is BODY


@pytest.mark.parametrize("ask", [None, b"xml"])
async def test_without_a_known_format_only_always_reports(ask: bytes | None) -> None:
    assert await respond("asked", REST, [START, BODY], ask) == [START, BODY]
    start, _ = await respond("always", REST, [START, BODY], ask)
    assert (b"endpoint-load-metrics", b"TEXT figures") in start["headers"]


@pytest.mark.parametrize(("mode", "ask"), [("always", None), ("always", b"text"), ("asked", b"text")])
async def test_grpc_gets_the_message_as_a_trailer(mode: LoadReporting, ask: bytes | None) -> None:
    start: Message = {**START, "trailers": True}
    sent = await respond(mode, RPC, [start, BODY, TRAILERS], ask)
    assert sent[:2] == [start, BODY]
    assert sent[2]["headers"] == [(b"grpc-status", b"0"), (b"endpoint-load-metrics-bin", b"bytes")]
    [failed] = await respond(mode, RPC, [FAILED], ask)
    assert failed["headers"] == [(b"grpc-status", b"5"), (b"endpoint-load-metrics-bin", b"bytes")]
    assert TRAILERS["headers"] == [(b"grpc-status", b"0")]


@pytest.mark.parametrize("path", ["/readyz", "/v1/models/m", "/grpc.health.v1.Health/Check"])
async def test_only_inference_has_reports(path: str) -> None:
    assert await respond("always", path, [START], b"text") == [START]
