"""Tests for the requests of users, as a rollout reads them from pages that the server's own code renders."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from fastapi import FastAPI, Response

from tests.loadtests.doubling_server import serving_http
from tests.support.measured import page_of, upstream_page
from tpuserve_loadtests.access import Access
from tpuserve_loadtests.arrivals.load import Load
from tpuserve_loadtests.measurement.measured import Measured
from tpuserve_loadtests.measurement.recorder import Recorder
from tpuserve_loadtests.rollout.user_requests import Usage, UserRequests, UserTraffic
from tpuserve_server.core.terms.errors import Code, Fault
from tpuserve_server.core.terms.types import ServableId, State
from tpuserve_server.observe.metrics.prometheus import PrometheusMetrics

LIVE, NEW = 3, 4
LOAD = Load(10.0, 0.0, 1)


@pytest.fixture
def metrics() -> PrometheusMetrics:
    found = PrometheusMetrics()
    found.version_changed(servable=ServableId("m", NEW), state=State.AVAILABLE)
    return found


def request(
    metrics: PrometheusMetrics,
    method: str = "Predict",
    protocol: str = "grpc",
    code: Code = Code.OK,
    version: int = NEW,
) -> None:
    metrics.request_finished(
        model="m", version=version, signature="", method=method, protocol=protocol, code=code, latency_s=0.001
    )
    if code is not Code.OK:
        fault: Fault = "server" if code is Code.INTERNAL else "client"
        metrics.request_failed(model="m", version=version, method=method, code=code, fault=fault)


@contextmanager
def users(metrics: PrometheusMetrics, render: Callable[[PrometheusMetrics], str] = page_of) -> Iterator[UserRequests]:
    app = FastAPI()
    app.get("/metrics")(lambda: Response(render(metrics)))
    with serving_http(app) as port:
        yield UserRequests("m", lambda: [f"http://127.0.0.1:{port}"], lambda url: Access())


def own_load(requests: int) -> Measured:
    recorder = Recorder(("grpc",), LOAD)
    for _ in range(requests):
        recorder.record("grpc", 1.0, 1.005, None)
    return Measured(LOAD, recorder, LOAD.seconds, (0.1,))


def test_successful_predictions_are_listed_by_api(metrics: PrometheusMetrics) -> None:
    for method, protocol in (("Predict", "grpc"), ("ModelInfer", "rest"), ("Classify", "rest"), ("Classify", "rest")):
        request(metrics, method, protocol)
    request(metrics, "GetModelMetadata")
    request(metrics, "Predict", "rest", Code.INVALID_ARGUMENT)
    with users(metrics) as found:
        usage = found.usage()
    assert sorted(usage or [], key=lambda each: each.api) == [
        Usage("Classify over REST", 2, None),
        Usage("OIP HTTP binary", 1, "oip_http"),
        Usage("gRPC", 1, "grpc"),
    ]


def test_requests_beyond_the_own_ones_are_those_of_users(metrics: PrometheusMetrics) -> None:
    with users(metrics) as found:
        assert found.usage() == []
    request(metrics)  # before the load

    def load() -> Measured:
        for code in (*[Code.OK] * 8, Code.INTERNAL, Code.INVALID_ARGUMENT):
            request(metrics, code=code)
        request(metrics, version=LIVE, code=Code.INTERNAL)
        request(metrics, "GetModelMetadata")
        return own_load(4)

    with users(metrics) as found:
        _, traffic = found.during(NEW, load)
        assert traffic == UserTraffic(6, 1)
        assert "6 requests to the new version, of which 1 failed by the server's fault" in str(traffic)
        assert found.during(NEW, lambda: own_load(0))[1] == UserTraffic()


def test_a_page_without_versions_leaves_the_requests_of_users_unknown(metrics: PrometheusMetrics) -> None:
    request(metrics)
    with users(metrics, upstream_page) as found:
        assert found.usage() is None
        _, traffic = found.during(NEW, lambda: own_load(1))
    assert "requests of users are unknown: the servers do not count requests by protocol and version" in str(traffic)


def test_a_server_that_starts_again_leaves_the_requests_of_users_unknown(metrics: PrometheusMetrics) -> None:
    starts = iter((100, 100, 200, 200))  # each look reads the page to find it, and once more

    def page(metrics: PrometheusMetrics) -> str:
        lines = [line for line in page_of(metrics).splitlines() if "process_start_time_seconds" not in line]
        return "\n".join([*lines, f"process_start_time_seconds {next(starts)}", ""])

    with users(metrics, page) as found:
        _, traffic = found.during(NEW, lambda: own_load(1))
    assert traffic.problem == "a server started or ended during the load"
