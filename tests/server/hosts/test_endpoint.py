"""Tests for the endpoint: counts of requests, refusals before it reads them, and calls of REST."""

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

from tests.server.hosts.asgi_client import HEADERS, Exchange, body
from tests.support.bare_endpoint import bare_endpoint
from tests.support.fakes import FakeClock
from tests.support.open_gate import OPEN_GATE, ClosedGate
from tpuserve_server.core.terms.errors import Code
from tpuserve_server.core.terms.server_state import Traffic
from tpuserve_server.hosts.endpoint import Endpoint
from tpuserve_server.hosts.in_flight import InFlight
from tpuserve_server.hosts.refusals import RateLimit
from tpuserve_server.hosts.rest_calls import RestCalls

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send


PREDICT_GRPC = "/tensorflow.serving.PredictionService/Predict"
PREDICT_REST = "/v1/models/m:predict"
REASON = "The server gets more inference requests than --max_requests_per_second allows"


@pytest.fixture
def traffic() -> Traffic:
    return Traffic()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def endpoint(traffic: Traffic, clock: FakeClock) -> Endpoint:
    return bare_endpoint(clock, traffic, rate=RateLimit(2.0, clock))


async def ask(endpoint: Endpoint, path: str, *, is_grpc: bool = False) -> Exchange:
    async def unread() -> "Message":
        raise AssertionError("The endpoint has read a request that it refuses")

    exchange = Exchange([body(b"")], path=path, headers=list(HEADERS) if is_grpc else [])
    exchange.receive = unread  # type: ignore[method-assign]  # replaced for this request alone
    return await exchange.run(endpoint)


async def test_requests_are_counted_by_version_of_http(endpoint: Endpoint, traffic: Traffic) -> None:
    await ask(endpoint, "/v1/models/m")
    await ask(endpoint, "/v1/models/m")
    await ask(endpoint, "/unknown.Service/Method", is_grpc=True)
    assert traffic.requests == {"1.1": 2, "2": 1}


async def test_inference_over_the_rate_is_refused_unread_and_counted(
    endpoint: Endpoint, traffic: Traffic, clock: FakeClock
) -> None:
    for _ in range(2):
        assert (await ask(endpoint, PREDICT_REST)).http_status == 200
    refused = await ask(endpoint, PREDICT_REST)
    assert (refused.http_status, json.loads(refused.sent[1]["body"])) == (429, {"error": REASON})
    call = await ask(endpoint, PREDICT_GRPC, is_grpc=True)
    assert call.status == (Code.RESOURCE_EXHAUSTED, REASON)
    assert traffic.refused == {"rate": 2, "too_late": 0, "impossible_deadline": 0, "header_size": 0}
    # Other requests have no limit.
    assert (await ask(endpoint, "/v1/models/m")).http_status == 200
    clock.now_s += 0.5
    assert [(await ask(endpoint, PREDICT_REST)).http_status for _ in range(2)] == [200, 429]


SCOPE: "Scope" = {"type": "http", "http_version": "1.1", "method": "POST", "headers": [(b"content-length", b"0")]}
START: "Message" = {"type": "http.response.start", "status": 200, "headers": []}
BODY: "Message" = {"type": "http.response.body", "body": b"done"}


class Held:
    """An application that may begin its response and then waits forever."""

    def __init__(self, *begins_with: "Message") -> None:
        self._begins_with = begins_with
        self.entered = asyncio.Event()

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        for message in self._begins_with:
            await send(message)
        self.entered.set()
        await asyncio.Event().wait()


async def nothing() -> "Message":
    return {"type": "http.disconnect"}


def collecting(sent: "list[Message]") -> "Send":
    async def send(message: "Message") -> None:
        sent.append(message)

    return send


@pytest.mark.parametrize("farewell", [False, True])
async def test_answers_ask_clients_to_go_only_when_it_is_time(farewell: bool) -> None:
    async def answer(scope: "Scope", receive: "Receive", send: "Send") -> None:
        await send(START)
        await send(BODY)

    sent: list[Message] = []
    calls = RestCalls(answer, InFlight(), OPEN_GATE)
    calls.farewell = farewell
    await calls(SCOPE, nothing, collecting(sent))
    assert sent[0]["headers"] == ([(b"connection", b"close")] if farewell else [])
    assert sent[1] == BODY


async def test_a_call_that_is_cut_before_its_answer_is_refused() -> None:
    in_flight = InFlight()
    app = Held()
    sent: list[Message] = []
    call = asyncio.create_task(RestCalls(app, in_flight, OPEN_GATE)(SCOPE, nothing, collecting(sent)))
    await app.entered.wait()
    in_flight.cut()
    await call
    await in_flight.finish()
    assert sent[0]["status"] == 503
    assert json.loads(sent[1]["body"]) == {"error": "The server is shutting down"}


async def test_an_answer_that_has_begun_breaks_off_when_it_is_cut() -> None:
    in_flight = InFlight()
    app = Held(START)
    sent: list[Message] = []
    call = asyncio.create_task(RestCalls(app, in_flight, OPEN_GATE)(SCOPE, nothing, collecting(sent)))
    await app.entered.wait()
    in_flight.cut()
    with pytest.raises(asyncio.CancelledError):
        await call
    await in_flight.finish()
    assert sent == [START]


async def test_a_call_that_somebody_else_cancels_is_not_answered() -> None:
    in_flight = InFlight()
    app = Held()
    sent: list[Message] = []
    call = asyncio.create_task(RestCalls(app, in_flight, OPEN_GATE)(SCOPE, nothing, collecting(sent)))
    await app.entered.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await in_flight.finish()
    assert sent == []


async def test_overload_refuses_inference_with_a_timeout() -> None:
    reached = []

    async def app(scope: "Scope", receive: "Receive", send: "Send") -> None:
        reached.append(scope["path"])
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    calls = RestCalls(app, InFlight(), ClosedGate())
    length = (b"content-length", b"2")
    timeout = (b"x-tpuserve-timeout-ms", b"500")
    found = []
    for path, headers in (
        ("/v1/models/m:predict", [length, timeout]),
        ("/v1/models/m:predict", [length]),
        ("/v1/models/m/metadata", [length, timeout]),
    ):
        exchange = await Exchange([body(b"{}")], headers=headers, path=path).run(calls)
        found.append(exchange.http_status)
    assert found == [429, 200, 200]
    assert len(reached) == 2


@pytest.mark.parametrize("farewell", [False, True])
async def test_a_late_request_is_refused_without_the_application(farewell: bool) -> None:
    calls = RestCalls(Held(), InFlight(), ClosedGate())
    calls.farewell = farewell
    headers = [(b"x-tpuserve-timeout-ms", b"100"), (b"content-length", b"2")]
    exchange = Exchange([body(b"{}")], path="/v1/models/m:predict", headers=headers)

    await exchange.run(calls)
    start, _ = exchange.sent
    assert start["status"] == 429
    assert ((b"connection", b"close") in start["headers"]) is farewell
    assert calls.farewells == farewell


async def test_a_client_of_http2_is_not_asked() -> None:
    sent: list[Message] = []

    async def answer(scope: "Scope", receive: "Receive", send: "Send") -> None:
        await send(START)
        await send(BODY)

    calls = RestCalls(answer, InFlight(), OPEN_GATE)
    calls.farewell = True
    await calls({**SCOPE, "http_version": "2"}, nothing, collecting(sent))
    assert (sent, calls.farewells) == ([START, BODY], 0)
