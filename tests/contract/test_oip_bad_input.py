"""Wrong requests of the Open Inference Protocol, over both ports."""

import json
from collections.abc import Callable
from typing import Any

import grpc
import numpy as np
import pytest

from tests.contract.oip_client import Channel, post_binary, request
from tests.contract.serving_client import ServingClient, refused
from tpuserve_formats.dtypes import STRING, Array
from tpuserve_formats.messages.oip import ModelInferRequest

HALF = "/v2/models/half/infer"
ONE = np.ones((1, 1), np.float32)


def edited(edit: Callable[[ModelInferRequest], object], x: Array = ONE) -> ModelInferRequest:
    """Return a request with a change that makes it wrong."""
    message = request("kinds", "echo_string", x=x) if x.dtype == STRING else request(x=x)
    edit(message)
    return message


def set_raw(raw: bytes) -> Callable[[ModelInferRequest], object]:
    return lambda message: message.raw_input_contents.__setitem__(0, raw)


def set_shape(*shape: int) -> Callable[[ModelInferRequest], object]:
    return lambda message: message.inputs[0].shape.__setitem__(slice(None), shape)


def set_datatype(datatype: str) -> Callable[[ModelInferRequest], object]:
    return lambda message: setattr(message.inputs[0], "datatype", datatype)


def repeat_input(message: ModelInferRequest) -> None:
    message.inputs.append(message.inputs[0])
    message.raw_input_contents.append(message.raw_input_contents[0])


TEXT = np.array([b"text"], STRING)
# Requests that both forms have: raw contents over gRPC, binary data over REST. The sentences are the same.
WRONG_TENSORS = {
    "cut-short": (edited(set_raw(bytes(3))), "input byte size mismatch for input 'x'"),
    "too-long": (edited(set_raw(bytes(8))), "input byte size mismatch for input 'x'"),
    "duplicate": (edited(repeat_input), "input 'x' already exists in request"),
    "missing": (
        edited(lambda message: (message.inputs.pop(), message.raw_input_contents.pop())),
        "expected 1 inputs but got 0 inputs",
    ),
    "unknown-datatype": (edited(set_datatype("FLOAT")), "data-type is '<invalid>', but model 'half' expects 'FP32'"),
    "negative-shape": (edited(set_shape(-5, 1)), ""),  # REST refuses the sign of a JSON number in `shape`.
    "huge-shape": (edited(set_shape(2**40, 1)), "input byte size mismatch for input 'x'"),
    "count-overflow": (edited(set_shape(2**62, 4)), "unexpected shape for input 'x'"),
    "size-overflow": (edited(set_shape(2**62, 1)), "byte size overflow for input 'x'"),
    "length-cut-short": (edited(set_raw(b"\4\0\0"), x=TEXT), "incomplete string length indicator for inference input"),
    "string-cut-short": (edited(set_raw(b"\4\0\0\0tex"), x=TEXT), "incomplete string data for inference input 'x'"),
    "huge-string": (edited(set_raw(b"\377" * 4), x=TEXT), "incomplete string data for inference input 'x'"),
    "too-many-strings": (edited(set_raw(b"\0" * 8), x=TEXT), "unexpected number of string elements 2"),
}


@pytest.mark.parametrize("name", WRONG_TENSORS)
def test_wrong_tensors_are_refused_over_both_protocols(serving: ServingClient, oip: Channel, name: str) -> None:
    message, sentence = WRONG_TENSORS[name]
    with refused(grpc.StatusCode.INVALID_ARGUMENT, sentence):
        oip.infer(message)
    items = [
        {
            "name": item.name,
            "datatype": item.datatype,
            "shape": list(item.shape),
            "parameters": {"binary_data_size": len(raw)},
        }
        for item, raw in zip(message.inputs, message.raw_input_contents, strict=True)
    ]
    parameters = {name: value.string_param for name, value in message.parameters.items()}
    document = {"inputs": items, "parameters": parameters}
    reply = post_binary(
        serving, f"/v2/models/{message.model_name}/infer", document, b"".join(message.raw_input_contents)
    )
    assert (reply.status, sentence in reply.error) == (400, True), reply.body


def test_empty_typed_contents_beside_raw_ones_are_ignored(oip: Channel) -> None:
    """MLServer's converter sends them."""
    assert oip.infer(edited(lambda message: message.inputs[0].contents.SetInParent())).outputs


def add_typed(message: ModelInferRequest) -> None:
    message.inputs[0].contents.fp32_contents.append(1)


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        (edited(add_typed), "contents field must not be specified when using raw_input_contents for 'x'"),
        (edited(lambda message: message.raw_input_contents.append(b"")), "expected 1 raw_input_contents"),
        (edited(lambda message: message.raw_input_contents.pop()), "input byte size mismatch for input 'x'"),
    ],
    ids=["raw-and-typed", "more-raw-contents", "no-contents"],
)
def test_contents_that_do_not_fit_the_inputs_are_refused(
    oip: Channel, message: ModelInferRequest, sentence: str
) -> None:
    with refused(grpc.StatusCode.INVALID_ARGUMENT, sentence):
        oip.infer(message)


@pytest.mark.parametrize("length", ["-1", "x", "1.5", "100000", "99999999999999999999", "1"])
def test_wrong_header_lengths_are_refused(serving: ServingClient, length: str) -> None:
    body = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [1]}]})
    reply = serving.http("POST", HALF, body, inference_header_content_length=length)
    assert (reply.status, bool(reply.error)) == (400, True)


@pytest.mark.parametrize(
    ("change", "binary", "sentence"),
    [
        ({"parameters": {"binary_data_size": 5}}, bytes(4), "unexpected size for input 'x'"),
        ({"parameters": {"binary_data_size": 2**62}}, bytes(4), "unexpected size for input 'x'"),
        ({"parameters": {"binary_data_size": -4}}, bytes(4), "Unable to parse 'binary_data_size'"),
        ({"parameters": {"binary_data_size": "4"}}, bytes(4), "Unable to parse 'binary_data_size'"),
        ({"parameters": {"binary_data_size": 4}}, bytes(5), "unexpected additional input data for model 'half'"),
        (
            {"parameters": {"binary_data_size": 4}, "data": [1]},
            bytes(4),
            "But set 'data' 'binary_data_size': input 'x'",
        ),
        ({"shape": [2**70, 1], "parameters": {"binary_data_size": 4}}, bytes(4), "Unable to parse 'shape'"),
    ],
)
def test_binary_sizes_that_do_not_add_up_are_refused(
    serving: ServingClient, change: dict[str, Any], binary: bytes, sentence: str
) -> None:
    document = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 1], **change}]}
    reply = post_binary(serving, HALF, document, binary)
    assert (reply.status, sentence in reply.error) == (400, True), reply.body
