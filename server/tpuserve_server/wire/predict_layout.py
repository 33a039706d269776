"""Positions of the tensors' contents in a serialized PredictRequest: what protobuf need not copy, or not even parse.

`split_request` takes large contents out before protobuf parses the rest, because protobuf copies them twice.
`learn_predict_request` learns the layout of a request whose tensors are all in tensor_content.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from tpuserve_formats.dtypes import BY_NUMBER
from tpuserve_formats.errors import FormatError
from tpuserve_formats.messages.official import PredictRequest
from tpuserve_formats.varint import varint
from tpuserve_server.core.system.byte_parts import LARGE_CONTENTS_BYTES
from tpuserve_server.core.terms.errors import ServingError
from tpuserve_server.core.terms.types import Array, Body, ModelSpec
from tpuserve_server.wire.layouts import MOST_TENSORS, Frame, Span, Unusual, check_frame, with_other_contents
from tpuserve_server.wire.predict_proto import decode_predict_inputs, decode_predict_spec, parse_predict_request
from tpuserve_server.wire.proto_scan import delimited_fields, find_large

# The decoder looks at each of their values.
_CHECKED: Final = frozenset({"string_val", "bool_val"})
_LARGE_BYTES: Final = LARGE_CONTENTS_BYTES
# Fields of a request with more tensors than models have, of an entry of the map, and of a tensor.
_MOST_FIELDS, _MOST_INNER_FIELDS = 256, 16
# tensorflow_serving/apis/predict.proto: inputs = 2, a map of key = 1 and value = 2. TensorProto: tensor_content = 4.
_INPUTS, _KEY, _VALUE, _CONTENT = 2, 1, 2, 4
# The tags of these fields, which have a length.
_INPUTS_TAG, _VALUE_TAG, _CONTENT_TAG = (varint(number << 3 | 2) for number in (_INPUTS, _VALUE, _CONTENT))


class SplitRequest(NamedTuple):
    """A serialized request without its large contents, and these as views of the whole, by the input's name."""

    message: Body
    contents: Mapping[str, memoryview]


def split_request(body: Body) -> SplitRequest:
    """Split a serialized PredictRequest. A small, unusual or malformed one stays whole. Takes microseconds."""
    if len(body) >= _LARGE_BYTES:
        try:
            return _split(body)
        except (FormatError, IndexError, UnicodeDecodeError, Unusual):
            pass
    return SplitRequest(body, {})


def find_predict_contents(head: bytes) -> int | None:
    """Return where the first large tensor_content begins in a PredictRequest whose first bytes are `head`."""
    return find_large(head, (_INPUTS, _VALUE, _CONTENT))


def is_slow(proto: PredictRequest, contents: Mapping[str, memoryview]) -> bool:
    """Return whether the decoder looks at each value of the contents: at strings and bools."""
    kinds = [BY_NUMBER.get(proto.inputs[name].dtype) for name in contents]
    return any(kind is not None and kind.field in _CHECKED for kind in kinds)


def learn_predict_request(body: Body, _subject: None = None) -> Frame | None:
    """Return the frame of a serialized PredictRequest, or None if some tensor cannot be read at a fixed place.

    The positions are found by a walk over the wire format, and then proved: the parser must read other contents in the
    same places as these very contents, and everything else as before.
    """
    try:
        contents = {entry.name: entry.content for entry in _entries(body)}
        places = [content for content in contents.values() if content is not None]
        if len(places) != len(contents):
            return None
        check_frame(body, places)
        spec, output_filter, inputs = _parsed(body)
        if contents.keys() != {name.encode() for name in inputs} or not 0 < len(inputs) <= MOST_TENSORS:
            return None
        if not all(array.size for array in inputs.values()):
            return None
        spans = tuple(
            Span(name, array.dtype, array.shape, *(contents[name.encode()] or ())) for name, array in inputs.items()
        )
        frame = Frame(spec, output_filter, spans)
        return frame if _is_proved(frame, body) else None
    except (ServingError, FormatError, Unusual):
        return None


def _parsed(body: Body) -> tuple[ModelSpec, tuple[str, ...], dict[str, Array]]:
    """Parse a message as a front-end does, without room for repeated values."""
    proto = parse_predict_request(body)
    for tensor in proto.inputs.values():
        wire_type = BY_NUMBER.get(tensor.dtype)
        if wire_type is None or wire_type.field in _CHECKED:
            raise Unusual
    return decode_predict_spec(proto), tuple(proto.output_filter), decode_predict_inputs(proto, 0)


def _is_proved(frame: Frame, body: Body) -> bool:
    other = with_other_contents(body, frame.spans)
    spec, output_filter, inputs = _parsed(bytes(other))
    if spec != frame.spec or output_filter != frame.output_filter or len(inputs) != len(frame.spans):
        return False
    return all(
        (array := inputs.get(span.name)) is not None
        and (array.dtype, array.shape) == (span.dtype, span.shape)
        and array.tobytes() == other[span.start : span.stop]
        for span in frame.spans
    )


def _split(body: Body) -> SplitRequest:
    view = memoryview(body).toreadonly()
    kept: list[bytes | memoryview] = []
    contents: dict[str, memoryview] = {}
    position = 0
    for start, stop, name, value, content in _entries(body):
        if value is None or content is None or content[1] - content[0] < _LARGE_BYTES:
            continue
        contents[name.decode()] = view[slice(*content)]
        tensor = body[value[0] : _tag_of(body, _CONTENT_TAG, *content)] + body[content[1] : value[1]]
        entry = (
            b"".join((body[start : _tag_of(body, _VALUE_TAG, *value)], _VALUE_TAG, varint(len(tensor)), tensor))
            + body[value[1] : stop]
        )
        head = view[position : _tag_of(body, _INPUTS_TAG, start, stop)]
        kept += (head, _INPUTS_TAG, varint(len(entry)), entry)
        position = stop
    kept.append(view[position:])
    return SplitRequest(b"".join(kept), contents)


def _tag_of(body: Body, tag: bytes, start: int, stop: int) -> int:
    """Return the position of a field's tag from that of its content. Raises Unusual for another form of the length."""
    head = tag + varint(stop - start)
    if not body.endswith(head, 0, start):
        raise Unusual
    return start - len(head)


class _Entry(NamedTuple):
    """Positions of an entry of the map of inputs, of its tensor, and of the tensor's content."""

    start: int
    stop: int
    name: bytes
    value: tuple[int, int] | None
    content: tuple[int, int] | None


def _entries(body: Body) -> list[_Entry]:
    """Return the inputs of a request. Nobody has parsed the message yet.

    Raises:
        Unusual: a field is repeated that should not be, or an entry has no name.
        FormatError: the message is malformed, or has many fields.
    """
    found: dict[bytes, _Entry] = {}
    for number, start, stop in delimited_fields(body, 0, len(body), _MOST_FIELDS):
        if number != _INPUTS:
            continue
        entry = _only(body, start, stop, (_KEY, _VALUE))
        if _KEY not in entry or (name := bytes(body[slice(*entry[_KEY])])) in found:
            raise Unusual
        value = entry.get(_VALUE)
        content = None if value is None else _only(body, *value, (_CONTENT,)).get(_CONTENT)
        found[name] = _Entry(start, stop, name, value, content)
    return [*found.values()]


def _only(body: Body, start: int, stop: int, numbers: tuple[int, ...]) -> dict[int, tuple[int, int]]:
    """Return where the fields of these numbers are, each of which may occur once."""
    found: dict[int, tuple[int, int]] = {}
    for number, first, last in delimited_fields(body, start, stop, _MOST_INNER_FIELDS):
        if number in numbers:
            if number in found:
                raise Unusual
            found[number] = (first, last)
    return found
