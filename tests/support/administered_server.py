"""The front-ends with administration on a core that loads: gRPC's methods and REST's application, without a host."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Self, TypeVar

import httpx
from google.protobuf.message import Message

from tests.support.configured_house import CLOCK, GatedLoader, House
from tests.support.ensembles import ensemble_config, make_ensemble
from tests.support.fake_device import FakeServable
from tpuserve_server.core.batching.batcher import Batcher
from tpuserve_server.core.batching.parameters import UNSET_PARAMETERS
from tpuserve_server.core.batching.services import BatchedVersion, DeviceServices
from tpuserve_server.core.models.loader import AspiredVersion, LoadedVersion
from tpuserve_server.core.models.response_cache import ResponseCaches
from tpuserve_server.core.serving.service import ModelAccess
from tpuserve_server.core.terms.deadline import Deadline
from tpuserve_server.core.terms.types import Signature, State, Tensors
from tpuserve_server.observe.metrics.live_measurements import version_statistics
from tpuserve_server.observe.metrics.prometheus import PrometheusMetrics
from tpuserve_server.protocols.oip.administration import Administration
from tpuserve_server.protocols.oip.shared_memory import SharedMemoryRegions
from tpuserve_server.protocols.options import SERVER_NAME, SharedMemoryOptions
from tpuserve_server.protocols.rest import RestOptions, rest_app
from tpuserve_server.protocols.rpc import CallContext, UnaryMethod
from tpuserve_server.protocols.table import rpc_table

MAX_REQUEST_BYTES = 1 << 16

_Response = TypeVar("_Response", bound=Message)


class BatchingLoader(GatedLoader):
    """A loader of FakeServables with a batcher. The signature `serving_default` batches 1, 2 or 4 rows."""

    def __init__(self, metrics: PrometheusMetrics) -> None:
        super().__init__()
        self._metrics = metrics
        self.sizes: tuple[int, ...] = (1, 2, 4)
        self.by_name: dict[str, Signature] = {}
        self.labels: tuple[str, ...] = ()
        # Called before each run of a servable.
        self.on_inputs: Callable[[Tensors], object] = lambda inputs: None
        # Bound of the response cache of each model; 0 for no cache.
        self.cache_bytes = 0
        self._caches = ResponseCaches()

    def load(self, aspired: AspiredVersion) -> LoadedVersion:
        super().load(aspired)
        servable = FakeServable(self.by_name) if self.by_name else FakeServable()
        servable.on_inputs = self.on_inputs
        parameters = aspired.batching or UNSET_PARAMETERS
        options = {"serving_default": parameters.options(self.sizes)} if self.sizes else {}
        batcher = Batcher(
            BatchedVersion(aspired.servable, servable, options), parameters, DeviceServices(CLOCK, self._metrics)
        )
        responses = None
        if self.cache_bytes:
            responses = self._caches.open(aspired.servable, self.cache_bytes)
            self._metrics.cache_opened(servable=aspired.servable, responses=responses)
        return LoadedVersion(servable, batcher, labels=self.labels, responses=responses)

    def unload(self, loaded: LoadedVersion) -> None:
        loaded.batcher.stop()


class AdministeredServer:
    """Models `a` (version 1) and `b` (versions 1 and 2), served for the duration of the context.

    Without `changes` clients may not load or unload models. `cache_bytes` bounds the response cache of each model.
    """

    def __init__(
        self,
        root: Path,
        *,
        prefixes: tuple[str, ...] = (),
        changes: bool = True,
        cache_bytes: int = 0,
        server_name: str = SERVER_NAME,
        access: ModelAccess | None = None,
        max_request_bytes: int = MAX_REQUEST_BYTES,
    ) -> None:
        self.metrics = PrometheusMetrics()
        self.loader = BatchingLoader(self.metrics)
        self.loader.cache_bytes = cache_bytes
        self.house = House(root, initial=("a", "b"), loader=self.loader, metrics=self.metrics, access=access)
        self.regions = SharedMemoryRegions(SharedMemoryOptions(prefixes), max_request_bytes)
        service = self.house.service
        statistics = partial(version_statistics, self.metrics)
        models = self.house.models if changes else None
        administration = Administration(service, CLOCK, statistics, self.regions, models, server_name)
        self.rpc = rpc_table(service, self.metrics, CLOCK, administration=administration)
        self.rest = rest_app(
            service, self.metrics, CLOCK, self.metrics.render, RestOptions(), administration=administration
        )

    def __enter__(self) -> Self:
        self.house.save("a", 1)
        self.house.save("b", 1, 2)
        self.house.start(self.house.config("a"), self.house.config("b"))
        self.house.wait_for("a", 1, State.AVAILABLE)
        self.house.wait_for("b", 2, State.AVAILABLE)
        return self

    def __exit__(self, *exception: object) -> None:
        self.house.stop()

    def add_chain(self) -> None:
        """Add an ensemble `chain` that runs `a` and then `b`."""
        chain = ensemble_config("chain", make_ensemble("a x=image -> y=twice", "b x=twice -> y=fourfold"))
        self.house.apply(self.house.config("a"), self.house.config("b"), chain)

    async def call(
        self, name: str, request: Message, response: type[_Response], deadline: Deadline | None = None
    ) -> _Response:
        """Call a method of inference.GRPCInferenceService. Raises ServingError like in hosts."""
        method = self.rpc[f"/inference.GRPCInferenceService/{name}"]
        assert isinstance(method, UnaryMethod)
        body = await method.handle(request.SerializeToString(), CallContext(deadline or Deadline.never(), {}))
        return response.FromString(body)

    async def get(self, path: str) -> httpx.Response:
        return await self.send("GET", path)

    async def post(
        self, path: str, body: object = None, content: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> httpx.Response:
        """Send a POST. A `body` is sent as JSON, without one the request has no body."""
        return await self.send("POST", path, body, content, headers)

    async def send(
        self,
        method: str,
        path: str,
        body: object = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        transport = httpx.ASGITransport(self.rest)
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            return await client.request(method, path, json=body, content=content, headers=headers)
