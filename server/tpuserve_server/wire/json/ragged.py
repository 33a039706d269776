"""Ragged tensors in JSON: converts lists of rows of unequal length to and from values and row splits."""

from collections.abc import Callable, Mapping
from itertools import accumulate, chain, pairwise
from typing import Any

from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.core.terms.types import RowSplits, Signature, Tensors
from tpuserve_server.wire.json.body import JsonValue, is_base64_object, value_text


def ragged_columns(document: Mapping[str, JsonValue], signature: Signature) -> dict[str, JsonValue] | None:
    """Return the values of every tensor of a signature with ragged inputs, as flat lists.

    Return None for a request that already holds values and row splits. Raises InvalidArgument for malformed rows.
    """
    splits = {one for names in signature.ragged_inputs.values() for one in names}
    names = [name for name in signature.inputs if name not in splits]
    if "instances" in document:
        return _take_apart(_columns_of_rows(document["instances"], names), signature)
    value = document["inputs"]
    if type(value) is dict and not is_base64_object(value):
        if splits & value.keys():
            return None
        _check_keys("'inputs'", value, names)
        return _take_apart(value, signature)
    if len(names) > 1:
        raise InvalidArgument(f"'inputs' must be an object with the inputs {', '.join(names)}")
    return _take_apart({names[0]: value}, signature)


def _columns_of_rows(rows: JsonValue, names: list[str]) -> dict[str, JsonValue]:
    if type(rows) is not list or not rows:
        raise InvalidArgument("'instances' must be a list of at least one row")
    if type(rows[0]) is not dict or is_base64_object(rows[0]):
        if len(names) > 1:
            raise InvalidArgument(f"rows of 'instances' must be objects with the inputs {', '.join(names)}")
        return {names[0]: rows}
    for index, row in enumerate(rows):
        if type(row) is not dict:
            raise InvalidArgument(f"row {index} of 'instances' must be an object, as the first row is")
        _check_keys(f"row {index} of 'instances'", row, names)
    return {name: [row[name] for row in rows] for name in names}


def _check_keys(where: str, given: Mapping[str, JsonValue], names: list[str]) -> None:
    if given.keys() != set(names):
        raise InvalidArgument(f"{where} must have the keys {', '.join(names)}, got {value_text(list(given))}")


def _take_apart(columns: Mapping[str, JsonValue], signature: Signature) -> dict[str, JsonValue]:
    values = dict[str, JsonValue]()
    for name, column in columns.items():
        items = column
        for depth, split in enumerate(signature.ragged_inputs.get(name, ())):
            items, values[split] = _take_level(name, items, depth)
        values[name] = items
    return values


def _take_level(name: str, items: JsonValue, depth: int) -> tuple[list[JsonValue], list[int]]:
    """Return the items of all rows of one level, and the row splits of that level."""
    if type(items) is not list:
        raise InvalidArgument(f"Input '{name}' is ragged: expecting a list of rows, got {value_text(items)}")
    for row in items:
        if type(row) is not list:
            raise InvalidArgument(
                f"Input '{name}' is ragged: expecting a list at level {depth + 1} of its rows, got {value_text(row)}"
            )
    return list(chain.from_iterable(items)), [0, *accumulate(map(len, items))]


def nest_rows(outputs: Tensors, ragged: RowSplits, column: Callable[[str, Any], Any]) -> dict[str, Any]:
    """Return the columns of the outputs, with ragged outputs as lists of rows.

    `column` converts an output's name and array to a column.
    """
    splits = {one for names in ragged.values() for one in names}
    columns = {name: column(name, array) for name, array in outputs.items() if name not in splits}
    for name, names in ragged.items():
        for one in reversed(names):
            ends = outputs[one].tolist()
            columns[name] = [columns[name][start:end] for start, end in pairwise(ends)]
    return columns
