"""Tests for large JSON requests: they decode as small ones, and are refused before they take memory."""

import json
import tracemalloc
from typing import Any

import numpy as np
import pytest

from tpuserve_formats.oip.datatypes import dtype_of
from tpuserve_server.core.serving.decoded import DecodedBudget
from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.core.terms.types import Signature, TensorSpec
from tpuserve_server.wire.oip.decoding import decode_inputs
from tpuserve_server.wire.oip.infer_json import is_infer_json, parse_infer_json
from tpuserve_server.wire.oip.tensor_json import TakesLong

MEBIBYTE = 1 << 20
ROWS = 100_000
SIGNATURE = Signature(
    "serving_default",
    {
        "f": TensorSpec("f", np.dtype(np.float32), (None, 2)),
        "s": TensorSpec("s", np.dtype(np.object_), (None,)),
    },
    {},
)


def request(**changes: Any) -> bytes:  # noqa: ANN401 (JSON)
    tensors = [
        {"name": "f", "shape": [ROWS, 2], "datatype": "FP32", "data": [[0.5, 1]] * ROWS},
        {"name": "s", "shape": [ROWS], "datatype": "BYTES", "data": ["a],["] * ROWS},
    ]
    tensors[0] |= changes
    return json.dumps({"id": "7", "inputs": tensors}).encode()


def decode(body: bytes, json_bytes: int | None = None) -> dict[str, np.ndarray]:
    return decode_inputs("m", SIGNATURE, parse_infer_json("m", body, json_bytes))


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["plain", "byte order mark"])
def test_data_are_decoded_in_pieces(mark: bytes) -> None:
    body = mark + request()
    parsed = parse_infer_json("m", body, None)
    arrays = decode_inputs("m", SIGNATURE, parsed)
    assert parsed.id == "7"
    np.testing.assert_array_equal(arrays["f"], np.full((ROWS, 2), (0.5, 1), np.float32))
    assert set(arrays["s"].tolist()) == {b"a],["}
    assert is_infer_json(body)


def test_binary_data_may_follow() -> None:
    values = np.arange(ROWS * 2, dtype=np.float32).reshape(ROWS, 2)
    tensors = [
        {"name": "f", "shape": [ROWS, 2], "datatype": "FP32", "parameters": {"binary_data_size": values.nbytes}},
        {"name": "s", "shape": [ROWS], "datatype": "BYTES", "data": ["x"] * ROWS},
    ]
    text = json.dumps({"inputs": tensors}).encode()
    np.testing.assert_array_equal(decode(text + values.tobytes(), len(text))["f"], values)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"data": [True] * 200_000}, "non-number as double: FP32 input 'f' has the value True"),
        ({"data": [0] * 199_999}, "input 'f' has 199999 elements, expected 200000"),
        ({"data": {"a": 1}}, "Unable to parse 'data': attempt to access JSON non-array as array"),
        ({"data": None}, "no field is set"),
        ({"shape": [[1]] * 50_000}, "Unable to parse 'shape'"),
    ],
)
def test_faults_are_those_of_small_requests(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidArgument, match=reason):
        decode(request(**changes))


@pytest.mark.parametrize("item", [b"[]", b"{}", b"0", b'""'])
def test_floods_are_refused_before_they_take_memory(item: bytes) -> None:
    data = b",".join([item] * (4 * MEBIBYTE // (len(item) + 1)))
    body = b'{"inputs":[{"name":"f","shape":[1,2],"datatype":"FP32","data":[%b]}]}' % data
    tracemalloc.start()
    try:
        with pytest.raises(InvalidArgument, match="more than the 8388608 bytes of max_decoded_bytes"):
            parse_infer_json("m", body, None, DecodedBudget(8 * MEBIBYTE))
        assert tracemalloc.get_traced_memory()[1] < 32 * MEBIBYTE
    finally:
        tracemalloc.stop()


def test_floods_outside_the_data_are_refused() -> None:
    body = b'{"inputs":[],"parameters":[%b]}' % b",".join([b"[]"] * 400_000)
    with pytest.raises(InvalidArgument, match="has 1200028 bytes of JSON beside its data"):
        parse_infer_json("m", body, None, DecodedBudget(8 * MEBIBYTE))
    with pytest.raises(InvalidArgument, match="more than 1024 inputs"):
        parse_infer_json("m", b'{"inputs":[%b]}' % b",".join([b"{}"] * 400_000), None)


@pytest.mark.parametrize(
    ("datatype", "item"), [("FP32", b"NaN"), ("BOOL", b"true"), ("BYTES", b'"a"'), ("FP32", b"[1]")]
)
def test_data_that_take_long_are_left_to_a_worker_thread(datatype: str, item: bytes) -> None:
    data = b",".join([item] * 20_000)
    head = b'{"inputs":[{"name":"x","shape":[20000],"datatype":"%b","data":[%b]}]}'
    body = head % (datatype.encode(), data)
    spec = Signature("s", {"x": TensorSpec("x", dtype_of(datatype), None)}, {})
    is_quick = item == b"[1]"
    try:
        quick = decode_inputs("m", spec, parse_infer_json("m", body, None, quickly=True), quickly=True)
    except TakesLong:
        assert not is_quick
    else:
        assert is_quick
        assert quick["x"].tolist() == [1.0] * 20_000
    found = decode_inputs("m", spec, parse_infer_json("m", body, None))["x"]
    assert len(found) == 20_000
    assert str(found[-1]) in ("nan", "True", "b'a'", "1.0")


def test_many_parameters_are_refused_without_a_search_for_each() -> None:
    members = b",".join(b'"k%d":0' % number for number in range(10_000))
    body = b'{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[1]}],"parameters":{%b}}' % members
    with pytest.raises(InvalidArgument, match="an object has more than 1024 keys"):
        parse_infer_json("m", body, None)


def test_large_unknown_members_are_ignored_and_other_text_is_limited() -> None:
    body = b'{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[1]}],"%b":"%b"}'
    request = parse_infer_json("m", body % (b"other", b"a" * 3 * MEBIBYTE), None)
    assert [tensor.name for tensor in request.inputs] == ["x"]
    with pytest.raises(InvalidArgument, match="bytes of JSON beside its data"):
        parse_infer_json("m", body % (b"id", b"a" * 3 * MEBIBYTE), None)
