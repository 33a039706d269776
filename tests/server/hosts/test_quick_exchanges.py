"""Tests that requests of a REST lane need no task, and end like those that have one."""

import asyncio
import gc
import gzip
import json
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.support.lane_house import LaneHouse
from tests.support.lane_messages import RestMessage, predict_json, rest_message
from tpuserve_server.core.batching.task import Task
from tpuserve_server.core.terms.errors import Code
from tpuserve_server.hosts.quick_calls import QuickCall
from tpuserve_server.hosts.rest_calls import QuickExchange

if TYPE_CHECKING:
    from starlette.types import Message

MESSAGE = predict_json(1.0, 2.0)
BINARY = rest_message(1.0, 2.0)


@dataclass
class Client:
    """A client of HTTP/1.1: its request, and the messages that the server has sent to it."""

    message: RestMessage
    headers: dict[str, str] = field(default_factory=dict)
    method: str = "POST"
    http_version: str = "1.1"
    is_in_parts: bool = False
    addresses: dict[str, Any] = field(default_factory=dict)
    # Sent to the client. `room` is what `send` waits for.
    sent: "list[Message]" = field(default_factory=list)
    room: asyncio.Future[None] | None = None

    @property
    def scope(self) -> dict[str, Any]:
        headers = dict(self.headers)
        if self.message.json_bytes is not None:
            headers["inference-header-content-length"] = str(self.message.json_bytes)
        path = self.message.path
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        return {
            "type": "http", "http_version": self.http_version, "method": self.method, "path": path,
            "raw_path": path.encode(), "query_string": b"", "headers": raw, **self.addresses,
        }  # fmt: skip

    async def receive(self) -> "Message":
        if self.is_in_parts:
            self.is_in_parts = False
            return {"type": "http.request", "body": b"", "more_body": True}
        return {"type": "http.request", "body": self.message.body, "more_body": False}

    async def send(self, message: "Message") -> None:
        if self.room is not None:
            await self.room
        self.sent.append(message)

    @property
    def status(self) -> int:
        status: int = self.sent[0]["status"]
        return status

    @property
    def body(self) -> bytes:
        return b"".join(message["body"] for message in self.sent[1:])


class Host:
    """A host whose model has answered the messages often enough that the lanes take them."""

    def __init__(self) -> None:
        self.house = LaneHouse()
        self.servable = self.house.serve(1)
        self.calls = self.house.rest_calls()
        self.in_flight = self.house.in_flight

    def begin(self, client: Client) -> Any:  # noqa: ANN401 - a task or a QuickExchange
        """Begin a request, and return what the server gets from the event loop for it."""
        answering = self.calls.begin(client.scope, client.receive, client.send)
        return asyncio.get_running_loop().create_task(answering)  # type: ignore[arg-type]

    async def enter(self) -> None:
        """Wait until the model runs a batch, which the test has stopped at the gate."""
        assert await asyncio.to_thread(self.servable.entered.acquire, timeout=10)

    @property
    def code(self) -> Code:
        """The code of the last request that has ended."""
        return self.house.metrics.finished[-1].code


@pytest.fixture
async def host() -> AsyncIterator[Host]:
    host = Host()
    for message in 3 * (MESSAGE, BINARY):
        await host.begin(Client(message))
    while host.servable.entered.acquire(blocking=False):
        pass
    yield host
    host.servable.gate.set()
    await host.house.stop()


@pytest.mark.parametrize("message", [MESSAGE, BINARY], ids=["JSON", "binary"])
async def test_request_of_a_lane_is_answered_without_a_task(host: Host, message: RestMessage) -> None:
    client = Client(message)
    call = host.begin(client)
    assert type(call) is QuickExchange
    assert not call.done()
    assert host.in_flight.count == host.house.rest_meter.in_flight == 1
    await call
    assert client.status == 200
    if message is MESSAGE:
        rows = [{"y": [2.0 * value] * 2, "x": [value] * 2} for value in (1.0, 2.0)]
        assert json.loads(client.body) == {"predictions": rows}
    else:
        assert np.frombuffer(client.body[-32:], np.float32).tolist() in (
            [2.0, 2.0, 4.0, 4.0, 1.0, 1.0, 2.0, 2.0],
            [1.0, 1.0, 2.0, 2.0, 2.0, 2.0, 4.0, 4.0],
        )
    assert host.code is Code.OK
    assert host.in_flight.count == host.house.rest_meter.in_flight == 0


@pytest.mark.parametrize(
    "client",
    [
        pytest.param(Client(predict_json(1.0, 2.0, 3.0)), id="unknown layout"),
        pytest.param(Client(MESSAGE, is_in_parts=True), id="body in parts"),
        pytest.param(Client(MESSAGE, http_version="2"), id="HTTP/2"),
        pytest.param(
            Client(MESSAGE._replace(body=gzip.compress(MESSAGE.body)), {"content-encoding": "gzip"}), id="compressed"
        ),
        pytest.param(Client(RestMessage("/v1/models/m", b"", None), method="GET"), id="other method"),
    ],
)
async def test_other_requests_have_a_task(host: Host, client: Client) -> None:
    task = host.begin(client)
    assert type(task) is asyncio.Task
    await task
    assert client.status == 200


@pytest.mark.parametrize(
    ("headers", "status"), [({"x-tpuserve-timeout-ms": "soon"}, 400), ({"content-encoding": "br"}, 415)]
)
async def test_headers_that_are_wrong_are_refused_in_a_task(host: Host, headers: dict[str, str], status: int) -> None:
    client = Client(MESSAGE, headers)
    task = host.begin(client)
    assert type(task) is asyncio.Task
    await task
    assert client.status == status
    assert len(host.servable.batches) == 6


async def test_error_of_the_model_is_a_response(host: Host) -> None:
    client = Client(predict_json(-1.0, 2.0), {"x-request-id": "r1"})
    call = host.begin(client)
    assert type(call) is QuickExchange
    await call
    assert (client.status, json.loads(client.body)) == (400, {"error": "x must not be negative"})
    assert (b"x-request-id", b"r1") in client.sent[0]["headers"]
    assert host.code is Code.INVALID_ARGUMENT


async def test_deadline_ends_a_request(host: Host) -> None:
    host.servable.gate.clear()
    client = Client(MESSAGE, {"x-tpuserve-timeout-ms": "20"})
    call = host.begin(client)
    assert type(call) is QuickExchange
    await call
    assert client.status == 504
    assert host.code is Code.DEADLINE_EXCEEDED


async def test_full_queue_refuses_a_request(host: Host) -> None:
    await asyncio.to_thread(host.house.batchers[1].stop)
    client = Client(MESSAGE)
    call = host.begin(client)
    assert type(call) is QuickExchange
    assert not call.done()
    await call
    assert (client.status, json.loads(client.body)) == (503, {"error": "Servable {name: m version: 1} is unloading"})
    assert host.code is Code.UNAVAILABLE


async def test_request_whose_client_leaves_frees_its_place(host: Host) -> None:
    host.servable.gate.clear()
    running = host.begin(Client(MESSAGE))
    await host.enter()
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as ours:
        served, peer = listener.accept()
        with served:
            client = Client(MESSAGE, addresses={"client": peer, "server": listener.getsockname()})
            call = host.begin(client)
            assert type(call) is QuickExchange
            ours.shutdown(socket.SHUT_RDWR)
            await asyncio.wait_for(call, 60)
    assert client.sent == []
    assert host.code is Code.CANCELLED
    host.servable.gate.set()
    await running
    assert len(host.servable.batches) == 7  # that of the client that has left never ran


async def test_end_of_the_server_answers_a_request(host: Host) -> None:
    host.servable.gate.clear()
    client = Client(MESSAGE)
    call = host.begin(client)
    await host.enter()
    host.in_flight.cut()
    await call
    assert (client.status, json.loads(client.body)) == (503, {"error": "The server is shutting down"})
    assert host.code is Code.CANCELLED
    await host.in_flight.finish()


async def test_client_that_reads_slowly_delays_no_other(host: Host) -> None:
    slow, quick = Client(MESSAGE, room=asyncio.get_running_loop().create_future()), Client(MESSAGE)
    slow_call, quick_call = host.begin(slow), host.begin(quick)
    await quick_call
    assert quick.status == 200
    assert slow.sent == []
    assert slow.room is not None
    slow.room.set_result(None)
    await slow_call
    assert slow.status == 200


@pytest.mark.parametrize("accepted", [None, "gzip"])
async def test_large_response_is_encoded_and_compressed_in_a_task(host: Host, accepted: str | None) -> None:
    large = np.zeros((2, 300_000), np.float32)
    host.servable.outputs = {"y": large, "x": large}
    client = Client(MESSAGE, {"accept-encoding": accepted} if accepted else {})
    call = host.begin(client)
    assert type(call) is QuickExchange
    await call
    assert client.status == 200
    body = gzip.decompress(client.body) if accepted else client.body
    assert [len(row["y"]) for row in json.loads(body)["predictions"]] == [300_000, 300_000]
    assert host.code is Code.OK
    assert host.house.rest_meter.in_flight == 0


async def test_end_of_the_server_answers_a_request_whose_response_takes_long(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = np.zeros((2, 300_000), np.float32)
    host.servable.outputs = {"y": large, "x": large}
    client, encoding = Client(MESSAGE), asyncio.Event()
    loop = asyncio.get_running_loop()

    def never_ends(*_: object) -> asyncio.Future[object]:
        encoding.set()
        return loop.create_future()

    # A thread encodes the response.
    monkeypatch.setattr(loop, "run_in_executor", never_ends)
    call = host.begin(client)
    await asyncio.wait_for(encoding.wait(), 60)
    host.in_flight.cut()
    await call
    monkeypatch.undo()
    assert (client.status, json.loads(client.body)) == (503, {"error": "The server is shutting down"})
    assert host.code is Code.CANCELLED
    assert host.in_flight.count == host.house.rest_meter.in_flight == 0


async def test_cached_model_has_tasks(host: Host) -> None:
    host.house.serve(2, is_cached=True)
    assert "m" in host.house.service.cached_models
    for _ in range(2):
        client = Client(MESSAGE)
        task = host.begin(client)
        assert type(task) is asyncio.Task
        await task
        assert client.status == 200
    assert len(host.house.servables[2].batches) == 1


async def test_released_version_may_be_unloaded(host: Host) -> None:
    await host.begin(Client(MESSAGE))
    await host.begin(Client(predict_json(-1.0, 2.0)))
    await asyncio.wait_for(host.house.retire(1), 60)
    assert not host.house.service.is_served("m")


async def test_answered_request_leaves_nothing_to_the_garbage_collector(host: Host) -> None:
    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        for message in 20 * (MESSAGE, BINARY):
            await host.begin(Client(message))
        gc.collect()
        left = [each for each in gc.garbage if isinstance(each, QuickCall | Task)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
    assert left == []
