"""Tests for request options that extend TensorFlow Serving's contract: REST timeouts, and priorities."""

import grpc
import numpy as np
import pytest

from tests.contract.serving_client import TIMEOUT_S, ServingClient, predict_request, refused
from tpuserve_client import Client

ROW = {"instances": [[2.0]]}


@pytest.mark.parametrize("headers", [{"X_Tpuserve_Timeout_Ms": "20000"}, {"x_tpuserve_timeout_ms": "20000.5"}])
def test_a_timeout_long_enough_changes_nothing(serving: ServingClient, headers: dict[str, str]) -> None:
    reply = serving.post("/v1/models/half:predict", ROW, **headers)
    assert (reply.status, reply.json) == (200, {"predictions": [[4.0]]})


@pytest.mark.parametrize(
    ("path", "document"),
    [
        ("/v1/models/half:predict", ROW),
        ("/v1/models/half:regress", {"signature_name": "regress_x_to_y", "examples": [{"x": 1.0}]}),
    ],
)
def test_a_timeout_that_has_passed_is_told(serving: ServingClient, path: str, document: object) -> None:
    reply = serving.post(path, document, x_tpuserve_timeout_ms="0.001")
    assert reply.status == 504
    assert reply.error.startswith("Deadline exceeded before request for {name: half version: 124} was queued")


@pytest.mark.parametrize("value", ["0", "-5", "soon", "1e3", "nan", ""])
def test_a_timeout_that_is_none_is_refused(serving: ServingClient, value: str) -> None:
    reply = serving.post("/v1/models/half:predict", ROW, x_tpuserve_timeout_ms=value)
    assert reply.status == 400
    assert reply.error == f"x-tpuserve-timeout-ms must be a positive number of milliseconds; was {value!r}"


@pytest.mark.parametrize("priority", ["high", "low"])
def test_both_priorities_are_answered(serving: ServingClient, priority: str) -> None:
    reply = serving.post("/v1/models/half:predict", ROW, x_tpuserve_priority=priority)
    assert (reply.status, reply.json) == (200, {"predictions": [[4.0]]})
    metadata = [("x-tpuserve-priority", priority)]
    response = serving.prediction.Predict(predict_request(x=[[2.0]]), timeout=TIMEOUT_S, metadata=metadata)
    assert list(response.outputs["y"].float_val) == [4.0]


@pytest.mark.parametrize("protocol", ["grpc", "rest"])
def test_the_python_client_sends_both(serving: ServingClient, protocol: str) -> None:
    address = serving.grpc_address if protocol == "grpc" else serving.rest_url
    with Client(address, timeout_s=TIMEOUT_S) as client:
        inputs = {"x": np.array([[2.0]], np.float32)}
        assert client.predict("half", inputs, priority="low")["y"].tolist() == [[4.0]]


def test_any_other_is_refused(serving: ServingClient) -> None:
    reply = serving.post("/v1/models/half:predict", ROW, x_tpuserve_priority="urgent")
    assert (reply.status, reply.error) == (400, "x-tpuserve-priority must be high or low; was 'urgent'")
    with refused(grpc.StatusCode.INVALID_ARGUMENT, "x-tpuserve-priority must be high or low; was 'urgent'"):
        serving.prediction.Predict(
            predict_request(x=[[2.0]]), timeout=TIMEOUT_S, metadata=[("x-tpuserve-priority", "urgent")]
        )
