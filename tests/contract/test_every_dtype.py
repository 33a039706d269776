"""Tests that the client reads every data type that the server's codecs write."""

import numpy as np
import orjson
import pytest

from tpuserve_client.exchange import PredictCall, Reply, Wire
from tpuserve_client.grpc_wire import GrpcWire
from tpuserve_client.model import ModelSpec
from tpuserve_client.rest_wire import RestWire
from tpuserve_formats.dtypes import BY_DTYPE, STRING, Array, DType
from tpuserve_server.core.terms.types import (
    DEFAULT_SIGNATURE_NAME,
    ModelMetadata,
    PredictResult,
    ServableId,
    Signature,
    TensorSpec,
)
from tpuserve_server.wire.json.response import encode_predictions
from tpuserve_server.wire.model_messages import encode_metadata_response, metadata_to_json
from tpuserve_server.wire.predict_proto import decode_predict_inputs, encode_predict_response, parse_predict_request

SERVED = ServableId("m", 7)
SPEC = ModelSpec("m")


def values(dtype: DType) -> Array:
    if dtype == STRING:
        return np.array([b"", b"\xff\x00", "größe".encode()], STRING)
    if dtype.kind == "b":
        return np.array([True, False])
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return np.array([limits.min, 1, limits.max], dtype)
    return np.array([-1.5, 0, 3]).astype(dtype)


def metadata(dtype: DType) -> ModelMetadata:
    tensors = {"y": TensorSpec("y", dtype, (None,))}
    return ModelMetadata(SERVED, {DEFAULT_SIGNATURE_NAME: Signature(DEFAULT_SIGNATURE_NAME, tensors, tensors)})


def read(wire: Wire, described: Reply, answer: Reply) -> Array:
    signature = wire.read_metadata(described, SPEC).signature()
    return wire.read_prediction(answer, PredictCall(SPEC, {}), signature)["y"]


def same(array: Array, sent: Array) -> bool:
    return (array.dtype, array.tolist()) == (sent.dtype, sent.tolist())


@pytest.mark.parametrize("dtype", BY_DTYPE, ids=str)
@pytest.mark.parametrize("as_content", [False, True])
def test_grpc_answer_of_every_dtype_is_read(dtype: DType, as_content: bool) -> None:
    sent = values(dtype)
    body = encode_predict_response(PredictResult(SERVED, DEFAULT_SIGNATURE_NAME, {"y": sent}), as_content=as_content)
    described = Reply(encode_metadata_response(metadata(dtype)))
    assert GrpcWire().read_metadata(described, SPEC).signature().outputs["y"].dtype == dtype
    assert same(read(GrpcWire(), described, Reply(body)), sent)


@pytest.mark.parametrize("dtype", BY_DTYPE, ids=str)
def test_grpc_request_of_every_dtype_is_read_by_the_server(dtype: DType) -> None:
    sent = values(dtype)
    body = GrpcWire().predict(PredictCall(SPEC, {"y": sent})).body
    assert same(decode_predict_inputs(parse_predict_request(body), 0)["y"], sent)


@pytest.mark.parametrize("dtype", [dtype for dtype in BY_DTYPE if dtype.kind != "c"], ids=str)
def test_rest_answer_of_every_dtype_is_read(dtype: DType) -> None:
    sent = values(dtype) if dtype != STRING else np.array([b"", "größe".encode()], STRING)
    described = Reply(orjson.dumps(metadata_to_json(metadata(dtype))))
    assert same(read(RestWire(), described, Reply(encode_predictions({"y": sent}, is_row=False))), sent)
