"""REST predict bodies. Every way to read one must agree: as numbers, known texts, documents and pieces.

The second opinion on the values is Python's json module with numpy.
"""

import json
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.fuzz.arrays import expect_all_same
from tests.fuzz.parsers.json_signatures import split
from tests.fuzz.parsers.json_words import PREDICT_WORDS
from tests.fuzz.refusals import check_refusal
from tests.fuzz.small_pieces import small_pieces
from tests.fuzz.target import Target, expect
from tpuserve_formats.dtypes import STRING, Array
from tpuserve_server.core.serving.budgets import DEFAULT_DECODED
from tpuserve_server.core.terms.errors import ServingError
from tpuserve_server.core.terms.types import Signature, Tensors
from tpuserve_server.wire.json import predict
from tpuserve_server.wire.json.body import decode_base64_object, is_base64_object, signature_name
from tpuserve_server.wire.json.large import LargeBody
from tpuserve_server.wire.json.predict import PredictBody, decode_predict_inputs, parse_predict_body, with_parameters

_Read = Callable[[bytes, Signature], tuple[str, Tensors]]


def run(data: bytes) -> bool:
    """Read a body in every way. The first byte selects the signature."""
    signature, body = split(data)
    first = _outcome(_as_server, body, signature)
    expect(_same(first, _outcome(_as_server, body, signature)), "the second reading differs")
    expect(_same(first, _outcome(_as_document, body, signature)), "the reading as a document differs")
    with small_pieces():
        expect(_same(first, _outcome(_as_server, body, signature)), "the reading with lists apart differs")
        if not signature.ragged_inputs:
            expect(_same(first, _outcome(_as_pieces, body, signature)), "the reading in pieces differs")
    _check_vertex(body)
    if first is None:
        return False
    if not signature.ragged_inputs:
        _compare_with_json(body, signature, first[1])
    return True


def _outcome(read: _Read, body: bytes, signature: Signature) -> tuple[str, Tensors] | None:
    try:
        return read(body, signature)
    except ServingError as error:
        check_refusal(error)
        return None


def _as_server(body: bytes, signature: Signature) -> tuple[str, Tensors]:
    parsed = parse_predict_body(body)
    return parsed.signature_name, decode_predict_inputs(parsed, signature).inputs


def _as_document(body: bytes, signature: Signature) -> tuple[str, Tensors]:
    document = predict._parse_document(body)
    parsed = PredictBody(body, signature_name(document), document)
    return parsed.signature_name, decode_predict_inputs(parsed, signature).inputs


def _as_pieces(body: bytes, signature: Signature) -> tuple[str, Tensors]:
    large = LargeBody(body, DEFAULT_DECODED)
    return large.signature_name, large.convert(signature)


def _same(one: tuple[str, Tensors] | None, other: tuple[str, Tensors] | None) -> bool:
    if one is None or other is None:
        return one is other
    expect_all_same(one[1], other[1])
    return one[0] == other[0]


def _check_vertex(body: bytes) -> None:
    try:
        with_parameters(parse_predict_body(body))
    except ServingError as error:
        check_refusal(error)


def _compare_with_json(body: bytes, signature: Signature, inputs: Tensors) -> None:
    document = json.loads(body.decode())
    value = document["instances"] if "instances" in document else document["inputs"]
    for name, spec in signature.inputs.items():
        expect_all_same({name: inputs[name]}, {name: _array(_values(value, name), spec.dtype, inputs[name].shape)})


def _values(value: Any, name: str) -> Any:  # noqa: ANN401 (JSON)
    if isinstance(value, dict) and not is_base64_object(value):
        return value[name]
    is_rows = isinstance(value, list) and value and isinstance(value[0], dict) and not is_base64_object(value[0])
    return [row[name] for row in value] if is_rows else value


def _array(value: Any, dtype: "np.dtype[Any]", shape: tuple[int, ...]) -> Array:  # noqa: ANN401 (JSON)
    leaves: list[Any] = []
    _collect(value, leaves)
    if dtype == STRING:
        texts = np.empty(len(leaves), STRING)
        texts[:] = [leaf.encode() if isinstance(leaf, str) else decode_base64_object(leaf) for leaf in leaves]
        return texts.reshape(shape)
    if dtype.kind in "biu":
        return np.array(leaves, dtype).reshape(shape)
    with np.errstate(over="ignore"):
        return np.array([_double(leaf) for leaf in leaves], np.float64).astype(dtype).reshape(shape)


def _double(number: float) -> float:
    try:
        return float(number)
    except OverflowError:
        return float("inf") if number > 0 else float("-inf")


def _collect(value: Any, leaves: list[Any]) -> None:  # noqa: ANN401 (JSON)
    if isinstance(value, list):
        for item in value:
            _collect(item, leaves)
    else:
        leaves.append(value)


TARGET = Target(run, max_bytes=1024, words=PREDICT_WORDS)
