"""Tests for pushes of metrics over OTLP, to a real HTTP receiver that parses the messages."""

import json
import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI, Request, Response
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.sdk.resources import Resource

from tests.loadtests.doubling_server import MODEL, UNRECORDED, Doubling, serving, serving_http
from tests.support import forked_command
from tpuserve_loadtests.measurement.live_figures import LiveFigures
from tpuserve_loadtests.measurement.recorder import Counts
from tpuserve_loadtests.statistics.live_latencies import LiveLatencyRecorder
from tpuserve_loadtests.traffic.otlp_push import OtlpMetrics, find_resource

QUIET = (*UNRECORDED, "--generator-limit", "note", "--server-metrics", "off", "--warm-up", "100ms", "--json")
COLLECTOR, PROMETHEUS = "/v1/metrics", "/api/v1/otlp/v1/metrics"


@dataclass
class Receiver:
    """A receiver of OTLP over HTTP that keeps all messages. It answers with `status`, `body` and `headers`."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    port: int = 0
    messages: list[ExportMetricsServiceRequest] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    tokens: list[str | None] = field(default_factory=list)

    def app(self) -> FastAPI:
        app = FastAPI()

        @app.post("/{path:path}")
        async def receive(request: Request) -> Response:
            assert request.headers["content-type"] == "application/x-protobuf"
            self.messages.append(ExportMetricsServiceRequest.FromString(await request.body()))
            self.paths.append(request.url.path)
            self.tokens.append(request.headers.get("authorization"))
            return Response(self.body, self.status, self.headers)

        return app

    def metrics(self) -> list[dict[str, Metric]]:
        """Return the metrics of each message by name."""
        return [
            {
                metric.name: metric
                for resource in message.resource_metrics
                for scope in resource.scope_metrics
                for metric in scope.metrics
            }
            for message in self.messages
        ]


@pytest.fixture
def server() -> Iterator[Doubling]:
    with serving(Doubling()) as model:
        yield model


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    with serving_http(receiver.app()) as port:
        receiver.port = port
        yield receiver


def run(server: Doubling, url: str, *arguments: str) -> tuple[forked_command.Ended, dict[str, Any]]:
    options = ("--grpc", server.grpc_address, "--otlp", url, "--otlp-interval", "100ms", *QUIET)
    ended = forked_command.run("tpuserve-loadtest", *arguments, *options)
    assert "Traceback" not in ended.stderr
    return ended, json.loads(ended.stdout) if ended.stdout else {}


def numbers(metric: Metric, key: str) -> dict[str, float]:
    """Return the values of a sum or gauge by an attribute."""
    points = (metric.sum if metric.HasField("sum") else metric.gauge).data_points
    return {attributes(point)[key]: point.as_double or point.as_int for point in points}


def attributes(holder: Any) -> dict[str, str]:  # noqa: ANN401  points and resources have no common type
    return {each.key: each.value.string_value for each in holder.attributes}


@pytest.mark.parametrize("processes", ["1", "2"])
def test_the_last_push_has_the_counts_of_the_report(server: Doubling, receiver: Receiver, processes: str) -> None:
    server.fail_every, server.service_s = 10, 0.003
    load = ("--users", "4", "--requests", "300", "--processes", processes)
    ended, report = run(server, f"http://127.0.0.1:{receiver.port}", "run", MODEL, *load)
    assert ended.returncode == 1  # requests failed
    assert set(receiver.paths) == {COLLECTOR}
    pushes = receiver.metrics()
    assert len(pushes) >= 2
    outcomes = [numbers(push["tpuserve.loadtest.requests"], "outcome") for push in pushes]
    failures = report["total"]["failures"]
    assert outcomes[-1] == {"success": 300 - failures, "failure": failures}
    assert all(later["success"] >= earlier["success"] for earlier, later in pairwise(outcomes))
    (latencies,) = pushes[-1]["tpuserve.loadtest.latency"].histogram.data_points
    assert latencies.count == sum(latencies.bucket_counts) == 300 - failures
    assert latencies.sum > 0
    assert attributes(latencies) == {"model": MODEL}
    quantiles = [numbers(push["tpuserve.loadtest.latency.quantile"], "quantile") for push in pushes if len(push) > 3]
    assert quantiles
    # A tenth of the requests fails, so p99 falls among them.
    assert all(each["0.5"] > 0 for each in quantiles)
    assert "0.99" not in quantiles[-1]
    assert not [note for note in report["notes"] if "pushes" in note]


def test_prometheus_receives_the_metrics_at_its_path(
    server: Doubling, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"http://127.0.0.1:{receiver.port}/api/v1/otlp"
    ended, _ = run(server, url, "run", MODEL, "--users", "1", "--requests", "5")
    assert ended.returncode == 0, ended.stderr
    assert set(receiver.paths) == {PROMETHEUS}


def test_a_soak_counts_over_all_segments(server: Doubling, receiver: Receiver) -> None:
    server.service_s = 0.01
    load = ("--users", "1", "--duration", "10s", "--segments", "20")
    _, report = run(server, f"http://127.0.0.1:{receiver.port}", "soak", MODEL, *load)
    outcomes = numbers(receiver.metrics()[-1]["tpuserve.loadtest.requests"], "outcome")
    assert outcomes["success"] == report["total"]["requests"]


@pytest.mark.parametrize(
    ("status", "headers", "problem"),
    [
        (400, {}, "HTTP 400 Bad Request"),
        (302, {"location": "http://127.0.0.1:1/"}, "HTTP 302 Found"),
        (503, {}, "HTTP 503 Service Unavailable"),
        (200, {"content-type": "application/x-protobuf"}, "the receiver rejected 7 data points: too old"),
    ],
)
def test_a_receiver_that_refuses_is_a_warning_and_a_note(
    server: Doubling, receiver: Receiver, status: int, headers: dict[str, str], problem: str
) -> None:
    receiver.status, receiver.headers = status, headers
    partial = ExportMetricsServiceResponse()
    partial.partial_success.rejected_data_points, partial.partial_success.error_message = 7, "too old"
    receiver.body = partial.SerializeToString() if status == 200 else b""
    url = f"http://127.0.0.1:{receiver.port}"
    ended, report = run(server, url, "run", MODEL, "--users", "1", "--requests", "20")
    assert ended.returncode == 0, ended.stderr
    assert report["total"]["requests"] == 20
    warnings = ended.stderr.count(f"Warning: Cannot push metrics to {url}: {problem}. The load continues.")
    # The exporter repeats a push after a 503, and the run can end first.
    assert warnings in ((0, 1) if status == 503 else (1,))
    assert report["notes"][-1].endswith(f"pushes of metrics to {url} failed: {problem}")


@pytest.mark.parametrize("listens", [True, False])
def test_a_receiver_that_is_down_does_not_disturb_the_load(server: Doubling, listens: bool) -> None:
    with ExitStack() as stack:
        closed = stack.enter_context(socket.socket())
        closed.bind(("127.0.0.1", 0))
        if listens:  # it accepts connections and never answers
            closed.listen()
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        load = ("--users", "2", "--duration", "700ms")
        ended, report = run(server, url, "run", MODEL, *load)
    assert ended.returncode == 0, ended.stderr
    assert report["total"]["failures"] == 0
    assert report["total"]["requests"] + report["warm_up_requests"] == len(server.rows)
    reason = "no response at the end" if listens else "Connection refused"
    assert report["notes"][-1].endswith(f"pushes of metrics to {url} failed: {reason}")
    assert ended.stderr.count("Warning") == (0 if listens else 1)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--otlp", "collector:4318"], "is not a URL such as http://localhost:4318"),
        (["--otlp", "grpc://collector:4317"], "is not a URL such as http://localhost:4318"),
        (["--otlp", "http://me:secret@collector:4318"], "Set OTEL_EXPORTER_OTLP_HEADERS"),
        (["--otlp-interval", "1s"], "--otlp-interval has no effect without --otlp"),
    ],
)
def test_invalid_receivers_are_usage_errors(arguments: list[str], complaint: str) -> None:
    ended = forked_command.run("tpuserve-loadtest", "run", MODEL, "--grpc", "127.0.0.1:1", *arguments)
    assert ended.returncode == 2
    assert complaint in ended.stderr
    assert "secret" not in ended.stderr


def test_metrics_are_exact_by_bucket() -> None:
    recorder = LiveLatencyRecorder()
    for latency_us in (500, 1000, 1001, 2000, 90_000_000):
        recorder.record(latency_us)
    counts = Counts(7, 2, latencies=recorder.state())
    metrics = OtlpMetrics(Resource({}), {"model": "m"}, 5)
    data: Any = metrics.data(counts, LiveFigures(2.0, 2.5, 1.0, None), 9)  # points of several types
    requests, latency, throughput, quantiles = data.resource_metrics[0].scope_metrics[0].metrics
    assert [(point.attributes["outcome"], point.value) for point in requests.data.data_points] == [
        ("success", 5),
        ("failure", 2),
    ]
    (histogram,) = latency.data.data_points
    by_bound = dict(zip([*histogram.explicit_bounds, None], histogram.bucket_counts, strict=True))
    assert {bound: count for bound, count in by_bound.items() if count} == {0.0005: 1, 0.001: 1, 0.002: 2, None: 1}
    assert histogram.sum == pytest.approx(90.004501)
    assert (histogram.start_time_unix_nano, histogram.time_unix_nano) == (5, 9)
    assert [point.value for point in throughput.data.data_points] == [2.5]
    assert [(point.attributes["quantile"], point.value) for point in quantiles.data.data_points] == [("0.5", 0.001)]


# Prometheus' and the Collector's translation of units. Names of counters end in `_total`.
_UNITS = {"s": "_seconds", "{request}": "_total", "{request}/s": "_per_second"}
_ROOT = Path(__file__).parents[2]


def test_dashboard_and_page_have_the_metrics_as_prometheus_names_them() -> None:
    data: Any = OtlpMetrics(Resource({}), {"model": "m"}, 5).data(Counts(1), LiveFigures(2.0, 2.5, 1.0, 1.0), 9)
    pushed = data.resource_metrics[0].scope_metrics[0].metrics
    names = {metric.name.replace(".", "_") + _UNITS[metric.unit] for metric in pushed}
    board = (_ROOT / "deploy/observability/grafana/tpuserve-loadtests.json").read_text(encoding="utf-8")
    assert {name.removesuffix("_bucket") for name in re.findall(r"tpuserve_loadtest_\w+", board)} == names
    page = (_ROOT / "docs/how-to/load-test/push-metrics.md").read_text(encoding="utf-8")
    assert set(re.findall(r"`(tpuserve_loadtest_\w+)`", page)) == names


def test_the_environment_names_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_resource().attributes["service.name"] == "tpuserve-loadtest"
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.name=nightly,team=serving")
    attributes = find_resource().attributes
    assert (attributes["service.name"], attributes["team"]) == ("nightly", "serving")
    assert attributes["service.instance.id"]
