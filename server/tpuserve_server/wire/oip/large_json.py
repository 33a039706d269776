"""Large inference requests: their JSON without the data, which stay text that tensor_json.py decodes in pieces."""

from typing import Final, NamedTuple

from tpuserve_server.core.serving.decoded import DecodedBudget
from tpuserve_server.core.system.threads import let_others_run
from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.wire.json.large import MEDIUM_BYTES
from tpuserve_server.wire.json.layout import Layout, Span

# More inputs or outputs than a model has.
MAX_TENSORS: Final = 1024
_MEMBERS: Final = frozenset({"id", "inputs", "outputs", "parameters"})
# The values of longer unknown members are not parsed.
_MOST_UNKNOWN: Final = 1 << 10


class LargeArray(NamedTuple):
    """A JSON array of any nesting in a large body."""

    layout: Layout
    span: Span


class LargeDocument(NamedTuple):
    """The text of a request with empty lists as data, and the data of each input that had a list."""

    text: bytes
    arrays: dict[int, LargeArray]


def split_document(text: bytes, budget: DecodedBudget) -> LargeDocument:
    """Take the data out of `text`. Call it in a worker thread.

    Raises:
        InvalidArgument: the document is malformed, would take more than `budget`, or is large without its data.
    """
    layout = Layout(text, budget)
    text = layout.body
    arrays: dict[int, LargeArray] = {}
    unknown = [span for name, span in layout.members.items() if name not in _MEMBERS]
    cuts = [(span, b"0") for span in unknown if span.stop - span.start > _MOST_UNKNOWN]
    for index, tensor in enumerate(_inputs(layout)):
        data = layout.members_of(tensor).get("data") if layout.first(tensor) == b"{" else None
        if data is not None and layout.first(data) == b"[":
            arrays[index] = LargeArray(layout, data)
            cuts.append((data, b"[]"))
    rest_bytes = len(text) - sum(span.stop - span.start for span, _ in cuts)
    if rest_bytes > MEDIUM_BYTES:
        raise InvalidArgument(
            f"The request has {rest_bytes} bytes of JSON beside its data. The limit is {MEDIUM_BYTES} bytes"
        )
    kept: list[bytes] = []
    position = 0
    for span, instead in sorted(cuts):
        kept += (text[position : span.start], instead)
        position = span.stop
    kept.append(text[position:])
    let_others_run()
    return LargeDocument(b"".join(kept), arrays)


def _inputs(layout: Layout) -> list[Span]:
    """Return the items of `inputs`, or none if it is no list, which the reader of the rest reports."""
    span = layout.members.get("inputs")
    inner = None if span is None else layout.inner(span)
    if inner is None:
        return []
    found: list[Span] = []
    for tensor in layout.pieces(inner, 1, depth=2):
        if len(found) == MAX_TENSORS:
            raise InvalidArgument(f"the request has more than {MAX_TENSORS} inputs")
        found.append(tensor)
    return found
