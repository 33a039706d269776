"""Parsed JSON values to arrays: C loops process whole levels of a nested list, never value by value in Python.

None means that the values do not fit the signature. A second walk then finds the error: value by value and in
upstream's order, with TensorFlow Serving's messages. It stops at the first value that upstream would refuse
(tensorflow_serving/util/json_tensor.cc), and converts nothing. Callers check the depth first, so the recursion is
bounded.
"""

from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NoReturn

import numpy as np

from tpuserve_formats.dtypes import BY_DTYPE, WireType, type_name
from tpuserve_server.core.terms.errors import InvalidArgument, ServingError, Unimplemented, shown
from tpuserve_server.core.terms.types import Array, Signature, Tensors
from tpuserve_server.wire.json.body import (
    JsonObject,
    JsonValue,
    check_depth,
    decode_base64_object,
    is_base64_object,
    type_text,
    value_text,
)
from tpuserve_server.wire.json.numbers import MAX_RANK, NumberList
from tpuserve_server.wire.json.per_thread import per_thread

if TYPE_CHECKING:
    from collections.abc import Mapping


_FLOAT_TYPES = frozenset((int, float))
_INT_TYPES = frozenset((int,))
_BOOL_TYPES = frozenset((bool,))
_STRING_TYPES = frozenset((str, dict))
_FLOAT_FIELDS = frozenset(("float_val", "double_val", "half_val", "float8_val"))
_COMPLEX_FIELDS = frozenset(("scomplex_val", "dcomplex_val"))


def convert_rows(rows: list[JsonValue] | NumberList, signature: Signature) -> Tensors | None:
    """Return the inputs of rows, or None if a row does not have exactly the inputs of the signature."""
    names = list(signature.inputs)
    if isinstance(rows, NumberList) or type(rows[0]) is not dict or is_base64_object(rows[0]):
        return convert_each({names[0]: rows}, signature) if len(names) == 1 else None
    keys = signature.inputs.keys()
    if not all(type(row) is dict and row.keys() == keys for row in rows):
        return None
    return convert_each({name: [row[name] for row in rows] for name in names}, signature)


def convert_columns(value: JsonValue, signature: Signature) -> Tensors | None:
    """Return the inputs of `inputs`, or None if one is missing, or cannot be converted. Other columns are ignored.

    Raises InvalidArgument for another column that is nested too deep.
    """
    if type(value) is not dict or is_base64_object(value):
        return convert_each({next(iter(signature.inputs)): value}, signature) if len(signature.inputs) == 1 else None
    for name in value.keys() - signature.inputs.keys():
        if type(value[name]) is NumberList:
            return None
        check_depth(value[name], 2)
    return convert_each(value, signature) if value.keys() >= signature.inputs.keys() else None


def convert_each(values: "Mapping[str, JsonValue]", signature: Signature) -> Tensors | None:
    """Return the signature's inputs, or None if one cannot be converted."""
    arrays = {}
    for name, spec in signature.inputs.items():
        array = _convert_value(values[name], spec.dtype)
        if array is None:
            return None
        arrays[name] = array
    return arrays


def _convert_value(value: JsonValue, dtype: np.dtype[Any]) -> Array | None:
    """Convert `value` to an array of `dtype`. Return None if it is ragged or a value is not exactly of that type."""
    if type(value) is NumberList:
        return value.nested(dtype)
    if type(value) is list and value and type(value[0]) is NumberList:
        return NumberList.stacked(value, dtype) if {*map(type, value)} == {NumberList} else None
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
        if len(sizes) != 1 or len(shape) == MAX_RANK:
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
    try:
        doubles = np.array(leaves, np.float64)
    except OverflowError:
        # An integer beyond a double's range, which only Python's parser keeps.
        doubles = np.array([_clamped(leaf) for leaf in leaves], np.float64)
    if dtype == np.float64:
        return doubles
    floats: Array = per_thread.quietly(doubles.astype, dtype)
    return floats


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


# Values that are converted to find out whether one of them is at fault. A walk in Python takes longer.
_WALKED: Final = 256


def explain_rows(rows: list[JsonValue], signature: Signature, start: int = 0) -> NoReturn:
    """Raise the error for the first fault of a non-empty `instances` list, whose first row has the index `start`."""
    objects = _is_row_object(rows[0])
    if not objects and len(signature.inputs) > 1:
        _fail_plain_list("instances is a plain list, but expecting list of objects")
    walk = _RowWalk(signature)
    check = walk.check_object if objects else walk.check_value
    check(start, rows[0])
    for at in range(1, len(rows), _WALKED):
        part = rows[at : at + _WALKED]
        if _is_row_object(part[0]) == objects and walk.fits(part):
            continue
        for index, row in enumerate(part, start + at):
            check(index, row)
    raise InvalidArgument("'instances' cannot be converted to tensors")


def explain_columns(value: JsonValue, signature: Signature) -> NoReturn:
    """Raise the error for the first fault of `inputs`."""
    if type(value) is not dict or is_base64_object(value):
        if len(signature.inputs) > 1:
            _fail_plain_list("inputs is a plain value/list, but expecting an object")
        name = next(iter(signature.inputs))
        _check_tensor(value, signature.inputs[name].dtype)
    else:
        for name, spec in signature.inputs.items():
            if name not in value:
                raise InvalidArgument(f"Missing named input: {name} in 'inputs' object.")
            _check_tensor(value[name], spec.dtype)
    raise InvalidArgument("'inputs' cannot be converted to tensors")


class _RowWalk:
    """Checks rows in order, each against the size and shape of the first row."""

    def __init__(self, signature: Signature) -> None:
        self._signature = signature
        self._first: dict[str, tuple[int, list[int]]] = {}

    def fits(self, rows: list[JsonValue]) -> bool:
        """Return whether all rows can be converted, with the shapes of the first one that was checked."""
        tensors = convert_rows(rows, self._signature)
        return tensors is not None and all(
            name in self._first and list(array.shape[1:]) == self._first[name][1] for name, array in tensors.items()
        )

    def check_object(self, index: int, row: JsonValue) -> None:
        if not _is_row_object(row):
            raise InvalidArgument(f"Expecting object but got list at item {index} of input list")
        for name, value in row.items():
            try:
                self._check_item(name, value)
            except ServingError as error:
                raise _at(
                    error, f"Failed to process element: {index} key: {shown(name)} of 'instances' list."
                ) from None
        if row.keys() != self._signature.inputs.keys():
            raise InvalidArgument(
                f"Failed to process element: {index} of 'instances' list. JSON object: {value_text(row)} keys must be"
                f" equal to: {','.join(sorted(self._signature.inputs))}"
            )

    def check_value(self, index: int, row: JsonValue) -> None:
        if _is_row_object(row):
            raise InvalidArgument(f"Expecting value/list but got object at item {index} of input list")
        try:
            self._check_item(next(iter(self._signature.inputs)), row)
        except ServingError as error:
            raise _at(error, f"Failed to process element: {index} of 'instances' list.") from None

    def _check_item(self, name: str, value: JsonValue) -> None:
        spec = self._signature.inputs.get(name)
        if spec is None:
            raise InvalidArgument(f"JSON object: does not have named input: {shown(name)}")
        size, shape = _check_tensor(value, spec.dtype)
        first_size, first_shape = self._first.setdefault(name, (size, shape))
        if size != first_size:
            raise InvalidArgument(f"Expecting tensor size: {first_size} but got: {size}")
        if shape != first_shape:
            raise InvalidArgument(f"Expecting shape {_shape_text(first_shape)} but got: {_shape_text(shape)}")


def _fail_plain_list(fault: str) -> NoReturn:
    raise InvalidArgument(f"{fault} as multiple input tensors required as per tensorinfo_map")


def _is_row_object(value: JsonValue) -> bool:
    return type(value) is dict and not is_base64_object(value)


def _at(error: ServingError, place: str) -> ServingError:
    return type(error)(f"{place} Error: {error.code.name}: {error.message}")


def _shape_text(shape: list[int]) -> str:
    return f"[{','.join(map(str, shape))}]"


def _check_tensor(value: JsonValue, dtype: np.dtype[Any]) -> tuple[int, list[int]]:
    """Return a tensor's number of values and its shape, which its first elements determine."""
    shape = []
    first = value
    while type(first) is list:
        shape.append(len(first))
        first = first[0] if first else None
    return _count(value, 0, shape, dtype), shape


def _count(value: JsonValue, level: int, shape: list[int], dtype: np.dtype[Any]) -> int:
    if type(value) is not list:
        if level != len(shape):
            raise InvalidArgument(
                f"JSON Value: {value_text(value)} found at incorrect level: {level + 1} in the JSON DOM."
                f" Expected at level: {len(shape)}"
            )
        _check_leaf(value, dtype)
        return 1
    if level >= len(shape):
        raise InvalidArgument(f"Encountered list at unexpected level: {level} expected < {len(shape)}")
    if len(value) != shape[level]:
        raise InvalidArgument(
            f"Encountered list at unexpected size: {len(value)} at level: {level} expected size: {shape[level]}"
        )
    return sum(_count_part(value[at : at + _WALKED], level, shape, dtype) for at in range(0, len(value), _WALKED))


def _count_part(items: list[JsonValue], level: int, shape: list[int], dtype: np.dtype[Any]) -> int:
    array = _convert_value(items, dtype)
    if array is not None and list(array.shape[1:]) == shape[level + 1 :]:
        return array.size
    return sum(_count(item, level + 1, shape, dtype) for item in items)


def _check_leaf(value: JsonValue, dtype: np.dtype[Any]) -> None:
    if dtype == np.object_:
        _check_string(value)
    elif type(value) is dict or not _is_convertible(value, dtype):
        raise _type_error(value, dtype)


def _check_string(value: JsonValue) -> None:
    if type(value) is dict:
        if not is_base64_object(value):
            raise InvalidArgument(f"JSON Value: {value_text(value)} not formatted correctly for base64 data")
        if not _is_base64(value):
            raise InvalidArgument("Unable to base64 decode")
    elif type(value) is not str:
        raise _type_error(value, np.dtype(np.object_))


def _is_convertible(value: JsonValue, dtype: np.dtype[Any]) -> bool:
    if dtype not in BY_DTYPE or dtype.kind == "c":
        raise Unimplemented(f"Conversion of JSON Value: {value_text(value)} to type: {type_name(dtype)}")
    if dtype.kind == "b":
        return type(value) is bool
    if dtype.kind in "iu":
        return type(value) is int and np.iinfo(dtype).min <= value <= np.iinfo(dtype).max
    return type(value) in (int, float)


def _is_base64(value: JsonObject) -> bool:
    try:
        decode_base64_object(value)
    except ValueError:
        return False
    return True


def _type_error(value: JsonValue, dtype: np.dtype[Any]) -> InvalidArgument:
    return InvalidArgument(
        f"JSON Value: {value_text(value)} Type: {type_text(value)} is not of expected type: {type_name(dtype)}"
    )
