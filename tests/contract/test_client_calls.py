"""Tests for the client's calls against real servers: classify, regress, and predictions in parts.

The messages of classify and regress are compared with the official ones.
"""

import asyncio
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_serving.apis import classification_pb2, input_pb2, regression_pb2

from tests.contract.serving_client import ServingClient
from tpuserve_client import AsyncClient, Client, InvalidArgument, NotFound
from tpuserve_client.exchange import example_call
from tpuserve_client.grpc_wire import GrpcWire
from tpuserve_client.model import ModelSpec

FEATURES: dict[str, Any] = {"f": [1.5, -0.0], "i": [1, -(2**63)], "b": ["größe", b"\xff"], "none": []}
CONTEXT: dict[str, Any] = {"c": 2.0}


def official_example(features: dict[str, Any]) -> tf.train.Example:
    kinds = {
        "f": lambda v: tf.train.Feature(float_list=tf.train.FloatList(value=v)),
        "c": lambda v: tf.train.Feature(float_list=tf.train.FloatList(value=[v])),
        "i": lambda v: tf.train.Feature(int64_list=tf.train.Int64List(value=v)),
        "b": lambda v: tf.train.Feature(
            bytes_list=tf.train.BytesList(value=[item.encode() if isinstance(item, str) else item for item in v])
        ),
        "none": lambda v: tf.train.Feature(),
    }
    if not features:
        return tf.train.Example()
    return tf.train.Example(
        features=tf.train.Features(feature={name: kinds[name](value) for name, value in features.items()})
    )


@pytest.mark.parametrize("context", [None, CONTEXT, {}])
@pytest.mark.parametrize(
    ("method", "request_type"),
    [("classify", classification_pb2.ClassificationRequest), ("regress", regression_pb2.RegressionRequest)],
)
def test_request_is_the_official_message(method: str, request_type: Any, context: dict[str, Any] | None) -> None:  # noqa: ANN401 - untyped upstream
    call = example_call(ModelSpec("m", 3), [FEATURES, {}], context, "s", None)
    sent = request_type.FromString(getattr(GrpcWire(), method)(call).body)
    examples = [official_example(FEATURES), tf.train.Example()]
    expected = request_type()
    expected.model_spec.name, expected.model_spec.signature_name, expected.model_spec.version.value = "m", "s", 3
    if context is None:
        expected.input.CopyFrom(input_pb2.Input(example_list=input_pb2.ExampleList(examples=examples)))
    else:
        listed = input_pb2.ExampleListWithContext(context=official_example(context), examples=examples)
        expected.input.CopyFrom(input_pb2.Input(example_list_with_context=listed))
    assert sent == expected


@pytest.fixture(params=["grpc", "rest"])
def address(request: pytest.FixtureRequest, serving: ServingClient) -> str:
    return serving.grpc_address if request.param == "grpc" else serving.rest_url


def test_server_classifies_examples(address: str) -> None:
    with Client(address) as client:
        found = client.classify("half", [{"x": 2.0}, {"x": [4.0]}], signature_name="classify_x_to_y")
        assert found == ((("", 4.0),), (("", 5.0),))
        labelled = client.classify("half", [{"x": 2.0}], signature_name="classify_both", label="stable")
        assert labelled == ((("3.0", 3.0),),)


def test_server_regresses_examples(address: str) -> None:
    with Client(address) as client:
        values = client.regress("half", [{"x": 2.0}, {"x": np.float32(4)}], signature_name="regress_x_to_y")
        assert (str(values.dtype), values.tolist()) == ("float32", [4.0, 5.0])
        older = client.regress("half", [{"x": 2.0}], signature_name="regress_x_to_y", version=123)
        assert older.tolist() == [3.0]


def test_server_merges_the_context_into_examples(address: str) -> None:
    with Client(address) as client:
        examples = [{"x2": 1.0}, {"x": 6.0}]
        values = client.regress("half", examples, context={"x": 2.0}, signature_name="regress_x_to_y")
        assert values.tolist() == [4.0, 6.0]


def test_server_refuses_what_it_cannot_regress(address: str) -> None:
    with Client(address) as client:
        with pytest.raises(InvalidArgument, match="No signature was found with the name: absent"):
            client.classify("half", [{"x": 1.0}], signature_name="absent")
        with pytest.raises(InvalidArgument, match="x"):
            client.regress("half", [{"other": 1.0}], signature_name="regress_x_to_y")
        with pytest.raises(NotFound):
            client.regress("absent", [{"x": 1.0}])


def test_server_answers_the_asyncio_client(address: str) -> None:
    async def both() -> tuple[Any, Any]:
        async with AsyncClient(address) as client:
            return await asyncio.gather(
                client.classify("half", [{"x": 2.0}], signature_name="classify_x_to_y"),
                client.regress("half", [{"x": 2.0}], signature_name="regress_x_to_y"),
            )

    classes, values = asyncio.run(both())
    assert classes == ((("", 4.0),),)
    assert values.tolist() == [4.0]


def test_zero_rows_keep_their_shape_over_grpc_and_are_refused_over_rest(serving: ServingClient) -> None:
    nothing = {"image": np.zeros((0, 2, 2), np.float32)}
    with Client(serving.rest_url) as client, pytest.raises(InvalidArgument, match="Use gRPC"):
        client.predict("kinds", nothing)
    with Client(serving.grpc_address) as client:
        assert client.predict("kinds", nothing)["mean"].shape == (0,)


def test_parts_of_a_large_input_come_from_one_version(address: str) -> None:
    x = np.arange(10, dtype=np.float32)
    with Client(address) as client:
        prediction = client.predict("half", {"x": x.reshape(-1, 1)}, label="stable", max_batch_size=3)
        assert prediction["y"].reshape(-1).tolist() == (x / 2 + 2).tolist()
        assert (prediction.version, prediction.signature_name) == (123, "serving_default")
        text = client.predict("kinds", {"text": list("abcde")}, signature_name="text", max_batch_size=2)
        assert text["plain"].tolist() == [b"a", b"b", b"c", b"d", b"e"]
        with pytest.raises(InvalidArgument, match=r"output total: float32.* has no dimension for rows"):
            client.predict("kinds", {"x": x}, signature_name="scalar", max_batch_size=3)
        with pytest.raises(InvalidArgument, match=r"output twice has shape \[6\] for 3 rows"):
            client.predict("kinds", {"x": x}, signature_name="uneven", max_batch_size=3)
