"""A real version on the real service in this process: gRPC's method table and REST's application, without a host."""

import json
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx
from google.protobuf.message import Message

from tests.support.fake_device import RecordingMetrics
from tests.support.fakes import FakeMetrics
from tpuserve_server.core.batching.services import DeviceServices
from tpuserve_server.core.models.loader import AspiredVersion
from tpuserve_server.core.models.local_storage import LocalStorage
from tpuserve_server.core.models.registry import ModelRegistry
from tpuserve_server.core.serving.service import InferenceService
from tpuserve_server.core.terms.deadline import Deadline, SystemClock
from tpuserve_server.core.terms.storage import VersionLocation
from tpuserve_server.core.terms.types import ServableId
from tpuserve_server.executors.tensorflow import TensorFlowOptions
from tpuserve_server.executors.tensorflow.executor import TensorFlowExecutor
from tpuserve_server.observe.request_log.request_logs import RequestLogs
from tpuserve_server.protocols.rest import RestOptions, rest_app
from tpuserve_server.protocols.rpc import CallContext, UnaryMethod
from tpuserve_server.protocols.table import rpc_table
from tpuserve_server.versions.loading import LoadingOptions, VersionLoader
from tpuserve_server.versions.manifest import missing_file

PREDICTION_SERVICE = "/tensorflow.serving.PredictionService/"


class ServedModel:
    """Version 7 of model `m`, loaded for the duration of the context."""

    def __init__(
        self,
        path: Path,
        options: LoadingOptions | None = None,
        *,
        check_method_names: bool = False,
        logs: RequestLogs | None = None,
    ) -> None:
        clock = SystemClock()
        self.id = ServableId("m", 7)
        self._aspired = AspiredVersion(self.id, VersionLocation(str(path)))
        self.batches = RecordingMetrics()
        self.metrics = FakeMetrics()
        executor = TensorFlowExecutor(TensorFlowOptions())
        storage = LocalStorage(missing_file)
        self._loader = VersionLoader(
            storage, executor, options or LoadingOptions(), DeviceServices(clock, self.batches)
        )
        self.registry = ModelRegistry(["m"], self.batches)
        self.service = InferenceService(self.registry, clock)
        self.table = rpc_table(self.service, self.metrics, clock, logs=logs, check_method_names=check_method_names)
        rest_options = RestOptions(check_method_names=check_method_names)
        self.rest = rest_app(self.service, self.metrics, clock, lambda: ([b""], "text/plain"), rest_options, logs=logs)

    def __enter__(self) -> Self:
        self.registry.aspire("m", {7: self._aspired})
        self.registry.loading(self.id)
        self.loaded = self._loader.load(self._aspired)
        self.registry.available(self.id, self.loaded)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loader.unload(self.loaded)

    async def call(self, method: str, request: Message | bytes, deadline: Deadline | None = None) -> bytes:
        """Call a method of PredictionService. Raises ServingError like in hosts."""
        found = self.table[PREDICTION_SERVICE + method]
        assert isinstance(found, UnaryMethod)
        body = request if isinstance(request, bytes) else request.SerializeToString()
        return await found.handle(body, CallContext(deadline or Deadline.never(), {}))

    async def post(self, path: str, body: object, headers: dict[str, str] | None = None) -> httpx.Response:
        """Send a POST to a path below /v1/models/m. A body other than bytes is sent as JSON."""
        transport = httpx.ASGITransport(self.rest)
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            return await client.post(f"/v1/models/m{path}", content=content, headers=headers)
