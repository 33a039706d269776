"""Tests that known bodies in JSON are read as the parser reads them."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tpuserve_server.core.terms.errors import ServingError
from tpuserve_server.core.terms.types import ModelSpec, PredictResult, ServableId, Signature, Tensors, TensorSpec
from tpuserve_server.protocols.request_lane import Known
from tpuserve_server.protocols.tf_rest.predict_lane import PredictLane
from tpuserve_server.wire.json.predict import decode_predict_inputs, parse_predict_body
from tpuserve_server.wire.json.response import encode_predictions

SPEC = ModelSpec("m")
DTYPES = st.sampled_from([np.dtype(kind) for kind in ("f4", "f8", "f2", "i4", "u8", "i1", "u1")])
NUMBERS = st.sampled_from(["1", "-0", "2.5", "-1e3", "300", "1e39", "16777217", "18446744073709551615", "0.1"])
ROWS = st.lists(st.lists(NUMBERS, min_size=1, max_size=2), min_size=1, max_size=3)
EDITS = st.lists(st.tuples(st.integers(0, 200), st.sampled_from([*b'[]{},:".1 e-xn'])), max_size=2)


def signature(dtype: np.dtype[Any], name: str = "x") -> Signature:
    return Signature("serving_default", {name: TensorSpec(name, dtype, None)}, {})


def learned(body: bytes) -> PredictLane:
    lane = PredictLane()
    for _ in range(2):
        lane.find(SPEC, body)
    return lane


def known(lane: PredictLane, body: bytes) -> Known:
    found = lane.find(SPEC, body)
    assert found is not None
    return found


def parsed(body: bytes, of: Signature) -> tuple[str, bool, Tensors]:
    found = parse_predict_body(body)
    decoded = decode_predict_inputs(found, of)
    return found.signature_name, decoded.is_row, decoded.inputs


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """Draw a valid body whose list has rows of equal length, or not."""
    rows = draw(ROWS)
    if draw(st.booleans()):
        rows = [row[:1] for row in rows]
    lines = [f"[{', '.join(row)}]" for row in rows]
    text = f"[{', '.join(lines)}]"
    value = draw(st.sampled_from([text, text, rows[0][0], lines[0], f'{{"x": {text}}}']))
    key = "inputs" if value.startswith("{") else draw(st.sampled_from(["inputs", "instances"]))
    members = [f'"{key}": {value}']
    members += draw(st.lists(st.sampled_from(['"signature_name": "s"', '"more": [1, "a]"]']), max_size=2, unique=True))
    return f"{{{', '.join(draw(st.permutations(members)))}}}".encode()


@settings(max_examples=400)
@given(body=bodies(), numbers=st.lists(NUMBERS, max_size=6), edits=EDITS, dtype=DTYPES)
def test_a_body_is_read_as_the_parser_reads_it(
    body: bytes, numbers: list[str], edits: list[tuple[int, int]], dtype: np.dtype[Any]
) -> None:
    lane = learned(body)
    other = bytearray(body)
    for position, byte in edits:
        other[position % len(other)] = byte
    for number in numbers:
        other = other.replace(b"2.5", number.encode(), 1)
    found = lane.find(SPEC, bytes(other))
    if found is None:
        return
    layout, contents = found
    inputs = lane.inputs(layout, contents, signature(dtype))
    if inputs is None:
        return
    name, is_row, expected = parsed(bytes(other), signature(dtype))
    assert layout.spec == SPEC.with_signature(name)
    assert lane.form(layout).is_row == is_row
    assert list(inputs) == list(expected)
    assert (inputs["x"].dtype, inputs["x"].shape) == (dtype, expected["x"].shape)
    assert inputs["x"].tobytes() == expected["x"].tobytes()


@pytest.mark.parametrize(
    ("body", "like_it"),
    [
        (b'{"instances": [[1, 2], [3, 4]]}', b'{"instances": [[10,2e3],[-0.5,4]]}'),
        (b'{"inputs": [1, 2]}', b'{"inputs": [7, 8.5]}'),
        (b'{"inputs": {"x": [[1, 2]]}}', b'{"inputs": {"x": [[7, 8.5]]}}'),
        (b'{"signature_name": "s", "instances": [7]}', b'{"signature_name": "s", "instances": [8]}'),
    ],
)
def test_a_body_with_other_numbers_is_known(body: bytes, like_it: bytes) -> None:
    lane = learned(body)
    layout, contents = known(lane, like_it)
    inputs = lane.inputs(layout, contents, signature(np.dtype(np.float32)))
    assert inputs is not None
    assert inputs["x"].tolist() == parsed(like_it, signature(np.dtype(np.float32)))[2]["x"].tolist()


@pytest.mark.parametrize(
    "body",
    [
        b'{"instances": [[1, 2], [3, 4]], "signature_name": "t"}',
        b'{"instances": [[1, 2], [3, true]]}',
        b'{"instances": [[1, 2], [[3], 4]]}',
        b'{"instances": [[1, 2], [3]]}',
        b'{"inputs": [[1, 2], [3, 4]]}',
    ],
)
def test_a_body_that_differs_in_more_than_numbers_is_not_known(body: bytes) -> None:
    assert learned(b'{"instances": [[1, 2], [3, 4]]}').find(SPEC, body) is None


@pytest.mark.parametrize(
    "body", [b'{"instances": [[1], []]}', b'{"instances": [[1], [--4]]}', b'{"instances": [[1],[2 3]]}']
)
def test_text_that_is_no_number_is_left_to_the_parser(body: bytes) -> None:
    lane = learned(b'{"instances": [[1], [2]]}')
    layout, contents = known(lane, body)
    assert lane.inputs(layout, contents, signature(np.dtype(np.float32))) is None
    # The lane reads the next body all the same.
    assert lane.inputs(layout, b"[[1], [4]]", signature(np.dtype(np.float32))) is not None


@pytest.mark.parametrize(
    "body",
    [
        b'{"more": "[1]", "instances": [[1], [2]]}',
        b'{"instances": "[1]"}',
        b'{"instances": [1], "instances": [1]}',
        b'{"instances": [1], "inputs": [1]}',
        b'{"instances": [1]',
        b'{"instances": []}x',
        b'{"instances": ["a"]}',
        b'{"instances": [{"x": [1]}]}',
        b"[1]",
        b"",
    ],
)
def test_other_bodies_have_no_layout(body: bytes) -> None:
    assert learned(body).find(SPEC, body) is None


def test_a_named_column_is_that_of_the_signature() -> None:
    lane = learned(b'{"inputs": {"x": [1]}}')
    found = known(lane, b'{"inputs": {"x": [1]}}')
    assert lane.inputs(*found, signature(np.dtype(np.float32), "z")) is None
    two = Signature("s", {name: TensorSpec(name, np.dtype(np.float32), None) for name in ("x", "z")}, {})
    assert lane.inputs(*found, two) is None


def test_each_model_has_its_own_layout() -> None:
    body = b'{"instances": [1]}'
    lane = learned(body)
    assert lane.find(ModelSpec("m", 1), body) is None
    assert lane.find(ModelSpec("n"), body) is None
    assert lane.find(SPEC, body) is not None


def test_long_texts_and_long_names_have_no_layout() -> None:
    long = json.dumps({"more": "a" * 1024, "instances": [1]}).encode()
    assert learned(long).find(SPEC, long) is None
    lane, spec = PredictLane(), ModelSpec("m" * 1024)
    assert [lane.find(spec, b'{"instances": [1]}') for _ in range(3)] == [None] * 3


@settings(deadline=None)
@given(
    shapes=st.dictionaries(st.sampled_from(["y", "ä", "z_bytes"]), st.lists(st.integers(0, 3), max_size=3), max_size=3),
    dtype=st.sampled_from([np.dtype(kind) for kind in ("f4", "f8", "f2", "i8", "?", "O")]),
    is_row=st.booleans(),
)
def test_a_template_gives_the_bytes_of_the_encoder(
    shapes: dict[str, list[int]], dtype: np.dtype[Any], is_row: bool
) -> None:
    body = b'{"instances": [1]}' if is_row else b'{"inputs": [1]}'
    lane = learned(body)
    form = lane.form(known(lane, body)[0])
    random = np.random.default_rng(1)

    def outputs(scale: float) -> Tensors:
        if dtype.hasobject:
            return {name: np.full(shape, b"s", object) for name, shape in shapes.items()}
        return {name: (random.random((*shape, 2)) * scale).astype(dtype)[..., 0] for name, shape in shapes.items()}

    first, second = outputs(99), outputs(7)
    template = form.template(PredictResult(ServableId("m", 1), "s", first))
    is_plain = dtype.kind != "O" and dtype.itemsize != 2 and all(shapes.values())
    assert (template is not None) == (is_plain and (len(shapes) == 1 or (bool(shapes) and not is_row)))
    if template is None:
        return
    for each in (first, second):
        assert template.encode(each) == encode_predictions(each, is_row=is_row)
    assert template.encode({**first, "another": np.zeros(1)}) is None
    for name, array in first.items():
        assert template.encode({**first, name: np.zeros((*array.shape, 2), dtype)}) is None
        if dtype.kind == "f" and array.size:
            assert template.encode({**first, name: np.full_like(array, np.nan)}) is None


def test_a_body_is_read_in_the_type_of_the_version_that_answers() -> None:
    body = b'{"instances": [1, 300]}'
    lane = learned(body)
    found = known(lane, body)
    layout, contents = found
    integers, fractions = contents, contents.replace(b"300", b"3.5")
    for dtype, text, values in (
        ("f4", integers, [1.0, 300.0]),
        ("u1", integers, None),
        ("i4", fractions, None),
        ("i4", integers, [1, 300]),
    ):
        inputs = lane.inputs(layout, text, signature(np.dtype(dtype)))
        assert (None if inputs is None else inputs["x"].tolist()) == values
    with pytest.raises(ServingError):
        parsed(body, signature(np.dtype("u1")))
