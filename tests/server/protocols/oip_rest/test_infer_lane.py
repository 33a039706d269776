"""Tests that known bodies with JSON data are read as the parser reads them."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tpuserve_server.core.terms.types import Array, ModelSpec, Signature, TensorSpec
from tpuserve_server.protocols.oip_rest.infer_lane import InferLane
from tpuserve_server.wire.oip.decoding import decode_inputs
from tpuserve_server.wire.oip.infer_json import parse_infer_json
from tpuserve_server.wire.oip.infer_json_response import ResponseForm

SPEC = ModelSpec("m")
TYPES = {"FP32": "f4", "FP64": "f8", "INT8": "i1", "UINT64": "u8", "BOOL": "?", "FP16": "f2", "BYTES": "O"}
NUMBERS = st.sampled_from(
    ["1", "-0", "2.5", "-1e3", "300", "1e39", "18446744073709551615", "0.1", "true", '"a"', "[1]"]
)
EDITS = st.lists(st.tuples(st.integers(0, 200), st.sampled_from([*b'[]{},:".1 e-xn'])), max_size=2)
Y = TensorSpec("y", np.dtype(np.float32), None)
ONE: dict[str, Any] = {"name": "x", "datatype": "FP32", "shape": [2], "data": [1, 2]}


def signature(datatype: str, name: str = "x") -> Signature:
    return Signature("serving_default", {name: TensorSpec(name, np.dtype(TYPES[datatype]), None)}, {"y": Y})


def body_of(tensor: dict[str, Any], **more: Any) -> bytes:  # noqa: ANN401 - JSON
    return json.dumps({"inputs": [tensor], **more}).encode()


def learned(body: bytes) -> InferLane:
    lane = InferLane()
    for _ in range(2):
        lane.find(SPEC, body, None)
    return lane


def read(lane: InferLane, body: bytes, of: Signature) -> tuple[ModelSpec, tuple[str, ...], object, Array] | None:
    """Return the spec, the requested outputs, the form of the response and the input, as the lane reads them."""
    found = lane.find(SPEC, body, None)
    if found is None or (inputs := lane.inputs(*found, of)) is None:
        return None
    layout = found[0]
    ((name, array),) = inputs.items()
    assert name == "x"
    return layout.spec, layout.output_filter, lane.form(layout), array


def parsed(body: bytes, of: Signature) -> tuple[ModelSpec, tuple[str, ...], object, Array]:
    request = parse_infer_json(SPEC.name, body, None)
    spec = SPEC.with_signature(request.parameters.signature_name)
    return spec, request.output_names, ResponseForm.of(request), decode_inputs(SPEC.name, of, request)["x"]


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """Draw a valid body of one input, or an unusual or invalid one."""
    count = draw(st.integers(1, 4))
    numbers = ", ".join(["1", "2.5"][index % 2] for index in range(count))
    data = draw(st.sampled_from([*[f"[{numbers}]"] * 4, f"[[{numbers}]]", "[]", '["a"]']))
    datatype = draw(st.sampled_from(["FP32"] * 5 + list(TYPES)))
    members = ['"name": "x"', f'"datatype": "{datatype}"', f'"shape": [1, {count}]', f'"data": {data}']
    members += draw(st.lists(st.sampled_from(['"parameters": {}', '"more": [1, "]"]']), max_size=1))
    tensor = f"{{{', '.join(draw(st.permutations(members)))}}}"
    parts = ['"id": "data\\":[1]"', '"outputs": [{"name": "y", "parameters": {"binary_data": true}}]']
    parts += [f'"parameters": {{"{name}": {value}}}' for name, value in (("priority", 1), ("signature_name", '"s"'))]
    document = [f'"inputs": [{tensor}]', *draw(st.lists(st.sampled_from(parts), max_size=2, unique=True))]
    return f"{{{', '.join(draw(st.permutations(document)))}}}".encode()


@settings(max_examples=400)
@given(body=bodies(), numbers=st.lists(NUMBERS, max_size=4), edits=EDITS)
def test_a_body_is_read_as_the_parser_reads_it(body: bytes, numbers: list[str], edits: list[tuple[int, int]]) -> None:
    lane = learned(body)
    other = bytearray(body)
    for position, byte in edits:
        other[position % len(other)] = byte
    for number in numbers:
        other = other.replace(b"2.5", number.encode(), 1)
    for datatype in TYPES:
        if f'"{datatype}"'.encode() in other:
            found = read(lane, bytes(other), signature(datatype))
            if found is None:
                continue
            expected = parsed(bytes(other), signature(datatype))
            assert found[:3] == expected[:3]
            assert (found[3].dtype, found[3].shape) == (expected[3].dtype, expected[3].shape)
            assert found[3].tobytes() == expected[3].tobytes()


@pytest.mark.parametrize(
    ("tensor", "data"),
    [
        (ONE, [7, 8.5]),
        ({**ONE, "shape": [1, 2], "data": [[1, 2]]}, [[7, 8.5]]),
        ({"data": [1, 2], "name": "x", "datatype": "FP32", "shape": [2]}, [7, 8.5]),
        ({**ONE, "parameters": {"a": [1]}}, [-3, 4]),
    ],
)
def test_a_body_with_other_numbers_is_known(tensor: dict[str, Any], data: list[float]) -> None:
    more = {"id": "q", "parameters": {"signature_name": "s"}, "outputs": [{"name": "y"}]}
    lane = learned(body_of(tensor, **more))
    found = read(lane, body_of({**tensor, "data": data}, **more), signature("FP32"))
    assert found is not None
    assert found[0].signature_name == "s"
    assert found[1] == ("y",)
    assert isinstance(found[2], ResponseForm)
    assert found[2].id == "q"
    assert found[3].tolist() == np.array(data, np.float32).tolist()


@pytest.mark.parametrize(
    "more",
    [
        {"parameters": {"priority": 1}},
        {"parameters": {"timeout": 1}},
        {"outputs": [{"name": "y", "parameters": {"classification": 2}}]},
        {"inputs": [ONE, {**ONE, "name": "z"}]},
        {"inputs": [{**ONE, "shape": [3]}]},
        {"inputs": [{**ONE, "datatype": "BOOL"}]},
        {"inputs": [{**ONE, "data": ["a", "b"]}]},
    ],
)
def test_other_bodies_have_no_layout(more: dict[str, Any]) -> None:
    body = json.dumps({"inputs": [ONE], **more}).encode()
    assert learned(body).find(SPEC, body, None) is None


@pytest.mark.parametrize("data", [b"[1, 2, 3]", b"[[1, 2]]", b"[1, true]", b"[1]", b"[]", b"[1 2, 3]", b"[,]"])
def test_other_data_are_left_to_the_parser(data: bytes) -> None:
    body = body_of(ONE)
    assert read(learned(body), body.replace(b"[1, 2]", data), signature("FP32")) is None


def test_the_length_of_the_json_decides() -> None:
    body = body_of(ONE)
    lane = learned(body)
    assert lane.find(SPEC, body, len(body)) is not None
    assert lane.find(SPEC, body, len(body) - 1) is None
    assert lane.find(SPEC, body, 0) is None
