"""Tests for predictions as plain Python values and JSON."""

import json
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from starlette.responses import JSONResponse

from tpuserve_client import InvalidArgument, Prediction
from tpuserve_client.dtypes import Array
from tpuserve_client.plain import plain_values
from tpuserve_formats.dtypes import BY_DTYPE, WireType

ODD = np.array([1.5, np.nan, np.inf, -np.inf], np.float32)


def prediction(**outputs: Array) -> Prediction:
    return Prediction(outputs, model="m", version=7, signature_name="serving_default")


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (np.array([[1, 2]], np.int8), [[1, 2]]),
        (np.array(5, np.uint64), 5),
        (np.array([True, False]), [True, False]),
        (np.array([0.1], np.float32), [float(np.float32(0.1))]),
        (np.array([1.5], np.float16), [1.5]),
        (np.array([1.5], ml_dtypes.bfloat16), [1.5]),
        (np.array(0.5), 0.5),
        (np.array([1 + 2j, -1j], np.complex64), [[1.0, 2.0], [-0.0, -1.0]]),
        (np.array(1 + 2j), [1.0, 2.0]),
        (np.array(["größe".encode(), b"\xff\0"], object), ["größe", {"b64": "/wA="}]),
        (np.array(b"a", object), "a"),
        (np.zeros((0, 4), np.float32), []),
        (np.zeros((2, 0), object), [[], []]),
    ],
    ids=lambda value: str(getattr(value, "dtype", "")),
)
def test_output_becomes_plain_values(array: Array, expected: object) -> None:
    assert plain_values(array) == expected
    assert json.loads(json.dumps(plain_values(array), allow_nan=False)) == expected


@pytest.mark.parametrize(
    ("non_finite", "expected"),
    [("null", [1.5, None, None, None]), ("string", [1.5, "NaN", "Infinity", "-Infinity"])],
)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
def test_numbers_that_json_lacks_take_the_chosen_form(non_finite: Any, expected: list[object], dtype: type) -> None:  # noqa: ANN401 - a Literal
    assert plain_values(ODD.astype(dtype), non_finite) == expected
    assert plain_values(ODD.astype(dtype)[1:2].reshape(()), non_finite) == expected[1]


def test_an_output_that_does_not_exist_is_refused_with_the_names_that_do() -> None:
    with pytest.raises(KeyError, match=r"m has no output 'y'; its outputs are \['a', 'b'\]"):
        prediction(b=ODD, a=ODD)["y"]
    assert prediction(a=ODD).get("y") is None


def test_nan_in_a_complex_number_takes_the_chosen_form() -> None:
    assert plain_values(np.array([complex(np.nan, 1)]), "string") == [["NaN", 1.0]]


def test_floats_keep_nan_and_infinity_on_request() -> None:
    np.testing.assert_array_equal(plain_values(ODD, "float"), ODD)
    assert prediction(y=ODD).to_json(non_finite="float").endswith('{"y": [1.5, NaN, Infinity, -Infinity]}}')


@pytest.mark.parametrize("non_finite", ["nan", None, 1, ["null"], np.array(["null", "float"])])
def test_other_forms_are_refused(non_finite: Any) -> None:  # noqa: ANN401 - a wrong type
    with pytest.raises(InvalidArgument, match="non_finite must be"):
        prediction(y=ODD).to_dict(non_finite=non_finite)


def test_prediction_names_its_model() -> None:
    expected = {"model": "m", "version": 7, "signature_name": "serving_default", "outputs": {"y": [1.5, None]}}
    made = prediction(y=ODD[:2])
    assert made.to_dict() == expected
    assert json.loads(made.to_json()) == expected
    assert json.loads(bytes(JSONResponse(made.to_dict()).body)) == expected  # it refuses NaN


@given(
    st.sampled_from(list(BY_DTYPE.values())).flatmap(
        lambda kind: st.tuples(st.just(kind), st.binary(max_size=4 * kind.dtype.itemsize))
    )
)
def test_every_dtype_has_a_json_form(case: tuple[WireType, bytes]) -> None:
    kind, content = case
    whole = content[: len(content) // kind.dtype.itemsize * kind.dtype.itemsize]
    array = np.array([content], object) if kind.dtype == object else np.frombuffer(whole, kind.dtype)
    if kind.dtype == np.bool_:
        array = np.frombuffer(content, np.uint8) > 0
    assert len(json.loads(json.dumps(plain_values(array), allow_nan=False))) == len(array)


@given(hnp.arrays(np.float64, hnp.array_shapes(min_dims=0, min_side=0, max_dims=3)))
def test_finite_numbers_keep_their_bits(array: Array) -> None:
    finite = np.nan_to_num(array)
    assert np.array(plain_values(finite), np.float64).tobytes() == finite.tobytes()
