"""Tests for bodies that are read in pieces: they decode as in one step, and are refused before they take memory."""

import contextlib
import json
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorflow.core.example import example_pb2

from tpuserve_server.core.serving.budgets import DecodedBudget
from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.core.terms.types import Signature, TensorSpec
from tpuserve_server.wire.json import large, layout, leaves, numbers
from tpuserve_server.wire.json.body import is_large
from tpuserve_server.wire.json.examples import decode_json_examples
from tpuserve_server.wire.json.large import LargeBody
from tpuserve_server.wire.json.predict import decode_predict_inputs, parse_predict_body, read_quickly, with_parameters

MEBIBYTE = 1 << 20
BUDGET = DecodedBudget(64 * MEBIBYTE)
DTYPES: dict[str, np.dtype[Any]] = {"f": np.dtype(np.float32), "i": np.dtype(np.int64), "s": np.dtype(np.object_)}


def signature(names: str) -> Signature:
    return Signature("serving_default", {name: TensorSpec(name, DTYPES[name], None) for name in names}, {})


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((leaves, "PIECE_BYTES"), (leaves, "_OBJECT_BYTES"), (large, "_ROWS_BYTES")):
        monkeypatch.setattr(module, name, 5)
    monkeypatch.setattr(layout, "_CHUNK_BYTES", 11)
    monkeypatch.setattr(numbers, "_STEP_BYTES", 11)


def decoded(body: dict[str, Any], names: str) -> dict[str, Any]:
    # A byte order mark may come first.
    found = LargeBody(f"\ufeff{json.dumps(body)}".encode(), BUDGET)
    return {name: array.tolist() for name, array in found.convert(signature(names)).items()}


@pytest.mark.usefixtures("small_pieces")
@given(
    rows=st.lists(st.tuples(st.integers(-9, 9), st.text('a"[],{}:\\', max_size=4)), min_size=1, max_size=6),
    name=st.text(max_size=3),
)
def test_all_forms_decode_as_in_one_step(rows: list[tuple[int, str]], name: str) -> None:
    numbers, texts = [number for number, _ in rows], [text for _, text in rows]
    encoded = [text.encode() for text in texts]
    assert decoded({"signature_name": name, "instances": [{"i": n, "s": s} for n, s in rows]}, "is") == {
        "i": numbers,
        "s": encoded,
    }
    assert decoded({"instances": numbers, "signature_name": name}, "i") == {"i": numbers}
    assert decoded({"inputs": {"s": texts, "unknown": [[]], "i": [numbers]}}, "is") == {"s": encoded, "i": [numbers]}
    assert decoded({"inputs": [texts]}, "s") == {"s": [encoded]}
    assert LargeBody(json.dumps({"signature_name": name}).encode(), BUDGET).signature_name == name


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize(
    ("body", "names", "reason"),
    [
        ({"instances": [1, True]}, "f", "JSON Value: true Type: True is not of expected type: float"),
        ({"instances": [{"f": 1}, {"i": 1}]}, "f", "does not have named input: i"),
        (
            {"instances": [{"f": [1]}, {"f": [1, 2]}, {"f": [3]}]},
            "f",
            "lists of different sizes or levels in input 'f'",
        ),
        ({"instances": [[1], [2, 3]]}, "f", "lists of different sizes or levels in input 'f'"),
        ({"instances": [1, 2]}, "fi", "instances is a plain list, but expecting list of objects"),
        ({"instances": []}, "f", "No values in 'instances' array"),
        ({"instances": {"f": 1}}, "f", "Expecting 'instances' to be an list/array"),
        ({"instances": [1], "inputs": [1]}, "f", "expecting only one of 'inputs' or 'instances'"),
        ({"inputs": {"f": [1]}}, "fi", "Missing named input: i in 'inputs' object."),
        ({"inputs": [1]}, "fi", "inputs is a plain value/list, but expecting an object"),
        ({"inputs": {"f": ["a"]}}, "f", 'JSON Value: "a" Type: String is not of expected type: float'),
        ({"values": [1]}, "f", "Missing 'inputs' or 'instances' key"),
    ],
)
def test_faults_are_explained(body: dict[str, Any], names: str, reason: str) -> None:
    with pytest.raises(InvalidArgument, match=reason):
        decoded(body, names)


def large_body(item: bytes, size_bytes: int) -> bytes:
    return b'{"instances":[' + b",".join([item] * (size_bytes // (len(item) + 1))) + b"]}"


@pytest.mark.parametrize("item", [b"[]", b"{}", b'""', b'{"f":0}', b"0"])
def test_large_bodies_are_refused_before_they_take_memory(item: bytes) -> None:
    body = large_body(item, 4 * MEBIBYTE)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidArgument, match="more than the 4194304 bytes of max_decoded_bytes"):
            parse_predict_body(body, DecodedBudget(4 * MEBIBYTE))
        assert tracemalloc.get_traced_memory()[1] < 32 * MEBIBYTE
    finally:
        tracemalloc.stop()


def test_unknown_members_are_refused() -> None:
    body = b'{"instances":[1],' + b",".join(b'"%d":0' % n for n in range(200_000)) + b"}"
    assert is_large(body)
    with pytest.raises(InvalidArgument, match="an object with more than 4096 members"):
        parse_predict_body(body, BUDGET)


def test_large_bodies_take_the_memory_of_their_arrays() -> None:
    body = large_body(b"[0.25,0.5]", 3 * MEBIBYTE)
    assert is_large(body)
    tracemalloc.start()
    try:
        inputs = decode_predict_inputs(parse_predict_body(body, BUDGET), signature("f")).inputs
        assert tracemalloc.get_traced_memory()[1] < 24 * MEBIBYTE
    finally:
        tracemalloc.stop()
    assert inputs["f"].shape == (3 * MEBIBYTE // 11, 2)


@pytest.mark.parametrize(
    ("body", "is_quick"),
    [
        (large_body(b"0.12345678", MEBIBYTE // 2), True),
        (b'{"instances":["' + b"a" * (MEBIBYTE // 2) + b'"]}', True),
        (large_body(b'"aaaaaaaa"', MEBIBYTE // 128), True),
        (large_body(b"[]", MEBIBYTE // 16), False),
        (large_body(b'{"f":0}', MEBIBYTE // 16), False),
        (large_body(b'{"b64":""}', MEBIBYTE // 16), False),
        (large_body(b"NaN", MEBIBYTE // 16), False),
        (large_body(b"0.5", 2 * MEBIBYTE), False),
    ],
)
def test_values_decide_whether_a_body_is_parsed_in_one_step(body: bytes, is_quick: bool) -> None:
    assert (read_quickly(body) is not None) is is_quick


def test_the_parameters_of_vertex_are_read_from_large_bodies() -> None:
    body = large_body(b"[]", MEBIBYTE)[:-1] + b',"parameters":{"signature_name":"s"}}'
    assert with_parameters(parse_predict_body(body, BUDGET)).signature_name == "s"


def test_examples_are_decoded_in_pieces() -> None:
    body = b'{"context":{"c":"x"},"examples":[' + b",".join([b'{"a":1}'] * 40_000) + b"]}"
    examples = decode_json_examples(body, budget=BUDGET).examples
    small = decode_json_examples(b'{"context":{"c":"x"},"examples":[{"a":1}]}').examples
    assert len(examples) == 40_000
    assert examples[-1] == small[0]


def test_ragged_inputs_are_refused_before_they_become_objects() -> None:
    splits = TensorSpec("f_splits", np.dtype(np.int64), (None,))
    ragged = Signature(
        "serving_default",
        {"f": TensorSpec("f", DTYPES["f"], (None,)), "f_splits": splits},
        {},
        ragged_inputs={"f": ("f_splits",)},
    )
    body = parse_predict_body(large_body(b"[]", MEBIBYTE), DecodedBudget(16 * MEBIBYTE))
    with pytest.raises(InvalidArgument, match="more than the 16777216 bytes of max_decoded_bytes"):
        decode_predict_inputs(body, ragged)


def test_large_rows_are_read_by_their_members(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large, "_ROWS_BYTES", 20)
    monkeypatch.setattr(large, "MEDIUM_BYTES", 30)
    rows = [{"f": [[1, 2]], "s": "a"}, {"f": [[3.25, 4.125]], "s": "b" * 40}, {"s": "]", "f": [[5, 6]]}]
    assert decoded({"instances": rows}, "fs") == {
        "f": [row["f"] for row in rows],
        "s": [b"a", b"b" * 40, b"]"],
    }
    with pytest.raises(InvalidArgument, match="must be equal to: f,s"):
        decoded({"instances": [*rows, {"f": [[1] * 40]}]}, "fs")
    with pytest.raises(InvalidArgument, match="lists of different sizes or levels in input 'f'"):
        decoded({"instances": [*rows, {"f": [[1] * 40], "s": ""}]}, "fs")


@pytest.mark.parametrize(
    ("item", "names"),
    [
        (b"NaN", "f"),
        (b"[]", "f"),
        (b'"ab"', "s"),
        (b'{"f":[]}', "f"),
        (b'{"f":0}', "f"),
        (b'{"b64":""}', "s"),
        (b"null", "f"),
    ],
)
def test_each_step_parses_a_small_part(item: bytes, names: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    for module, name in ((large, "parse_json"), (large, "parse_quickly"), (leaves, "parse_json")):
        parse = getattr(module, name)

        def recorded(text: bytes, *holders: Any, parse: Any = parse) -> Any:  # noqa: ANN401 (passed through)
            sizes.append(len(text))
            return parse(text, *holders)

        monkeypatch.setattr(module, name, recorded)
    body = large_body(item, MEBIBYTE)
    with contextlib.suppress(InvalidArgument):
        decode_predict_inputs(parse_predict_body(body, BUDGET), signature(names), BUDGET)
    assert max(sizes, default=0) <= 1 << 15


def test_errors_in_large_bodies_name_the_row() -> None:
    rows = b",".join([b'{"f":0}'] * 10_000)
    body = b'{"instances":[%b,{"f":"a"}]}' % rows
    with pytest.raises(InvalidArgument, match="Failed to process element: 10000 key: f of 'instances' list"):
        decode_predict_inputs(parse_predict_body(body, BUDGET), signature("f"), BUDGET)


def test_the_first_fault_of_many_values_is_found() -> None:
    for value, wanted in (([0] * 999 + ["a"] + [0] * 999, 999), ([[0]] * 999 + [[0, 0]], 999)):
        with pytest.raises(InvalidArgument, match=f"Failed to process element: {wanted} of 'instances' list"):
            decode_predict_inputs(parse_predict_body(json.dumps({"instances": value}).encode()), signature("f"))
    parsed = parse_predict_body(json.dumps({"instances": [0] * 600 + [{"f": 0}] * 600}).encode())
    with pytest.raises(InvalidArgument, match="Expecting value/list but got object at item 600 of input list"):
        decode_predict_inputs(parsed, signature("f"))


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"inputs":{"%b":1}}', "a name has more than 65536 bytes"),
        (b'{"inputs":[1],"%b":1}', "a name has more than 65536 bytes"),
        (b'{"inputs":[1],"signature_name":"%b"}', "'signature_name' has more than 65536 bytes"),
        (b'{"instances":[' + b"[" * 65 + b"1" + b"]" * 65 + b'],"a":"%b"}', "lists of different sizes or levels"),
    ],
)
def test_long_names_and_deep_tensors_are_refused_at_once(body: bytes, reason: str) -> None:
    def decode() -> None:
        decode_predict_inputs(parse_predict_body(body % (b"n" * 2 * MEBIBYTE), BUDGET), signature("f"), BUDGET)

    with pytest.raises(InvalidArgument, match=reason) as caught:
        decode()
    assert len(caught.value.message) < 300


def test_wide_rows_are_decoded_in_pieces() -> None:
    names = [f"x{index}" for index in range(100)]
    wide = Signature("serving_default", {name: TensorSpec(name, DTYPES["s"], None) for name in names}, {})
    body = json.dumps({"instances": [dict.fromkeys(names, "text")] * 200}).encode()
    assert read_quickly(body) is None
    inputs = decode_predict_inputs(parse_predict_body(body, BUDGET), wide, BUDGET).inputs
    assert inputs["x99"].tolist() == [b"text"] * 200


def test_one_large_example_is_encoded_as_a_small_one() -> None:
    features = {"f": [0.5] * 200_000, "i": [3] * 100_000, "s": ["a", {"b64": "/w=="}] * 50_000, "one": 1.5}
    whole = decode_json_examples(json.dumps({"examples": [features]}).encode(), budget=BUDGET).examples[0]
    parsed = example_pb2.Example.FromString(whole).features.feature
    assert list(parsed["f"].float_list.value) == features["f"]
    assert list(parsed["i"].int64_list.value) == features["i"]
    assert list(parsed["s"].bytes_list.value) == [b"a", b"\xff"] * 50_000
    assert list(parsed["one"].float_list.value) == [1.5]
    mixed = json.dumps({"examples": [{"f": [0.5] * 200_000 + [1] * 200_000}]}).encode()
    with pytest.raises(InvalidArgument, match="Unexpected element type in feature: f"):
        decode_json_examples(mixed, budget=BUDGET)
