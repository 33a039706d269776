"""Tests for the recognition of bodies like earlier ones. test_json_numbers tests the arrays."""

import json

import numpy as np
import pytest

from tpuserve_server.core.types import Signature, TensorSpec
from tpuserve_server.wire.json.tensor import decode_predict_inputs, parse_predict_body, recall

X = Signature("serving_default", {"x": TensorSpec("x", np.dtype(np.float32), None)}, {})


def learn(body: bytes) -> None:
    decode_predict_inputs(parse_predict_body(body), X)


@pytest.mark.parametrize(
    ("known", "like_it", "shape"),
    [
        (b'{"instances":[[1,2],[3,4]]}', b' {"instances": [[10, 2e3], [-0.5, 4]]}\n', (2, 2)),
        (b'{"inputs":[1,2,3]}', b'{"inputs":[1.25,2,3]}', (3,)),
        (b'{"signature_name":"s1","instances":[7]}', b'{"signature_name":"s1","instances":[8]}', (1,)),
    ],
)
def test_a_body_with_other_numbers_is_recognised(known: bytes, like_it: bytes, shape: tuple[int, ...]) -> None:
    learn(known)
    recalled = recall(like_it)
    assert recalled is not None
    inputs = recalled.convert(X)
    assert inputs is not None
    expected = json.loads(like_it)
    assert inputs["x"].shape == shape
    assert inputs["x"].tolist() == (expected.get("instances") or expected.get("inputs"))
    assert recalled.signature_name == expected.get("signature_name", "")
    assert recalled.is_row == ("instances" in expected)


def test_names_that_differ_in_a_digit_are_told_apart() -> None:
    learn(b'{"signature_name":"first1","instances":[1]}')
    recalled = recall(b'{"signature_name":"first2","instances":[1]}')
    assert recalled is not None
    assert recalled.signature_name == "first2"


@pytest.mark.parametrize(
    "body",
    [
        b'{"instances":[[1,2],[3,true]]}',
        b'{"instances":[[1,2],[3,"4"]]}',
        b'{"instances":[[1,2],[3,null]]}',
        b'{"instances":[[1,2],[3,NaN]]}',
        b'{"instances":[[1,2],[3,4]],"instances":[[1,2],[3,4]]}',
        b'{"instances":[[1,2],[[3],4]]}',
        # Equal text apart from numbers.
        b'{"instanc1es":[[1,2],[3,4]]}',
        b'{"instances":[[1,2],[3,--4]]}',
        b'{"instances":[[1,2],[3,4 5]]}',
    ],
)
def test_a_body_that_differs_in_more_than_numbers_is_not_recognised(body: bytes) -> None:
    learn(b'{"instances":[[1,2],[3,4]]}')
    assert recall(body) is None


def test_an_array_of_nothing_is_not_taken_for_one_number() -> None:
    learn(b'{"instances":[[1],[2]]}')
    recalled = recall(b'{"instances":[[1],[]]}')
    assert recalled is not None
    assert recalled.convert(X) is None


def test_objects_and_scalars_are_left_to_the_other_ways() -> None:
    padding = b" " * 2048
    for body in (b'{"instances":[{"x":[1,2]}]}' + padding, b'{"inputs":{"x":[1,2]}}' + padding, b'{"inputs":5}'):
        learn(body)
        assert recall(body) is None


def test_only_so_many_are_kept() -> None:
    first = b'{"instances":[1,2]}'
    learn(first)
    for size in range(1, 600):
        learn(json.dumps({"signature_name": "a", "instances": [0] * size}).encode())
    assert recall(first) is None
