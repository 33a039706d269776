"""Tests for REST calls that are counted, refused and cut, called through ASGI by hand."""

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

from tests.server.hosts.asgi_client import Exchange, body
from tests.support.open_gate import OPEN_GATE, ClosedGate
from tpuserve_server.hosts import unread_body
from tpuserve_server.hosts.disconnects import ConformingReceive, DisconnectWatch
from tpuserve_server.hosts.in_flight import InFlight
from tpuserve_server.hosts.rest_calls import RestCalls

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

SCOPE: "Scope" = {"type": "http", "method": "POST", "headers": [(b"content-length", b"0")]}
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


def nothing() -> ConformingReceive:
    async def receive() -> "Message":
        return {"type": "http.disconnect"}

    return ConformingReceive(receive, DisconnectWatch())


def calls_to(app: "ASGIApp") -> "ASGIApp":
    calls = RestCalls(app, InFlight(), OPEN_GATE)

    async def answer(scope: "Scope", receive: "Receive", send: "Send") -> None:
        await calls(scope, ConformingReceive(receive, DisconnectWatch()), send)

    return answer


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
    await calls(SCOPE, nothing(), collecting(sent))
    assert sent[0]["headers"] == ([(b"connection", b"close")] if farewell else [])
    assert sent[1] == BODY


async def test_a_call_that_is_cut_before_its_answer_is_refused() -> None:
    in_flight = InFlight()
    app = Held()
    sent: list[Message] = []
    call = asyncio.create_task(RestCalls(app, in_flight, OPEN_GATE)(SCOPE, nothing(), collecting(sent)))
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
    call = asyncio.create_task(RestCalls(app, in_flight, OPEN_GATE)(SCOPE, nothing(), collecting(sent)))
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
    call = asyncio.create_task(RestCalls(app, in_flight, OPEN_GATE)(SCOPE, nothing(), collecting(sent)))
    await app.entered.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await in_flight.finish()
    assert sent == []


async def refuse_unread(scope: "Scope", receive: "Receive", send: "Send") -> None:
    await send(START)
    await send(BODY)


async def refuse_half_read(scope: "Scope", receive: "Receive", send: "Send") -> None:
    await receive()
    await refuse_unread(scope, receive, send)


@pytest.mark.parametrize("app", [refuse_unread, refuse_half_read])
async def test_a_body_that_nobody_read_is_read_before_the_answer_ends(app: "ASGIApp") -> None:
    left = [body(b"a", more=True), body(b"b", more=True), body(b"c")]
    exchange = Exchange(left, headers=[(b"content-length", b"100000")])
    await exchange.run(calls_to(app))
    assert exchange.sent[0]["headers"] == [(b"connection", b"close")]
    # The content is sent before the wait for the rest of the request.
    assert exchange.sent[1:] == [{**BODY, "more_body": True}, {**BODY, "body": b""}]
    exchange.leave()
    assert (await exchange.receive())["type"] == "http.disconnect"


async def test_a_connection_outlives_a_small_body_that_nobody_read() -> None:
    exchange = Exchange([body(b"a", more=True), body(b"b")], headers=[(b"content-length", b"2")])
    await exchange.run(calls_to(refuse_unread))
    assert exchange.sent[0]["headers"] == []


@pytest.mark.parametrize(("name", "limit"), [("TIMEOUT_S", 0.0), ("SILENCE_S", 0.0), ("MAX_BYTES", 1)])
async def test_a_body_without_end_is_left(monkeypatch: pytest.MonkeyPatch, name: str, limit: float) -> None:
    monkeypatch.setattr(unread_body, name, limit)
    more = [body(b"ab", more=True)] if name == "MAX_BYTES" else []
    exchange = Exchange(more, headers=[(b"transfer-encoding", b"chunked")])
    await exchange.run(calls_to(refuse_unread))
    assert exchange.sent[-1] == {**BODY, "body": b""}


async def test_an_answer_to_head_has_no_body() -> None:
    exchange = await Exchange([body(b"")], method="HEAD", headers=[]).run(calls_to(refuse_unread))
    assert exchange.sent[1:] == [{**BODY, "body": b""}]


@pytest.mark.parametrize("sent", [b"{}", b"x" * 70_000])
async def test_overload_refuses_inference_with_a_timeout(sent: bytes) -> None:
    reached = []

    async def app(scope: "Scope", receive: "Receive", send: "Send") -> None:
        reached.append(scope["path"])
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    calls = RestCalls(app, InFlight(), ClosedGate())

    async def answer(scope: "Scope", receive: "Receive", send: "Send") -> None:
        await calls(scope, ConformingReceive(receive, DisconnectWatch()), send)

    length = (b"content-length", b"%d" % len(sent))
    timeout = (b"x-tpuserve-timeout-ms", b"500")
    found = []
    for path, headers in (
        ("/v1/models/m:predict", [length, timeout]),
        ("/v1/models/m:predict", [length]),
        ("/v1/models/m/metadata", [length, timeout]),
    ):
        exchange = await Exchange([body(sent)], headers=headers, path=path).run(answer)
        found.append(exchange.http_status)
    # A large body would have to be read, or the connection closed: its request is refused later.
    is_small = len(sent) < 65_536
    assert found == [429 if is_small else 200, 200, 200]
    assert len(reached) == 3 - is_small


@pytest.mark.parametrize("farewell", [False, True])
async def test_a_late_request_is_refused_without_the_application(farewell: bool) -> None:
    calls = RestCalls(Held(), InFlight(), ClosedGate())
    calls.farewell = farewell
    headers = [(b"x-tpuserve-timeout-ms", b"100"), (b"content-length", b"2")]
    exchange = Exchange([body(b"{}")], path="/v1/models/m:predict", headers=headers)

    async def answer(scope: "Scope", receive: "Receive", send: "Send") -> None:
        await calls(scope, ConformingReceive(receive, DisconnectWatch()), send)

    await exchange.run(answer)
    start, _ = exchange.sent
    assert start["status"] == 429
    assert ((b"connection", b"close") in start["headers"]) is farewell
