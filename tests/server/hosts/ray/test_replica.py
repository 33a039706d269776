"""Replica as Ray calls it. Without Ray: the class knows only the interface of Ray's context."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any

import pytest
from grpc import StatusCode

from tpuserve_server.access.access import OPEN
from tpuserve_server.core.serving.receiving import ReceivingBudget
from tpuserve_server.core.serving.sending import SendingBudget
from tpuserve_server.core.serving.service import OverloadGate
from tpuserve_server.core.terms.deadline import SystemClock
from tpuserve_server.core.terms.errors import NotFound, TooLate
from tpuserve_server.core.terms.server_state import CertificateStatus, Replacement, Traffic
from tpuserve_server.hosts.application import HostError, Listening
from tpuserve_server.hosts.ray.replica import Parts, Replica
from tpuserve_server.observe.metrics.load_report import LoadReports
from tpuserve_server.observe.metrics.prometheus import PrometheusMetrics
from tpuserve_server.protocols.grpc_methods import IN_RAY, GrpcMethod
from tpuserve_server.protocols.rpc import CallContext, RpcTable, StreamMethod, UnaryMethod, admit_every_call


class Context:
    """The parts of Ray's context that replicas use."""

    def __init__(self, **metadata: str) -> None:
        self._metadata = [(name.replace("_", "-"), value) for name, value in metadata.items()]
        self.code: StatusCode | None = None
        self.details = ""
        self.trailers: list[tuple[str, str]] = []

    def invocation_metadata(self) -> list[tuple[str, str | bytes]]:
        return list(self._metadata)

    def peer(self) -> str:
        return "ipv4:192.0.2.1:5"

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        return {}

    def set_code(self, code: StatusCode) -> None:
        self.code = code

    def set_details(self, details: str) -> None:
        self.details = details

    def set_trailing_metadata(self, trailing_metadata: list[tuple[str, str]]) -> None:
        self.trailers = trailing_metadata


class Message:
    """A parsed request of another project's servicer function."""

    def SerializeToString(self) -> bytes:
        return b"parsed"


class Models:
    """Records the configuration."""

    def __init__(self) -> None:
        self.configured: Mapping[str, Any] | None = None

    async def configure(self, user_config: Mapping[str, Any]) -> None:
        self.configured = user_config


class Application:
    """An application that echoes, and whose `ready`, `failure` and `replacement` a test sets."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.contexts: list[CallContext] = []
        self.is_ready, self.is_doomed, self.is_hung = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.receiving = ReceivingBudget(1000, 1000, SystemClock())
        self.sending = SendingBudget(1000, 1000, 30, SystemClock())
        self.traffic = Traffic()
        self.load_reports = LoadReports(PrometheusMetrics(), SystemClock())
        self.overload_gate = OverloadGate(tuple, self.traffic, SystemClock())
        table: RpcTable = {
            method.path: StreamMethod(self._stream, OPEN)
            if method.is_stream
            else UnaryMethod(self._unary(method.path), OPEN)
            for method in IN_RAY
        }
        self.rpc = admit_every_call(table)

    async def start(self) -> None:
        self.events.append("start")

    async def ready(self) -> None:
        await self.is_ready.wait()

    async def failure(self) -> str:
        await self.is_doomed.wait()
        return "no model"

    async def replacement(self) -> Replacement:
        await self.is_hung.wait()
        return Replacement("hung run", "a run hangs")

    def add_metrics(self, source: str, read: Callable[[], str]) -> None:
        raise AssertionError

    def announce(self, listening: Listening) -> None:
        raise AssertionError

    def show_certificates(self, status: CertificateStatus) -> None:
        raise AssertionError

    def reload(self) -> None:
        raise AssertionError

    def drain(self) -> None:
        self.events.append("drain")

    async def stop(self) -> None:
        self.events.append("stop")

    rest_exchanges = None

    async def rest(self, scope: Any, receive: Any, send: Any) -> None:  # noqa: ANN401 - ASGI
        await send({"type": "http.response.start", "status": 204})

    def _unary(self, path: str) -> Callable[[bytes, CallContext], Any]:
        async def echo(body: bytes, context: CallContext) -> bytes:
            self.contexts.append(context)
            if body == b"busy":
                raise TooLate("full", 0.5)
            if body == b"bug":
                raise ZeroDivisionError
            return path.encode() + b" " + body

        return echo

    async def _stream(self, requests: AsyncIterator[bytes], context: CallContext) -> AsyncIterator[bytes]:
        async for request in requests:
            if request == b"unknown":
                raise NotFound("no such model")
            yield request


def _replica(
    application: Application, models: Models | None = None, publish: Callable[[], None] = lambda: None
) -> Replica:
    return Replica(lambda: Parts(application, (models or Models()).configure, 100, lambda: 0.25, publish))


async def _started(application: Application) -> Replica:
    application.is_ready.set()
    replica = _replica(application)
    await replica.__serve_build_asgi_app__()
    return replica


def _method(replica: Replica, name: str) -> Any:  # noqa: ANN401 - the replica gets its functions from a table
    return getattr(replica, name)


@pytest.mark.parametrize("method", [method for method in IN_RAY if not method.is_stream])
async def test_every_method_has_the_name_of_its_path(method: GrpcMethod) -> None:
    context = Context()
    response = await _method(_replica(Application()), method.name)(b"request", context)
    assert response.SerializeToString() == f"{method.path} request".encode()
    assert (context.code, context.trailers) == (None, [])


async def test_a_parsed_request_is_serialized_again() -> None:
    response = await _method(_replica(Application()), "Predict")(Message(), Context())
    assert response.SerializeToString().endswith(b" parsed")


async def test_the_method_gets_deadline_client_and_metadata() -> None:
    application = Application()
    await _method(_replica(application), "Predict")(b"", Context(grpc_timeout="5000m", x_key="value", x_name="中"))
    await _method(_replica(application), "Predict")(b"", Context())
    first, second = application.contexts
    assert 0 < first.deadline.remaining_s(SystemClock().monotonic_s()) <= 5
    assert first.find_client() == "192.0.2.1"
    # Headers are bytes, which the server reads as Latin-1, and grpcio as UTF-8.
    assert dict(first.metadata) == {"x-key": "value", "x-name": "中".encode().decode("latin-1")}
    assert not second.deadline.is_finite


@pytest.mark.parametrize(
    ("body", "code", "details"),
    [
        (b"busy", StatusCode.RESOURCE_EXHAUSTED, "full"),
        (b"bug", StatusCode.INTERNAL, "Internal error"),
        (b"x" * 101, StatusCode.RESOURCE_EXHAUSTED, "Received message larger than max (101 vs. 100)"),
    ],
)
async def test_a_failure_is_a_status_and_no_exception(body: bytes, code: StatusCode, details: str) -> None:
    context, application = Context(), Application()
    response = await _method(_replica(application), "Predict")(body, context)
    assert (response.SerializeToString(), context.code, context.details) == (b"", code, details)
    assert (("grpc-retry-pushback-ms", "500") in context.trailers) == (body == b"busy")
    assert application.receiving.oversized == (len(body) > 100)


async def test_a_stream_answers_until_its_failure() -> None:
    async def requests() -> AsyncIterator[bytes]:
        for request in (b"a", b"b", b"unknown"):
            yield request

    context = Context()
    stream = _method(_replica(Application()), "ModelStreamInfer")(requests(), context)
    assert [response.SerializeToString() async for response in stream] == [b"a", b"b", b""]
    assert (context.code, context.details) == (StatusCode.NOT_FOUND, "no such model")


async def test_the_replica_starts_when_its_models_are_ready() -> None:
    application = Application()
    building = asyncio.ensure_future(_replica(application).__serve_build_asgi_app__())
    application.is_ready.set()
    await building
    assert application.events == ["start"]


async def test_a_replica_without_any_model_does_not_start() -> None:
    application = Application()
    application.is_doomed.set()
    with pytest.raises(HostError, match="no model"):
        await _replica(application).__serve_build_asgi_app__()
    assert application.events == ["start", "stop"]


async def test_the_lifespan_stops_the_application() -> None:
    application = Application()
    application.is_ready.set()
    app = await _replica(application).__serve_build_asgi_app__()
    sent: list[Any] = []

    async def receive() -> dict[str, str]:
        return {"type": "lifespan.event"}

    async def send(message: Any) -> None:  # noqa: ANN401 - ASGI
        sent.append(message["type"])

    await app({"type": "http"}, receive, send)
    await app({"type": "websocket"}, receive, send)
    assert application.events == ["start"]
    await app({"type": "lifespan"}, receive, send)
    assert application.events == ["start", "drain", "stop"]
    assert sent == [
        "http.response.start", "websocket.close", "lifespan.startup.complete", "lifespan.shutdown.complete",
    ]  # fmt: skip


async def test_a_replica_whose_run_hangs_is_unhealthy() -> None:
    application = Application()
    replica = await _started(application)
    await replica.check_health()
    application.is_hung.set()
    # Its task needs two turns of the event loop.
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    with pytest.raises(HostError, match="a run hangs"):
        await replica.check_health()


async def test_metrics_that_cannot_be_published_leave_the_replica_healthy(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    await _replica(Application(), publish=fail).check_health()
    assert "Publishing metrics failed" in caplog.text


async def test_user_config_and_demand_pass_through() -> None:
    models = Models()
    replica = _replica(Application(), models)
    await replica.reconfigure({"model_config_list": {}})
    assert models.configured == {"model_config_list": {}}
    assert await replica.record_autoscaling_stats() == {"demand_ratio": 0.25}
