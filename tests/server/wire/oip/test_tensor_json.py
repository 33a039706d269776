"""Tests for the JSON data of a tensor."""

import json
from typing import Any
from unittest import mock

import ml_dtypes
import numpy as np
import pytest

from tpuserve_formats.oip.datatypes import dtype_of
from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.core.terms.types import Array
from tpuserve_server.wire.json import numbers
from tpuserve_server.wire.json.numbers import parse_quickly
from tpuserve_server.wire.oip.tensor_json import decode_json, values_text


def parse_data(text: bytes) -> Any:  # noqa: ANN401 (a JSON value)
    """Parse data as those of a request, in which lists of numbers stay text."""
    with mock.patch.object(numbers, "_LONG_LIST", 2):
        return parse_quickly(b'{"data":%b}' % text, lambda document: [(document, ("data",))])["data"]


PARSERS = [json.loads, parse_data]


def decode(datatype: str, count: int, text: str, parse: Any = json.loads) -> Array:  # noqa: ANN401  # one of PARSERS
    return decode_json("x", datatype, dtype_of(datatype), count, parse(text.encode()))


@pytest.mark.parametrize("parse", PARSERS)
@pytest.mark.parametrize(
    ("datatype", "text", "values"),
    [
        ("BOOL", "[true, [false]]", [True, False]),
        ("INT8", "[-128, 127]", [-128, 127]),
        ("INT64", f"[{-(2**63)}, {2**63 - 1}]", [-(2**63), 2**63 - 1]),
        ("UINT64", f"[0, {2**64 - 1}]", [0, 2**64 - 1]),
        ("FP32", "[1, 1.5, 1e60]", [1.0, 1.5, float("inf")]),
        ("FP64", "[[1], [0.1]]", [1.0, 0.1]),
        ("BYTES", '["", "a\\u0000\\u00e9"]', [b"", b"a\0\xc3\xa9"]),
    ],
)
def test_values_have_the_dtype_of_their_datatype(parse: Any, datatype: str, text: str, values: list[Any]) -> None:  # noqa: ANN401  # as above
    array = decode(datatype, len(values), text, parse)
    assert (array.dtype, array.tolist()) == (dtype_of(datatype), values)


@pytest.mark.parametrize("parse", PARSERS)
@pytest.mark.parametrize(
    ("datatype", "count", "text", "message"),
    [
        ("FP32", 2, "[1]", "Failed to parse 'data' field: shape does not match true shape: input 'x' has 1 elements"),
        ("FP32", 2, "[]", "Failed to parse 'data' field: shape does not match true shape: input 'x' has 0 elements"),
        ("FP32", 1, "[1, 2]", "Unable to parse 'data': Shape does not match true shape of 'data' field: input 'x' has"),
        ("BYTES", 1, '["a", "b"]', "expected 1 string elements for inference input 'x', got 2"),
        ("BOOL", 1, "[1]", "non-boolean as boolean: BOOL input 'x' has the value 1"),
        ("INT32", 1, "[1.0]", "non-signed-integer as signed-integer: INT32 input 'x' has the value 1.0"),
        ("INT32", 1, "[true]", "non-signed-integer as signed-integer: INT32 input 'x' has the value True"),
        ("UINT8", 1, "[-1]", "non-unsigned-integer as unsigned-integer: UINT8 input 'x' has the value -1, expected 0"),
        ("UINT8", 1, "[300]", "UINT8 input 'x' has the value 300, expected 0 to 255"),
        ("FP32", 1, '["1"]', "non-number as double: FP32 input 'x' has the value '1'"),
        ("FP32", 1, "[null]", "non-number as double: FP32 input 'x' has the value None"),
        ("FP32", 1, "[{}]", "non-number as double: FP32 input 'x' has the value {}"),
        ("BYTES", 1, "[1]", "non-string as string: BYTES input 'x' has the value 1"),
        (
            "FP16",
            1,
            "[1]",
            "receiving FP16 data via JSON is not supported. Please use the binary data format for input",
        ),
        ("BF16", 1, "[1]", "receiving BF16 data via JSON is not supported"),
        ("FP32", 1, "[" * 101 + "1" + "]" * 101, "JSON nesting depth exceeds maximum allowed limit (100)"),
        ("FP32", 2, "[1, " + "[" * 101 + '"a"' + "]" * 102, "JSON nesting depth exceeds maximum allowed limit (100)"),
    ],
)
def test_other_values_are_refused(parse: Any, datatype: str, count: int, text: str, message: str) -> None:  # noqa: ANN401  # as above
    with pytest.raises(InvalidArgument) as caught:
        decode(datatype, count, text, parse)
    assert message in caught.value.message


def test_values_that_only_the_slower_parser_takes_are_refused_or_rounded() -> None:
    assert decode("FP32", 2, "[NaN, -Infinity]").tolist()[1] == float("-inf")
    with pytest.raises(InvalidArgument, match="Unable to parse 'data'"):
        decode("FP32", 1, f"[{10**400}]")


def test_values_of_an_empty_tensor_do_not_matter() -> None:
    assert decode("FP32", 0, '["a"]').size == 0


def test_fifty_levels_of_lists_are_accepted() -> None:
    for parse in PARSERS:
        assert decode("FP32", 1, "[" * 50 + "1" + "]" * 50, parse).tolist() == [1.0]


@pytest.mark.parametrize(
    ("datatype", "array", "text"),
    [
        ("FP32", np.array([[1, 0.1], [np.nan, -np.inf]], np.float32), b"[1.0,0.1,NaN,-Infinity]"),
        ("INT8", np.array(-3, np.int8), b"[-3]"),
        ("BOOL", np.array([True, False])[::-1], b"[false,true]"),
        ("FP32", np.zeros((2, 0), np.float32), b"[]"),
        ("BYTES", np.array([[b"a", "é".encode()]], np.object_), '["a","é"]'.encode()),
    ],
)
def test_values_are_written_flat(datatype: str, array: Array, text: bytes) -> None:
    assert values_text("y", datatype, array) == text


@pytest.mark.parametrize(
    ("datatype", "array", "message"),
    [
        ("FP16", np.zeros(1, np.float16), "sending FP16 data via JSON is not supported. Please use the binary data"),
        ("BF16", np.zeros(1, ml_dtypes.bfloat16), "sending BF16 data via JSON is not supported"),
        ("BYTES", np.array([b"\xff"], np.object_), "output 'y' has a string that is not UTF-8. Please use the binary"),
    ],
)
def test_values_without_json_form_are_refused(datatype: str, array: Array, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        values_text("y", datatype, array)
