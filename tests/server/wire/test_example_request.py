"""Tests that requests with tf.Examples keep the Examples' bytes, for all messages that protobuf can write."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorflow.core.example.example_pb2 import Example
from tensorflow_serving.apis import classification_pb2, inference_pb2, input_pb2

from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.core.terms.types import ModelSpec
from tpuserve_server.wire.example_request import (
    parse_example_request,
    parse_multi_inference_request,
    parse_recorded_request,
)

NAME = "ClassificationRequest"


def make_example(values: dict[str, list[float]]) -> Example:
    example = Example()
    for name, floats in values.items():
        example.features.feature[name].float_list.value.extend(floats)
    return example


EXAMPLE = st.dictionaries(
    st.text(max_size=3), st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=3), max_size=3
).map(make_example)


@given(st.lists(EXAMPLE, min_size=1, max_size=4))
def test_a_list_gives_each_example(examples: list[Example]) -> None:
    request = classification_pb2.ClassificationRequest(
        model_spec={"name": "m", "signature_name": "s"},
        input=input_pb2.Input(example_list=input_pb2.ExampleList(examples=examples)),
    )
    parsed = parse_example_request(request.SerializeToString(), NAME)
    assert (parsed.spec, parsed.signature_name) == (ModelSpec("m", signature_name="s"), "s")
    array = parsed.examples()
    assert array.dtype == np.object_
    assert array.shape == (len(examples),)
    assert [Example.FromString(text) for text in array] == examples


@given(EXAMPLE, st.lists(EXAMPLE, min_size=1, max_size=4))
def test_a_context_is_merged_below_each_example(context: Example, examples: list[Example]) -> None:
    listed = input_pb2.ExampleListWithContext(context=context, examples=examples)
    tasks = [inference_pb2.InferenceTask(model_spec={"name": "m"}, method_name="x")]
    request = inference_pb2.MultiInferenceRequest(tasks=tasks, input=input_pb2.Input(example_list_with_context=listed))
    parsed = parse_multi_inference_request(request.SerializeToString())
    merged = []
    for example in examples:
        both = Example()
        both.CopyFrom(context)
        both.MergeFrom(example)
        merged.append(both)
    assert [Example.FromString(text) for text in parsed.examples()] == merged
    assert (parsed.tasks[0].signature_name, parsed.tasks[0].method_name) == ("serving_default", "x")


def test_a_label_and_a_version_are_read() -> None:
    request = classification_pb2.ClassificationRequest(model_spec={"name": "m", "version_label": "l"})
    assert parse_example_request(request.SerializeToString(), NAME).spec == ModelSpec("m", version_label="l")
    request.model_spec.version.value = 9
    assert parse_example_request(request.SerializeToString(), NAME).spec == ModelSpec("m", version=9)


def test_the_last_of_two_kinds_counts_as_protobuf_has_it() -> None:
    first = input_pb2.Input(example_list=input_pb2.ExampleList(examples=[make_example({"a": [1.0]})] * 3))
    second = input_pb2.Input(
        example_list_with_context=input_pb2.ExampleListWithContext(examples=[make_example({"b": [2.0]})])
    )
    body = b"".join(
        classification_pb2.ClassificationRequest(model_spec={"name": "m"}, input=part).SerializeToString()
        for part in (first, second)
    )
    assert len(parse_example_request(body, NAME).examples()) == 1


@pytest.mark.parametrize("kind", ["", "example_list", "example_list_with_context"])
def test_no_example_is_an_error(kind: str) -> None:
    request = classification_pb2.ClassificationRequest(model_spec={"name": "m"})
    if kind:
        getattr(request.input, kind).SetInParent()
    with pytest.raises(InvalidArgument, match=r"^Input is empty\.$"):
        parse_example_request(request.SerializeToString(), NAME).examples()


def test_a_recorded_request_needs_no_model() -> None:
    assert parse_recorded_request(b"", NAME).signature_name == "serving_default"
    for body, message in (
        (b"", "Missing ModelSpec"),
        (b"\x0a\x00", r"ModelSpec has no name specified\."),
        (b"\xff", "Malformed ClassificationRequest"),
    ):
        with pytest.raises(InvalidArgument, match=message):
            parse_example_request(body, NAME)


def test_a_context_is_not_copied_without_measure() -> None:
    context = make_example({"a": [1.0] * 1000})
    listed = input_pb2.ExampleListWithContext(context=context, examples=[Example()] * 11)
    request = classification_pb2.ClassificationRequest(
        model_spec={"name": "m"}, input=input_pb2.Input(example_list_with_context=listed)
    )
    parsed = parse_example_request(request.SerializeToString(), NAME)
    size = len(context.SerializeToString())
    assert [len(example) for example in parsed.examples(10 * size)] == [size] * 11
    with pytest.raises(InvalidArgument, match=rf"A context of {size} bytes is too large for 11 examples"):
        parsed.examples(10 * size - 1)
