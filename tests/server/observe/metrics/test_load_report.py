"""Tests for reports of the load: their figures, and their encodings as readers of ORCA have them."""

import base64
import json
from collections.abc import Mapping
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from tests.support.fakes import FakeClock
from tpuserve_server.core.terms.errors import Code, Fault
from tpuserve_server.observe.metrics.load_report import LoadReports
from tpuserve_server.observe.metrics.prometheus import PrometheusMetrics

# Numbers of the fields in xds/data/orca/v3/orca_load_report.proto.
_DOUBLES = {"cpu_utilization": 1, "mem_utilization": 2, "rps_fractional": 6, "eps": 7, "application_utilization": 9}
_NAMED = {"queue_requests": 0.0, "requests_in_flight": 3.0}
_TYPES = descriptor_pb2.FieldDescriptorProto


def _parse(message: bytes) -> Mapping[str, object]:
    """Parse an OrcaLoadReport by protobuf's own parser, from a descriptor of upstream's fields."""
    file = descriptor_pb2.FileDescriptorProto(name="orca.proto", package="xds.data.orca.v3", syntax="proto3")
    report = file.message_type.add(name="OrcaLoadReport")
    for name, number in _DOUBLES.items():
        report.field.add(name=name, number=number, type=_TYPES.TYPE_DOUBLE, label=_TYPES.LABEL_OPTIONAL)
    entry = report.nested_type.add(name="NamedMetricsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=_TYPES.TYPE_STRING, label=_TYPES.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=_TYPES.TYPE_DOUBLE, label=_TYPES.LABEL_OPTIONAL)
    report.field.add(
        name="named_metrics",
        number=8,
        type=_TYPES.TYPE_MESSAGE,
        label=_TYPES.LABEL_REPEATED,
        type_name=".xds.data.orca.v3.OrcaLoadReport.NamedMetricsEntry",
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    kind = message_factory.GetMessageClass(pool.FindMessageTypeByName("xds.data.orca.v3.OrcaLoadReport"))
    parsed: Any = kind.FromString(message)  # a class made at run time
    return {name: getattr(parsed, name) for name in _DOUBLES} | {"named_metrics": dict(parsed.named_metrics)}


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def metrics() -> PrometheusMetrics:
    metrics = PrometheusMetrics()
    metrics.protocol_served(protocol="grpc", in_flight=lambda: 3)
    return metrics


@pytest.fixture
def reports(metrics: PrometheusMetrics, clock: FakeClock) -> LoadReports:
    return LoadReports(metrics, clock)


def fail(metrics: PrometheusMetrics, fault: Fault, count: int) -> None:
    for _ in range(count):
        metrics.request_failed(model="m", version=1, method="Predict", code=Code.INTERNAL, fault=fault)


def test_errors_are_those_by_the_servers_fault(
    reports: LoadReports, metrics: PrometheusMetrics, clock: FakeClock
) -> None:
    fail(metrics, "server", 8)
    fail(metrics, "client", 100)
    clock.now_s += 4.0
    assert reports.figures().eps == 2.0


def test_errors_of_a_version_that_has_ended_do_not_make_the_rate_negative(
    reports: LoadReports, metrics: PrometheusMetrics, clock: FakeClock
) -> None:
    fail(metrics, "server", 8)
    clock.now_s += 1.0
    reports.figures()
    metrics.forget_requests({("m", 1)})
    clock.now_s += 1.0
    assert reports.figures().eps == 0.0


def test_every_encoding_has_the_same_figures(
    reports: LoadReports, metrics: PrometheusMetrics, clock: FakeClock
) -> None:
    fail(metrics, "server", 3)
    clock.now_s += 2.0
    form, _, text = reports.header("text").partition(" ")
    pairs = dict(part.split("=") for part in text.split(", "))
    assert form == "TEXT"
    assert float(pairs["eps"]) == 1.5
    form, _, document = reports.header("json").partition(" ")
    found = json.loads(document)
    assert (form, found["named_metrics"]) == ("JSON", _NAMED)
    assert {name: f"{found[name]:.6g}" for name in _DOUBLES} == {name: pairs[name] for name in _DOUBLES}
    form, _, encoded = reports.header("bin").partition(" ")
    assert (form, _parse(base64.b64decode(encoded))) == ("BIN", found)
    unpadded = reports.message()
    assert "=" not in unpadded
    assert _parse(base64.b64decode(unpadded + "=" * (-len(unpadded) % 4))) == found


def test_utilizations_are_shares(reports: LoadReports, clock: FakeClock) -> None:
    clock.now_s += 1000.0
    figures = reports.figures()
    assert figures.mem_utilization is not None
    assert 0 < figures.mem_utilization < 1
    assert 0 <= figures.cpu_utilization < 1
    assert figures.application_utilization == 0.0


def test_a_report_is_made_at_most_every_quarter_of_a_second(
    reports: LoadReports, metrics: PrometheusMetrics, clock: FakeClock
) -> None:
    clock.now_s += 1.0
    before = reports.header("text")
    fail(metrics, "server", 5)
    clock.now_s += 0.2
    assert reports.header("text") == before
    assert "eps=0," in reports.header("text")
    clock.now_s += 0.1
    assert "eps=0," not in reports.header("text")
