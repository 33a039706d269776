"""Tests for the ASGI `send` that charges responses, on a server that takes bytes when the test lets it."""

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.fakes import FakeClock
from tpuserve_server.core.serving.sending import ResponseCut, SendingBudget
from tpuserve_server.hosts.endpoint import ChargedResponses
from tpuserve_server.hosts.limits import PART_BYTES, SMALL_BYTES, TAKEN_AHEAD_BYTES

if TYPE_CHECKING:
    from starlette.types import Message

TIMEOUT_S = 30
BUDGET_BYTES = 2 * TAKEN_AHEAD_BYTES
CLIENT = ("10.0.0.1", 5)
SCOPE: dict[str, Any] = {"type": "http", "http_version": "2", "client": CLIENT}
START: dict[str, Any] = {"type": "http.response.start", "status": 200, "headers": []}


def body(size_bytes: int, *, more_body: bool = False) -> dict[str, Any]:
    return {"type": "http.response.body", "body": bytes(size_bytes), "more_body": more_body}


class Server:
    """Records the messages, and takes a message once the test calls `take`."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self._taken = asyncio.Semaphore(0)

    async def send(self, message: "Message") -> None:
        self.sent.append(message)
        await self._taken.acquire()

    def take(self, count: int = 1) -> None:
        for _ in range(count):
            self._taken.release()

    @property
    def sizes(self) -> list[int]:
        return [len(message["body"]) for message in self.sent]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def budget(clock: FakeClock) -> SendingBudget:
    return SendingBudget(BUDGET_BYTES, BUDGET_BYTES, TIMEOUT_S, clock)


async def settled() -> None:
    """Let the tasks run until they wait for the server."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_small_response_is_the_servers_own_and_is_not_charged(budget: SendingBudget) -> None:
    sent: list[Message] = []
    awaitable = asyncio.get_running_loop().create_future()

    def send(message: "Message") -> "asyncio.Future[None]":
        sent.append(message)
        return awaitable

    send_on = ChargedResponses(budget).charged(SCOPE, send)
    messages = [START, body(SMALL_BYTES), {"type": "http.response.trailers", "headers": []}]
    assert [send_on(message) for message in messages] == [awaitable] * 3
    assert all(given is expected for given, expected in zip(sent, messages, strict=True))
    assert budget.held_bytes == 0


async def test_a_large_response_is_sent_in_parts_as_the_client_takes_them(budget: SendingBudget) -> None:
    server = Server()
    send = ChargedResponses(budget).charged(SCOPE, server.send)
    sending = asyncio.ensure_future(send(body(2 * PART_BYTES + 1)))
    await settled()
    assert (server.sizes, budget.held_bytes) == ([PART_BYTES], 2 * PART_BYTES + 1)
    server.take()
    await settled()
    assert (server.sizes, budget.held_bytes) == ([PART_BYTES] * 2, 2 * PART_BYTES + 1)
    server.take(2)
    await sending
    assert (server.sizes, budget.held_bytes) == ([PART_BYTES, PART_BYTES, 1], 0)
    assert [message["more_body"] for message in server.sent] == [True, True, False]


@pytest.mark.parametrize("message", [body(3 * PART_BYTES), body(10, more_body=True)])
async def test_a_response_that_is_not_read_is_cut(
    budget: SendingBudget, clock: FakeClock, message: dict[str, Any]
) -> None:
    server = Server()
    sending = asyncio.ensure_future(ChargedResponses(budget).charged(SCOPE, server.send)(message))
    await settled()
    clock.now_s += TIMEOUT_S
    budget.cut_late()
    with pytest.raises(ResponseCut):
        await sending
    assert len(server.sent) == 1
    assert budget.held_bytes == 0


async def test_bytes_that_the_server_takes_ahead_are_no_progress(budget: SendingBudget, clock: FakeClock) -> None:
    ahead = TAKEN_AHEAD_BYTES // PART_BYTES
    server = Server()
    sending = asyncio.ensure_future(ChargedResponses(budget).charged(SCOPE, server.send)(body(2 * TAKEN_AHEAD_BYTES)))
    await settled()
    clock.now_s += TIMEOUT_S - 1
    server.take(ahead)
    for _ in range(10 * ahead):
        await asyncio.sleep(0)
    assert len(server.sent) == ahead + 1
    clock.now_s += 1
    budget.cut_late()
    with pytest.raises(ResponseCut):
        await sending


async def test_a_response_without_room_is_cut(budget: SendingBudget) -> None:
    budget.begin("other", PART_BYTES)
    server = Server()
    with pytest.raises(ResponseCut):
        await ChargedResponses(budget).charged(SCOPE, server.send)(body(BUDGET_BYTES))
    assert server.sent == []


async def test_the_servers_error_ends_the_delivery(budget: SendingBudget) -> None:
    async def send(_message: "Message") -> None:
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        await ChargedResponses(budget).charged(SCOPE, send)(body(3 * PART_BYTES))
    assert budget.held_bytes == 0
