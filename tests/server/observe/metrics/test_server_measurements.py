"""Tests for the figures of the whole server on the metrics page: queues, budgets, state and build."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.fake_device import FakeServable, double_task
from tests.support.measured import page_of
from tpuserve_server.core.batching.batcher import Batcher
from tpuserve_server.core.batching.device_share import DeviceShare
from tpuserve_server.core.batching.parameters import BatchingOptions, BatchingParameters
from tpuserve_server.core.batching.services import BatchedVersion, DeviceServices
from tpuserve_server.core.models.loader import AspiredVersion, LoadedVersion
from tpuserve_server.core.models.model_memory import ModelMemory
from tpuserve_server.core.models.registry import ModelRegistry
from tpuserve_server.core.models.residency import Residency
from tpuserve_server.core.serving.budgets import Budgets
from tpuserve_server.core.serving.options import BudgetOptions
from tpuserve_server.core.serving.sending import ResponseCut
from tpuserve_server.core.serving.service import InferenceService
from tpuserve_server.core.terms.deadline import SystemClock
from tpuserve_server.core.terms.errors import Internal, InvalidArgument, ResourceExhausted
from tpuserve_server.core.terms.options import ResidencyOptions
from tpuserve_server.core.terms.priority import Priority
from tpuserve_server.core.terms.server_state import Build, CertificateStatus, Traffic
from tpuserve_server.core.terms.storage import VersionLocation
from tpuserve_server.core.terms.types import ServableId
from tpuserve_server.observe.metrics.prometheus import PrometheusMetrics
from tpuserve_server.observe.metrics.server_measurements import ServerParts

ID = ServableId("m", 3)
STATES = ("starting", "ready", "not_ready", "draining")


class SmallServer:
    """The parts of a server with a model on a fake device, and their metrics."""

    def __init__(self) -> None:
        clock = SystemClock()
        self.metrics = PrometheusMetrics()
        self.registry = ModelRegistry(["m"], self.metrics)
        self.service = InferenceService(self.registry, clock)
        self.budgets = Budgets.of(BudgetOptions(), 100, clock)
        self.servable = FakeServable()
        self.batcher = Batcher(
            BatchedVersion(ID, self.servable, {"serving_default": BatchingOptions(4, (1, 2, 4))}),
            BatchingParameters(max_enqueued_batches=4),
            DeviceServices(clock, self.metrics),
        )
        self.device = DeviceShare(1)
        build = Build("1.2.3", "3.13.1")
        self.certificates: CertificateStatus | None = None
        self.traffic = Traffic()
        residency = Residency(self.registry, clock, ResidencyOptions(), ModelMemory(clock))
        parts = ServerParts(
            self.service,
            residency,
            self.budgets,
            build,
            lambda: 3,
            self.traffic,
            500,
            lambda: self.certificates,
            self.device,
        )
        self.metrics.server.server_built(parts)

    def load(self) -> None:
        self.registry.aspire("m", {3: AspiredVersion(ID, VersionLocation("/models/m/3"))})
        self.registry.loading(ID)
        self.registry.available(ID, LoadedVersion(self.servable, self.batcher))

    def samples(self, name: str) -> dict[tuple[str, ...], float]:
        """Return the values by the values of the labels, in the order of their names."""
        text = page_of(self.metrics)
        return {
            tuple(sample.labels[label] for label in sorted(sample.labels)): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == f"tpuserve_{name}"
        }

    def state(self) -> str:
        states = self.samples("server_state")
        assert states.keys() == {(state,) for state in STATES}
        [current] = [state for (state,), value in states.items() if value]
        return current


@pytest.fixture
async def server() -> AsyncIterator[SmallServer]:
    server = SmallServer()
    yield server
    server.servable.gate.set()
    server.batcher.stop()


async def test_queues_show_requests_and_rows_that_wait(server: SmallServer) -> None:
    server.load()
    assert server.samples("queue_requests") == server.samples("queue_rows") == {("m", "3"): 0}
    server.servable.gate.clear()
    tasks = [double_task(0.0)]
    server.batcher.submit(tasks[0])
    await asyncio.to_thread(server.servable.entered.acquire)
    tasks += [double_task(1.0), double_task(1.0, 2.0), double_task(1.0, 2.0, 3.0)]
    for task in tasks[1:]:
        server.batcher.submit(task)
    assert server.samples("queue_requests") == {("m", "3"): 3}
    assert server.samples("queue_rows") == {("m", "3"): 6}
    server.servable.gate.set()
    await asyncio.gather(*(task.future for task in tasks))
    assert server.samples("queue_rows") == {("m", "3"): 0}
    assert server.samples("version_busy_seconds_total")["m", "3"] > 0


async def test_states_follow_the_server(server: SmallServer) -> None:
    assert server.state() == "starting"
    server.load()
    assert server.state() == "ready"
    server.registry.unloading(ID)
    assert server.state() == "not_ready"
    server.service.drain()
    assert server.state() == "draining"


async def test_certificates_show_their_expiry_and_a_failed_reload(server: SmallServer) -> None:
    assert server.samples("certificate_expiry_timestamp_seconds") == server.samples("certificate_reload_failed") == {}
    server.certificates = CertificateStatus({"server": 1.9e9, "client_ca": 2e9})
    assert server.samples("certificate_expiry_timestamp_seconds") == {("server",): 1.9e9, ("client_ca",): 2e9}
    assert server.samples("certificate_reload_failed") == {(): 0}
    server.certificates = CertificateStatus({"server": 1.9e9}, "no file")
    assert server.samples("certificate_reload_failed") == {(): 1}


async def test_a_configured_model_is_available_while_one_of_its_versions_is(server: SmallServer) -> None:
    server.registry.configure(["m", "empty"])
    assert server.samples("model_available") == {("m",): 0, ("empty",): 0}
    server.load()
    assert server.samples("model_available") == {("m",): 1, ("empty",): 0}
    other = ServableId("m", 4)
    server.registry.aspire(
        "m", {version.version: AspiredVersion(version, VersionLocation("/models/m")) for version in (ID, other)}
    )
    server.registry.loading(other)
    server.registry.failed(other, Internal("broken"))
    assert server.samples("model_available")["m",] == 1
    server.registry.unloading(ID)
    assert server.samples("model_available")["m",] == 0
    server.registry.configure(["empty"])
    assert server.samples("model_available") == {("empty",): 0}


async def test_budgets_show_their_bytes_and_refusals(server: SmallServer) -> None:
    receiving = server.budgets.receiving
    with receiving.begin() as upload:
        upload.hold(90)
        assert server.samples("budget_bytes") == {
            ("receiving", "in_use"): 90,
            ("receiving", "limit"): 1600,
            ("sending", "in_use"): 0,
            ("sending", "limit"): 2 << 30,
            ("decoded", "limit"): 400,
            ("response", "limit"): 1 << 30,
        }
        assert set(server.samples("budget_refusals_total").values()) == {0}
        with pytest.raises(ResourceExhausted):
            upload.hold(1601)
    with pytest.raises(InvalidArgument):
        server.budgets.decoded.check(401, "strings")
    assert server.samples("budget_bytes")["receiving", "in_use"] == 0
    assert server.samples("budget_refusals_total") == {
        ("receiving",): 1, ("decoded",): 1, ("response",): 0, ("sending",): 0
    }  # fmt: skip


async def test_cut_responses_are_counted_by_reason(server: SmallServer) -> None:
    sending = server.budgets.sending
    sending.begin("a", sending.total_bytes)
    with pytest.raises(ResponseCut):
        sending.begin("b", sending.total_bytes + 1)
    assert server.samples("cut_responses_total") == {("memory",): 1, ("timeout",): 0}
    assert server.samples("budget_refusals_total")["sending",] == 1


async def test_the_build_is_shown(server: SmallServer) -> None:
    assert server.samples("build_info") == {("3.13.1", "1.2.3"): 1}


async def test_the_hash_of_the_configuration_is_shown_if_there_is_one(server: SmallServer) -> None:
    assert "tpuserve_configuration_info{" not in page_of(server.metrics)
    server.registry.configuration_sha256 = "ab12"
    assert server.samples("configuration_info") == {("ab12",): 1}


async def test_requests_that_arrive_are_counted(server: SmallServer) -> None:
    server.traffic.requests["2"] += 2
    server.traffic.refused["rate"] += 1
    assert server.samples("http_requests_total") == {("2",): 2}
    server.budgets.receiving.oversized += 3
    assert server.samples("refused_requests_total") == {
        ("rate",): 1, ("too_late",): 0, ("impossible_deadline",): 0, ("header_size",): 0, ("message_size",): 3
    }  # fmt: skip
    assert server.samples("max_connections") == {(): 500}


async def test_dropped_events_of_the_log_are_counted(server: SmallServer) -> None:
    assert server.samples("log_events_dropped_total") == {(): 3}


def test_requests_in_flight_are_those_of_all_front_ends_of_a_protocol() -> None:
    metrics = PrometheusMetrics()
    for protocol, requests in (("grpc", "ab"), ("rest", "abc"), ("grpc", "abcde")):
        metrics.protocol_served(protocol=protocol, in_flight=requests.__len__)
    page = page_of(metrics)
    assert 'tpuserve_requests_in_flight{protocol="grpc"} 7.0' in page
    assert 'tpuserve_requests_in_flight{protocol="rest"} 3.0' in page


async def test_demand_is_what_arrived_by_priority(server: SmallServer) -> None:
    server.load()
    server.metrics.demand.sample(100.0, 1.0)
    assert server.samples("demand_ratio") == {(): 0.0}
    tasks = [double_task(1.0), double_task(2.0)]
    tasks[1].priority = Priority.LOW
    for task in tasks:
        server.batcher.submit(task)
        await task.future
    server.traffic.refused["rate"] += 1
    server.metrics.demand.sample(102.0, 1.5)
    needed_s = server.samples("demand_seconds_total")
    assert needed_s.keys() == {("m", "high"), ("m", "low")}
    assert min(needed_s.values()) > 0
    assert server.samples("model_demand_ratio")[("m",)] == pytest.approx(sum(needed_s.values()) / 2)
    assert server.samples("event_loop_busy_seconds_total") == {(): 1.5}
    assert server.samples("demand_ratio") == {(): pytest.approx(max(sum(needed_s.values()) / 2, 0.25))}
