"""TensorFlow Serving's contract: GetModelMetadata, GetModelStatus, health, reflection."""

import grpc
import pytest
from grpc import StatusCode
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from tensorflow_serving.apis import get_model_metadata_pb2, get_model_status_pb2

from tests.contract.serving_client import ServingClient, refused

AVAILABLE = get_model_status_pb2.ModelVersionStatus.AVAILABLE


def _metadata(*fields: str, name: str = "half") -> get_model_metadata_pb2.GetModelMetadataRequest:
    request = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=fields)
    request.model_spec.name = name
    return request


def _status(name: str, version: int | None = None, label: str = "") -> get_model_status_pb2.GetModelStatusRequest:
    request = get_model_status_pb2.GetModelStatusRequest()
    request.model_spec.name = name
    if version is not None:
        request.model_spec.version.value = version
    if label:
        request.model_spec.version_label = label
    return request


def test_metadata_holds_every_signature(serving: ServingClient) -> None:
    response = serving.metadata(_metadata("signature_def"))
    signatures = get_model_metadata_pb2.SignatureDefMap()
    assert response.metadata["signature_def"].Unpack(signatures)
    assert signatures.signature_def["regress_x_to_y"].method_name == "tensorflow/serving/regress"
    assert signatures.signature_def["serving_default"].inputs["x"].name == "x:0"


def test_metadata_names_model_and_version_and_no_signature(serving: ServingClient) -> None:
    spec = serving.metadata(_metadata("signature_def")).model_spec
    assert (spec.name, spec.version.value, spec.signature_name) == ("half", 124, "")


def test_metadata_by_label(serving: ServingClient) -> None:
    request = _metadata("signature_def")
    request.model_spec.version_label = "stable"
    assert serving.metadata(request).model_spec.version.value == 123


def test_metadata_without_a_field(serving: ServingClient) -> None:
    with refused(StatusCode.INVALID_ARGUMENT, "GetModelMetadataRequest must specify at least one metadata_field"):
        serving.metadata(_metadata())


def test_metadata_of_an_unknown_field(serving: ServingClient) -> None:
    with refused(StatusCode.INVALID_ARGUMENT, "Metadata field colour is not supported"):
        serving.metadata(_metadata("colour"))


def test_metadata_without_a_spec(serving: ServingClient) -> None:
    with refused(StatusCode.INVALID_ARGUMENT, "Missing ModelSpec"):
        serving.metadata(get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"]))


def test_metadata_of_an_unknown_model(serving: ServingClient) -> None:
    with refused(StatusCode.NOT_FOUND, "Servable not found for request: Latest(nobody)"):
        serving.metadata(_metadata("signature_def", name="nobody"))


def test_status_lists_versions_newest_first(serving: ServingClient) -> None:
    versions = serving.status(_status("half")).model_version_status
    assert [(version.version, version.state) for version in versions] == [(124, AVAILABLE), (123, AVAILABLE)]
    assert [version.status.error_code for version in versions] == [0, 0]


def test_status_of_one_version(serving: ServingClient) -> None:
    assert [v.version for v in serving.status(_status("half", 123)).model_version_status] == [123]


def test_status_ignores_a_label(serving: ServingClient) -> None:
    assert [v.version for v in serving.status(_status("half", label="stable")).model_version_status] == [124, 123]


def test_status_of_an_unknown_model(serving: ServingClient) -> None:
    with refused(StatusCode.NOT_FOUND, "Could not find any versions of model nobody"):
        serving.status(_status("nobody"))


def test_status_of_an_unknown_version(serving: ServingClient) -> None:
    with refused(StatusCode.NOT_FOUND, "Could not find version 9 of model half"):
        serving.status(_status("half", 9))


def test_status_without_a_spec(serving: ServingClient) -> None:
    with refused(StatusCode.INVALID_ARGUMENT, "Missing ModelSpec"):
        serving.status(get_model_status_pb2.GetModelStatusRequest())


@pytest.mark.parametrize("name", ["", "ModelService", "PredictionService"])
def test_health_of_the_names_that_upstream_registers(serving: ServingClient, name: str) -> None:
    with grpc.insecure_channel(serving.grpc_address) as channel:
        reply = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=name), timeout=30)
    assert reply.status == health_pb2.HealthCheckResponse.SERVING


def test_reflection_tells_every_service(serving: ServingClient) -> None:
    with grpc.insecure_channel(serving.grpc_address) as channel:
        services = set(ProtoReflectionDescriptorDatabase(channel).get_services())
    assert {
        "tensorflow.serving.PredictionService",
        "tensorflow.serving.ModelService",
        "tensorflow.ProfilerService",
        "grpc.health.v1.Health",
    } <= services
    assert "tensorflow.serving.SessionService" not in services
