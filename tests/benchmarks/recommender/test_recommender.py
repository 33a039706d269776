"""Tests for the requests, the figures and the reports of the benchmark of the recommender."""

from collections.abc import Callable

import pytest

from benchmarks.recommender.dlrm import SHAPES, requests
from benchmarks.recommender.recommender import Turn, read_turn
from benchmarks.recommender.subjects import NAME
from tpuserve_client.exchange import Exchange, PredictCall
from tpuserve_client.grpc_wire import GrpcWire
from tpuserve_client.model import ModelSpec
from tpuserve_client.oip_grpc_wire import OipGrpcWire
from tpuserve_client.oip_rest_wire import HEADER_LENGTH, OipRestWire
from tpuserve_server.core.terms.types import ModelSpec as ServerModelSpec
from tpuserve_server.wire.layouts import Frame
from tpuserve_server.wire.oip.infer_layout import BodySubject, learn_infer_body, learn_infer_request
from tpuserve_server.wire.predict_layout import learn_predict_request


def learn_binary(exchange: Exchange) -> Frame | None:
    subject = BodySubject(ServerModelSpec(NAME), int(dict(exchange.headers)[HEADER_LENGTH]))
    return learn_infer_body(exchange.body, subject)


@pytest.mark.parametrize(
    ("wire", "learn"),
    [
        (GrpcWire(), lambda exchange: learn_predict_request(exchange.body)),
        (OipGrpcWire(), lambda exchange: learn_infer_request(exchange.body)),
        (OipRestWire(), learn_binary),
    ],
    ids=["Predict", "OIP, gRPC", "OIP, HTTP, binary"],
)
def test_a_request_with_27_tensors_has_a_layout(
    wire: GrpcWire | OipGrpcWire | OipRestWire, learn: Callable[[Exchange], Frame | None]
) -> None:
    exchange = wire.predict(PredictCall(ModelSpec(NAME), requests(SHAPES["mlperf"], 1), None))
    frame = learn(exchange)
    assert frame is not None
    assert len(frame.spans) == 27


def test_figures_without_a_source_are_left_out() -> None:
    report = {
        "total": {"requests": 800, "failures": 3, "rate_per_s": 100.0, "p50_ms": 9.0, "p99_ms": 19.0},
        "server": None,
        "server_process": {"cpu_cores": 0.5},
    }
    expected = {"p50": 9.0, "p99": 19.0, "CPU": 5.0}
    assert read_turn(report, "triton", "OIP, gRPC", 100) == Turn("triton", "OIP, gRPC", 100, 3, expected)


def test_times_of_the_server_are_means_of_a_request() -> None:
    report = {
        "total": {"requests": 800, "failures": 0, "rate_per_s": 100.0, "p50_ms": 9.0, "p99_ms": 19.0},
        "server": {
            "phases": [{"name": "request", "mean_ms": 10.0}, {"name": "queue wait", "mean_ms": 3.0}],
            "execution_ms": 6.5,
            "batch_rows": 1.5,
        },
        "server_process": None,
    }
    figures = read_turn(report, "keras", "gRPC", 100).figures
    assert figures == {"p50": 9.0, "p99": 19.0, "in the server": 10.0, "queue": 3.0, "execution": 6.5, "rows": 1.5}
