"""Open Inference Protocol over REST: JSON with binary data. All ways to read a body must agree."""

import struct
from collections.abc import Mapping

import orjson

from tests.fuzz.arrays import expect_all_same
from tests.fuzz.parsers.infer_signature import signature_for
from tests.fuzz.parsers.json_words import INFER_WORDS
from tests.fuzz.refusals import check_refusal
from tests.fuzz.small_pieces import small_pieces
from tests.fuzz.target import Target, expect
from tpuserve_formats.dtypes import Array
from tpuserve_server.core.serving.budgets import DEFAULT_DECODED
from tpuserve_server.core.terms.errors import ServingError
from tpuserve_server.wire.oip import infer_json as module
from tpuserve_server.wire.oip.decoding import decode_inputs
from tpuserve_server.wire.oip.infer_json import is_infer_json, parse_infer_json
from tpuserve_server.wire.oip.inference import InferenceRequest
from tpuserve_server.wire.oip.tensor_json import parse_large

# The first bytes are the length of the JSON, or 0xffff for a request without the header.
_LENGTH = struct.Struct(">H")
_WITHOUT = 0xFFFF
_Outcome = tuple[InferenceRequest, Mapping[str, Array]] | None


def run(data: bytes) -> bool:
    """Read a body in every way."""
    if len(data) < _LENGTH.size:
        return False
    (length,) = _LENGTH.unpack_from(data)
    body = data[_LENGTH.size :]
    json_bytes = None if length == _WITHOUT else min(length, len(body))
    is_infer_json(body)
    first = _outcome(body, json_bytes)
    # The third reading may come from the cache of known texts.
    for _ in range(2):
        _expect_same(first, _outcome(body, json_bytes))
    if json_bytes != 0:
        with small_pieces():
            _expect_same(first, _outcome(body, json_bytes))
            _expect_same(first, _in_pieces(body, json_bytes))
    if first is None:
        return False
    # The response repeats the id.
    orjson.dumps(first[0].id)
    return True


def _outcome(body: bytes, json_bytes: int | None) -> _Outcome:
    try:
        return _decoded(parse_infer_json("m", body, json_bytes))
    except ServingError as error:
        check_refusal(error)
        return None


def _in_pieces(body: bytes, json_bytes: int | None) -> _Outcome:
    end = len(body) if json_bytes is None else json_bytes
    try:
        document = module._read_document(parse_large(body[:end], DEFAULT_DECODED))
        return _decoded(module._with_data("m", document, memoryview(body)[end:], len(body)))
    except ServingError as error:
        check_refusal(error)
        return None


def _decoded(request: InferenceRequest) -> _Outcome:
    return request, decode_inputs("m", signature_for(request), request)


def _expect_same(one: _Outcome, other: _Outcome) -> None:
    expect((one is None) == (other is None), "only one reading refuses the body")
    if one is not None and other is not None:
        expect_all_same(one[1], other[1])
        expect(one[0].id == other[0].id, "the ids differ")
        expect(one[0].outputs == other[0].outputs, "the outputs differ")
        expect(one[0].parameters == other[0].parameters, "the parameters differ")


TARGET = Target(run, max_bytes=1024, words=INFER_WORDS)
