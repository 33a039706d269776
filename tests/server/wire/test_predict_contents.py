"""Property tests for requests without their contents: they decode as whole ones, or stay whole."""

import numpy as np
import pytest
from hypothesis import given, settings
from tensorflow_serving.apis import predict_pb2

from tests.server.wire.predict_messages import Summary, messages, summary
from tpuserve_formats.tensor_proto import encode_tensor
from tpuserve_server.core.terms.errors import ServingError
from tpuserve_server.core.terms.types import ModelSpec
from tpuserve_server.wire import predict_contents
from tpuserve_server.wire.predict_contents import is_slow, split_request
from tpuserve_server.wire.predict_proto import decode_predict_inputs, decode_predict_spec, parse_predict_request

LIMIT_BYTES = 1 << 20


def read(body: bytes, *, splits: bool) -> tuple[ModelSpec, list[str], Summary] | str:
    """Return the contents of a request, or its error."""
    message, contents = split_request(body) if splits else (body, {})
    try:
        proto = parse_predict_request(message)
        inputs = decode_predict_inputs(proto, LIMIT_BYTES, contents=contents)
        return decode_predict_spec(proto), list(proto.output_filter), summary(inputs)
    except ServingError as error:
        return error.message


@pytest.fixture
def _split_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predict_contents, "_LARGE_BYTES", 1)


@pytest.mark.usefixtures("_split_small")
@settings(max_examples=250)
@given(body=messages())
def test_a_split_request_says_what_the_whole_one_does(body: bytes) -> None:
    assert read(body, splits=True) == read(body, splits=False)


def image(array: np.ndarray) -> bytes:
    request = predict_pb2.PredictRequest(model_spec={"name": "m"})
    request.inputs["small"].MergeFromString(encode_tensor(np.ones(4, np.float32), as_content=True))
    request.inputs["x"].MergeFromString(encode_tensor(array, as_content=True))
    return bytes(request.SerializeToString())


def test_large_contents_are_views_of_the_message() -> None:
    body = image(np.random.default_rng(0).random((2, 224, 224, 3), np.float32))
    message, contents = split_request(body)
    assert contents.keys() == {"x"}
    assert len(message) < 200
    inputs = decode_predict_inputs(parse_predict_request(message), 0, contents=contents)
    assert np.shares_memory(inputs["x"], np.frombuffer(body, np.uint8))
    assert not is_slow(parse_predict_request(message), contents)


def test_bools_are_left_to_a_thread() -> None:
    message, contents = split_request(image(np.ones(1 << 17, np.bool_)))
    assert is_slow(parse_predict_request(message), contents)
