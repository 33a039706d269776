"""Tests for inference responses over REST."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.formats.oip.test_raw_tensor import tensors
from tpuserve_formats.oip.raw_tensor import decode_raw
from tpuserve_server.core.terms.errors import Unimplemented
from tpuserve_server.core.terms.types import Array, ServableId
from tpuserve_server.wire.oip.infer_json_response import encode_infer_json
from tpuserve_server.wire.oip.inference import InferenceResult, RequestedOutput

SERVABLE = ServableId("m", 7)
Y = np.array([[2.5, 3]], np.float32)


def test_a_response_in_json_has_triton_s_keys_in_its_order() -> None:
    encoded = encode_infer_json(InferenceResult('q"', SERVABLE, {"y": Y}, {}, is_binary=False))
    assert encoded.json_bytes is None
    assert encoded.body == (
        b'{"id":"q\\"","model_name":"m","model_version":"7","outputs":'
        b'[{"name":"y","datatype":"FP32","shape":[1,2],"data":[2.5,3.0]}]}'
    )


def test_binary_outputs_follow_the_json_in_order() -> None:
    requested = {name: RequestedOutput(name, 0, name != "b") for name in "abc"}
    result = InferenceResult("", SERVABLE, {"a": Y, "b": Y, "c": Y + 1}, requested, is_binary=False)
    body, json_bytes = encode_infer_json(result)
    assert json_bytes is not None
    document = json.loads(body[:json_bytes])
    assert "id" not in document
    assert [output.get("parameters") for output in document["outputs"]] == [
        {"binary_data_size": 8},
        None,
        {"binary_data_size": 8},
    ]
    assert document["outputs"][1]["data"] == [2.5, 3.0]
    assert body[json_bytes:] == Y.tobytes() + (Y + 1).tobytes()


def test_the_default_form_is_for_outputs_that_the_request_does_not_name() -> None:
    requested = {"b": RequestedOutput("b")}
    body, json_bytes = encode_infer_json(InferenceResult("", SERVABLE, {"a": Y, "b": Y}, requested, is_binary=True))
    outputs = json.loads(body[:json_bytes])["outputs"]
    assert ["parameters" in output for output in outputs] == [True, False]


def test_empty_binary_outputs_need_no_length() -> None:
    body, json_bytes = encode_infer_json(InferenceResult("", SERVABLE, {"a": Y[:0]}, {}, is_binary=True))
    assert json_bytes is None
    assert json.loads(body)["outputs"] == [
        {"name": "a", "datatype": "FP32", "shape": [0, 2], "parameters": {"binary_data_size": 0}}
    ]


def test_an_output_without_datatype_is_refused_by_name() -> None:
    with pytest.raises(Unimplemented, match="output 'c': dtype complex128 has no datatype"):
        encode_infer_json(InferenceResult("", SERVABLE, {"c": np.zeros(1, np.complex128)}, {}, is_binary=True))


@given(st.lists(tensors(), max_size=3))
def test_binary_outputs_survive_the_trip(arrays: list[Array]) -> None:
    outputs = {str(index): array for index, array in enumerate(arrays)}
    body, json_bytes = encode_infer_json(InferenceResult("", SERVABLE, outputs, {}, is_binary=True))
    length = len(body) if json_bytes is None else json_bytes
    document, rest = json.loads(body[:length]), body[length:]
    for array, output in zip(arrays, document["outputs"], strict=True):
        size = output["parameters"]["binary_data_size"]
        copy = decode_raw(output["datatype"], output["shape"], rest[:size])
        rest = rest[size:]
        assert (copy.shape, copy.dtype, copy.tobytes()) == (array.shape, array.dtype, array.tobytes())
    assert rest == b""
