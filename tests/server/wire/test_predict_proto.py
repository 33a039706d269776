"""Tests for PredictRequest and PredictResponse against the official messages."""

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorflow.core.framework.tensor_pb2 import TensorProto
from tensorflow_serving.apis import predict_pb2

from tpuserve_formats.dtypes import BY_DTYPE
from tpuserve_server.core.terms.errors import Internal, InvalidArgument
from tpuserve_server.core.terms.types import Array, ModelSpec, PredictResult, ServableId
from tpuserve_server.wire.predict_proto import (
    ResponseTemplate,
    decode_predict_inputs,
    decode_predict_spec,
    decode_tensor,
    encode_predict_request,
    encode_predict_response,
    parse_predict_request,
)

LIMIT = 4000


def message(**spec: object) -> predict_pb2.PredictRequest:
    request = predict_pb2.PredictRequest(model_spec=spec)
    request.inputs["x"].CopyFrom(tf.make_tensor_proto(np.array([[1, 2]], np.float32)))
    return request


def decode(body: bytes) -> tuple[ModelSpec, dict[str, Array]]:
    proto = parse_predict_request(body)
    return decode_predict_spec(proto), decode_predict_inputs(proto, LIMIT)


@pytest.mark.parametrize(
    ("sent", "spec"),
    [
        ({"name": "m"}, ModelSpec("m")),
        ({"name": "m", "signature_name": "s"}, ModelSpec("m", signature_name="s")),
        ({"name": "m", "version": {"value": 9}}, ModelSpec("m", version=9)),
        ({"name": "m", "version": {}}, ModelSpec("m", version=0)),
        ({"name": "m", "version_label": "stable"}, ModelSpec("m", version_label="stable")),
    ],
)
def test_request_is_decoded(sent: dict[str, object], spec: ModelSpec) -> None:
    proto = message(**sent)
    decoded_spec, inputs = decode(proto.SerializeToString())
    assert decoded_spec == spec
    assert inputs.keys() == {"x"}
    np.testing.assert_array_equal(inputs["x"], np.array([[1, 2]], np.float32))


def test_streamed_options_and_client_id_are_ignored() -> None:
    proto = message(name="m")
    proto.client_id = b"c"
    proto.predict_streamed_options.request_state = 1
    assert decode(proto.SerializeToString())[0] == ModelSpec("m")


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"\xff", "Malformed PredictRequest"),
        (message(name="m").SerializeToString()[:-1], "Malformed PredictRequest"),
        (b"", "Missing ModelSpec"),
        (message().SerializeToString(), "ModelSpec has no name specified."),
    ],
)
def test_what_is_no_request_for_a_model_is_refused(body: bytes, text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        decode(body)
    assert caught.value.message == text


def test_bad_tensor_is_named() -> None:
    proto = message(name="m")
    proto.inputs["x"].tensor_content = b"1"
    with pytest.raises(InvalidArgument, match=r"^tensor parsing error: x: tensor_content has 1 bytes"):
        decode(proto.SerializeToString())


def repeated(**counts: int) -> bytes:
    """Return a request that declares zeros and does not send them."""
    proto = predict_pb2.PredictRequest(model_spec={"name": "m"})
    for name, count in counts.items():
        proto.inputs[name].dtype = 1
        proto.inputs[name].tensor_shape.dim.add(size=count)
    return bytes(proto.SerializeToString())


def test_values_repeat_up_to_one_limit_for_all_tensors_together() -> None:
    _, inputs = decode(repeated(a=900, b=100))
    assert {name: array.size for name, array in inputs.items()} == {"a": 900, "b": 100}
    with pytest.raises(
        InvalidArgument,
        match=r"^tensor parsing error: (a|b): shape \[\d+\] is too large for 0 values: repeating the last one "
        r"takes \d+ bytes, and \d+ bytes of max_request_bytes are left$",
    ):
        decode(repeated(a=900, b=101))


def test_values_repeat_for_the_rows_of_a_batch() -> None:
    proto = parse_predict_request(repeated(a=9))
    assert decode_predict_inputs(proto, LIMIT, 9)["a"].shape == (9,)
    with pytest.raises(InvalidArgument, match=r"^Task size 9 is larger than maximum input batch size 8"):
        decode_predict_inputs(proto, LIMIT, 8)


def test_what_was_sent_is_never_over_the_limit() -> None:
    proto = predict_pb2.PredictRequest.FromString(repeated(a=1000))
    for as_content in (False, True):
        proto.inputs[f"sent {as_content}"].dtype = 1
        proto.inputs[f"sent {as_content}"].tensor_shape.dim.add(size=LIMIT)
    proto.inputs["sent True"].tensor_content = b"1234" * LIMIT
    proto.inputs["sent False"].float_val.extend([1] * LIMIT)
    assert sum(array.nbytes for array in decode(proto.SerializeToString())[1].values()) == LIMIT * 9


@given(
    name=st.text(max_size=200),
    version=st.integers(0, 2**63 - 1),
    signature=st.text(max_size=5),
    aliases=st.lists(st.text(max_size=150), max_size=4, unique=True),
    as_content=st.booleans(),
)
@settings(deadline=None)
def test_response_parses_to_the_official_message(
    name: str, version: int, signature: str, aliases: list[str], as_content: bool
) -> None:
    outputs = {alias: np.full((index, 3), index, np.float32) for index, alias in enumerate(aliases)}
    body = encode_predict_response(PredictResult(ServableId(name, version), signature, outputs), as_content=as_content)
    response = predict_pb2.PredictResponse.FromString(body)
    expected = predict_pb2.PredictResponse(
        model_spec={"name": name, "version": {"value": version}, "signature_name": signature}
    )
    assert response.model_spec == expected.model_spec
    assert response.outputs.keys() == outputs.keys()
    for alias, array in outputs.items():
        np.testing.assert_array_equal(tf.make_ndarray(response.outputs[alias]), array)
    # The body contains only bytes that protobuf itself would write.
    assert len(response.SerializeToString()) == len(body)


@settings(deadline=None)
@given(
    arrays=st.dictionaries(
        st.text(max_size=3),
        st.tuples(st.sampled_from(list(BY_DTYPE)), st.lists(st.integers(0, 3), max_size=3)),
        max_size=3,
    ),
    as_content=st.booleans(),
    seed=st.integers(0, 99),
)
def test_a_template_gives_the_bytes_of_the_encoder(
    arrays: dict[str, tuple[np.dtype[np.generic], list[int]]], as_content: bool, seed: int
) -> None:
    def result(random: np.random.Generator) -> PredictResult:
        outputs = {
            name: (random.random(shape) * 99).astype(dtype) if not dtype.hasobject else np.full(shape, b"s", object)
            for name, (dtype, shape) in arrays.items()
        }
        return PredictResult(ServableId("m", 7), "s", outputs)

    random = np.random.default_rng(seed)
    first, second = result(random), result(random)
    template = ResponseTemplate.of(first, as_content=as_content)
    if template is None:
        return
    for each in (first, second):
        assert template.encode(each.outputs) == encode_predict_response(each, as_content=as_content)
    for name, array in first.outputs.items():
        assert template.encode({**first.outputs, name: np.append(array, array)}) is None
        other = np.zeros(array.shape, np.float32 if array.dtype != np.float32 else np.float64)
        assert template.encode({**first.outputs, name: other}) is None
    assert template.encode({**first.outputs, "another": np.zeros(1)}) is None


@pytest.mark.parametrize(
    ("array", "as_content", "has_template"),
    [
        pytest.param(np.zeros((2, 3), np.float32), False, True, id="floats"),
        pytest.param(np.zeros(2, np.bool_), False, True, id="bools"),
        pytest.param(np.zeros(2, np.int64), False, False, id="integers"),
        pytest.param(np.zeros(2, np.int64), True, True, id="integers as content"),
        pytest.param(np.zeros((0, 3), np.float32), False, False, id="no values"),
        pytest.param(np.array([b"s"], object), True, False, id="strings"),
    ],
)
def test_outputs_of_a_fixed_size_have_a_template(array: Array, as_content: bool, has_template: bool) -> None:
    result = PredictResult(ServableId("m", 1), "s", {"y": array})
    assert (ResponseTemplate.of(result, as_content=as_content) is not None) == has_template


def test_outputs_use_typed_fields_unless_told_otherwise() -> None:
    result = PredictResult(
        ServableId("m", 1), "s", {"y": np.array([1, 2], np.float32), "b": np.array([3], ml_dtypes.bfloat16)}
    )
    typed = predict_pb2.PredictResponse.FromString(encode_predict_response(result))
    assert list(typed.outputs["y"].float_val) == [1, 2]
    assert list(typed.outputs["b"].half_val) == [0x4040]
    content = predict_pb2.PredictResponse.FromString(encode_predict_response(result, as_content=True))
    assert content.outputs["y"].tensor_content == np.array([1, 2], np.float32).tobytes()
    assert not content.outputs["y"].float_val


SERVED = ServableId("m", 1)
DATES = {"y": np.zeros(1, "datetime64[s]")}


def test_what_does_not_fit_together_is_refused_by_name() -> None:
    with pytest.raises(InvalidArgument) as caught:
        decode_tensor("image", TensorProto(dtype=20))
    assert caught.value.message == "tensor parsing error: image: dtype 20 is not supported"


def test_tensor_is_decoded() -> None:
    tensor = TensorProto(dtype=1, float_val=[1.5], tensor_shape={"dim": [{"size": 2}]})
    assert decode_tensor("x", tensor).tolist() == [1.5, 1.5]


def test_dtype_without_a_wire_form_is_an_internal_error() -> None:
    with pytest.raises(Internal, match=r"dtype datetime64\[s\] is not supported by TensorProto"):
        encode_predict_response(PredictResult(SERVED, "serving_default", DATES))
    with pytest.raises(Internal, match="datetime64"):
        encode_predict_request(SERVED, "serving_default", DATES)
