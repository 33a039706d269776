"""REST predict requests: converts JSON rows or columns to numpy arrays.

Bodies that hold only numbers take the fast path in numbers.py. In all others, C loops process whole levels of a nested
list, never value by value in Python. If a request cannot be converted, explain.py walks it again to find the error.
"""

from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tpuserve_formats.dtypes import BY_DTYPE, WireType
from tpuserve_server.core.errors import InvalidArgument
from tpuserve_server.core.types import Array, Signature, Tensors, TensorSpec
from tpuserve_server.wire.json.base64 import decode_base64_object, is_base64_object
from tpuserve_server.wire.json.body import JsonObject, JsonValue, check_depth, parse_json
from tpuserve_server.wire.json.explain import explain_columns, explain_rows
from tpuserve_server.wire.json.known import KnownBody, recall, remember
from tpuserve_server.wire.json.numbers import NumericBody, parse_numbers
from tpuserve_server.wire.json.ragged import ragged_columns
from tpuserve_server.wire.json.request import check_object, signature_name
from tpuserve_server.wire.json.text import value_text

if TYPE_CHECKING:
    from collections.abc import Mapping

# numpy's limit on dimensions.
_MAX_RANK = 64
_FLOAT_TYPES = frozenset((int, float))
_INT_TYPES = frozenset((int,))
_BOOL_TYPES = frozenset((bool,))
_STRING_TYPES = frozenset((str, dict))
_FLOAT_FIELDS = frozenset(("float_val", "double_val", "half_val", "float8_val"))
_COMPLEX_FIELDS = frozenset(("scomplex_val", "dcomplex_val"))


class PredictBody:
    """A parsed body. Release it once its inputs are decoded: it holds several times the memory of its text."""

    __slots__ = ("document", "numbers", "signature_name", "text")

    def __init__(
        self,
        text: bytes,
        signature_name: str,
        numbers: NumericBody | KnownBody | None,
        document: JsonObject | None,
    ) -> None:
        """Hold either `numbers`, in simdjson's memory, or `document`, as Python objects."""
        self.text = text
        # Empty if the request names none.
        self.signature_name = signature_name
        self.numbers = numbers
        self.document = document


class JsonInputs(NamedTuple):
    """Input arrays by name, and whether they came as rows (`instances`), which decides the form of the response."""

    inputs: Tensors
    is_row: bool
    # Whether ragged inputs came as lists of rows. Ragged outputs then have the same form.
    has_nested_rows: bool = False


def parse_predict_body(body: bytes) -> PredictBody:
    """Parse a body and its signature name. Raises InvalidArgument with upstream's messages."""
    numbers = recall(body) or parse_numbers(body)
    if numbers is not None:
        return PredictBody(body, numbers.signature_name, numbers, None)
    document = _parse_document(body)
    return PredictBody(body, signature_name(document), None, document)


def _parse_document(body: bytes) -> JsonObject:
    document = check_object(parse_json(body))
    for key, value in document.items():
        if key not in ("instances", "inputs") and type(value) in (list, dict):
            check_depth(value, 1)
    return document


def decode_predict_inputs(body: PredictBody, signature: Signature) -> JsonInputs:
    """Return the request's arrays with the signature's dtypes. The service checks their shapes later.

    Raises:
        InvalidArgument: the request does not fit the signature; upstream's messages.
        Unimplemented: a dtype has no JSON form.
    """
    numbers = body.numbers
    if numbers is not None and not (numbers.is_row and signature.ragged_inputs):
        inputs = numbers.convert(signature)
        if inputs is not None:
            if type(numbers) is NumericBody:
                remember(body.text, numbers, inputs)
            return JsonInputs(inputs, is_row=numbers.is_row)
    document = _parse_document(body.text) if body.document is None else body.document
    return _decode_document(document, body.signature_name, signature)


def _decode_document(document: JsonObject, name: str, signature: Signature) -> JsonInputs:
    if not signature.inputs:
        raise InvalidArgument(f"Failed to get input map for signature: {name or 'DEFAULT'}")
    is_row = "instances" in document
    if is_row and "inputs" in document:
        raise InvalidArgument(
            f"JSON Value: {value_text(document)} Not formatted correctly expecting only one of 'inputs' or 'instances'"
            " keys to exist "
        )
    if signature.ragged_inputs and (is_row or "inputs" in document):
        columns = ragged_columns(document, signature)
        if columns is not None:
            return JsonInputs(_convert_ragged(columns, signature), is_row, has_nested_rows=True)
    if is_row:
        return JsonInputs(_decode_rows(document, signature), is_row=True)
    if "inputs" in document:
        return JsonInputs(_decode_columns(document, signature), is_row=False)
    raise InvalidArgument("Missing 'inputs' or 'instances' key")


def _convert_ragged(columns: "Mapping[str, JsonValue]", signature: Signature) -> Tensors:
    tensors = _convert_each(columns, signature)
    if tensors is None:
        check_depth(columns, 0)
        explain_columns(dict(columns), signature)
    empty = {name: tensors[name] for name in signature.ragged_inputs if not len(tensors[name])}
    return {**tensors, **{name: _without_items(value, signature.inputs[name]) for name, value in empty.items()}}


def _without_items(value: Array, spec: TensorSpec) -> Array:
    """Give values without items the inner sizes of the signature, which empty rows do not show."""
    return value.reshape([0, *(size or 0 for size in (spec.shape or (0,))[1:])])


def _decode_rows(document: JsonObject, signature: Signature) -> Tensors:
    rows = document["instances"]
    if type(rows) is not list:
        raise InvalidArgument(f"JSON Value: {value_text(document)} Expecting 'instances' to be an list/array")
    if not rows:
        raise InvalidArgument(f"JSON Value: {value_text(document)} No values in 'instances' array")
    tensors = _convert_rows(rows, signature)
    if tensors is None:
        check_depth(rows, 1)
        explain_rows(rows, signature)
    return tensors


def _convert_rows(rows: list[JsonValue], signature: Signature) -> Tensors | None:
    names = list(signature.inputs)
    if type(rows[0]) is not dict or is_base64_object(rows[0]):
        return _convert_each({names[0]: rows}, signature) if len(names) == 1 else None
    keys = signature.inputs.keys()
    if not all(type(row) is dict and row.keys() == keys for row in rows):
        return None
    return _convert_each({name: [row[name] for row in rows] for name in names}, signature)


def _decode_columns(document: JsonObject, signature: Signature) -> Tensors:
    value = document["inputs"]
    if type(value) is not dict or is_base64_object(value):
        named = {next(iter(signature.inputs)): value} if len(signature.inputs) == 1 else None
    else:
        for name in value.keys() - signature.inputs.keys():
            check_depth(value[name], 2)
        named = value if value.keys() >= signature.inputs.keys() else None
    tensors = None if named is None else _convert_each(named, signature)
    if tensors is None:
        check_depth(value, 1)
        explain_columns(value, signature)
    return tensors


def _convert_each(values: "Mapping[str, JsonValue]", signature: Signature) -> Tensors | None:
    arrays = {}
    for name, spec in signature.inputs.items():
        array = _convert(values[name], spec.dtype)
        if array is None:
            return None
        arrays[name] = array
    return arrays


def _convert(value: JsonValue, dtype: np.dtype[Any]) -> Array | None:
    """Convert `value` to an array of `dtype`. Return None if it is ragged or a value is not exactly of that type."""
    wire_type = BY_DTYPE.get(dtype)
    levels = _flatten(value)
    if wire_type is None or levels is None:
        return None
    shape, leaves, kinds = levels
    flat = _convert_leaves(leaves, kinds, wire_type)
    return None if flat is None else flat.reshape(shape)


def _flatten(value: JsonValue) -> tuple[list[int], list[JsonValue], set[type]] | None:
    """Return a nested list's shape, its leaves in order and their types, or None if it is ragged or nested too deep."""
    shape: list[int] = []
    items = [value]
    while True:
        kinds = set(map(type, items))
        if list not in kinds:
            return shape, items, kinds
        sizes = set(map(len, items)) if len(kinds) == 1 else ()
        if len(sizes) != 1 or len(shape) == _MAX_RANK:
            return None
        shape += sizes
        items = items[0] if len(items) == 1 else list(chain.from_iterable(items))


def _convert_leaves(leaves: list[JsonValue], kinds: set[type], wire_type: WireType) -> Array | None:
    field, dtype = wire_type.field, wire_type.dtype
    if not leaves:
        return np.empty(0, dtype)
    if field in _FLOAT_FIELDS:
        return _floats(leaves, dtype) if kinds <= _FLOAT_TYPES else None
    if field == "string_val":
        return _strings(leaves, kinds) if kinds <= _STRING_TYPES else None
    if field == "bool_val":
        return np.array(leaves, dtype) if kinds <= _BOOL_TYPES else None
    if field in _COMPLEX_FIELDS or not kinds <= _INT_TYPES:
        return None
    try:
        return np.array(leaves, dtype)
    except OverflowError:
        return None


def _floats(leaves: list[JsonValue], dtype: np.dtype[Any]) -> Array:
    with np.errstate(over="ignore"):
        try:
            return np.array(leaves, dtype)
        except (OverflowError, TypeError):
            # An integer beyond a double's range, which only Python's parser keeps. ml_dtypes refuses more than 64 bits.
            return np.array([_clamped(leaf) for leaf in leaves], dtype)


def _clamped(number: float) -> float:
    try:
        return float(number)
    except OverflowError:
        return float("inf") if number > 0 else float("-inf")


def _strings(leaves: list[JsonValue], kinds: set[type]) -> Array | None:
    strings = np.empty(len(leaves), np.object_)
    try:
        if dict not in kinds:
            strings[:] = [leaf.encode() for leaf in leaves]
        elif all(type(leaf) is str or is_base64_object(leaf) for leaf in leaves):
            strings[:] = [leaf.encode() if type(leaf) is str else decode_base64_object(leaf) for leaf in leaves]
        else:
            return None
    except ValueError:
        # Not base64, or a lone surrogate, which has no UTF-8 encoding.
        return None
    return strings
