"""REST calls that are counted, sent away and cut, driven through ASGI by hand."""

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

from tpuserve_server.hosts.in_flight import InFlight
from tpuserve_server.hosts.rest_calls import RestCalls

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send

START: "Message" = {"type": "http.response.start", "status": 200, "headers": []}
BODY: "Message" = {"type": "http.response.body", "body": b"done"}


class Held:
    """An application that may begin its response, and then waits for ever."""

    def __init__(self, *begins_with: "Message") -> None:
        self._begins_with = begins_with
        self.entered = asyncio.Event()

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        for message in self._begins_with:
            await send(message)
        self.entered.set()
        await asyncio.Event().wait()


async def nothing_to_receive() -> "Message":
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
    calls = RestCalls(answer, InFlight())
    calls.farewell = farewell
    await calls({"type": "http"}, nothing_to_receive, collecting(sent))
    assert sent[0]["headers"] == ([(b"connection", b"close")] if farewell else [])
    assert sent[1] == BODY


async def test_a_call_that_is_cut_before_its_answer_is_refused() -> None:
    in_flight = InFlight()
    app = Held()
    sent: list[Message] = []
    call = asyncio.create_task(RestCalls(app, in_flight)({"type": "http"}, nothing_to_receive, collecting(sent)))
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
    call = asyncio.create_task(RestCalls(app, in_flight)({"type": "http"}, nothing_to_receive, collecting(sent)))
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
    call = asyncio.create_task(RestCalls(app, in_flight)({"type": "http"}, nothing_to_receive, collecting(sent)))
    await app.entered.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await in_flight.finish()
    assert sent == []
