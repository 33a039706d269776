"""Tests for the typed contents of a tensor over gRPC."""

from typing import Any

import numpy as np
import pytest

from tpuserve_formats.errors import FormatError
from tpuserve_formats.messages.oip import InferTensorContents
from tpuserve_formats.oip.datatypes import DATATYPES, dtype_of
from tpuserve_formats.oip.typed_contents import decode_typed

FIELDS = {
    "BOOL": "bool_contents",
    "INT64": "int64_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
}


def contents_of(field: str, values: list[int]) -> InferTensorContents:
    contents = InferTensorContents()
    getattr(contents, field).extend(values)
    return contents


@pytest.mark.parametrize("datatype", FIELDS)
def test_numbers_are_read_from_the_field_of_their_datatype(datatype: str) -> None:
    array = decode_typed(datatype, [2, 2], contents_of(FIELDS[datatype], [0, 1, 1, 0]))
    assert array.dtype == dtype_of(datatype)
    assert array.tolist() == [[0, 1], [1, 0]]


def test_strings_stay_bytes() -> None:
    array = decode_typed("BYTES", [1, 2], InferTensorContents(bytes_contents=[b"a", b"\xff\x00"]))
    assert array.tolist() == [[b"a", b"\xff\x00"]]


def test_every_datatype_has_a_field_except_the_halves() -> None:
    assert {*FIELDS, "BYTES", "FP16", "BF16"} == set(DATATYPES)


@pytest.mark.parametrize("datatype", ["INT8", "UINT8", "INT16", "UINT16"])
def test_a_value_out_of_range_is_refused(datatype: str) -> None:
    limits = np.iinfo(dtype_of(datatype))
    message = f"{datatype} has the value {limits.max + 1}, expected {limits.min} to {limits.max}"
    with pytest.raises(FormatError, match=message):
        decode_typed(datatype, [2], contents_of(FIELDS[datatype], [0, int(limits.max) + 1]))


@pytest.mark.parametrize(
    ("datatype", "shape", "contents", "message"),
    [
        ("FP32", [3], {"fp32_contents": [1, 2]}, r"FP32 of shape \[3\] needs 3 values, but fp32_contents has 2"),
        ("FP32", [2], {"fp64_contents": [1, 2]}, "FP32 is in fp32_contents, but fp64_contents has 2 values"),
        ("FP16", [1], {"fp32_contents": [1]}, "FP16 has no typed contents; send raw_input_contents"),
        ("BF16", [1], {}, "BF16 has no typed contents"),
        ("BYTES", [2**62], {"bytes_contents": [b"x"]}, "values, but bytes_contents has 1"),
        ("INT32", [-1], {}, "negative dimension"),
        ("STRING", [1], {}, "datatype 'STRING' is unknown"),
    ],
)
def test_contents_that_do_not_fit_are_refused(
    datatype: str, shape: list[int], contents: dict[str, list[Any]], message: str
) -> None:
    with pytest.raises(FormatError, match=message):
        decode_typed(datatype, shape, InferTensorContents(**contents))
