"""Classify and Regress bodies in JSON. The Examples are official messages, and both ways to read them agree."""

from tensorflow.core.example import example_pb2

from tests.fuzz.parsers.json_words import EXAMPLE_WORDS
from tests.fuzz.refusals import check_refusal
from tests.fuzz.small_pieces import small_pieces
from tests.fuzz.target import Target, expect
from tpuserve_server.core.serving.budgets import DEFAULT_DECODED
from tpuserve_server.core.terms.errors import ServingError
from tpuserve_server.wire.json import examples as module
from tpuserve_server.wire.json.examples import JsonExamples, decode_json_examples
from tpuserve_server.wire.json.large import LargeBody

_REPEATED_BYTES = 1 << 20


def run(data: bytes) -> bool:
    """Read a body in one step and in pieces."""
    found = _outcome(data, is_large=False)
    with small_pieces():
        in_pieces = _outcome(data, is_large=True)
    expect((found is None) == (in_pieces is None), "the reading in pieces differs")
    if found is None or in_pieces is None:
        return False
    expect(found.signature_name == in_pieces.signature_name, "the name in pieces differs")
    expect(found.examples.tolist() == in_pieces.examples.tolist(), "the Examples in pieces differ")
    for example in found.examples:
        example_pb2.Example.FromString(example)
    return True


def _outcome(data: bytes, *, is_large: bool) -> JsonExamples | None:
    try:
        if is_large:
            return module._decode_large(LargeBody(data, DEFAULT_DECODED), module._ExampleWriter(), _REPEATED_BYTES)
        return decode_json_examples(data, _REPEATED_BYTES)
    except ServingError as error:
        check_refusal(error)
        return None


TARGET = Target(run, max_bytes=1024, words=EXAMPLE_WORDS)
