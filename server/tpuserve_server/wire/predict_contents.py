"""Takes large tensor contents out of a PredictRequest before protobuf parses it, because protobuf copies them twice."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from tpuserve_formats.dtypes import BY_NUMBER
from tpuserve_formats.errors import FormatError
from tpuserve_formats.messages.official import PredictRequest
from tpuserve_formats.varint import varint
from tpuserve_server.wire.proto_fields import delimited_fields

# Smaller contents are copied in less time than the walk takes.
_LARGE_BYTES: Final = 1 << 16
# Fields of a request with more tensors than models have, of an entry of the map, and of a tensor.
_MOST_FIELDS, _MOST_INNER_FIELDS = 256, 16
# tensorflow_serving/apis/predict.proto: inputs = 2, a map of key = 1 and value = 2. TensorProto: tensor_content = 4.
_INPUTS, _KEY, _VALUE, _CONTENT = 2, 1, 2, 4
# The tags of these fields, which have a length.
_INPUTS_TAG, _VALUE_TAG, _CONTENT_TAG = (varint(number << 3 | 2) for number in (_INPUTS, _VALUE, _CONTENT))
_SLOW: Final = frozenset({"string_val", "bool_val"})


class SplitRequest(NamedTuple):
    """A serialized request without its large contents, and these as views of the whole, by the input's name."""

    message: bytes
    contents: Mapping[str, memoryview]


class _Unusual(Exception):
    """protobuf must parse the whole message: it may be malformed, or repeat a field."""


def split_request(body: bytes) -> SplitRequest:
    """Split a serialized PredictRequest. A small, unusual or malformed one stays whole. Takes microseconds."""
    if len(body) >= _LARGE_BYTES:
        try:
            return _split(body)
        except (FormatError, IndexError, UnicodeDecodeError, _Unusual):
            pass
    return SplitRequest(body, {})


def is_slow(proto: PredictRequest, contents: Mapping[str, memoryview]) -> bool:
    """Return whether the decoder looks at each value of the contents: at strings and bools."""
    kinds = [BY_NUMBER.get(proto.inputs[name].dtype) for name in contents]
    return any(kind is not None and kind.field in _SLOW for kind in kinds)


def _split(body: bytes) -> SplitRequest:
    view = memoryview(body)
    kept: list[bytes | memoryview] = []
    names: set[bytes] = set()
    contents: dict[str, memoryview] = {}
    position = 0
    for number, start, stop in delimited_fields(body, 0, len(body), _MOST_FIELDS):
        if number != _INPUTS:
            continue
        entry = _only(body, start, stop, (_KEY, _VALUE))
        if _KEY not in entry or (name := body[slice(*entry[_KEY])]) in names:
            raise _Unusual
        names.add(name)
        content = _only(body, *entry[_VALUE], (_CONTENT,)).get(_CONTENT) if _VALUE in entry else None
        if content is None or content[1] - content[0] < _LARGE_BYTES:
            continue
        contents[name.decode()] = view[slice(*content)]
        kept += (
            view[position : _tag_of(body, _INPUTS_TAG, start, stop)],
            _without(body, (start, stop), entry, content),
        )
        position = stop
    kept.append(view[position:])
    return SplitRequest(b"".join(kept), contents)


def _without(
    body: bytes, span: tuple[int, int], entry: Mapping[int, tuple[int, int]], content: tuple[int, int]
) -> bytes:
    """Return the field of an entry of the map without the content of its tensor."""
    (start, stop), (first, last) = span, entry[_VALUE]
    tensor = body[first : _tag_of(body, _CONTENT_TAG, *content)] + body[content[1] : last]
    value = _VALUE_TAG + varint(len(tensor)) + tensor
    rest = body[start : _tag_of(body, _VALUE_TAG, first, last)] + value + body[last:stop]
    return _INPUTS_TAG + varint(len(rest)) + rest


def _tag_of(body: bytes, tag: bytes, start: int, stop: int) -> int:
    """Return the position of a field's tag from that of its content. Raises _Unusual for another form of the length."""
    head = tag + varint(stop - start)
    if not body.endswith(head, 0, start):
        raise _Unusual
    return start - len(head)


def _only(body: bytes, start: int, stop: int, numbers: tuple[int, ...]) -> dict[int, tuple[int, int]]:
    """Return where the fields of these numbers are, each of which may occur once."""
    found: dict[int, tuple[int, int]] = {}
    for number, first, last in delimited_fields(body, start, stop, _MOST_INNER_FIELDS):
        if number in numbers:
            if number in found:
                raise _Unusual
            found[number] = (first, last)
    return found
