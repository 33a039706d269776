"""Tests for the cache of REST requests that differ in the numbers of their only input."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpuserve_server.core.errors import InvalidArgument
from tpuserve_server.core.types import Signature, TensorSpec
from tpuserve_server.wire.oip.decoding import decode_inputs
from tpuserve_server.wire.oip.infer_json import parse_infer_json, recall

SIGNATURE = Signature("s", {"x": TensorSpec("x", np.dtype(np.float32), None)}, {})


def body(data: Any, **more: Any) -> bytes:  # noqa: ANN401  # JSON
    tensor = {"name": "x", "datatype": "FP32", "shape": [2], "data": data}
    return json.dumps({"inputs": [tensor], **more}).encode()


def learn(text: bytes) -> None:
    for _ in range(2):
        parse_infer_json("m", text, None)


def test_a_text_is_known_after_its_second_appearance() -> None:
    parse_infer_json("m", body([1, 2], id="a"), None)
    assert recall(body([3, 4], id="a")) is None
    parse_infer_json("m", body([3, 4], id="a"), None)
    request = recall(body([5, 6.5], id="a"))
    assert request is not None
    assert (request.id, decode_inputs("m", SIGNATURE, request)["x"].tolist()) == ("a", [5.0, 6.5])
    assert recall(body([5, 6], id="b")) is None


@pytest.mark.parametrize("data", [[[1], [2]], ["a]", "b"], [1, "x"], [1, None], [], "[1, 2]"])
def test_a_known_text_with_other_data_means_the_same_as_before(data: object) -> None:
    # A text of its own for each test.
    text = body(data, id=repr(data))

    def outcome() -> object:
        try:
            return decode_inputs("m", SIGNATURE, parse_infer_json("m", text, None))["x"].tolist()
        except InvalidArgument as error:
            return error.message

    before = outcome()
    learn(body([1, 2], id=repr(data)))
    assert recall(body([3, 4], id=repr(data))) is not None
    assert outcome() == before


def test_data_of_another_object_are_not_the_input() -> None:
    text = b'{"parameters": {"data": [%d]}, "inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [9]}]}'
    learn(text % 1)
    assert recall(text % 2) is None
    assert decode_inputs("m", SIGNATURE, parse_infer_json("m", text % 3, None))["x"].tolist() == [9.0]


def test_two_inputs_are_not_known() -> None:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}
    text = json.dumps({"inputs": [tensor, {**tensor, "name": "y"}]}).encode()
    learn(text)
    assert recall(text) is None


def test_long_texts_are_not_known() -> None:
    text = body([1], id="a" * 2000)
    learn(text)
    assert recall(text) is None


def test_the_cache_is_bounded() -> None:
    text = body([1], id="first")
    learn(text)
    assert recall(text) is not None
    for number in range(600):
        learn(body([1], id=f"later {number}"))
    assert recall(text) is None


@given(st.binary(max_size=30), st.binary(max_size=30))
def test_any_bytes_around_the_numbers_are_safe(before: bytes, after: bytes) -> None:
    learn(body([1, 2]))
    for text in (before, before + body([1, 2]), body([1, 2]) + after, body([1, 2]).replace(b"1, 2", after)):
        request = recall(text)
        if request is not None:
            assert json.loads(text)["inputs"][0]["name"] == request.inputs[0].name
