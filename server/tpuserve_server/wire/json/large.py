"""REST predict requests that are too large or too intricate to parse in one step, which would hold the GIL.

The structure of the body is bounded first (layout.py). Then pieces of it become arrays (leaves.py), or rows of objects.
Each piece is parsed and converted as predict.py does for a whole body. Use it in a worker thread.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final, NoReturn

import numpy as np

from tpuserve_server.core.serving.budgets import DecodedBudget
from tpuserve_server.core.system.threads import let_others_run
from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.core.terms.types import Array, Signature, Tensors
from tpuserve_server.wire.json.body import (
    MEDIUM_BYTES,
    JsonObject,
    JsonValue,
    check_depth,
    is_large,
    parse_json,
    signature_name,
)
from tpuserve_server.wire.json.conversion import convert_rows, explain_columns, explain_rows
from tpuserve_server.wire.json.layout import Layout, Span
from tpuserve_server.wire.json.leaves import Irregular, Unconvertible, decode_nested, join_arrays
from tpuserve_server.wire.json.numbers import parse_quickly

# Rows of objects that are parsed in a millisecond.
_ROWS_BYTES: Final = 1 << 13
# The server reads other members, such as the name of the signature, up to this size, and ignores larger ones.
_MAX_READ_BYTES: Final = 1 << 16
VALUES: Final = ("instances", "inputs")


def holders_in_rows(rows: JsonValue) -> Iterator[tuple[JsonObject, Collection[str]]]:
    """Yield the rows of a list that are objects, with the names of their members, which may be lists of numbers."""
    if type(rows) is list:
        for row in rows:
            if type(row) is dict:
                yield row, row.keys()


class LargeBody:
    """A body whose structure is known and whose values are text."""

    __slots__ = ("_budget", "_layout", "_small", "is_row", "signature_name")

    def __init__(self, body: bytes, budget: DecodedBudget) -> None:
        """Find the members of `body`.

        Raises:
            InvalidArgument: it is no JSON object, it is malformed, or its decoded objects would exceed `budget`.
        """
        let_others_run()
        self._budget = budget
        self._layout = Layout(body, budget)
        members = self._layout.members
        named = members.get("signature_name")
        if named is not None and named.stop - named.start > _MAX_READ_BYTES:
            raise InvalidArgument(f"The value of 'signature_name' has more than {_MAX_READ_BYTES} bytes")
        self._small: JsonObject = {
            name: parse_json(self._layout.text(span))
            for name, span in members.items()
            if name not in VALUES and span.stop - span.start <= _MAX_READ_BYTES
        }
        self.signature_name = signature_name(self._small)
        self.is_row = "instances" in members

    def check_objects(self) -> None:
        """Check that the whole body may be parsed in one step. Raises InvalidArgument otherwise."""
        self._layout.check_objects(self._budget)

    def member(self, name: str) -> object:
        """Return the value of a member other than the tensors, or None."""
        return self._small.get(name)

    def item(self, name: str) -> list[JsonValue] | Mapping[str, Span] | None:
        """Return a list of the value of a member, or the members of a large object, or None if it is missing."""
        span = self._layout.members.get(name)
        return None if span is None else self._item(span)

    def rows(self, name: str) -> Iterator[list[JsonValue] | Mapping[str, Span]]:
        """Yield the items of a list, some at a time, or the members of a single large object.

        Raises:
            InvalidArgument: the member is missing or no list, or an item is malformed.
        """
        span = self._layout.members.get(name)
        if span is None:
            raise InvalidArgument(f"key '{name}' is expected and was not found")
        for piece in self._layout.pieces(self._inner(name, span), _ROWS_BYTES, depth=2):
            for row in self._layout.pieces(piece, 1, depth=2) if self._is_large(piece) else (piece,):
                yield self._item(row)

    def _item(self, span: Span) -> list[JsonValue] | Mapping[str, Span]:
        let_others_run()
        if self._is_large(span) and self._layout.first(span) == b"{":
            return self._layout.members_of(span)
        items: list[JsonValue] = parse_json(b"[%b]" % self._layout.text(span))
        return items

    def values(self, span: Span) -> Iterator[list[JsonValue]]:
        """Yield the values of a flat list, some at a time, or another value alone."""
        inner = self._layout.inner(span)
        if inner is None:
            yield [parse_json(self._layout.text(span))]
            return
        for piece in self._layout.pieces(inner, _ROWS_BYTES):
            yield parse_json(b"[%b]" % self._layout.text(piece))
            let_others_run()

    def _inner(self, name: str, span: Span) -> Span:
        """Return the text between the brackets of a list."""
        inner = self._layout.inner(span)
        if inner is None:
            raise InvalidArgument(f"Expecting '{name}' to be an list/array")
        return inner

    def convert(self, signature: Signature) -> Tensors:
        """Return arrays with the signature's dtypes. Raises InvalidArgument if the values do not fit the signature."""
        members = self._layout.members
        if not signature.inputs:
            raise InvalidArgument(f"Failed to get input map for signature: {self.signature_name or 'DEFAULT'}")
        if self.is_row and "inputs" in members:
            raise InvalidArgument(
                "Not formatted correctly expecting only one of 'inputs' or 'instances' keys to exist "
            )
        if self.is_row:
            return self._rows(members["instances"], signature)
        if "inputs" in members:
            return self._columns(members["inputs"], signature)
        raise InvalidArgument("Missing 'inputs' or 'instances' key")

    def _rows(self, span: Span, signature: Signature) -> Tensors:
        inner = self._inner("instances", span)
        first = self._layout.first(inner)
        if not first:
            raise InvalidArgument("No values in 'instances' array")
        if first == b"{" and not self._is_base64(next(self._layout.pieces(inner, 1, depth=2))):
            return self._objects(inner, signature)
        if len(signature.inputs) > 1:
            explain_rows([None], signature)
        ((name, spec),) = signature.inputs.items()
        try:
            return {name: decode_nested(self._layout, span, spec.dtype)}
        except Unconvertible as error:
            # The leaves of a part have no index of their row.
            explain_columns(error.leaves, signature)
        except Irregular:
            _refuse_irregular(name)

    def _objects(self, inner: Span, signature: Signature) -> Tensors:
        parts: dict[str, list[Array]] = {name: [] for name in signature.inputs}
        for piece in self._layout.pieces(inner, _ROWS_BYTES, depth=2):
            if not self._is_large(piece):
                _append(parts, self._small_rows(piece, signature, parts))
                continue
            # It has a large row, in whose place a parser would make objects for all values at once.
            for row in self._layout.pieces(piece, 1, depth=2):
                if self._is_large(row):
                    _append(parts, self._large_row(row, signature))
                else:
                    _append(parts, self._small_rows(row, signature, parts))
        return _joined(parts)

    def _is_large(self, rows: Span) -> bool:
        size_bytes = rows.stop - rows.start
        return size_bytes > 2 * _ROWS_BYTES and (size_bytes > MEDIUM_BYTES or is_large(self._layout.text(rows)))

    def _small_rows(self, piece: Span, signature: Signature, before: Mapping[str, list[Array]]) -> Tensors:
        """Convert rows. `before` are the parts of the rows before them."""
        text = b"[%b]" % self._layout.text(piece)
        rows = parse_quickly(text, holders_in_rows)
        tensors = None if rows is None else convert_rows(rows, signature)
        if tensors is None:
            # Without lists that stayed text.
            rows = parse_json(text)
            tensors = convert_rows(rows, signature)
        if tensors is None:
            check_depth(rows, 1)
            explain_rows(rows, signature, sum(map(len, next(iter(before.values())))))
        let_others_run()
        return tensors

    def _large_row(self, row: Span, signature: Signature) -> Tensors:
        spans = self._layout.members_of(row) if self._layout.first(row) == b"{" else {}
        if spans.keys() != signature.inputs.keys():
            raise InvalidArgument(
                "The keys of each element of the 'instances' list must be equal to: "
                f"{','.join(sorted(signature.inputs))}"
            )
        return {
            name: self._column(name, spans[name], spec.dtype, signature)[np.newaxis]
            for name, spec in signature.inputs.items()
        }

    def _is_base64(self, span: Span) -> bool:
        """Return whether an object is base64, as `is_base64_object` does for a parsed one."""
        members = self._layout.members_of(span)
        return members.keys() == {"b64"} and self._layout.first(members["b64"]) == b'"'

    def _columns(self, span: Span, signature: Signature) -> Tensors:
        names = list(signature.inputs)
        is_object = self._layout.first(span) == b"{" and not self._is_base64(span)
        if not is_object and len(names) > 1:
            explain_columns([], signature)
        spans: Mapping[str, Span] = self._layout.members_of(span) if is_object else {names[0]: span}
        tensors = {}
        for name, spec in signature.inputs.items():
            if name not in spans:
                raise InvalidArgument(f"Missing named input: {name} in 'inputs' object.")
            tensors[name] = self._column(name, spans[name], spec.dtype, signature)
        return tensors

    def _column(self, name: str, span: Span, dtype: np.dtype[Any], signature: Signature) -> Array:
        try:
            return decode_nested(self._layout, span, dtype)
        except Unconvertible as error:
            explain_columns({name: error.leaves}, Signature(signature.name, {name: signature.inputs[name]}, {}))
        except Irregular:
            _refuse_irregular(name)


def _append(parts: Mapping[str, list[Array]], tensors: Tensors) -> None:
    for name, array in tensors.items():
        parts[name].append(array)


def _joined(parts: Mapping[str, list[Array]]) -> Tensors:
    joined = {}
    for name, arrays in parts.items():
        shapes = {array.shape[1:] for array in arrays}
        if len(shapes) > 1:
            _refuse_irregular(name)
        joined[name] = join_arrays(arrays, arrays[0].dtype)
    return joined


def _refuse_irregular(name: str) -> NoReturn:
    raise InvalidArgument(f"Encountered lists of different sizes or levels in input '{name}'")
