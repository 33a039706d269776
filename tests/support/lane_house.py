"""A service on fake devices with gRPC and REST, to compare the ways that requests take through the front-ends."""

import asyncio
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import httpx

from tests.support.fake_device import DOUBLE, FakeServable, RecordingMetrics
from tests.support.fakes import FakeMetrics
from tests.support.lane_messages import RestMessage
from tests.support.open_gate import OPEN_GATE
from tpuserve_server.core.batching.batcher import Batcher
from tpuserve_server.core.batching.parameters import BatchingOptions, BatchingParameters
from tpuserve_server.core.batching.services import BatchedVersion, DeviceServices
from tpuserve_server.core.models.loader import AspiredVersion, LoadedVersion
from tpuserve_server.core.models.model_config import LoggingConfig, ModelConfig
from tpuserve_server.core.models.registry import ModelRegistry
from tpuserve_server.core.models.response_cache import ResponseCaches
from tpuserve_server.core.serving.service import InferenceService
from tpuserve_server.core.terms.deadline import SystemClock
from tpuserve_server.core.terms.errors import Code, PermissionDenied
from tpuserve_server.core.terms.storage import VersionLocation
from tpuserve_server.core.terms.types import ServableId
from tpuserve_server.hosts.in_flight import InFlight
from tpuserve_server.hosts.quick_calls import allow_quick_calls
from tpuserve_server.hosts.rest_calls import RestCalls
from tpuserve_server.observe.options import RequestLogOptions, Rotation
from tpuserve_server.observe.request_log.request_logs import RequestLogs
from tpuserve_server.observe.request_log.writer import LogWriter
from tpuserve_server.observe.requests.request_record import Observers, RequestRecord
from tpuserve_server.observe.requests.trace_context import TraceContext, TraceHeaders
from tpuserve_server.protocols.request_meter import RequestMeter
from tpuserve_server.protocols.rest import RestOptions, rest_app
from tpuserve_server.protocols.rpc import CallContext, UnaryMethod
from tpuserve_server.protocols.table import rpc_table

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send

TRACE = TraceContext("0af7651916cd43dd8448eb211c80319c", "00f067aa0ba902b7", "b7ad6b7169203331")
DENIED = "denied"
ONLY_Y = replace(DOUBLE, name="only_y", outputs={"y": DOUBLE.outputs["y"]})


@dataclass
class EveryRequest:
    """A watcher and a tracing that keep every request; only requests with trace headers are traced."""

    records: list[RequestRecord] = field(default_factory=list)
    traced: list[RequestRecord] = field(default_factory=list)

    def wants(self, latency_s: float, now_s: float, code: Code) -> bool:
        return True

    def watch(self, record: RequestRecord) -> None:
        self.records.append(record)

    def sample(self, headers: TraceHeaders | None, latency_s: float) -> TraceContext | None:
        return None if headers is None else TRACE

    def export(self, record: RequestRecord) -> None:
        self.traced.append(record)


class NotDenied:
    """Clients may use every model except DENIED."""

    def check(self, model: str) -> None:
        if not self.allows(model):
            raise PermissionDenied(f"The client may not use {model}")

    def allows(self, model: str) -> bool:
        return model != DENIED


class LaneHouse:
    """The model `m` on fake devices, in batches of at most four rows. Its requests are logged in a `folder`."""

    def __init__(self, folder: Path | None = None, *, is_observed: bool = True) -> None:
        self.metrics = FakeMetrics()
        self.batches = RecordingMetrics()
        self.clock = SystemClock()
        self.seen = EveryRequest()
        self.registry = ModelRegistry(["m"], self.batches)
        self.service = InferenceService(self.registry, self.clock, access=NotDenied())
        self.caches = ResponseCaches()
        self.servables: dict[int, FakeServable] = {}
        self.batchers: dict[int, Batcher] = {}
        self.writer = LogWriter(Rotation(), self.clock, _Logged())
        self.logs = RequestLogs(RequestLogOptions(), self.writer)
        if folder is not None:
            self.logs.configure([ModelConfig("m", "/m", logging=LoggingConfig("", str(folder / "log"), 1.0))])
            self.writer.start()
        observers = Observers((self.seen,), self.seen) if is_observed else Observers()
        self.meter = RequestMeter(self.service, self.metrics, self.clock, "grpc", observers)
        self.rest_meter = RequestMeter(self.service, self.metrics, self.clock, "rest", observers)
        self.app = rest_app(
            self.service,
            self.metrics,
            self.clock,
            lambda: ([b""], ""),
            RestOptions(),
            logs=self.logs,
            meter=self.rest_meter,
        )
        self.table = rpc_table(self.service, self.metrics, self.clock, logs=self.logs, meter=self.meter)
        self.in_flight = InFlight()

    def serve(self, version: int, *, is_cached: bool = False, is_batched: bool = True) -> FakeServable:
        """Load a version. Without `is_batched` its requests run one by one."""
        servable_id = ServableId("m", version)
        servable = self.servables[version] = FakeServable({"serving_default": DOUBLE, ONLY_Y.name: ONLY_Y})
        self.batchers[version] = batcher = Batcher(
            BatchedVersion(
                servable_id,
                servable,
                dict.fromkeys(("serving_default", ONLY_Y.name), BatchingOptions(4, (1, 2, 4))) if is_batched else {},
            ),
            BatchingParameters(),
            DeviceServices(self.clock, self.batches),
        )
        self._aspire()
        self.registry.loading(servable_id)
        responses = self.caches.open(servable_id, 1 << 20) if is_cached else None
        self.registry.available(servable_id, LoadedVersion(servable, batcher, responses=responses))
        return servable

    async def retire(self, version: int) -> None:
        """Unload a version after its last request."""
        servable_id = ServableId("m", version)
        del self.servables[version]
        self._aspire()
        record = self.registry.unloading(servable_id)
        await asyncio.to_thread(self.registry.wait_idle, record)
        await asyncio.to_thread(self.batchers.pop(version).stop)
        record.loaded = None
        self.registry.ended(servable_id)

    async def stop(self) -> None:
        """Stop all threads, and write the log."""
        for batcher in self.batchers.values():
            await asyncio.to_thread(batcher.stop)
        await asyncio.to_thread(self.writer.stop)

    def rest_calls(self) -> RestCalls:
        """Return the REST application as a host runs it on the running loop, without tasks."""
        loop = asyncio.get_running_loop()
        allow_quick_calls(loop)
        return RestCalls(self.app, self.in_flight, OPEN_GATE, self.app.exchanges, loop)

    async def post(
        self, message: RestMessage, headers: dict[str, str], *, calls: RestCalls | None = None
    ) -> httpx.Response:
        """Send a request over REST, to a host with `calls`."""
        if message.json_bytes is not None:
            headers = {"inference-header-content-length": str(message.json_bytes), **headers}
        app = self.app if calls is None else partial(_begin, calls)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server") as client:
            return await client.post(message.path, content=message.body, headers=headers)

    async def call(self, path: str, body: bytes, context: CallContext) -> bytes:
        """Call a method like a host."""
        method = self.table[path]
        assert isinstance(method, UnaryMethod)
        return await method.handle(body, context)

    def _aspire(self) -> None:
        known = {number: AspiredVersion(ServableId("m", number), VersionLocation("/m")) for number in self.servables}
        self.registry.aspire("m", known)


class _Logged:
    def request_logged(self, *, model: str, outcome: str) -> None:
        assert outcome == "written"


async def _begin(calls: RestCalls, scope: "Scope", receive: "Receive", send: "Send") -> None:
    """Pass the whole body in one message, as the HTTP server does with a small one."""
    parts = [await receive()]
    while parts[-1]["more_body"]:
        parts.append(await receive())
    body = b"".join(part["body"] for part in parts)

    async def receive_whole() -> "Message":
        return {"type": "http.request", "body": body, "more_body": False}

    await calls.begin(scope, receive_whole, send)
