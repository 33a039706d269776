"""Serialized protobuf messages by their tags and lengths, without protobuf: bounds of the structure, and positions.

protobuf makes an object for each inner message and string. An empty one takes two bytes of the message and about a
hundred in memory, so a short message can take many times its size. A scan bounds the structure before protobuf parses
it, and takes runs of records of the same form at once, with numpy. Source of the format:
protobuf.dev/programming-guides/encoding.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from tpuserve_formats.errors import FormatError
from tpuserve_formats.varint import read_varint
from tpuserve_server.core.serving.budgets import STRING_BYTES, DecodedBudget
from tpuserve_server.core.system.byte_parts import LARGE_CONTENTS_BYTES
from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.core.terms.types import Body

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_Bytes: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]

# Smaller messages parse within a few milliseconds, whatever they hold.
_SMALL_BYTES: Final = 1 << 18
# So do messages of this size with few records: protobuf copies their long fields.
_MEDIUM_BYTES: Final = 1 << 22
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_FIXED_BYTES: Final = {_FIXED64: 8, _FIXED32: 4}
# Memory of a record: a message or string in upb with the Python object that reading makes, and a packed number.
_OBJECT_BYTES: Final = STRING_BYTES
_NUMBER_BYTES: Final = 16
# A single number takes no more memory, but as much time as several packed ones: about 15 ns with the GIL held.
_SINGLE_NUMBER_BYTES: Final = 72
# About 700 records.
_FEW: Final = DecodedBudget(700 * _OBJECT_BYTES)
# Bytes that one step counts.
_PART_BYTES: Final = 1 << 18
# Records of a run that one step compares.
_RUN: Final = 1 << 16
_LONGEST_OF_RUN: Final = 64
# tensorflow/core/framework/tensor_shape.h, TensorShape::MaxDimensions.
MAX_DIMS: Final = 254
# Python copies and hashes a name with the GIL held.
MAX_NAME_BYTES: Final = 1 << 16
# Fields before the contents of a large tensor.
_MOST_HEAD_FIELDS: Final = 256


@dataclass(frozen=True, slots=True)
class Form:
    """A message's fields that hold messages, by number. The scan enters these and counts the others.

    `packed` are fields of packed varints, whose values it counts.
    `limits` are the most records or packed values of a field, with its name for messages.
    `names` are fields of strings with at most MAX_NAME_BYTES.
    """

    fields: "Mapping[int, Form]" = field(default_factory=dict)
    packed: frozenset[int] = frozenset()
    limits: "Mapping[int, tuple[int, str]]" = field(default_factory=dict)
    names: frozenset[int] = frozenset()


_SHAPE: Final = Form(limits={2: (MAX_DIMS, "dimensions")})
# int_val, int64_val, half_val, uint32_val and uint64_val.
_TENSOR: Final = Form({2: _SHAPE}, packed=frozenset((7, 10, 13, 16, 17)))
# tensorflow_serving/apis/model.proto: name = 1, signature_name = 3, version_label = 4.
_SPEC: Final = Form(names=frozenset((1, 3, 4)))
# tensorflow_serving/apis/predict.proto: model_spec = 1, inputs = 2, a map of tensors, output_filter = 3.
PREDICT_REQUEST: Final = Form({1: _SPEC, 2: Form({2: _TENSOR}, names=frozenset((1,)))}, names=frozenset((3,)))
# tensorflow_serving/apis/classification.proto and input.proto: model_spec = 1, and the lists of examples.
EXAMPLE_REQUEST: Final = Form({1: _SPEC, 2: Form({1: Form(), 2: Form()})})
# inference.GRPCInferenceService: model_name = 1, model_version = 2, id = 3, inputs = 5 with name = 1, datatype = 2,
# shape = 3 and contents = 5, outputs = 6 with name = 1. The contents' fields are int_contents, int64_contents,
# uint_contents and uint64_contents.
_CONTENTS: Final = Form(packed=frozenset((2, 3, 4, 5)))
_INPUT: Final = Form({5: _CONTENTS}, frozenset((3,)), {3: (MAX_DIMS, "dimensions")}, frozenset((1, 2)))
INFER_REQUEST: Final = Form({5: _INPUT, 6: Form(names=frozenset((1,)))}, names=frozenset((1, 2, 3)))


def check_structure(body: Body, form: Form, budget: DecodedBudget) -> None:
    """Check the number of records of a serialized message. Allocates nothing for them.

    Raises:
        InvalidArgument: the message is malformed, its objects would take more than `budget`, a field has too many
            records, or a name is too long.
    """
    try:
        _Scan(body, budget).message(0, len(body), form)
    except (FormatError, IndexError):
        raise InvalidArgument("Malformed message: its fields do not end where it does") from None


def is_quick(body: Body, form: Form) -> bool:
    """Return whether protobuf parses `body` within a few milliseconds. Takes microseconds itself.

    Check the structure of any other message, and parse it in a worker thread.
    """
    if len(body) <= _SMALL_BYTES:
        return True
    if len(body) > _MEDIUM_BYTES:
        return False
    try:
        check_structure(body, form, _FEW)
    except InvalidArgument:
        return False
    return True


class _Scan:
    """One message. It charges all its records together."""

    def __init__(self, body: Body, budget: DecodedBudget) -> None:
        self._body = body
        self._array: _Bytes = np.frombuffer(body, np.uint8)
        self._budget = budget
        self._objects = self._packed = self._singles = 0

    def message(self, start: int, end: int, form: Form) -> None:
        """Count the records from `start` to `end`. The nesting of forms bounds the recursion."""
        body, counts = self._body, dict.fromkeys(form.limits, 0)
        position, previous = start, (-1, -1)
        while position < end:
            tag, value = read_varint(body, position) if body[position] > 0x7F else (body[position], position + 1)
            kind, number = tag & 7, tag >> 3
            content, stop = _extent(body, kind, value)
            if stop > end:
                raise FormatError("a field is longer than its message")
            if number in form.names and stop - content > MAX_NAME_BYTES:
                raise InvalidArgument(f"A name has {stop - content} bytes; at most {MAX_NAME_BYTES} are supported")
            inner = form.fields.get(number) if kind == _LENGTH else None
            count, size = 1, stop - position
            if inner is not None and stop > content:
                self.message(content, stop, inner)
            elif previous == (tag, size) and size <= _LONGEST_OF_RUN:
                count = self._run(position, end, content if kind == _LENGTH else value, size, is_varint=kind == _VARINT)
            previous = (tag, size)
            values = count
            if kind == _LENGTH and number in form.packed:
                values = self._packed_values(content, stop)
                self._charge(packed=values)
            elif kind == _LENGTH:
                self._charge(objects=count)
            else:
                self._charge(singles=count)
            if number in counts:
                counts[number] += values
                _check_limit(counts[number], *form.limits[number])
            position += count * size

    def _packed_values(self, start: int, stop: int) -> int:
        """Return the number of packed varints: each ends with a byte below 0x80."""
        parts = (self._array[at : min(at + _PART_BYTES, stop)] for at in range(start, stop, _PART_BYTES))
        return sum(int(np.count_nonzero(part <= 0x7F)) for part in parts)

    def _run(self, position: int, end: int, header_end: int, size: int, *, is_varint: bool) -> int:
        """Return how many records from `position` have the same size, tag and length."""
        most = min((end - position) // size, _RUN)
        records = self._array[position : position + most * size].reshape(most, size)
        header = records[:, : header_end - position]
        is_same = (header == header[0]).all(axis=1)
        if is_varint:
            is_same &= (records[:, header_end - position : -1] > 0x7F).all(axis=1) & (records[:, -1] <= 0x7F)
        return most if is_same.all() else int(np.argmin(is_same))

    def _charge(self, *, objects: int = 0, singles: int = 0, packed: int = 0) -> None:
        self._objects += objects
        self._singles += singles
        self._packed += packed
        needed_bytes = self._objects * _OBJECT_BYTES
        needed_bytes += self._singles * _SINGLE_NUMBER_BYTES + self._packed * _NUMBER_BYTES
        if needed_bytes > self._budget.size_bytes:
            parts = f"{self._objects} messages or strings and {self._singles + self._packed} numbers so far"
            self._budget.check(needed_bytes, parts)


def _extent(body: Body, kind: int, value: int) -> tuple[int, int]:
    """Return where the content of a record begins and ends. `value` is the position after its tag."""
    if kind == _LENGTH:
        length = body[value]
        if length <= 0x7F:
            return value + 1, value + 1 + length
        length, content = read_varint(body, value)
        return content, content + length
    if kind == _VARINT:
        return value, read_varint(body, value)[1]
    if kind in _FIXED_BYTES:
        return value, value + _FIXED_BYTES[kind]
    raise FormatError("groups are not supported")


def _check_limit(count: int, most: int, name: str) -> None:
    if count > most:
        raise InvalidArgument(f"A tensor has more than {most} {name}")


def find_large(head: bytes, path: "Sequence[int]") -> int | None:
    """Return where the contents of the first large field at `path` begin. None: not within `head`.

    `head` are the first bytes of a message that nobody has parsed. Each number of the path, except the last one, is a
    field that holds messages.
    """
    position, left = 0, _MOST_HEAD_FIELDS
    try:
        for number in path:
            while True:
                left -= 1
                tag, value = read_varint(head, position)
                start, stop = _extent(head, tag & 7, value)
                if tag == number << 3 | _LENGTH and stop - start >= LARGE_CONTENTS_BYTES:
                    position = start
                    break
                position = stop
                if not left:
                    return None
    except (FormatError, IndexError):
        return None
    return position


def delimited_fields(body: Body, position: int, end: int, most_fields: int) -> list[tuple[int, int, int]]:
    """Return number, start and stop of the content of each length-delimited field of a message.

    Raises:
        FormatError: the message is malformed, has more than `most_fields` of any kind, or has groups, which are
            obsolete.
    """
    found = []
    left = most_fields
    while position < end:
        if not left:
            raise FormatError(f"a message has more than {most_fields} fields")
        left -= 1
        tag, position = read_varint(body, position)
        try:
            start, stop = _extent(body, tag & 7, position)
        except IndexError:
            raise FormatError("a message ends within a field") from None
        if stop > end:
            raise FormatError("a field is longer than its message")
        if tag & 7 == _LENGTH:
            found.append((tag >> 3, start, stop))
        position = stop
    return found
