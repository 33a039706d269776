"""Tests for Classify and Regress: conversion of examples, and both clients over both protocols."""

import json
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.clients.model_server import Failure, ModelServer, decoded, decoded_json
from tpuserve_client import Client, FailedPrecondition, Internal, InvalidArgument, ScoredClass
from tpuserve_client.errors import Code
from tpuserve_client.examples import as_examples
from tpuserve_client.exchange import Exchange, Reply, Wire, example_call
from tpuserve_client.grpc_wire import GrpcWire
from tpuserve_client.model import ModelSpec
from tpuserve_client.rest_wire import RestWire
from tpuserve_formats.messages import official

SPEC = ModelSpec("m")


@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [
        (1, np.int64, [1]),
        (True, np.int64, [1]),
        ([1, -2], np.int64, [1, -2]),
        (np.array([255], np.uint8), np.int64, [255]),
        (1.5, np.float32, [1.5]),
        ([1, 2.5], np.float32, [1.0, 2.5]),
        (1e300, np.float32, [np.inf]),
        (np.array([1.5], ml_dtypes.bfloat16), np.float32, [1.5]),
        (np.array([[1, 2], [3, 4]], np.float32).T, np.float32, [1.0, 3.0, 2.0, 4.0]),
        (np.array([1], ">i4"), np.int64, [1]),
        ("größe", object, ["größe".encode()]),
        (["a", b"\xff"], object, [b"a", b"\xff"]),
        (bytearray(b"a"), object, [b"a"]),
        ([], np.float32, []),
    ],
)
def test_value_becomes_the_kind_of_feature_that_holds_it(value: Any, dtype: type, expected: list[object]) -> None:  # noqa: ANN401 - several types
    [features] = as_examples([{"x": value}])
    assert features["x"].dtype == np.dtype(dtype)
    assert features["x"].tolist() == expected


@pytest.mark.parametrize(
    ("examples", "message"),
    [
        ([], "There are no examples"),
        ({"x": 1}, "sequence of mappings"),
        ("x", "sequence of mappings"),
        (None, "sequence of mappings"),
        (5, "sequence of mappings"),
        ([{"x": 1}, 5], "Example 1 must be a mapping"),
        ([{1: 1}], "Example 0: The name of a feature must be a string"),
        ([{"\ud800": 1}], "lone surrogate"),
        ([{"x": None}], "Example 0: None is not an array"),
        ([{"x": [1, "a"]}], "str or bytes"),
        ([{"x": "\ud800"}], "lone surrogate"),
        ([{"x": 1j}], "cannot hold complex"),
        ([{"x": 2**63}], "uint64"),
        ([{"x": [[1], [1, 2]]}], "Not an array"),
        ([{"x": np.broadcast_to(np.float32(0), (2**40,))}], "bytes"),
    ],
    ids=str,
)
def test_what_no_example_holds_is_refused(client: Client, server: ModelServer, examples: Any, message: str) -> None:  # noqa: ANN401 - a wrong type
    for method in (client.classify, client.regress):
        with pytest.raises(InvalidArgument, match=message):
            method("m", examples)
    assert server.served == []


def test_context_is_checked_like_an_example(client: Client) -> None:
    with pytest.raises(InvalidArgument, match="The context must be a mapping"):
        client.classify("m", [{"x": 1}], context=[1])  # type: ignore[arg-type]  # a wrong type
    with pytest.raises(InvalidArgument, match="The context: None is not an array"):
        client.regress("m", [{"x": 1}], context={"y": None})


@pytest.mark.parametrize("options", [{"priority": "urgent"}, {"signature_name": 5}, {"version": "1"}, {"label": 5}])
def test_wrong_options_are_refused(client: Client, options: Any) -> None:  # noqa: ANN401 - wrong types
    with pytest.raises(InvalidArgument):
        client.regress("m", [{"x": 1}], **options)


def test_classes_of_each_example_have_label_and_score(client: Client) -> None:
    found = client.classify("m", [{"a": [1, 2], "b": 0.5}, {"ö": ["xyz", b"\xff"]}, {}])
    assert found == ((("a", 3.0), ("b", 0.5)), (("ö", 4.0),), ())
    assert isinstance(found[0][0], ScoredClass)
    assert (found[0][0].label, found[0][0].score) == ("a", 3.0)


def test_regression_is_a_value_for_each_example(client: Client) -> None:
    values = client.regress("m", [{"a": [1, 2], "b": 0.25}, {"a": -1.5}])
    assert values.dtype == np.float32
    assert values.tolist() == [3.25, -1.5]


def test_context_is_part_of_each_example(client: Client) -> None:
    values = client.regress("m", [{"a": 1}, {"a": 2, "b": 30}], context={"b": 10})
    assert values.tolist() == [11.0, 32.0]
    assert client.regress("m", [{"a": 1}], context={}).tolist() == [1.0]


def test_numbers_that_json_lacks_reach_the_model(client: Client) -> None:
    values = client.regress("m", [{"a": np.nan}, {"a": np.inf}, {"a": -1e300}, {"a": 1e22}])
    np.testing.assert_array_equal(values, np.array([np.nan, np.inf, -np.inf, 1e22], np.float32))


def test_spec_and_priority_reach_the_server(client: Client, server: ModelServer) -> None:
    client.classify("m", [{"a": 1}], version=5, signature_name="s", priority="low")
    client.regress("m", [{"a": 1}], label="stable")
    first, second = server.served
    assert (first.method, first.model, first.version, first.signature) == ("Classify", "m", 5, "s")
    assert first.priority == "low"
    assert (second.method, second.label, second.priority) == ("Regress", "stable", None)


def test_failure_is_a_typed_error_and_unavailable_is_retried(client: Client, server: ModelServer) -> None:
    server.failures.append(Failure(Code.INVALID_ARGUMENT, "No signature was found with the name: s"))
    with pytest.raises(InvalidArgument, match="No signature was found"):
        client.classify("m", [{"a": 1}], signature_name="s")
    server.failures.append(Failure(Code.UNAVAILABLE))
    assert client.regress("m", [{"a": 1}]).tolist() == [1.0]


def test_closed_client_refuses_to_classify(client: Client) -> None:
    client.close()
    with pytest.raises(FailedPrecondition):
        client.classify("m", [{"a": 1}])


CALL = example_call(SPEC, [{"x": 1}], None, None, None)
NO_ROWS: dict[str, object] = {"results": []}


@pytest.mark.parametrize(
    "document",
    [{}, NO_ROWS, {"results": 5}, {"results": [[["a"]]]}, {"results": [[[5, 1.0]]]}, {"results": [[["a", "b"]]]},
     {"results": [5]}, {"results": [[[{"b64": "/w=="}, 1.0]]]}, {"results": [[["\ud800", 1.0]]]}],
)  # fmt: skip
def test_other_classifications_are_internal(document: object) -> None:
    with pytest.raises(Internal):
        RestWire().read_classifications(Reply(json.dumps(document).encode()), CALL)


@pytest.mark.parametrize("document", [{}, NO_ROWS, {"results": [[1.0]]}, {"results": ["a"]}, {"results": {"a": 1}}])
def test_other_regressions_are_internal(document: object) -> None:
    with pytest.raises(Internal):
        RestWire().read_regressions(Reply(json.dumps(document).encode()), CALL)


@pytest.mark.parametrize("body", [b"\xff", official.ClassificationResponse().SerializeToString()])
def test_other_messages_are_internal(body: bytes) -> None:
    with pytest.raises(Internal):
        GrpcWire().read_classifications(Reply(body), CALL)
    with pytest.raises(Internal):
        GrpcWire().read_regressions(Reply(body), CALL)


def test_documented_key_and_base64_labels_are_read() -> None:
    wire = RestWire()
    assert wire.read_regressions(Reply(b'{"result": [1.5]}'), CALL).tolist() == [1.5]
    body = b'{"results": [[[{"b64": "w7Y="}, 1]]]}'
    assert wire.read_classifications(Reply(body), CALL) == ((("ö", 1.0),),)


FEATURE = st.one_of(
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3),
    st.lists(st.floats(width=32, allow_nan=False), max_size=3),
    st.lists(st.binary(max_size=3), max_size=3),
    st.lists(st.text(max_size=3), max_size=3),
)
EXAMPLE = st.dictionaries(st.text(max_size=3), FEATURE, max_size=3)


def _sent(wire: Wire, examples: Any) -> Exchange:  # noqa: ANN401 - Example of several types
    return wire.classify(example_call(SPEC, examples, None, None, None))


@given(st.lists(EXAMPLE, min_size=1, max_size=3))
def test_both_protocols_send_the_same_features(examples: list[dict[str, Any]]) -> None:
    over_grpc = decoded(official.ClassificationRequest.FromString(_sent(GrpcWire(), examples).body))
    over_rest = decoded_json(json.loads(_sent(RestWire(), examples).body))
    assert over_grpc == over_rest
    expected = [
        {name: [v.encode() if isinstance(v, str) else v for v in values] for name, values in example.items()}
        for example in examples
    ]
    assert over_grpc == expected
