"""Tests with TensorFlow Serving's stubs, gRPC's health and reflection clients, and curl."""

import json
import subprocess

import grpc
import numpy as np
import pytest
import tensorflow as tf
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
)

from tests.e2e.running_server import RunningServer
from tests.support.optional import needs


def test_predict_with_the_official_stub(server: RunningServer) -> None:
    request = predict_pb2.PredictRequest()
    request.model_spec.name = "calculator"
    request.inputs["x"].CopyFrom(tf.make_tensor_proto(np.array([[1, 2], [3, 4]], np.float32)))
    with grpc.insecure_channel(server.grpc) as channel:
        response = prediction_service_pb2_grpc.PredictionServiceStub(channel).Predict(request, timeout=30)
    assert response.model_spec.version.value == 3
    assert response.model_spec.signature_name == "serving_default"
    assert list(response.outputs["y"].float_val) == [2, 4, 6, 8]
    assert not response.outputs["y"].tensor_content
    np.testing.assert_array_equal(tf.make_ndarray(response.outputs["y"]), [[2, 4], [6, 8]])


def test_signature_version_and_output_filter(server: RunningServer) -> None:
    request = predict_pb2.PredictRequest(output_filter=["product"])
    request.model_spec.name = "calculator"
    request.model_spec.version.value = 3
    request.model_spec.signature_name = "add"
    for name, value in (("a", 3.0), ("b", 4.0)):
        request.inputs[name].CopyFrom(tf.make_tensor_proto([value]))
    with grpc.insecure_channel(server.grpc) as channel:
        response = prediction_service_pb2_grpc.PredictionServiceStub(channel).Predict(request, timeout=30)
    assert {name: list(tensor.float_val) for name, tensor in response.outputs.items()} == {"product": [12]}


def test_metadata_and_status_with_the_official_stubs(server: RunningServer) -> None:
    with grpc.insecure_channel(server.grpc) as channel:
        ask = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
        ask.model_spec.name = "calculator"
        metadata = prediction_service_pb2_grpc.PredictionServiceStub(channel).GetModelMetadata(ask, timeout=30)
        status_request = get_model_status_pb2.GetModelStatusRequest()
        status_request.model_spec.name = "calculator"
        status = model_service_pb2_grpc.ModelServiceStub(channel).GetModelStatus(status_request, timeout=30)
    signatures = get_model_metadata_pb2.SignatureDefMap()
    assert metadata.metadata["signature_def"].Unpack(signatures)
    assert set(signatures.signature_def) == {"serving_default", "wide", "add", "lookup"}
    assert [dim.size for dim in signatures.signature_def["serving_default"].inputs["x"].tensor_shape.dim] == [-1, 2]
    assert [(version.version, version.state) for version in status.model_version_status] == [(3, 30)]


def test_health_tells_the_truth(server: RunningServer) -> None:
    with grpc.insecure_channel(server.grpc) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for service in ("", "PredictionService", "ModelService"):
            reply = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=30)
            assert reply.status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.RpcError) as caught:
            stub.Check(health_pb2.HealthCheckRequest(service="nobody"), timeout=30)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        watch = stub.Watch(health_pb2.HealthCheckRequest(), timeout=30)
        assert next(iter(watch)).status == health_pb2.HealthCheckResponse.SERVING
        watch.cancel()


def test_reflection_lists_the_services(server: RunningServer) -> None:
    with grpc.insecure_channel(server.grpc) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        services = set(database.get_services())
        assert {"tensorflow.serving.PredictionService", "tensorflow.serving.ModelService"} <= services
        assert "grpc.health.v1.Health" in services
        found = database.FindFileContainingSymbol("tensorflow.serving.PredictionService")
        assert found.service[0].name == "PredictionService"


def curl(*arguments: str) -> tuple[int, dict[str, object]]:
    command = ["curl", "--silent", "--max-time", "30", "--write-out", "\n%{http_code}", *arguments]
    body, _, status = subprocess.run(command, capture_output=True, text=True, check=True).stdout.rpartition("\n")
    return int(status), json.loads(body)


@needs("curl")
def test_curl_row_and_columnar(server: RunningServer) -> None:
    url = f"{server.rest}/v1/models/calculator"
    assert curl("-d", '{"instances": [[1, 2], [3, 4]]}', f"{url}:predict") == (
        200,
        {"predictions": [[2.0, 4.0], [6.0, 8.0]]},
    )
    assert curl("-d", '{"inputs": [[1, 2]]}', f"{url}/versions/3:predict") == (200, {"outputs": [[2.0, 4.0]]})
    rows = '{"signature_name": "add", "instances": [{"a": 1, "b": 2}, {"a": 3, "b": 4}]}'
    assert curl("-d", rows, f"{url}:predict") == (
        200,
        {"predictions": [{"product": 2.0, "sum": 3.0}, {"product": 12.0, "sum": 7.0}]},
    )


@needs("curl")
def test_curl_status_metadata_and_models(server: RunningServer) -> None:
    url = f"{server.rest}/v1/models"
    available = {"version": "3", "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
    assert curl(f"{url}/calculator") == (200, {"model_version_status": [available]})
    status, metadata = curl(f"{url}/calculator/metadata")
    assert status == 200
    assert metadata["model_spec"] == {"name": "calculator", "signature_name": "", "version": "3"}
    status, models = curl(url)
    assert status == 200
    assert "calculator" in json.dumps(models)
    assert curl(f"{server.rest}/readyz")[0] == 200
    assert curl(f"{server.rest}/healthz")[0] == 200


@needs("curl")
def test_metrics_count_what_was_asked(server: RunningServer) -> None:
    curl("-d", '{"instances": [[1, 2]]}', f"{server.rest}/v1/models/calculator:predict")
    page = subprocess.run(
        ["curl", "--silent", f"{server.rest}/metrics"], capture_output=True, text=True, check=True
    ).stdout
    assert (
        'tpuserve_requests_total{code="OK",method="Predict",model_name="calculator",protocol="rest",'
        'signature="serving_default",version="3"}'
    ) in page
    assert ':tensorflow:serving:request_count{model_name="calculator",status="OK"}' in page
    assert 'tpuserve_version_state{model_name="calculator",version="3"} 30.0' in page
