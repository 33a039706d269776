"""Learns the layout of a PredictRequest whose tensors are all in tensor_content."""

from typing import Final

from tpuserve_formats.dtypes import BY_NUMBER
from tpuserve_formats.errors import FormatError
from tpuserve_server.core.terms.errors import ServingError
from tpuserve_server.core.terms.types import Array, ModelSpec
from tpuserve_server.wire.layouts import MOST_TENSORS, Frame, Span, Unusual, check_frame, with_other_contents
from tpuserve_server.wire.predict_proto import decode_predict_inputs, decode_predict_spec, parse_predict_request
from tpuserve_server.wire.proto_fields import delimited_fields

# Their contents must be checked.
_CHECKED: Final = frozenset({"string_val", "bool_val"})
# Fields of a request with that many tensors, of an entry of the map, and of a tensor: more than usual messages have.
_MOST_FIELDS, _MOST_INNER_FIELDS = 2 * MOST_TENSORS, 16
# tensorflow_serving/apis/predict.proto: inputs = 2, a map of key = 1 and value = 2. TensorProto: tensor_content = 4.
_INPUTS, _KEY, _VALUE, _CONTENT = 2, 1, 2, 4


def learn_predict_request(body: bytes, _subject: None = None) -> Frame | None:
    """Return the frame of a serialized PredictRequest, or None if some tensor cannot be read at a fixed place.

    The positions are found by a walk over the wire format, and then proved: the parser must read other contents in the
    same places as these very contents, and everything else as before.
    """
    try:
        contents = _contents(body)
        check_frame(body, list(contents.values()))
        spec, output_filter, inputs = _parsed(body)
        if contents.keys() != {name.encode() for name in inputs} or not 0 < len(inputs) <= MOST_TENSORS:
            return None
        spans = tuple(
            Span(name, array.dtype, array.shape, *contents[name.encode()])
            for name, array in inputs.items()
            if array.size
        )
        if len(spans) != len(inputs):
            return None
        frame = Frame(spec, output_filter, spans)
        return frame if _is_proved(frame, body) else None
    except (ServingError, FormatError, Unusual):
        return None


def _parsed(body: bytes) -> tuple[ModelSpec, tuple[str, ...], dict[str, Array]]:
    """Parse a message as a front-end does, without room for repeated values."""
    proto = parse_predict_request(body)
    for tensor in proto.inputs.values():
        wire_type = BY_NUMBER.get(tensor.dtype)
        if wire_type is None or wire_type.field in _CHECKED:
            raise Unusual
    return decode_predict_spec(proto), tuple(proto.output_filter), decode_predict_inputs(proto, 0)


def _is_proved(frame: Frame, body: bytes) -> bool:
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


def _contents(body: bytes) -> dict[bytes, tuple[int, int]]:
    """Return where the content of each input is, by its encoded name. Nobody has parsed the message yet.

    Raises:
        Unusual: a field is repeated that should not be.
        FormatError: the message is malformed, or has many fields.
    """
    found: dict[bytes, tuple[int, int]] = {}
    for number, start, stop in delimited_fields(body, 0, len(body), _MOST_FIELDS):
        if number != _INPUTS:
            continue
        entry = _only(body, start, stop, (_KEY, _VALUE))
        if len(entry) != len((_KEY, _VALUE)):
            raise Unusual
        name = body[slice(*entry[_KEY])]
        content = _only(body, *entry[_VALUE], (_CONTENT,)).get(_CONTENT)
        if content is None or name in found:
            raise Unusual
        found[name] = content
    return found


def _only(body: bytes, start: int, stop: int, numbers: tuple[int, ...]) -> dict[int, tuple[int, int]]:
    """Return where the fields of these numbers are, each of which may occur once."""
    found: dict[int, tuple[int, int]] = {}
    for number, first, last in delimited_fields(body, start, stop, _MOST_INNER_FIELDS):
        if number in numbers:
            if number in found:
                raise Unusual
            found[number] = (first, last)
    return found
