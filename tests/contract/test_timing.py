"""Tests for the stages of a request, which a client gets on demand: a header on REST, a trailer on gRPC."""

import re
from typing import Any

import grpc
import pytest
from tensorflow_serving.apis import classification_pb2

from tests.contract.serving_client import TIMEOUT_S, ServingClient, predict_request

ROW = {"instances": [[2.0]]}
METADATA = [("x-tpuserve-timing", "1")]
STAGES = ["decode", "queue", "batch", "execute", "resume", "encode", "total"]


def durations(header: str) -> dict[str, float]:
    """Return the durations in milliseconds by stage, without those before the server has the whole message."""
    found = re.findall(r'([a-z0-9.]+);dur=([0-9.]+)(?:;desc="[^"]*")?', header)
    stages = {name: float(value) for name, value in found}
    before = stages.pop("receive", 0.0)
    stages["total"] -= before
    return stages


def check(header: str) -> None:
    stages = durations(header)
    assert list(stages) == STAGES
    # Each is rounded.
    assert stages.pop("total") == pytest.approx(sum(stages.values()), abs=0.005)


@pytest.mark.parametrize(
    ("path", "document"),
    [
        ("/v1/models/half:predict", ROW),
        ("/v1/models/half:regress", {"signature_name": "regress_x_to_y", "examples": [{"x": 1.0}]}),
        ("/v2/models/half/infer", {"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [2]}]}),
    ],
)
def test_rest_returns_the_stages_in_a_header(serving: ServingClient, path: str, document: object) -> None:
    reply = serving.post(path, document, x_tpuserve_timing="1")
    assert reply.status == 200
    check(reply.headers["server-timing"])
    assert "half version 124" in reply.headers["server-timing"]
    assert "server-timing" not in serving.post(path, document).headers
    assert "server-timing" not in serving.post(path, document, x_tpuserve_timing="0").headers


def test_grpc_returns_the_stages_in_a_trailer(serving: ServingClient) -> None:
    request = predict_request(x=[[2.0]])
    _, call = serving.prediction.Predict.with_call(request, timeout=TIMEOUT_S, metadata=METADATA)
    check(dict(call.trailing_metadata())["server-timing"])
    _, call = serving.prediction.Predict.with_call(request, timeout=TIMEOUT_S)
    assert "server-timing" not in dict(call.trailing_metadata())


def test_a_failed_request_has_its_stages(serving: ServingClient) -> None:
    reply = serving.post("/v1/models/half:predict", ROW, x_tpuserve_timing="1", x_tpuserve_timeout_ms="0.001")
    assert reply.status == 504
    assert list(durations(reply.headers["server-timing"])) == ["decode", "total"]
    request = classification_pb2.ClassificationRequest(model_spec={"name": "none"})
    with pytest.raises(grpc.RpcError) as raised:
        serving.prediction.Classify(request, timeout=TIMEOUT_S, metadata=METADATA)
    failed: Any = raised.value
    assert list(durations(dict(failed.trailing_metadata())["server-timing"])) == ["decode", "total"]


def test_other_values_are_refused(serving: ServingClient) -> None:
    message = "x-tpuserve-timing must be 0 or 1; was 'on'"
    reply = serving.post("/v1/models/half:predict", ROW, x_tpuserve_timing="on")
    assert (reply.status, reply.error) == (400, message)
    with pytest.raises(grpc.RpcError, match=message) as raised:
        serving.prediction.Predict(
            predict_request(x=[[2.0]]), timeout=TIMEOUT_S, metadata=[("x-tpuserve-timing", "on")]
        )
    refused: Any = raised.value
    assert refused.code() is grpc.StatusCode.INVALID_ARGUMENT
