"""Classify, Regress and MultiInference requests. The second opinion is the official messages, which parse Examples."""

from google.protobuf.message import DecodeError, Message
from tensorflow_serving.apis import classification_pb2, inference_pb2

from tests.fuzz.refusals import check_refusal
from tests.fuzz.target import Target, expect
from tpuserve_formats.dtypes import Array
from tpuserve_formats.messages.official import Example
from tpuserve_server.core.terms.errors import ServingError
from tpuserve_server.wire.example_request import parse_example_request, parse_multi_inference_request

_REPEATED_BYTES = 1 << 20


def run(data: bytes) -> bool:
    """Parse the bytes as both kinds of requests."""
    is_single = _check(data, classification_pb2.ClassificationRequest, _single)
    is_multi = _check(data, inference_pb2.MultiInferenceRequest, _multi)
    return is_single or is_multi


def _single(data: bytes) -> Array:
    return parse_example_request(data, "ClassificationRequest").examples(_REPEATED_BYTES)


def _multi(data: bytes) -> Array:
    return parse_multi_inference_request(data).examples(_REPEATED_BYTES)


def _check(data: bytes, official: type[Message], parse: object) -> bool:
    assert callable(parse)
    try:
        examples = parse(data)
    except ServingError as error:
        check_refusal(error)
        return False
    try:
        message = official.FromString(data)
    except DecodeError:
        # Models parse the Examples themselves, and refuse malformed ones.
        return False
    _compare(message.input, examples)  # type: ignore[attr-defined]  # both messages have it
    return True


def _compare(official: "classification_pb2.input__pb2.Input", examples: Array) -> None:
    listed = official.example_list_with_context if official.HasField("example_list_with_context") else None
    wanted = official.example_list.examples if listed is None else listed.examples
    expect(len(wanted) == len(examples), f"{len(examples)} examples instead of {len(wanted)}")
    for want, got in zip(wanted, examples, strict=True):
        merged = type(want)()
        if listed is not None:
            merged.CopyFrom(listed.context)
        merged.MergeFrom(want)
        # Through another message class of the same form.
        parsed = type(want).FromString(Example.FromString(got).SerializeToString())
        expect(parsed.SerializeToString(deterministic=True) == merged.SerializeToString(deterministic=True), "differs")


TARGET = Target(run)
