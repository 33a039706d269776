"""Tests for REST predict responses: forms, numbers, strings and messages."""

import base64
import json
import tracemalloc
from collections.abc import Sequence

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tpuserve_formats.dtypes import BY_DTYPE
from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.core.terms.types import Array
from tpuserve_server.wire.json import array_text, response
from tpuserve_server.wire.json.response import encode_predictions

NUMERIC = [dtype for dtype in BY_DTYPE if dtype.kind not in "Oc"]
SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)


@st.composite
def arrays(draw: st.DrawFn, first: int | None = None) -> Array:
    """Draw arrays of any numbers. `first` sets the number of rows."""
    dtype = draw(st.sampled_from(NUMERIC))
    shape = draw(SHAPES) if first is None else (first, *draw(SHAPES))
    if dtype == np.bool_:
        return draw(hnp.arrays(np.bool_, shape))
    raw = draw(hnp.arrays(np.uint8, (*shape, dtype.itemsize)))
    return np.frombuffer(raw.tobytes(), dtype).reshape(shape)


def strings(values: Sequence[object]) -> Array:
    return np.array(values, np.object_)


def check_numbers(value: object, array: Array) -> None:
    """Check that `value` has the array's shape and numbers, and floats where the array has floats."""
    if array.ndim == 0:
        assert type(value) is {"b": bool, "i": int, "u": int}.get(array.dtype.kind, float)
        # The values include signalling NaNs and values above the limit.
        with np.errstate(all="ignore"):
            read = np.asarray(value).astype(array.dtype)
            if array.dtype.kind not in "biu":
                # numpy's comparison does not recognize the NaNs of ml_dtypes.
                read, array = read.astype(np.float64), array.astype(np.float64)
        np.testing.assert_array_equal(read, array)
        return
    assert isinstance(value, list)
    assert len(value) == len(array)
    for item, row in zip(value, array, strict=True):
        check_numbers(item, np.asarray(row))


@given(arrays())
@settings(max_examples=300, deadline=None)
def test_every_number_of_every_dtype_reads_back(array: Array) -> None:
    check_numbers(json.loads(encode_predictions({"y": array}, is_row=False))["outputs"], array)


@given(arrays(first=2), arrays(first=2))
@settings(max_examples=200, deadline=None)
def test_rows_of_several_outputs_are_objects(left: Array, right: Array) -> None:
    rows = json.loads(encode_predictions({"l": left, "r": right}, is_row=True))["predictions"]
    assert len(rows) == 2
    for index, row in enumerate(rows):
        assert row.keys() == {"l", "r"}
        check_numbers(row["l"], np.asarray(left[index]))
        check_numbers(row["r"], np.asarray(right[index]))


@pytest.mark.parametrize(
    ("outputs", "is_row", "body"),
    [
        ({"y": np.array([2.5, 3], np.float32)}, True, b'{"predictions":[2.5,3.0]}'),
        ({"y": np.array([2.5, 3], np.float32)}, False, b'{"outputs":[2.5,3.0]}'),
        ({"y": np.float32(0.1)}, False, b'{"outputs":0.1}'),
        ({"y": np.array(True)}, False, b'{"outputs":true}'),
        ({"y": np.array(1, ml_dtypes.bfloat16)}, False, b'{"outputs":1.0}'),
        (
            {"a": np.array([1], np.int64), "b": np.array([[1]], np.float32)},
            True,
            b'{"predictions":[{"a":1,"b":[1.0]}]}',
        ),
        ({"a": np.array([1], np.int64), "b": np.float32(1)}, False, b'{"outputs":{"a":[1],"b":1.0}}'),
        ({"y": np.zeros((0, 3), np.float32)}, True, b'{"predictions":[]}'),
        ({"a": np.zeros(0), "b": np.zeros(0)}, True, b'{"predictions":[]}'),
        (
            {"y": np.array([1, np.nan, np.inf, -np.inf], np.float32)},
            True,
            b'{"predictions":[1.0,NaN,Infinity,-Infinity]}',
        ),
        ({"y": np.array([[np.nan], [2]], np.float16)}, True, b'{"predictions":[[NaN],[2.0]]}'),
        ({"y": np.float64(-np.inf)}, False, b'{"outputs":-Infinity}'),
        (
            {"a": np.array([np.nan, 1], np.float32), "s": strings([b"null", b"x"])},
            True,
            b'{"predictions":[{"a":NaN,"s":"null"},{"a":1.0,"s":"x"}]}',
        ),
        ({"s": strings([b"null", "é".encode()])}, True, '{"predictions":["null","é"]}'.encode()),
        ({'"': strings([]), "b": strings([])}, False, b'{"outputs":{"\\"":[],"b":[]}}'),
        ({"s": strings([b"ok", b"\xff"])}, True, b'{"predictions":["ok",{"b64":"/w=="}]}'),
        ({"s_bytes": strings([[b"hello"]])}, True, b'{"predictions":[[{"b64":"aGVsbG8="}]]}'),
        ({"x_bytes": np.array([1], np.int32)}, True, b'{"predictions":[1]}'),
    ],
)
def test_bodies(outputs: dict[str, Array], is_row: bool, body: bytes) -> None:
    outputs = {name: np.asarray(array) for name, array in outputs.items()}
    assert encode_predictions(outputs, is_row=is_row) == body


@given(st.lists(st.binary(max_size=4), max_size=5))
@settings(deadline=None)
def test_any_bytes_can_be_read_back(values: list[bytes]) -> None:
    array = np.empty(len(values), np.object_)
    array[:] = values
    for name in ("s", "s_bytes"):
        read = json.loads(encode_predictions({name: array}, is_row=True))["predictions"]
        assert values == [
            item.encode() if isinstance(item, str) else base64.b64decode(item["b64"], validate=True) for item in read
        ]


def test_transposed_outputs_are_written_in_order() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3).T
    body = encode_predictions({"a": array, "b": array}, is_row=True)
    assert json.loads(body)["predictions"][1] == {"a": [1, 4], "b": [1, 4]}


@pytest.mark.parametrize(
    ("outputs", "is_row", "message"),
    [
        ({}, True, "Cannot convert empty tensor map to JSON"),
        ({"y": np.float32(1)}, True, "Tensor name: y has no shape information "),
        (
            {"a": np.zeros(2), "b": np.zeros(3)},
            True,
            "Tensor name: b has inconsistent batch size: 3 expecting: 2",
        ),
        ({"y": np.array([1], np.complex64)}, True, "Failed to write JSON value for tensor type: complex64"),
        ({"y": np.zeros(1, "datetime64[s]")}, False, "Failed to write JSON value for tensor type: datetime64[s]"),
    ],
)
def test_what_has_no_json_is_told_in_upstreams_words(outputs: dict[str, Array], is_row: bool, message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        encode_predictions({name: np.asarray(array) for name, array in outputs.items()}, is_row=is_row)
    assert caught.value.message == message


@given(st.booleans(), arrays(first=3), arrays(first=3))
@settings(max_examples=200, deadline=None)
def test_long_outputs_are_written_in_parts_with_the_same_text(is_row: bool, left: Array, right: Array) -> None:
    texts = strings([b"a", b"\xff", "aé".encode()])
    for outputs in ({"y": left}, {"s": texts}, {"l": left, "r": right, "s": texts}):
        whole = encode_predictions(outputs, is_row=is_row)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(array_text, "_PART_NODES", 3)
            patch.setattr(array_text, "_PART_CHARACTERS", 4)
            patch.setattr(array_text, "_LONG_STRING", 3)
            patch.setattr(array_text, "_COPIED_BYTES", 5)
            patch.setattr(array_text, "_FEW_NUMBERS", 0)
            patch.setattr(array_text, "_FEW_STRINGS", 0)
            patch.setattr(response, "_PART_NODES", 3)
            patch.setattr(response, "_PART_STRINGS", 2)
            assert encode_predictions(outputs, is_row=is_row) == whole


@pytest.mark.parametrize(
    "shape", [(2000, 3, 0, 5), (1, 70_000, 0), (3, 0), (20_000, *[1] * 20), (5, 1, 2, 1, 1, 3), (1, 1)]
)
@pytest.mark.parametrize("dtype", [np.float32, np.object_])
def test_deep_and_empty_arrays_have_the_text_of_their_lists(shape: tuple[int, ...], dtype: type[np.generic]) -> None:
    array = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    if array.dtype.hasobject:
        array[...] = np.vectorize(lambda value: b"%d" % value, otypes=[object])(array) if array.size else b""
    found = json.loads(encode_predictions({"y": array}, is_row=True))["predictions"]
    assert np.shape(found)[: len(shape)] == (shape if 0 not in shape else shape[: shape.index(0) + 1])
    assert np.ravel(found).astype(str).tolist() == [
        str(float(value)) if dtype is np.float32 else value.decode() for value in array.flat
    ]


@pytest.mark.parametrize("shape", [(1, 1_000_000, 0), (20_000, *[1] * 49)])
def test_lists_take_the_memory_of_their_text(shape: tuple[int, ...]) -> None:
    array = np.zeros(shape, np.float32)
    tracemalloc.start()
    try:
        text = encode_predictions({"y": array}, is_row=True)
        assert tracemalloc.get_traced_memory()[1] < 8 * len(text) + (1 << 20)
    finally:
        tracemalloc.stop()


def test_long_strings_and_base64_are_written_in_parts() -> None:
    values = [("é" * 300_000).encode(), b"\xff" * 500_000, b"short"]
    for outputs in ({"s": strings(values)}, {"s": strings(values), "t": strings(values)}):
        found = json.loads(encode_predictions(outputs, is_row=True))["predictions"]
        for item, value in zip(found, values, strict=True):
            read = item["s"] if "t" in outputs else item
            assert (read.encode() if isinstance(read, str) else base64.b64decode(read["b64"], validate=True)) == value
