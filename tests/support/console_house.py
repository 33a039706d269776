"""A service with one version on a fake device, and everything that the console shows of it."""

from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np

from tests.support.fake_device import FakeServable
from tpuserve_server.core.batching.batcher import Batcher
from tpuserve_server.core.batching.cost_model import CostModel
from tpuserve_server.core.batching.parameters import BatchingOptions, BatchingParameters
from tpuserve_server.core.batching.services import BatchedVersion, DeviceServices
from tpuserve_server.core.models.loader import AspiredVersion, LoadedVersion
from tpuserve_server.core.models.registry import ModelRegistry
from tpuserve_server.core.serving.budgets import Budgets
from tpuserve_server.core.serving.options import BudgetOptions
from tpuserve_server.core.serving.service import InferenceService
from tpuserve_server.core.terms.deadline import Deadline, SystemClock
from tpuserve_server.core.terms.errors import Code
from tpuserve_server.core.terms.server_state import Build
from tpuserve_server.core.terms.storage import VersionLocation
from tpuserve_server.core.terms.types import ModelSpec, ServableId
from tpuserve_server.observe.metrics.live_measurements import LiveMeasurements
from tpuserve_server.observe.metrics.prometheus import PrometheusMetrics
from tpuserve_server.observe.requests.request_record import RequestRecord
from tpuserve_server.observe.requests.slow_requests import SlowRequests
from tpuserve_server.protocols.console.sources import Addresses, ChangedFlag, ConsoleSources, ServerFacts

if TYPE_CHECKING:
    from tpuserve_server.core.terms.server_state import CertificateStatus

ID = ServableId("m", 3)
FLAGS = (ChangedFlag("model_base_path", "/secret/m", None),)


class ConsoleHouse:
    """Model `m`, whose version 3 serves after `bring_up`. `stop` ends its threads."""

    def __init__(self, path: Path | None = None) -> None:
        self.clock = SystemClock()
        self.metrics = PrometheusMetrics()
        self.servable = FakeServable()
        self.registry = ModelRegistry(["m"], self.metrics)
        self.service = InferenceService(self.registry, self.clock)
        self.slow = SlowRequests(frozenset({"Predict"}))
        self.addresses = Addresses()
        self.certificates: CertificateStatus | None = None
        costs = CostModel()
        self.batcher = Batcher(
            BatchedVersion(ID, self.servable, {"serving_default": BatchingOptions(4, (1, 2, 4))}, costs),
            BatchingParameters(max_enqueued_batches=4),
            DeviceServices(self.clock, self.metrics),
        )
        self._loaded = LoadedVersion(
            self.servable, self.batcher, path=path, costs=costs, labels=("cat", "dog"), load_s=1.5
        )
        self.sources = ConsoleSources(
            self.service,
            LiveMeasurements(self.metrics, self.clock),
            self.slow,
            self.metrics.server.in_flight,
            Budgets.of(BudgetOptions(), 1000, self.clock),
            ServerFacts(
                Build("1.2.3", "3.13.1"),
                1e9,
                self.clock.monotonic_s(),
                {"numpy": "2"},
                FLAGS,
            ),
            self.addresses,
            lambda: self.certificates,
            self.clock,
        )

    def bring_up(self) -> Self:
        self.registry.aspire("m", {3: AspiredVersion(ID, VersionLocation("/models/m/3"))})
        self.registry.loading(ID)
        self.metrics.devices.device_chosen(servable=ID, device="cpu", fallback="no_programs")
        self.metrics.version_warmed(servable=ID, path=Path("/models/m/3"), records=2, duration_s=0.5)
        self.registry.available(ID, self._loaded)
        return self

    def stop(self) -> None:
        self.servable.gate.set()
        self.batcher.stop()

    async def predict(self, rows: int = 1) -> None:
        with self.service.acquire(ModelSpec("m")) as model:
            await model.predict({"x": np.ones((rows, 2), np.float32)}, Deadline.never())

    def be_slow(self, latency_s: float, request_id: str = "") -> None:
        """Record a slow request that has just ended."""
        ended_s = self.clock.monotonic_s()
        started_s = ended_s - latency_s
        self.slow.watch(
            RequestRecord(
                "rest", "Predict", "m", 3, "serving_default", Code.OK, started_s, started_s, ended_s, 1e9,
                is_cached=False, times=(), request_id=request_id,
            )
        )  # fmt: skip
