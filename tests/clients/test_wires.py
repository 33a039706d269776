"""Tests for malformed responses and for those of a stock TensorFlow Serving."""

import json

import numpy as np
import pytest

from tpuserve_client.errors import Code, Internal, InvalidArgument
from tpuserve_client.exchange import PredictCall, Reply, Wire
from tpuserve_client.grpc_wire import GrpcWire
from tpuserve_client.model import ModelSpec, Signature, State, TensorSpec, VersionStatus
from tpuserve_client.rest_wire import RestWire

SPEC = ModelSpec("m")
FLOAT = np.dtype(np.float32)
ONE = Signature("serving_default", {}, {"y": TensorSpec("y", FLOAT, (None,))})
TWO = Signature("serving_default", {}, {name: TensorSpec(name, FLOAT, (None,)) for name in "yz"})


@pytest.mark.parametrize("wire", [GrpcWire(), RestWire()], ids=["grpc", "rest"])
@pytest.mark.parametrize("body", [b"\xff\xff\xff", b"[1", b"\xff"])
def test_garbage_is_internal(wire: Wire, body: bytes) -> None:
    with pytest.raises(Internal):
        wire.read_prediction(Reply(body), PredictCall(SPEC, {}), ONE)
    with pytest.raises(Internal):
        wire.read_metadata(Reply(body), SPEC)
    with pytest.raises(Internal):
        wire.read_status(Reply(body))


@pytest.mark.parametrize(
    ("document", "signature"),
    [
        ({}, ONE),
        ([], ONE),
        ({"outputs": {"y": [1]}}, TWO),
        ({"outputs": [1]}, TWO),
        ({"outputs": ["a"]}, ONE),
        ({"outputs": {"z": [1]}}, ONE),
    ],
)
def test_outputs_unlike_the_signature_are_internal(document: object, signature: Signature) -> None:
    with pytest.raises(Internal):
        RestWire().read_prediction(Reply(json.dumps(document).encode()), PredictCall(SPEC, {}), signature)


@pytest.mark.parametrize("body", [b"[" * 5000, b'{"outputs":' * 5000], ids=["lists", "objects"])
def test_bottomless_json_is_internal(body: bytes) -> None:
    with pytest.raises(Internal):
        RestWire().read_prediction(Reply(body), PredictCall(SPEC, {}), ONE)
    with pytest.raises(Internal):
        RestWire().read_status(Reply(body))


@pytest.mark.parametrize("depth", range(100, 1000, 100))
def test_deep_json_is_internal_at_whatever_depth_it_ends(depth: int) -> None:
    """Read JSON nested just below the parser's limit: the parser accepts it, but later steps do not."""
    nested = b"[" * depth + b"]" * depth
    texts = Signature("s", {}, {"y": TensorSpec("y", np.dtype(object), (None,))})
    for signature in (ONE, texts):
        with pytest.raises(Internal):
            RestWire().read_prediction(Reply(b'{"outputs": %b}' % nested), PredictCall(SPEC, {}), signature)
    with pytest.raises(Internal):
        RestWire().read_status(Reply(nested))


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"model_spec": {}},
        {"model_spec": {"version": float("inf")}, "metadata": {"signature_def": {"signature_def": {}}}},
        {"model_version_status": [{"version": float("inf"), "state": "AVAILABLE"}]},
        {"model_spec": {}, "metadata": {"signature_def": {"signature_def": {"s": 1}}}},
        {"model_spec": {"version": "x"}, "metadata": {"signature_def": {"signature_def": {}}}},
        {"model_version_status": [{"state": "AVAILABLE"}]},
        {"model_version_status": 1},
    ],
)
def test_documents_of_another_kind_are_internal(document: object) -> None:
    reply = Reply(json.dumps(document).encode())
    with pytest.raises(Internal, match="is invalid"):
        RestWire().read_metadata(reply, SPEC)
    with pytest.raises(Internal, match="is invalid"):
        RestWire().read_status(reply)


def test_unknown_output_is_refused_in_the_servers_words() -> None:
    reply = Reply(b'{"outputs": [1]}')
    with pytest.raises(InvalidArgument, match=r"output tensor alias not found in signature: q .*\{y\}"):
        RestWire().read_prediction(reply, PredictCall(SPEC, {}, output_filter=("q",)), ONE)


def test_version_is_the_headers_then_the_requests_then_unknown() -> None:
    wire, body = RestWire(), b'{"outputs": [1]}'
    said = Reply(body, {"x-tpuserve-model-version": "0"})
    assert wire.read_prediction(said, PredictCall(SPEC, {}), ONE).version == 0
    assert wire.read_prediction(Reply(body), PredictCall(ModelSpec("m", 3), {}), ONE).version == 3
    assert wire.read_prediction(Reply(body), PredictCall(SPEC, {}), ONE).version is None


@pytest.mark.parametrize("text", ["", "x", "-1", "\u0663", "9" * 19, "9" * 5000])
def test_version_that_is_no_int64_is_unknown(text: str) -> None:
    reply = Reply(b'{"outputs": [1]}', {"x-tpuserve-model-version": text})
    assert RestWire().read_prediction(reply, PredictCall(SPEC, {}), ONE).version is None


def test_string_output_that_is_not_utf8_keeps_its_bytes() -> None:
    text = Signature("s", {}, {"y": TensorSpec("y", np.dtype(object), (None,))})
    prediction = RestWire().read_prediction(Reply(b'{"outputs": ["\xff\xfe"]}'), PredictCall(SPEC, {}), text)
    assert prediction["y"].tolist() == [b"\xff\xfe"]


def test_state_and_code_that_are_new_to_us_are_unknown() -> None:
    item = {"version": "1", "state": "DANCING", "status": {"error_code": "ODD", "error_message": "?"}}
    reply = Reply(json.dumps({"model_version_status": [item]}).encode())
    assert RestWire().read_status(reply) == (VersionStatus(1, State.UNKNOWN, Code.UNKNOWN, "?"),)


def test_unknown_rank_has_no_shape() -> None:
    info = {"dtype": "DT_FLOAT", "tensor_shape": {"dim": [], "unknown_rank": True}, "name": "y:0"}
    document = {
        "model_spec": {"name": "m", "version": "1"},
        "metadata": {"signature_def": {"signature_def": {"s": {"outputs": {"y": info}}}}},
    }
    metadata = RestWire().read_metadata(Reply(json.dumps(document).encode()), SPEC)
    assert str(metadata.signature("s").outputs["y"]) == "y: float32[…]"
