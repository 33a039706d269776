"""Learns the layout of a PredictRequest whose tensors are all in tensor_content."""

from typing import Final

from tpuserve_formats.dtypes import BY_NUMBER
from tpuserve_formats.errors import FormatError
from tpuserve_server.core.errors import ServingError
from tpuserve_server.core.types import Array, ModelSpec
from tpuserve_server.wire.layouts import OTHER_BYTES, Frame, Span
from tpuserve_server.wire.predict_proto import decode_predict_inputs, decode_predict_spec, parse_predict_request
from tpuserve_server.wire.proto_fields import delimited_fields

# Their contents must be checked.
_CHECKED: Final = frozenset({"string_val", "bool_val"})
_MOST_TENSORS: Final = 32
# tensorflow_serving/apis/predict.proto: inputs = 2, a map of key = 1 and value = 2. TensorProto: tensor_content = 4.
_INPUTS, _KEY, _VALUE, _CONTENT = 2, 1, 2, 4


def learn_predict_request(body: bytes) -> Frame | None:
    """Return the frame of a serialized PredictRequest, or None if some tensor cannot be read at a fixed place.

    The positions are found by a walk over the wire format, and then proved: the parser must read other contents in the
    same places as these very contents, and everything else as before.
    """
    try:
        spec, output_filter, inputs = _parsed(body)
        contents = _contents(body)
        if contents.keys() != inputs.keys() or not 0 < len(inputs) <= _MOST_TENSORS:
            return None
        spans = tuple(
            Span(name, array.dtype, array.shape, *contents[name]) for name, array in inputs.items() if array.size
        )
        if len(spans) != len(inputs):
            return None
        frame = Frame(spec, output_filter, spans)
        return frame if _is_proved(frame, body) else None
    except (ServingError, FormatError, _Unusual):
        return None


class _Unusual(Exception):
    """The message is valid, but not one that a layout describes."""


def _parsed(body: bytes) -> tuple[ModelSpec, tuple[str, ...], dict[str, Array]]:
    """Parse a message as a front-end does, without room for repeated values."""
    proto = parse_predict_request(body)
    for tensor in proto.inputs.values():
        wire_type = BY_NUMBER.get(tensor.dtype)
        if wire_type is None or wire_type.field in _CHECKED:
            raise _Unusual
    return decode_predict_spec(proto), tuple(proto.output_filter), decode_predict_inputs(proto, 0)


def _is_proved(frame: Frame, body: bytes) -> bool:
    other = bytearray(body)
    for span in frame.spans:
        other[span.start : span.stop] = body[span.start : span.stop].translate(OTHER_BYTES)
    spec, output_filter, inputs = _parsed(bytes(other))
    if spec != frame.spec or output_filter != frame.output_filter or len(inputs) != len(frame.spans):
        return False
    return all(
        (array := inputs.get(span.name)) is not None
        and (array.dtype, array.shape) == (span.dtype, span.shape)
        and array.tobytes() == other[span.start : span.stop]
        for span in frame.spans
    )


def _contents(body: bytes) -> dict[str, tuple[int, int]]:
    """Return where the content of each input is. Raises _Unusual for a field that is repeated and should not be."""
    found: dict[str, tuple[int, int]] = {}
    for number, start, stop in delimited_fields(body, 0, len(body)):
        if number != _INPUTS:
            continue
        entry = _only(body, start, stop, (_KEY, _VALUE))
        if len(entry) != len((_KEY, _VALUE)):
            raise _Unusual
        name = body[slice(*entry[_KEY])].decode()
        content = _only(body, *entry[_VALUE], (_CONTENT,)).get(_CONTENT)
        if content is None or name in found:
            raise _Unusual
        found[name] = content
    return found


def _only(body: bytes, start: int, stop: int, numbers: tuple[int, ...]) -> dict[int, tuple[int, int]]:
    """Return where the fields of these numbers are, each of which may occur once."""
    found: dict[int, tuple[int, int]] = {}
    for number, first, last in delimited_fields(body, start, stop):
        if number in numbers:
            if number in found:
                raise _Unusual
            found[number] = (first, last)
    return found
