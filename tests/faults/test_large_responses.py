"""Tests for responses over the limit of their size, and large ones below it (case 47)."""

import json

import numpy as np
import pytest

from tests.faults.conftest import MAX_RESPONSE_BYTES
from tests.faults.faulted_server import (
    OIP_GRPC,
    OIP_REST,
    PATIENCE_S,
    PROTOCOLS,
    TF_GRPC,
    Answer,
    FaultedServer,
    Faults,
)
from tests.faults.proto_requests import predict_body
from tpuserve_formats.messages.oip import ModelInferRequest, ModelStreamInferResponse

# Numbers of 4 bytes, or of at most 18 bytes in JSON.
TOO_MANY, MANY = 9_000_000, 1_500_000
# A response of the largest size may stay in the allocator.
LARGE_MB = 200.0


def infer_request(count: int) -> bytes:
    tensor = ModelInferRequest.InferInputTensor(name="count", datatype="INT64", shape=[1])
    infer = ModelInferRequest(
        model_name="m", inputs=[tensor], raw_input_contents=[np.array([count], np.int64).tobytes()]
    )
    infer.parameters["signature_name"].string_param = "wide"
    return bytes(infer.SerializeToString())


def wide(server: FaultedServer, protocol: str, count: int) -> Answer:
    """Request `count` numbers."""
    if protocol == TF_GRPC:
        return server.send(protocol, predict_body("wide", count=np.array([count], np.int64)))
    if protocol == OIP_GRPC:
        return server.send(protocol, infer_request(count))
    if protocol == OIP_REST:
        given = {"name": "count", "datatype": "INT64", "shape": [1], "data": [count]}
        return server.send(protocol, json.dumps({"inputs": [given], "parameters": {"signature_name": "wide"}}).encode())
    return server.send(protocol, json.dumps({"signature_name": "wide", "instances": [{"count": count}]}).encode())


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_response_over_the_limit_is_refused_and_names_its_tensor(faults: Faults, protocol: str) -> None:
    with faults.fault(
        47, "a response of 36 MB, over 32 MiB", protocol, "RESOURCE_EXHAUSTED", "429", memory_mb=LARGE_MB
    ) as attempt:
        answer = wide(faults.server, protocol, TOO_MANY)
        attempt.got = answer.got
        assert f"more than the {MAX_RESPONSE_BYTES} bytes of max_response_bytes" in answer.text
        assert "wide" in answer.text
        assert f"shape [{TOO_MANY}]" in answer.text
        assert "of model m " in answer.text


def test_message_of_a_stream_over_the_limit_is_an_error_and_the_next_is_answered(faults: Faults) -> None:
    with faults.fault(47, "a response of 36 MB, over 32 MiB", "OIP stream", "error", memory_mb=LARGE_MB) as attempt:
        method = faults.server.channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        found = method(iter([infer_request(TOO_MANY), infer_request(MANY)]), timeout=PATIENCE_S)
        refused, answered = map(ModelStreamInferResponse.FromString, found)
        attempt.got = "error" if "bytes of max_response_bytes" in refused.error_message else refused.error_message
        assert len(answered.infer_response.raw_output_contents[0]) == 4 * MANY


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_large_response_below_the_limit_is_answered(faults: Faults, protocol: str) -> None:
    with faults.fault(47, "a response of 6 MB", protocol, "OK", "200", memory_mb=LARGE_MB) as attempt:
        answer = wide(faults.server, protocol, MANY)
        attempt.got = answer.got
        assert len(answer.content) >= 4 * MANY
