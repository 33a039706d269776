"""Tests for the tunnel: calls of a front-end that the engine answers, over a real socket."""

import asyncio
import gzip
import logging
import pickle
import random
import socket
from typing import TYPE_CHECKING, Any

import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest

from tests.server.hosts.asgi_client import HEADERS, Exchange, body
from tests.server.tunnel.tunnel_house import JSON, EngineApplication, House, rest_scope, tunnelled, until
from tests.support.lane_house import LaneHouse
from tests.support.lane_messages import INFER, PREDICT
from tpuserve_formats.messages.official import PredictRequest
from tpuserve_formats.messages.oip import ModelInferRequest
from tpuserve_server.core.errors import Code
from tpuserve_server.frontends.http.headers import LAG_KEY
from tpuserve_server.hosts.grpc.frames import frame
from tpuserve_server.hosts.in_flight import InFlight
from tpuserve_server.identity.certificate import CERTIFICATE_KEY, CertificateNames, no_certificate
from tpuserve_server.link.connection import Connection
from tpuserve_server.tunnel.client import EngineError
from tpuserve_server.tunnel.messages import BODY_HEAD, NUMBER, PIECE_BYTES, TunnelKind
from tpuserve_server.tunnel.server import TunnelServer

if TYPE_CHECKING:
    from starlette.types import Message, Scope

ENDED = "The engine process of the server has ended"
SHUTTING_DOWN = "The server is shutting down"
ROWS = b'{"instances": [[1.0, 2.0]]}'
# No piece equals another, so that a wrong order shows.
BIG = random.Random(0).randbytes(3 << 20)


def rest(path: str, data: bytes = b"", method: str = "POST", *, piece: int = 0) -> Exchange:
    messages = [body(data)]
    if piece:
        messages = [*(body(data[at : at + piece], more=True) for at in range(0, len(data), piece)), body(b"")]
    return Exchange(messages, path=path, method=method, headers=[*JSON, (b"content-length", b"%d" % len(data))])


def in_pieces(path: str, data: bytes, size: int) -> Exchange:
    whole = frame(data)
    return Exchange([*(body(whole[at : at + size], more=True) for at in range(0, len(whole), size)), body(b"")], path)


async def begun(app: EngineApplication, ends: House, path: str) -> tuple[Exchange, asyncio.Task[Exchange]]:
    """Begin a call that waits in the engine, and that has sent its first message if it is a stream."""
    exchange = Exchange.unary(b"", path=path) if "Echo" in path else rest(path)
    running = asyncio.create_task(exchange.run(ends.tunnel))
    await app.began.wait()
    await until(lambda: path != "/echo.Echo/Watch" or len(exchange.sent) == 2)
    return exchange, running


def predict(model: str = "m") -> bytes:
    request = PredictRequest()
    request.model_spec.name = model
    request.inputs["x"].dtype = 1
    for size in (1, 2):
        request.inputs["x"].tensor_shape.dim.add(size=size)
    request.inputs["x"].float_val.extend((1.0, 2.0))
    serialized: bytes = request.SerializeToString()
    return serialized


def squeezed(path: str, data: bytes) -> Exchange:
    message = body(b"\1" + frame(gzip.compress(data))[1:])
    return Exchange([message], path, headers=[*HEADERS, (b"grpc-encoding", b"gzip")])


# Requests for the real tables: a name, and a function that makes one, because an exchange runs once.
REQUESTS = {
    "gRPC prediction": lambda: Exchange.unary(predict(), path=PREDICT),
    "gRPC prediction in pieces": lambda: in_pieces(PREDICT, predict(), 7),
    "gRPC prediction, compressed": lambda: squeezed(PREDICT, predict()),
    "gRPC error": lambda: Exchange.unary(predict("none"), path=PREDICT),
    "gRPC malformed": lambda: Exchange([body(b"\0\0")], PREDICT, headers=[*HEADERS, (b"x-request-id", b"abc")]),
    "gRPC request id": lambda: Exchange.unary(predict(), (b"x-request-id", b"abc"), path=PREDICT),
    "OIP over gRPC, error": lambda: Exchange.unary(ModelInferRequest(model_name="m").SerializeToString(), path=INFER),
    "gRPC unknown method": lambda: Exchange.unary(b"", path="/no.Such/Method"),
    "gRPC health": lambda: Exchange.unary(
        HealthCheckRequest().SerializeToString(), path="/grpc.health.v1.Health/Check", talkative=True
    ),
    "gRPC reflection": lambda: Exchange.unary(
        ServerReflectionRequest(list_services="").SerializeToString(),
        path="/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    ),
    "other content type": lambda: Exchange([body(b"")], PREDICT, headers=JSON),
    "other HTTP method": lambda: Exchange([body(b"")], PREDICT, method="GET"),
    "REST prediction": lambda: rest("/v1/models/m:predict", ROWS),
    "REST prediction in pieces": lambda: rest("/v1/models/m:predict", ROWS, piece=5),
    "REST error": lambda: rest("/v1/models/none:predict", ROWS),
    "REST metadata": lambda: rest("/v1/models/m/metadata", method="GET"),
    "REST status": lambda: rest("/v1/models/m?x=1", method="GET"),
    "OIP over REST": lambda: rest("/v2/models/m", method="GET"),
    "probe": lambda: rest("/readyz", method="GET"),
    "HEAD": lambda: rest("/readyz", method="HEAD"),
    "unknown path": lambda: rest("/nothing", b"x" * 100),
    "large body": lambda: rest("/v1/models/m:predict", b" " * (3 * PIECE_BYTES) + ROWS),
}


@pytest.mark.parametrize("name", REQUESTS)
async def test_responses_are_those_of_the_engine_itself(name: str) -> None:
    house = LaneHouse()
    house.serve(1)
    try:
        async with tunnelled(EngineApplication(house.table, house.app)) as ends:
            direct = await REQUESTS[name]().run(ends.app)
            through = await REQUESTS[name]().run(ends.tunnel)
            assert [_explicit(message) for message in through.sent] == [_explicit(message) for message in direct.sent]
            assert through.sent
            await ends.in_flight.finish()
    finally:
        await house.stop()


async def test_streams_answer_while_their_requests_arrive() -> None:
    async with tunnelled(EngineApplication()) as ends:
        requests = [body(frame(b"a"), more=True), body(frame(b"b") + frame(b"fail"), more=True)]
        exchange = await Exchange(requests, path="/echo.Echo/Each").run(ends.tunnel)
    assert exchange.content == frame(b"a") + frame(b"b")
    assert exchange.status == (Code.NOT_FOUND, "in the stream")


@pytest.mark.parametrize("talkative", [False, True])
async def test_client_that_leaves_ends_its_call_in_the_engine(talkative: bool) -> None:
    app = EngineApplication()
    async with tunnelled(app) as ends:
        exchange = Exchange.unary(b"", path="/echo.Echo/Held", talkative=talkative)
        running = asyncio.create_task(exchange.run(ends.tunnel))
        await app.began.wait()
        exchange.leave()
        await running
        assert app.cancelled.is_set()
        assert exchange.status == (Code.CANCELLED, "The client disconnected")


async def test_client_that_leaves_over_rest_is_a_disconnect_in_the_engine(caplog: pytest.LogCaptureFixture) -> None:
    app = EngineApplication()
    async with tunnelled(app) as ends:
        exchange = rest("/held")
        running = asyncio.create_task(exchange.run(ends.tunnel))
        await app.began.wait()
        exchange.leave()
        await running
        assert app.cancelled.is_set()
        assert caplog.text == ""


async def test_client_that_does_not_read_ends_its_stream_in_the_engine() -> None:
    app = EngineApplication()
    async with tunnelled(app) as ends:
        exchange = Exchange([body(frame(b"a"), more=True)], path="/echo.Echo/Each", send_error=OSError())
        await exchange.run(ends.tunnel)
        assert [message["type"] for message in exchange.sent] == ["http.response.start"]
        await ends.engine_in_flight.finish()


@pytest.mark.parametrize("path", ["/echo.Echo/Held", "/echo.Echo/Watch", "/held"])
async def test_cut_answers_the_client_and_ends_the_call_in_the_engine(path: str) -> None:
    app = EngineApplication()
    async with tunnelled(app) as ends:
        exchange, running = await begun(app, ends, path)
        ends.in_flight.cut()
        await running
        await ends.in_flight.finish()
        await ends.engine_in_flight.finish()
    if path == "/held":
        assert (exchange.http_status, exchange.content) == (503, b'{"error":"%s"}' % SHUTTING_DOWN.encode())
    else:
        assert exchange.status == (Code.UNAVAILABLE, SHUTTING_DOWN)


async def test_drain_ends_streams_and_completes_other_calls() -> None:
    app = EngineApplication()
    async with tunnelled(app) as ends:
        watching = Exchange.unary(b"", path="/echo.Echo/Watch")
        unfinished, rest_arrives = Exchange.unary(b""), asyncio.Event()

        async def receive_late() -> "Message":
            await rest_arrives.wait()
            return body(frame(b"late"))

        calls = (
            watching.run(ends.tunnel),
            ends.tunnel(grpc_scope("/echo.Echo/Unary"), receive_late, unfinished.send),
        )
        running = [asyncio.create_task(call) for call in calls]
        await app.began.wait()
        finishing = asyncio.create_task(ends.in_flight.finish())
        await running[0]
        # Its message ends only now.
        assert not running[1].done()
        rest_arrives.set()
        await running[1]
        # A stream that begins during the drain ends, too.
        late = await Exchange.unary(b"", path="/echo.Echo/Watch").run(ends.tunnel)
        await finishing
    assert watching.status == late.status == (Code.UNAVAILABLE, SHUTTING_DOWN)
    assert unfinished.status == (Code.OK, "")


@pytest.mark.parametrize("path", ["/echo.Echo/Held", "/echo.Echo/Watch", "/held"])
async def test_end_of_the_engine_is_unavailable(path: str) -> None:
    app = EngineApplication()
    async with tunnelled(app) as ends:
        exchange, running = await begun(app, ends, path)
        ends.end_engine()
        await running
        await ends.in_flight.finish()
        after = await (Exchange.unary(b"") if "Echo" in path else rest("/", method="HEAD")).run(ends.tunnel)
    if path == "/held":
        assert (exchange.http_status, exchange.content) == (503, b'{"error":"%s"}' % ENDED.encode())
        assert (after.http_status, after.content) == (503, b"")
    else:
        assert exchange.status == after.status == (Code.UNAVAILABLE, ENDED)


async def test_rest_response_that_has_begun_breaks_off_at_the_end_of_the_engine() -> None:
    app = EngineApplication()
    async with tunnelled(app) as ends:
        exchange = rest("/begun")
        running = asyncio.create_task(exchange.run(ends.tunnel))
        await until(lambda: bool(exchange.sent))
        ends.end_engine()
        with pytest.raises(EngineError, match=ENDED):
            await running


async def test_bug_in_the_engine_is_logged_there_and_raised_without_its_details(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with tunnelled(EngineApplication()) as ends:
        exchange = rest("/bug")
        with caplog.at_level(logging.ERROR), pytest.raises(EngineError) as caught:
            await exchange.run(ends.tunnel)
    assert "secret" in caplog.text
    assert "secret" not in str(caught.value)
    assert exchange.sent == []


async def test_call_that_is_cancelled_before_it_begins_ends() -> None:
    """Play a front-end whose two messages arrive together."""
    ends = socket.socketpair()
    front, engine = Connection(ends[0]), Connection(ends[1])
    app = EngineApplication()
    server = TunnelServer(engine, app.rest, InFlight())
    ended = asyncio.get_running_loop().create_future()
    front.start({TunnelKind.ENDED: lambda payload: ended.set_result(BODY_HEAD.unpack(payload))}, lambda: None)
    engine.start(server.handlers(), server.end)
    scope = {"type": "http", "method": "GET", "path": "/held", "headers": []}
    front.send(TunnelKind.OPEN, pickle.dumps((7, scope, 0.0, False, None)))
    front.send(TunnelKind.CANCEL, NUMBER.pack(7))
    assert await asyncio.wait_for(ended, 60) == (7, 1)
    assert not app.began.is_set()
    front.close()
    engine.close()


async def test_many_calls_at_once_get_their_own_responses() -> None:
    async with tunnelled(EngineApplication()) as ends:
        messages = [b"%d" % number * (1 + number * 997 % 90_000) for number in range(200)]
        exchanges = [
            in_pieces("/echo.Echo/Unary", message, 20_000) if at % 3 else rest("/", message)
            for at, message in enumerate(messages)
        ]
        await asyncio.gather(*(exchange.run(ends.tunnel) for exchange in exchanges))
    for at, (message, exchange) in enumerate(zip(messages, exchanges, strict=True)):
        assert exchange.content == (frame(message) if at % 3 else message)


async def test_large_messages_arrive_whole_in_both_directions() -> None:
    async with tunnelled(EngineApplication()) as ends:
        # The engine requests the second of two chunks only after all pieces of the first.
        size = len(BIG) // 2 + 100
        over_grpc = await in_pieces("/echo.Echo/Unary", BIG, size).run(ends.tunnel)
        over_rest = await rest("/", BIG, piece=size).run(ends.tunnel)
    assert over_grpc.content == frame(BIG)
    assert over_rest.content == BIG


async def test_engine_gets_the_arrival_and_the_certificate_of_a_call() -> None:
    app = EngineApplication()
    headers = [*HEADERS, (b"grpc-timeout", b"60S"), (b"x-tpuserve-client-dns", b"a.example")]
    async with tunnelled(app) as ends:
        for has_certificate in (True, False):
            scope = {
                **rest_scope(),
                "path": "/echo.Echo/Unary",
                "headers": headers,
                "client": ("10.0.0.1", 7),
                LAG_KEY: 2.5,
            }
            if has_certificate:
                scope[CERTIFICATE_KEY] = no_certificate
            exchange = Exchange.unary(b"")
            await ends.tunnel(scope, exchange.receive, exchange.send)
    with_one, without = app.contexts
    assert with_one.lag_s >= 2.5
    assert with_one.find_client() == "10.0.0.1"
    assert with_one.find_certificate() == CertificateNames(dns=("a.example",))
    assert without.find_certificate() is None


async def test_futures_of_the_host_are_never_cancelled() -> None:
    """Check it for Envoy's embedding, which completes them later and fails if they are cancelled."""
    app = EngineApplication()
    owned: list[asyncio.Future[Message]] = []

    def receive() -> "asyncio.Future[Message]":
        owned.append(asyncio.get_running_loop().create_future())
        return owned[-1]

    def send(message: "Message") -> Any:  # noqa: ANN401 - a future, as pyvoy returns
        return receive()

    async with tunnelled(app) as ends:
        watching = asyncio.create_task(ends.tunnel(grpc_scope("/echo.Echo/Watch"), receive, send))
        await until(lambda: len(owned) == 1)
        owned[0].set_result(body(frame(b"")))
        # The start of the response, and the poll for a disconnect.
        await until(lambda: len(owned) == 3)
        watching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await watching
        await ends.engine_in_flight.finish()
    assert [future.cancelled() for future in owned] == [False, False, False]


def grpc_scope(path: str) -> "Scope":
    return {"type": "http", "method": "POST", "path": path, "headers": HEADERS}


def _explicit(message: "Message") -> "Message":
    """Return a message with the default that ASGI lets applications omit."""
    return {"more_body": False, **message} if message["type"] == "http.response.body" else message
