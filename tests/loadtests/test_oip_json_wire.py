"""Tests for requests of the Open Inference Protocol with JSON tensors."""

import json

import ml_dtypes
import numpy as np
import pytest

from tpuserve_client.dtypes import Array
from tpuserve_client.errors import InvalidArgument
from tpuserve_client.exchange import PredictCall
from tpuserve_client.model import ModelSpec
from tpuserve_loadtests.requests.wires import OipJsonWire


def call(array: Array, output_filter: tuple[str, ...] = ()) -> PredictCall:
    return PredictCall(ModelSpec("a model", 2), {"x": array}, output_filter=output_filter)


def test_values_are_in_row_major_order() -> None:
    exchange = OipJsonWire().predict(call(np.arange(6, dtype=np.int8).reshape(3, 2).T))
    assert exchange.path == "/v2/models/a%20model/versions/2/infer"
    assert exchange.headers == {}
    assert json.loads(exchange.body) == {
        "inputs": [{"name": "x", "datatype": "INT8", "shape": [2, 3], "data": [0, 2, 4, 1, 3, 5]}]
    }


@pytest.mark.parametrize(
    ("array", "data"),
    [
        (np.array([True, False]), [True, False]),
        (np.array(["ä".encode()], object), ["ä"]),
        (np.array(1.5), [1.5]),
        (np.array([2], ">i4"), [2]),
        (np.empty((0, 3), np.float32), []),
    ],
)
def test_every_kind_of_value_has_its_json_form(array: Array, data: list[object]) -> None:
    (tensor,) = json.loads(OipJsonWire().predict(call(array)).body)["inputs"]
    assert (tensor["shape"], tensor["data"]) == (list(array.shape), data)


def test_requested_outputs_are_named_without_a_binary_form() -> None:
    document = json.loads(OipJsonWire().predict(call(np.zeros(1), ("y",))).body)
    assert document["outputs"] == [{"name": "y"}]


def test_priority_and_signature_are_parameters() -> None:
    wanted = PredictCall(ModelSpec("m"), {"x": np.zeros(1)}, "other", priority="low")
    document = json.loads(OipJsonWire().predict(wanted).body)
    assert document["parameters"] == {"priority": 2, "signature_name": "other"}


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (np.zeros(1, np.float16), "FP16, which has no JSON form"),
        (np.zeros(1, ml_dtypes.bfloat16), "BF16, which has no JSON form"),
        (np.array([b"\xff"], object), "a string that is not UTF-8, which has no JSON form"),
        (np.zeros(1, np.complex64), "complex64"),
    ],
)
def test_values_without_a_json_form_are_refused(array: Array, reason: str) -> None:
    with pytest.raises(InvalidArgument, match=f"Input x.*{reason}"):
        OipJsonWire().predict(call(array))
