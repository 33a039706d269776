"""Parsed JSON values to arrays: C loops process whole levels of a nested list, never value by value in Python.

None means that the values do not fit the signature. explain.py finds the error.
"""

from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from tpuserve_formats.dtypes import BY_DTYPE, WireType
from tpuserve_server.core.terms.types import Array, Signature, Tensors
from tpuserve_server.wire.json.base64 import decode_base64_object, is_base64_object
from tpuserve_server.wire.json.body import JsonValue

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


def convert_rows(rows: list[JsonValue], signature: Signature) -> Tensors | None:
    """Return the inputs of rows, or None if a row does not have exactly the inputs of the signature."""
    names = list(signature.inputs)
    if type(rows[0]) is not dict or is_base64_object(rows[0]):
        return convert_each({names[0]: rows}, signature) if len(names) == 1 else None
    keys = signature.inputs.keys()
    if not all(type(row) is dict and row.keys() == keys for row in rows):
        return None
    return convert_each({name: [row[name] for row in rows] for name in names}, signature)


def convert_each(values: "Mapping[str, JsonValue]", signature: Signature) -> Tensors | None:
    """Return the signature's inputs, or None if one cannot be converted."""
    arrays = {}
    for name, spec in signature.inputs.items():
        array = convert_value(values[name], spec.dtype)
        if array is None:
            return None
        arrays[name] = array
    return arrays


def convert_value(value: JsonValue, dtype: np.dtype[Any]) -> Array | None:
    """Convert `value` to an array of `dtype`. Return None if it is ragged or a value is not exactly of that type."""
    wire_type = BY_DTYPE.get(dtype)
    levels = _flatten(value)
    if wire_type is None or levels is None:
        return None
    shape, leaves, kinds = levels
    flat = convert_leaves(leaves, kinds, wire_type)
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


def convert_leaves(leaves: list[JsonValue], kinds: set[type], wire_type: WireType) -> Array | None:
    """Return a flat array of `leaves`, whose types are `kinds`, or None if one is not exactly of the wire type."""
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
        # Not base64.
        return None
    return strings
