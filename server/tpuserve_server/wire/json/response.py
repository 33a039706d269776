"""REST predict responses: encodes output arrays as JSON rows or columns, without Python lists of numbers."""

from collections.abc import Mapping

import numpy as np
import orjson

from tpuserve_formats.dtypes import BY_DTYPE, type_name
from tpuserve_server.core.system.threads import let_others_run
from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.core.terms.types import Array, RowSplits, Tensors
from tpuserve_server.wire.json.array_text import (
    Column,
    ListOutput,
    ListTemplate,
    array_text,
    base64_text,
    column_nodes,
    dumps,
    string_text,
)
from tpuserve_server.wire.json.ragged import nest_rows

# String outputs with this suffix are bytes (tensorflow_serving/util/json_tensor.cc, kBytesTensorNameSuffix).
_BYTES_SUFFIX = "_bytes"
# orjson writes these kinds and floats directly. Other floats are converted to float32, which holds all their values.
_DIRECT_KINDS = "biu"
_DIRECT_FLOATS = (np.dtype(np.float32), np.dtype(np.float64))
# Numbers that orjson writes in a millisecond, as members of rows.
_PART_NODES = 1 << 12
# Strings that are decoded in a millisecond, if they have at most so many bytes.
_PART_STRINGS = 1 << 10
_PART_BYTES = 1 << 18
_LONG_BYTES = 1 << 10
_NONE_RAGGED: RowSplits = {}


def encode_predictions(outputs: Tensors, *, is_row: bool, ragged: RowSplits = _NONE_RAGGED) -> bytes:
    """Encode the response to rows (`predictions`) or columns (`outputs`). A single output has no name.

    The body holds each output of `ragged` as a list of rows instead of its values and row splits.

    Floats parse back to the same value and never look like integers. NaN and infinities are bare tokens, as upstream
    writes them. Bytes that are not UTF-8 become `{"b64": …}` (upstream writes invalid JSON).

    Raises:
        InvalidArgument: a dtype has no JSON form or, for rows, the outputs differ in their first dimension.
    """
    if not outputs:
        raise InvalidArgument("Cannot convert empty tensor map to JSON")
    columns: Mapping[str, Column]
    if ragged:
        columns = nest_rows(outputs, ragged, _column)
    else:
        columns = {name: _column(name, array) for name, array in outputs.items()}
    if is_row:
        rows = _row_count(columns)
        body = _rows(columns, rows) if len(columns) > 1 else array_text(*columns.values())
        return b"".join((b'{"predictions":', body, b"}"))
    body = _object(columns) if len(columns) > 1 else array_text(*columns.values())
    return b"".join((b'{"outputs":', body, b"}"))


def prediction_template(outputs: Tensors, *, is_row: bool) -> ListTemplate | None:
    """Return the template of a response, or None for rows of several outputs and for outputs that orjson cannot write.

    The outputs have no ragged tensors.
    """
    arrays = outputs.values()
    if not all(array.ndim and (array.dtype.kind in _DIRECT_KINDS or array.dtype in _DIRECT_FLOATS) for array in arrays):
        return None
    if len(outputs) != 1 and (is_row or not outputs):
        return None
    before = b'{"predictions":' if is_row else b'{"outputs":'
    if len(outputs) == 1:
        ((name, array),) = outputs.items()
        return ListTemplate(before, (ListOutput(name, array.dtype, array.shape, b"}"),))
    heads = [b"%b:" % orjson.dumps(name) for name in outputs]
    afters = [*(b"," + head for head in heads[1:]), b"}}"]
    found = [
        ListOutput(name, a.dtype, a.shape, after) for (name, a), after in zip(outputs.items(), afters, strict=True)
    ]
    return ListTemplate(b"%b{%b" % (before, heads[0]), found)


def _row_count(columns: Mapping[str, Column]) -> int:
    rows = None
    for name, column in columns.items():
        if not isinstance(column, list) and not (isinstance(column, np.ndarray) and column.ndim):
            raise InvalidArgument(f"Tensor name: {name} has no shape information ")
        if rows is not None and len(column) != rows:
            raise InvalidArgument(f"Tensor name: {name} has inconsistent batch size: {len(column)} expecting: {rows}")
        rows = len(column)
    return rows or 0


def _column(name: str, array: Array) -> Column:
    dtype = array.dtype
    if dtype.hasobject:
        return _strings(array, as_bytes=name.endswith(_BYTES_SUFFIX))
    if dtype not in BY_DTYPE or dtype.kind == "c":
        raise InvalidArgument(f"Failed to write JSON value for tensor type: {type_name(dtype)}")
    if dtype.kind not in _DIRECT_KINDS and dtype not in _DIRECT_FLOATS:
        array = array.astype(np.float32)
    # orjson writes only contiguous arrays, and needs a scalar instead of an array without dimensions.
    return np.ascontiguousarray(array) if array.ndim else array[()]


def _strings(array: Array, *, as_bytes: bool) -> Column:
    texts = np.empty(array.size, np.object_)
    flat = array.reshape(-1)
    for start in range(0, array.size, _PART_STRINGS):
        part = flat[start : start + _PART_STRINGS].tolist()
        try:
            if as_bytes or sum(map(len, part)) > _PART_BYTES:
                raise ValueError
            texts[start : start + len(part)] = [value.decode() for value in part]
        except ValueError:
            # Some are not text, or long.
            for index, value in enumerate(part, start):
                texts[index] = _string(value, as_bytes)
                if len(value) > _LONG_BYTES:
                    let_others_run()
        if array.size > _PART_STRINGS:
            let_others_run()
    # Without dimensions, the string itself.
    return texts.reshape(array.shape)[()]


def _string(value: bytes, as_bytes: bool) -> str | bytes | dict[str, str]:
    if not as_bytes:
        try:
            return string_text(value)
        except UnicodeDecodeError:
            pass
    return base64_text(value)


def _rows(columns: Mapping[str, Column], count: int) -> bytes:
    nodes = sum(column_nodes(column) for column in columns.values())
    step = max(1, _PART_NODES * count // max(nodes, 1))
    if step >= count:
        return _some_rows(columns, range(count))
    parts = []
    for start in range(0, count, step):
        parts.append(_some_rows(columns, range(start, min(start + step, count)))[1:-1])
        let_others_run()
    return b"".join((b"[", b",".join(parts), b"]"))


def _some_rows(columns: Mapping[str, Column], rows: range) -> bytes:
    body = dumps([{name: column[row] for name, column in columns.items()} for row in rows])
    if b"null" not in body:
        return body
    return b"[%b]" % b",".join(_object({name: column[row] for name, column in columns.items()}) for row in rows)


def _object(values: Mapping[str, Column]) -> bytes:
    return b"{%b}" % b",".join(b"%b:%b" % (orjson.dumps(name), array_text(value)) for name, value in values.items())
