"""Tests for ragged inputs and outputs in JSON: lists of rows, or values and row splits."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.core.terms.types import Signature, TensorSpec
from tpuserve_server.wire.json.predict import JsonInputs, decode_predict_inputs, parse_predict_body
from tpuserve_server.wire.json.response import encode_predictions


def spec(name: str, dtype: Any, *shape: int | None) -> TensorSpec:  # noqa: ANN401 - whatever numpy takes
    return TensorSpec(name, np.dtype(dtype), shape)


IDS = {"ids": spec("ids", np.int32, None), "ids_1": spec("ids_1", np.int64, None)}
ALONE = Signature("s", IDS, {}, ragged_inputs={"ids": ("ids_1",)})
SCALED = Signature("s", {**IDS, "scale": spec("scale", np.float32, None)}, {}, ragged_inputs={"ids": ("ids_1",)})
DEEP = Signature(
    "s",
    {"x": spec("x", np.object_, None), "x_1": spec("x_1", np.int32, None), "x_2": spec("x_2", np.int32, None)},
    {},
    ragged_inputs={"x": ("x_1", "x_2")},
)
UNIFORM = Signature(
    "s",
    {"v": spec("v", np.float32, None, 2), "v_1": spec("v_1", np.int64, None)},
    {},
    ragged_inputs={"v": ("v_1",)},
)


def decode(signature: Signature, **document: Any) -> JsonInputs:  # noqa: ANN401 - any JSON
    return decode_predict_inputs(parse_predict_body(json.dumps(document).encode()), signature)


@pytest.mark.parametrize(
    ("signature", "document", "expected"),
    [
        (ALONE, {"instances": [[1, 2], [3]]}, {"ids": [1, 2, 3], "ids_1": [0, 2, 3]}),
        (ALONE, {"instances": [[1, 2], [3, 4]]}, {"ids": [1, 2, 3, 4], "ids_1": [0, 2, 4]}),
        (ALONE, {"instances": [[], []]}, {"ids": [], "ids_1": [0, 0, 0]}),
        (ALONE, {"inputs": [[1, 2], []]}, {"ids": [1, 2], "ids_1": [0, 2, 2]}),
        (ALONE, {"inputs": {"ids": [[1, 2], [3]]}}, {"ids": [1, 2, 3], "ids_1": [0, 2, 3]}),
        (ALONE, {"inputs": []}, {"ids": [], "ids_1": [0]}),
        (
            SCALED,
            {"instances": [{"ids": [1], "scale": 0.5}, {"ids": [], "scale": 1}]},
            {"ids": [1], "ids_1": [0, 1, 1], "scale": [0.5, 1.0]},
        ),
        (
            DEEP,
            {"instances": [[["a", "b"], []], [], [[{"b64": "AP8="}]]]},
            {"x": [b"a", b"b", b"\x00\xff"], "x_1": [0, 2, 2, 3], "x_2": [0, 2, 2, 3]},
        ),
        (UNIFORM, {"instances": [[[1, 2]], []]}, {"v": [[1.0, 2.0]], "v_1": [0, 1, 1]}),
    ],
)
def test_rows_become_values_and_row_splits(
    signature: Signature, document: dict[str, Any], expected: dict[str, list[Any]]
) -> None:
    decoded = decode(signature, **document)
    assert {name: array.tolist() for name, array in decoded.inputs.items()} == expected
    assert all(array.dtype == signature.inputs[name].dtype for name, array in decoded.inputs.items())
    assert decoded.has_nested_rows


def test_rows_that_are_all_empty_keep_the_shape_of_their_items() -> None:
    assert decode(UNIFORM, instances=[[], []]).inputs["v"].shape == (0, 2)


def test_empty_items_are_items() -> None:
    free = Signature("s", {**UNIFORM.inputs, "v": spec("v", np.float32, None, None)}, {}, ragged_inputs={"v": ("v_1",)})
    inputs = decode(free, instances=[[[]], []]).inputs
    assert inputs["v"].shape == (1, 0)
    assert inputs["v_1"].tolist() == [0, 1, 1]


def test_an_error_shows_the_first_of_very_many_keys() -> None:
    with pytest.raises(InvalidArgument) as caught:
        decode(SCALED, instances=[{str(key): 1 for key in range(10_000)}])
    assert len(caught.value.message) < 400


def test_values_and_row_splits_may_be_sent_as_they_are() -> None:
    decoded = decode(SCALED, inputs={"ids": [1, 2, 3], "ids_1": [0, 2, 3], "scale": [1, 2]})
    assert {name: array.tolist() for name, array in decoded.inputs.items()} == {
        "ids": [1, 2, 3], "ids_1": [0, 2, 3], "scale": [1.0, 2.0],
    }  # fmt: skip
    assert not decoded.has_nested_rows


@pytest.mark.parametrize(
    ("signature", "document", "message"),
    [
        (ALONE, {"instances": [1, 2]}, "Input 'ids' is ragged: expecting a list at level 1 of its rows, got 1"),
        (DEEP, {"instances": [["a"]]}, "Input 'x' is ragged: expecting a list at level 2 of its rows, got \"a\""),
        (ALONE, {"inputs": {"ids": 3}}, "Input 'ids' is ragged: expecting a list of rows, got 3"),
        (ALONE, {"inputs": {"idz": [[3]]}}, "'inputs' must have the keys ids, got [\"idz\"]"),
        (ALONE, {"instances": []}, "'instances' must be a list of at least one row"),
        (SCALED, {"instances": [[1], [2]]}, "rows of 'instances' must be objects with the inputs ids, scale"),
        (SCALED, {"inputs": [[1], [2]]}, "'inputs' must be an object with the inputs ids, scale"),
        (
            SCALED,
            {"instances": [{"ids": [1], "ids_1": [0, 1], "scale": 1}]},
            'row 0 of \'instances\' must have the keys ids, scale, got ["ids", "ids_1", "scale"]',
        ),
        (
            SCALED,
            {"instances": [{"ids": [1], "scale": 1}, 3]},
            "row 1 of 'instances' must be an object, as the first row is",
        ),
        (ALONE, {"instances": [[1, "a"]]}, 'JSON Value: "a" Type: String is not of expected type: int32'),
        (ALONE, {"instances": [[1, [2]]]}, "Encountered list at unexpected level: 1 expected < 1"),
    ],
)
def test_rows_of_another_form_are_named(signature: Signature, document: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        decode(signature, **document)
    assert caught.value.message == message


def test_ragged_outputs_are_lists_of_rows() -> None:
    outputs = {
        "y": np.array([1.5, np.nan, 2], np.float32), "y_1": np.array([0, 2, 2, 3]), "n": np.array([1, 2, 3]),
        "text": np.array([b"null", b"\xff"], object), "text_1": np.array([0, 1, 1, 2]), "text_2": np.array([0, 1, 2]),
    }  # fmt: skip
    ragged = {"y": ("y_1",), "text": ("text_1", "text_2")}
    rows = encode_predictions(outputs, is_row=True, ragged=ragged)
    assert rows == (
        b'{"predictions":[{"y":[1.5,NaN],"n":1,"text":[["null"]]},{"y":[],"n":2,"text":[]},'
        b'{"y":[2.0],"n":3,"text":[[{"b64":"/w=="}]]}]}'
    )
    columns = encode_predictions({"y": outputs["y"], "y_1": outputs["y_1"]}, is_row=False, ragged={"y": ("y_1",)})
    assert columns == b'{"outputs":[[1.5,NaN],[],[2.0]]}'
    with pytest.raises(InvalidArgument, match="n has inconsistent batch size: 2 expecting: 3"):
        encode_predictions({**outputs, "n": np.array([1, 2])}, is_row=True, ragged=ragged)


@given(st.lists(st.lists(st.integers(-(2**31), 2**31 - 1)), min_size=1))
def test_rows_come_back_as_they_went(rows: list[list[int]]) -> None:
    outputs = decode(ALONE, instances=rows).inputs
    body = encode_predictions(outputs, is_row=True, ragged={"ids": ("ids_1",)})
    assert json.loads(body) == {"predictions": rows}
