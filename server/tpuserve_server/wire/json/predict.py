"""TensorFlow Serving's and Vertex AI's predict requests in JSON: rows or columns to numpy arrays, and their layouts.

Long lists of numbers stay apart from the document (numbers.py). For all other values, C loops process whole levels of a
nested list, never value by value in Python. If a request cannot be converted, conversion.py walks it again to find the
error.
"""

from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

import numpy as np
import orjson

from tpuserve_server.core.serving.budgets import DEFAULT_DECODED, JSON_ROWS, DecodedBudget, Part
from tpuserve_server.core.terms.errors import InvalidArgument, ServingError, shown
from tpuserve_server.core.terms.types import Array, PredictResult, Signature, Tensors, TensorSpec
from tpuserve_server.wire.json.array_text import ListTemplate
from tpuserve_server.wire.json.body import (
    JsonObject,
    JsonValue,
    check_depth,
    check_object,
    is_large,
    parse_json,
    signature_name,
    value_text,
)
from tpuserve_server.wire.json.conversion import (
    convert_columns,
    convert_each,
    convert_rows,
    explain_columns,
    explain_rows,
)
from tpuserve_server.wire.json.large import VALUES, LargeBody, holders_in_rows
from tpuserve_server.wire.json.numbers import NumberList, parse_quickly
from tpuserve_server.wire.json.ragged import ragged_columns
from tpuserve_server.wire.json.response import encode_predictions, prediction_template
from tpuserve_server.wire.layouts import Frame, ListSubject, example_list

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

# Key in the ASGI scope of a request whose body is read by these rules.
VERTEX_SCOPE: Final = "tpuserve.vertex"
_SIGNATURE_NAME = "signature_name"
_DOUBLE: Final = np.dtype(np.float64)


class PredictBody:
    """A parsed body. Release it once its inputs are decoded: it holds several times the memory of its text."""

    __slots__ = ("document", "large", "signature_name", "text")

    def __init__(
        self, text: bytes, signature_name: str, document: JsonObject | None, large: LargeBody | None = None
    ) -> None:
        """Hold either `document`, which may have NumberLists, or `large`, as text."""
        self.large = large
        self.text = text
        # Empty if the request names none.
        self.signature_name = signature_name
        self.document = document

    def member(self, name: str) -> JsonValue:
        """Return the value of a member other than the tensors and the signature's name, or None."""
        if self.large is not None:
            return self.large.member(name)
        return None if self.document is None else self.document.get(name)


class JsonInputs(NamedTuple):
    """Input arrays by name, and whether they came as rows (`instances`), which decides the form of the response."""

    inputs: Tensors
    is_row: bool
    # Whether ragged inputs came as lists of rows. Ragged outputs then have the same form.
    has_nested_rows: bool = False


def read_quickly(body: bytes) -> PredictBody | None:
    """Parse a body in a millisecond, or return None for one that `parse_predict_body` must read."""
    document = parse_quickly(body, _holders, _parse_document)
    return None if document is None else PredictBody(body, signature_name(document), document)


def parse_predict_body(body: bytes, budget: DecodedBudget = DEFAULT_DECODED) -> PredictBody:
    """Parse a body and its signature name. Raises InvalidArgument with upstream's messages.

    A large body is only scanned, and refused if its decoded objects would exceed `budget`.
    """
    parsed = read_quickly(body)
    if parsed is not None:
        return parsed
    large = LargeBody(body, budget)
    return PredictBody(body, large.signature_name, None, large)


def _parse_document(body: bytes) -> JsonObject:
    document = check_object(parse_json(body))
    for key, value in document.items():
        if key not in VALUES and type(value) in (list, dict):
            check_depth(value, 1)
    # Its error shows the whole document.
    signature_name(document)
    return document


def _holders(document: JsonObject) -> "Iterator[tuple[JsonObject, Collection[str]]]":
    yield document, VALUES
    columns = document.get("inputs")
    if type(columns) is dict:
        yield columns, columns.keys()
    yield from holders_in_rows(document.get("instances"))


def decode_quickly(body: PredictBody, signature: Signature) -> JsonInputs | None:
    """Decode as `decode_predict_inputs` in a millisecond, or return None for a body that takes longer."""
    document = body.document
    if document is None:
        return None
    decoded = None if signature.ragged_inputs else _convert(document, signature)
    if decoded is not None:
        return decoded
    if any(type(holder.get(name)) is NumberList for holder, names in _holders(document) for name in names):
        if is_large(body.text):
            return None
        document = _parse_document(body.text)
    return _decode_document(document, body.signature_name, signature)


def decode_predict_inputs(
    body: PredictBody, signature: Signature, budget: DecodedBudget = DEFAULT_DECODED
) -> JsonInputs:
    """Return the request's arrays with the signature's dtypes. The service checks their shapes later.

    A body that takes long must be decoded in a worker thread. It lets other threads run.

    Raises:
        InvalidArgument: the request does not fit the signature, with upstream's messages, or is over `budget`.
        Unimplemented: a dtype has no JSON form.
    """
    decoded = decode_quickly(body, signature)
    if decoded is not None:
        return decoded
    large = LargeBody(body.text, budget) if body.large is None else body.large
    if not signature.ragged_inputs:
        return JsonInputs(large.convert(signature), is_row=large.is_row)
    large.check_objects()
    return _decode_document(_parse_document(body.text), body.signature_name, signature)


def _convert(document: JsonObject, signature: Signature) -> JsonInputs | None:
    """Return the inputs, or None if the request does not fit the signature."""
    is_row = "instances" in document
    if not signature.inputs or is_row is ("inputs" in document):
        return None
    value = document["instances" if is_row else "inputs"]
    if not is_row:
        tensors = convert_columns(value, signature)
    else:
        tensors = convert_rows(value, signature) if value and type(value) in (list, NumberList) else None
    return None if tensors is None else JsonInputs(tensors, is_row)


def _decode_document(document: JsonObject, name: str, signature: Signature) -> JsonInputs:
    """Decode a document without NumberLists, or raise the error for its first fault."""
    is_row = "instances" in document
    if signature.ragged_inputs and is_row is not ("inputs" in document):
        columns = ragged_columns(document, signature)
        if columns is not None:
            return JsonInputs(_convert_ragged(columns, signature), is_row, has_nested_rows=True)
    return _convert(document, signature) or _explain(document, name, signature)


def _explain(document: JsonObject, name: str, signature: Signature) -> NoReturn:
    if not signature.inputs:
        raise InvalidArgument(f"Failed to get input map for signature: {name or 'DEFAULT'}")
    is_row = "instances" in document
    if is_row and "inputs" in document:
        raise InvalidArgument(
            f"JSON Value: {value_text(document)} Not formatted correctly expecting only one of 'inputs' or 'instances'"
            " keys to exist "
        )
    if not is_row and "inputs" not in document:
        raise InvalidArgument("Missing 'inputs' or 'instances' key")
    value = document["instances" if is_row else "inputs"]
    if is_row and type(value) is not list:
        raise InvalidArgument(f"JSON Value: {value_text(document)} Expecting 'instances' to be an list/array")
    if is_row and not value:
        raise InvalidArgument(f"JSON Value: {value_text(document)} No values in 'instances' array")
    check_depth(value, 1)
    if is_row:
        explain_rows(value, signature)
    explain_columns(value, signature)


def _convert_ragged(columns: "Mapping[str, JsonValue]", signature: Signature) -> Tensors:
    tensors = convert_each(columns, signature)
    if tensors is None:
        check_depth(columns, 0)
        explain_columns(dict(columns), signature)
    empty = {name: tensors[name] for name in signature.ragged_inputs if not len(tensors[name])}
    return {**tensors, **{name: _without_items(value, signature.inputs[name]) for name, value in empty.items()}}


def _without_items(value: Array, spec: TensorSpec) -> Array:
    """Give values without items the inner sizes of the signature, which empty rows do not show."""
    return value.reshape([0, *(size or 0 for size in (spec.shape or (0,))[1:])])


def may_have_parameters(body: bytes) -> bool:
    """Return whether `with_parameters` must read a body. An escape may hide the name."""
    return b"parameters" in body or b"\\" in body


def with_parameters(parsed: PredictBody) -> PredictBody:
    """Return `parsed` with the name of the signature that Vertex AI's `parameters` may hold.

    Raises:
        InvalidArgument: `parameters` holds anything else, or another name.
    """
    name = _read_parameters(parsed.member("parameters"))
    if name and parsed.signature_name not in ("", name):
        raise InvalidArgument(
            f"The request names two signatures: '{parsed.signature_name}', and '{name}' in 'parameters'"
        )
    parsed.signature_name = name or parsed.signature_name
    return parsed


def _read_parameters(parameters: object) -> str:
    """Return the signature name, or "". Clients of the platform send null for no parameters."""
    if parameters is None:
        return ""
    if not isinstance(parameters, dict):
        raise InvalidArgument('\'parameters\' must be an object, such as {"signature_name": "serving_default"}')
    if unknown := sorted(parameters.keys() - {_SIGNATURE_NAME}):
        raise InvalidArgument(f"'parameters' may hold only '{_SIGNATURE_NAME}'; it also holds '{shown(unknown[0])}'")
    name = parameters.get(_SIGNATURE_NAME, "")
    if not isinstance(name, str):
        raise InvalidArgument(f"'{_SIGNATURE_NAME}' in 'parameters' must be a string")
    return shown(name)


class PredictForm(NamedTuple):
    """The facts that all requests of a layout share: the input, whose name is None if the bodies do not name it."""

    name: str | None
    shape: tuple[int, ...]
    is_row: bool

    def encode(self, result: PredictResult) -> bytes:
        """Encode a response. Raises as `encode_predictions`."""
        return encode_predictions(result.outputs, is_row=self.is_row)

    def parts(self, result: PredictResult) -> tuple[Part, ...]:
        """Return the outputs with their encoding."""
        return ((result.outputs, JSON_ROWS),)

    def template(self, result: PredictResult) -> ListTemplate | None:
        """Return the template of a response, or None if it has more than lists of numbers."""
        return prediction_template(result.outputs, is_row=self.is_row)


def learn_predict_list(skeleton: bytes, subject: ListSubject) -> Frame | None:
    """Return the frame of the bodies with this skeleton of a list, or None if they need more than its numbers.

    The parser proves it: it must read the numbers of an example, in their order and shape, and nothing else.
    """
    example = example_list(skeleton)
    if example is None:
        return None
    body = b"".join((subject.before, example.text, subject.after))
    try:
        parsed = parse_predict_body(body)
        name = _column_name(body)
        decoded = decode_predict_inputs(parsed, Signature("", {name or "": TensorSpec("", _DOUBLE, None)}, {}))
    except (ServingError, ValueError):
        # orjson reads fewer documents than the parser of requests.
        return None
    (numbers,) = decoded.inputs.values()
    if numbers.shape != example.numbers.shape or not np.array_equal(numbers, example.numbers):
        return None
    form = PredictForm(name, numbers.shape, decoded.is_row)
    return Frame(subject.spec.with_signature(parsed.signature_name), (), (), form=form)


def _column_name(body: bytes) -> str | None:
    """Return the name of the only column of a valid body, or None if its input has no name."""
    columns = orjson.loads(body).get("inputs")
    return next(iter(columns)) if type(columns) is dict and len(columns) == 1 else None
