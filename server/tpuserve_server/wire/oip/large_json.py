"""Large inference requests: their JSON without the data, which stay text that tensor_json.py decodes in pieces."""

from typing import Final, NamedTuple

from tpuserve_server.core.budgets.decoded import DecodedBudget
from tpuserve_server.core.errors import InvalidArgument
from tpuserve_server.wire.json.large import is_large
from tpuserve_server.wire.json.layout import Layout, Span

# More inputs than a model has.
_MAX_INPUTS: Final = 1024


class LargeArray(NamedTuple):
    """A JSON array of any nesting in a large body."""

    layout: Layout
    span: Span


class LargeDocument(NamedTuple):
    """The text of a request with empty lists as data, and the data of each input that had a list."""

    text: bytes
    arrays: dict[int, LargeArray]


def split_document(text: bytes, budget: DecodedBudget) -> LargeDocument:
    """Take the data out of `text`.

    Raises:
        InvalidArgument: the document is malformed, or would take more than `budget`.
    """
    layout = Layout(text, budget)
    arrays: dict[int, LargeArray] = {}
    kept: list[bytes] = []
    position = 0
    for index, tensor in enumerate(_inputs(layout)):
        data = layout.members_of(tensor).get("data") if layout.first(tensor) == b"{" else None
        if data is not None and layout.first(data) == b"[":
            arrays[index] = LargeArray(layout, data)
            kept += (text[position : data.start], b"[]")
            position = data.stop
    kept.append(text[position:])
    rest = b"".join(kept)
    if is_large(rest):
        layout.check_objects(budget)
    return LargeDocument(rest, arrays)


def _inputs(layout: Layout) -> list[Span]:
    """Return the items of `inputs`, or none if it is no list, which the reader of the rest reports."""
    span = layout.members.get("inputs")
    inner = None if span is None else layout.inner(span)
    if inner is None:
        return []
    found: list[Span] = []
    for tensor in layout.pieces(inner, 1, depth=2):
        if len(found) == _MAX_INPUTS:
            raise InvalidArgument(f"the request has more than {_MAX_INPUTS} inputs")
        found.append(tensor)
    return found
