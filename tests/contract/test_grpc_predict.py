"""TensorFlow Serving's contract: PredictionService.Predict."""

import grpc
import numpy as np
import pytest
import tensorflow as tf
from grpc import StatusCode
from tensorflow_serving.apis import predict_pb2

from tests.contract.serving_client import ServingClient, predict_request, refused
from tests.contract.serving_models import DTYPES

VALUES = {tf.string: [b"one", b"\xff\x00"], tf.bool: [True, False], tf.complex64: [1 + 2j, -3j]}
TYPED_FIELD = {
    tf.float32: "float_val", tf.float64: "double_val", tf.int8: "int_val", tf.int16: "int_val", tf.int32: "int_val",
    tf.int64: "int64_val", tf.uint8: "int_val", tf.uint16: "int_val", tf.uint32: "uint32_val",
    tf.uint64: "uint64_val", tf.bool: "bool_val", tf.string: "string_val", tf.complex64: "scomplex_val",
    tf.complex128: "dcomplex_val", tf.float16: "half_val", tf.bfloat16: "half_val",
}  # fmt: skip


def _values(dtype: tf.DType) -> np.ndarray:
    return np.array(VALUES.get(dtype, [1, 100]), dtype.as_numpy_dtype)


def test_latest_version_answers_where_none_is_named(serving: ServingClient) -> None:
    response = serving.predict(predict_request(x=[[2.0], [4.0]]))
    assert response.model_spec.name == "half"
    assert response.model_spec.version.value == 124
    np.testing.assert_array_equal(tf.make_ndarray(response.outputs["y"]), [[4.0], [5.0]])


def test_a_version_is_named_by_number(serving: ServingClient) -> None:
    request = predict_request(x=[[2.0]])
    request.model_spec.version.value = 123
    response = serving.predict(request)
    assert list(response.outputs["y"].float_val) == [3.0]
    assert response.model_spec.version.value == 123


@pytest.mark.parametrize(("label", "version"), [("stable", 123), ("canary", 124)])
def test_a_version_is_named_by_label_and_answers_by_number(serving: ServingClient, label: str, version: int) -> None:
    request = predict_request(x=[[2.0]])
    request.model_spec.version_label = label
    response = serving.predict(request)
    assert response.model_spec.version.value == version
    assert response.model_spec.version_label == ""


def test_an_empty_signature_name_means_serving_default_and_is_told(serving: ServingClient) -> None:
    assert serving.predict(predict_request(x=[[2.0]])).model_spec.signature_name == "serving_default"


def test_a_signature_is_named(serving: ServingClient) -> None:
    response = serving.predict(predict_request("kinds", "two", a=[3.0], b=[1.0]))
    assert response.model_spec.signature_name == "two"
    assert {name: list(out.float_val) for name, out in response.outputs.items()} == {"sum": [4.0], "difference": [2.0]}


def test_predict_may_call_a_regress_signature_with_raw_tensors(serving: ServingClient) -> None:
    response = serving.predict(predict_request("half", "regress_x2_to_y3", inputs=[[2.0]]))
    assert list(response.outputs["outputs"].float_val) == [4.0]


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype.name))
def test_every_dtype_comes_back_in_its_typed_field(serving: ServingClient, dtype: tf.DType) -> None:
    response = serving.predict(predict_request("kinds", f"echo_{dtype.name}", x=tf.make_tensor_proto(_values(dtype))))
    output = response.outputs["y"]
    np.testing.assert_array_equal(tf.make_ndarray(output), _values(dtype))
    assert not output.tensor_content
    assert len(getattr(output, TYPED_FIELD[dtype])) > 0
    assert output.dtype == dtype.as_datatype_enum


@pytest.mark.parametrize("dtype", [t for t in DTYPES if t is not tf.string], ids=lambda dtype: str(dtype.name))
def test_every_dtype_is_taken_as_tensor_content(serving: ServingClient, dtype: tf.DType) -> None:
    values = _values(dtype)
    proto = tf.make_tensor_proto(values)
    for field in {*TYPED_FIELD.values()}:
        proto.ClearField(field)
    proto.tensor_content = values.tobytes()
    response = serving.predict(predict_request("kinds", f"echo_{dtype.name}", x=proto))
    np.testing.assert_array_equal(tf.make_ndarray(response.outputs["y"]), values)


def test_a_short_typed_field_repeats_its_last_value(serving: ServingClient) -> None:
    proto = tf.make_tensor_proto(np.zeros(4, np.float32))
    proto.ClearField("tensor_content")
    proto.float_val[:] = [1.0, 2.0]
    response = serving.predict(predict_request("kinds", "echo_float32", x=proto))
    assert list(response.outputs["y"].float_val) == [1.0, 2.0, 2.0, 2.0]


def test_a_shape_outside_of_the_signature_is_refused(serving: ServingClient) -> None:
    with refused(StatusCode.INVALID_ARGUMENT, "input 'x' has shape [2], expected [-1, 1]"):
        serving.predict(predict_request(x=[2.0, 4.0]))


def test_a_tensor_without_elements_may_not_have_large_dimensions(serving: ServingClient) -> None:
    request = predict_request("kinds", "sums", x=np.zeros((3, 0), np.float32))
    assert list(serving.predict(request).outputs["sum"].float_val) == [0, 0, 0]
    del request.inputs["x"].tensor_shape.dim[:]
    for size in (2**45, 0):
        request.inputs["x"].tensor_shape.dim.add(size=size)
    with refused(
        StatusCode.INVALID_ARGUMENT, "input 'x' has shape [35184372088832, 0], but may have no elements only if"
    ):
        serving.predict(request)


def test_output_filter_chooses_outputs(serving: ServingClient) -> None:
    request = predict_request("kinds", "two", a=[3.0], b=[1.0])
    request.output_filter[:] = ["sum"]
    assert list(serving.predict(request).outputs) == ["sum"]


def test_client_id_is_ignored(serving: ServingClient) -> None:
    request = predict_request(x=[[2.0]])
    request.client_id = b"someone"
    assert list(serving.predict(request).outputs["y"].float_val) == [4.0]


# Errors: spec, section 1.


def test_no_model_spec(serving: ServingClient) -> None:
    with refused(StatusCode.INVALID_ARGUMENT, "Missing ModelSpec"):
        serving.predict(predict_pb2.PredictRequest())


def test_no_model_name(serving: ServingClient) -> None:
    request = predict_pb2.PredictRequest()
    request.model_spec.signature_name = "serving_default"
    with refused(StatusCode.INVALID_ARGUMENT, "ModelSpec has no name specified."):
        serving.predict(request)


def test_unknown_model(serving: ServingClient) -> None:
    with refused(StatusCode.NOT_FOUND, "Servable not found for request: Latest(nobody)"):
        serving.predict(predict_request("nobody", x=[1.0]))


def test_unknown_version(serving: ServingClient) -> None:
    request = predict_request(x=[[1.0]])
    request.model_spec.version.value = 9
    with refused(StatusCode.NOT_FOUND, "Servable not found for request: Specific(half, 9)"):
        serving.predict(request)


def test_unknown_label(serving: ServingClient) -> None:
    request = predict_request(x=[[1.0]])
    request.model_spec.version_label = "nightly"
    with refused(StatusCode.INVALID_ARGUMENT, "Unrecognized servable version label: nightly"):
        serving.predict(request)


def test_unknown_signature(serving: ServingClient) -> None:
    with refused(StatusCode.FAILED_PRECONDITION, 'Serving signature key "absent" not found.'):
        serving.predict(predict_request("half", "absent", x=[[1.0]]))


def test_missing_input(serving: ServingClient) -> None:
    message = (
        "input size does not match signature: 0!=1 len({}) != len({x}). Sent extra: {}. Missing but required: {x}."
    )
    with refused(StatusCode.INVALID_ARGUMENT, message):
        serving.predict(predict_request("half"))


def test_extra_input(serving: ServingClient) -> None:
    message = (
        "input size does not match signature: 2!=1 len({x,z}) != len({x}). Sent extra: {z}. Missing but required: {}."
    )
    with refused(StatusCode.INVALID_ARGUMENT, message):
        serving.predict(predict_request("half", x=[[1.0]], z=[1.0]))


def test_wrong_dtype_names_the_input(serving: ServingClient) -> None:
    with refused(StatusCode.INVALID_ARGUMENT, "x"):
        serving.predict(predict_request("half", x=tf.make_tensor_proto(np.array([[1]], np.int32))))


def test_unknown_output_in_the_filter(serving: ServingClient) -> None:
    request = predict_request(x=[[1.0]])
    request.output_filter[:] = ["z"]
    message = "output tensor alias not found in signature: z Outputs expected to be in the set {y}."
    with refused(StatusCode.INVALID_ARGUMENT, message):
        serving.predict(request)


def test_an_output_twice_in_the_filter(serving: ServingClient) -> None:
    request = predict_request(x=[[1.0]])
    request.output_filter[:] = ["y", "y"]
    with refused(StatusCode.INVALID_ARGUMENT, "duplicate output tensor alias: y"):
        serving.predict(request)


@pytest.mark.parametrize(
    "shape", [[-1, 1], [2**40, 2**40], [2**62, 4], [3, 1]], ids=["negative", "overflow", "huge", "too few values"]
)
def test_a_shape_that_does_not_fit_its_content_allocates_nothing(serving: ServingClient, shape: list[int]) -> None:
    proto = tf.make_tensor_proto(np.zeros((1, 1), np.float32))
    proto.ClearField("float_val")
    proto.tensor_content = b"\0" * 4
    for dim, size in zip(proto.tensor_shape.dim, shape, strict=True):
        dim.size = size
    with refused(StatusCode.INVALID_ARGUMENT, "x"):
        serving.predict(predict_request("half", x=proto))


def test_a_message_over_the_limit(serving: ServingClient) -> None:
    with refused(StatusCode.RESOURCE_EXHAUSTED, "8000000"):
        serving.predict(predict_request("kinds", "echo_float32", x=np.zeros(3_000_000, np.float32)))


def test_a_long_message_is_cut(serving: ServingClient) -> None:
    with refused(StatusCode.NOT_FOUND, "...TRUNCATED"):
        serving.predict(predict_request("m" * 1010, x=[1.0]))


def test_bytes_that_are_no_request(serving: ServingClient) -> None:
    with grpc.insecure_channel(serving.grpc_address) as channel:
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
            "/tensorflow.serving.PredictionService/Predict"
        )
        with refused(StatusCode.INVALID_ARGUMENT, "PredictRequest"):
            call(b"\xff\xff\xff", timeout=30)


def test_a_method_that_is_not_served(serving: ServingClient) -> None:
    with grpc.insecure_channel(serving.grpc_address) as channel:
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
            "/tensorflow.serving.SessionService/SessionRun"
        )
        with refused(StatusCode.UNIMPLEMENTED, "SessionRun"):
            call(b"", timeout=30)
