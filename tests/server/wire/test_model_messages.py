"""Tests for GetModelStatus and GetModelMetadata as messages and as JSON."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from google.protobuf.json_format import MessageToDict
from google.protobuf.struct_pb2 import Struct
from google.protobuf.wrappers_pb2 import StringValue
from tensorflow.core.framework.types_pb2 import DT_BFLOAT16, DT_INVALID, DT_STRING
from tensorflow_serving.apis.get_model_metadata_pb2 import (
    GetModelMetadataRequest,
    GetModelMetadataResponse,
    SignatureDefMap,
)
from tensorflow_serving.apis.get_model_status_pb2 import (
    GetModelStatusRequest,
    GetModelStatusResponse,
    ModelVersionStatus,
)

from tpuserve_server.core.terms.errors import Code, InvalidArgument
from tpuserve_server.core.terms.types import (
    ModelMetadata,
    ModelSpec,
    Precision,
    ServableId,
    Signature,
    State,
    TensorSpec,
    VersionStatus,
)
from tpuserve_server.wire.model_messages import (
    decode_metadata_request,
    decode_status_request,
    encode_metadata_response,
    encode_status_response,
    metadata_to_json,
    status_to_json,
)

SIGNATURE = Signature(
    "serving_default",
    inputs={"x": TensorSpec("x", np.dtype(ml_dtypes.bfloat16), (None, 3), "x:0")},
    outputs={
        "s": TensorSpec("s", np.dtype(np.object_), None, "s:0"),
        "t": TensorSpec("t", np.dtype("datetime64[s]"), (), "t:0"),
    },
    method_name="tensorflow/serving/predict",
)
METADATA = ModelMetadata(ServableId("m", 123), {"serving_default": SIGNATURE})


def test_response_has_every_signature_and_no_signature_name() -> None:
    response = GetModelMetadataResponse.FromString(encode_metadata_response(METADATA))
    assert (response.model_spec.name, response.model_spec.version.value) == ("m", 123)
    assert response.model_spec.signature_name == ""
    signatures = SignatureDefMap()
    assert response.metadata["signature_def"].Unpack(signatures)
    signature = signatures.signature_def["serving_default"]
    assert signature.method_name == "tensorflow/serving/predict"
    assert signature.inputs["x"].name == "x:0"
    assert signature.inputs["x"].dtype == DT_BFLOAT16
    assert [dim.size for dim in signature.inputs["x"].tensor_shape.dim] == [-1, 3]
    assert signature.outputs["s"].dtype == DT_STRING
    assert signature.outputs["s"].tensor_shape.unknown_rank
    assert signature.outputs["t"].dtype == DT_INVALID
    assert not signature.outputs["t"].tensor_shape.unknown_rank


def test_json_is_upstreams() -> None:
    # Source: tensorflow_serving/servables/tensorflow/testdata/saved_model_half_plus_two_2_versions_metadata.json
    signature = Signature("s", {"x": SIGNATURE.inputs["x"]}, {}, "tensorflow/serving/regress")
    assert metadata_to_json(ModelMetadata(ServableId("m", 123), {"s": signature})) == {
        "model_spec": {"name": "m", "signature_name": "", "version": "123"},
        "metadata": {
            "signature_def": {
                "signature_def": {
                    "s": {
                        "inputs": {
                            "x": {
                                "dtype": "DT_BFLOAT16",
                                "tensor_shape": {
                                    "dim": [{"size": "-1", "name": ""}, {"size": "3", "name": ""}],
                                    "unknown_rank": False,
                                },
                                "name": "x:0",
                            }
                        },
                        "outputs": {},
                        "method_name": "tensorflow/serving/regress",
                        "defaults": {},
                    }
                }
            }
        },
    }


def test_request_is_decoded() -> None:
    request = GetModelMetadataRequest(
        model_spec={"name": "m", "version": {"value": 2}}, metadata_field=["signature_def"]
    )
    assert decode_metadata_request(request.SerializeToString()).spec == ModelSpec("m", version=2)


def test_precision_is_sent_on_request() -> None:
    exact = replace(METADATA, precision=Precision("mixed_bfloat16", 0.02, 0.03))
    fields = {"compute_dtype": "mixed_bfloat16", "atol": 0.02, "rtol": 0.03}
    response = GetModelMetadataResponse.FromString(encode_metadata_response(exact, {"tpuserve_precision"}))
    struct = Struct()
    assert list(response.metadata) == ["tpuserve_precision"]
    assert response.metadata["tpuserve_precision"].Unpack(struct)
    assert dict(struct) == fields
    assert metadata_to_json(exact, ["tpuserve_precision"])["metadata"]["tpuserve_precision"] == fields  # type: ignore[index]  # JSON
    assert encode_metadata_response(exact) == encode_metadata_response(METADATA)
    assert metadata_to_json(exact) == metadata_to_json(METADATA)


def test_the_metrics_of_the_export_are_sent_on_request() -> None:
    accuracy = {"metric": "accuracy", "value": 0.5, "operator": ">=", "bound": 0.25, "output": "scores"}
    evaluation: dict[str, object] = {"file": "rows.npz", "sha256": "ab12", "rows": 40, "metrics": [accuracy]}
    metadata = replace(METADATA, evaluation=evaluation)
    response = GetModelMetadataResponse.FromString(encode_metadata_response(metadata, {"tpuserve_evaluation"}))
    struct = Struct()
    assert response.metadata["tpuserve_evaluation"].Unpack(struct)
    assert MessageToDict(struct) == evaluation
    assert metadata_to_json(metadata, ["tpuserve_evaluation"])["metadata"]["tpuserve_evaluation"] == evaluation  # type: ignore[index]  # JSON


def test_the_hash_of_the_configuration_is_sent_on_request() -> None:
    metadata = replace(METADATA, configuration_sha256="ab12")
    response = GetModelMetadataResponse.FromString(encode_metadata_response(metadata, {"tpuserve_configuration"}))
    struct = Struct()
    assert response.metadata["tpuserve_configuration"].Unpack(struct)
    assert dict(struct) == {"sha256": "ab12"}


def test_a_version_without_tpuserves_own_fields_answers_without_them() -> None:
    fields = ["tpuserve_labels", "tpuserve_precision", "tpuserve_evaluation", "tpuserve_configuration"]
    response = GetModelMetadataResponse.FromString(encode_metadata_response(METADATA, fields))
    assert not response.metadata
    assert metadata_to_json(METADATA, [*fields, "strange"]) == metadata_to_json(METADATA)


@pytest.mark.parametrize("own", ["tpuserve_labels", "tpuserve_precision", "tpuserve_evaluation"])
def test_request_may_ask_for_tpuserves_own_field(own: str) -> None:
    request = GetModelMetadataRequest(model_spec={"name": "m"}, metadata_field=["signature_def", own])
    assert decode_metadata_request(request.SerializeToString()).fields == {"signature_def", own}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"\xff", "Malformed GetModelMetadataRequest"),
        (b"", "Missing ModelSpec"),
        (
            GetModelMetadataRequest(model_spec={"name": "m"}).SerializeToString(),
            "GetModelMetadataRequest must specify at least one metadata_field",
        ),
        (
            GetModelMetadataRequest(model_spec={"name": "m"}, metadata_field=["f"]).SerializeToString(),
            "Metadata field f is not supported",
        ),
        (
            GetModelMetadataRequest(model_spec={}, metadata_field=["signature_def"]).SerializeToString(),
            "ModelSpec has no name specified.",
        ),
    ],
)
def test_bad_requests_are_told_in_upstreams_words(body: bytes, message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        decode_metadata_request(body)
    assert caught.value.message == message


def test_labels_are_sent_on_request() -> None:
    labelled = replace(METADATA, labels=("cat", "größer"))
    response = GetModelMetadataResponse.FromString(encode_metadata_response(labelled, {"tpuserve_labels"}))
    labels = StringValue()
    assert list(response.metadata) == ["tpuserve_labels"]
    assert response.metadata["tpuserve_labels"].Unpack(labels)
    assert labels.value == "cat\ngrößer"
    assert metadata_to_json(labelled, ["tpuserve_labels"])["metadata"]["tpuserve_labels"] == ["cat", "größer"]  # type: ignore[index]  # JSON
    assert encode_metadata_response(labelled) == encode_metadata_response(METADATA)
    assert metadata_to_json(labelled) == metadata_to_json(METADATA)


STATUSES = [
    VersionStatus(ServableId("m", 2), State.END, "no such file", int(Code.NOT_FOUND)),
    VersionStatus(ServableId("m", 1), State.AVAILABLE, notes=("device: cpu",)),
]


def test_status_keeps_order_state_and_error() -> None:
    response = GetModelStatusResponse.FromString(encode_status_response(STATUSES))
    assert [
        (status.version, status.state, status.status.error_code, status.status.error_message)
        for status in response.model_version_status
    ] == [(2, ModelVersionStatus.END, 5, "no such file"), (1, ModelVersionStatus.AVAILABLE, 0, "")]


def test_status_in_json_is_upstreams() -> None:
    # Source: http_rest_api_handler_test.cc, GetStatus
    assert status_to_json(STATUSES) == {
        "model_version_status": [
            {
                "version": "2",
                "state": "END",
                "status": {"error_code": "NOT_FOUND", "error_message": "no such file"},
            },
            {"version": "1", "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}},
        ]
    }


@pytest.mark.parametrize("state", State)
def test_states_are_the_messages(state: State) -> None:
    assert ModelVersionStatus.State.Name(int(state)) == state.name


def test_status_request_is_decoded_even_without_a_name() -> None:
    request = GetModelStatusRequest(model_spec={"version_label": "l"})
    assert decode_status_request(request.SerializeToString()) == ModelSpec("", version_label="l")


@pytest.mark.parametrize(
    ("body", "message"), [(b"\xff", "Malformed GetModelStatusRequest"), (b"", "Missing ModelSpec")]
)
def test_bad_requests_are_refused(body: bytes, message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        decode_status_request(body)
    assert caught.value.message == message


def test_what_a_version_waits_for_goes_where_clients_look_for_errors() -> None:
    waiting = VersionStatus(ServableId("m", 3), State.START, waits="not complete yet: saved_model.pb is missing")
    [status] = GetModelStatusResponse.FromString(encode_status_response([waiting])).model_version_status
    assert (status.state, status.status.error_code) == (ModelVersionStatus.START, 0)
    assert status.status.error_message == "not complete yet: saved_model.pb is missing"
