"""The form of a line's responses by the model's metadata: names, dtypes, dimensions, and finite values.

The load generator checks every response, so this must cost a few microseconds. The first binary response of a layout
is decoded. It leaves a template, which proves another response of the same size by comparing all bytes outside of the
tensors' values. JSON is parsed, and its lists are measured without a loop in Python.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from itertools import accumulate, chain, pairwise
from typing import Any, Final, NamedTuple, NoReturn, TypeAlias

import numpy as np
import orjson

from tpuserve_client.dtypes import STRING, Array, DType, describe
from tpuserve_client.errors import TpuserveError
from tpuserve_client.exchange import Reply
from tpuserve_client.json_reply import parse_object
from tpuserve_client.model import TensorSpec
from tpuserve_client.oip_rest_wire import HEADER_LENGTH
from tpuserve_formats.messages.fields import message_fields
from tpuserve_formats.oip.datatypes import dtype_of
from tpuserve_loadtests.requests.arrays import suits
from tpuserve_loadtests.requests.protocols import Protocol
from tpuserve_loadtests.requests.wires import WIRES, predict_call
from tpuserve_loadtests.requests.workload import Line

_Json: TypeAlias = Any  # any result of orjson.loads, which the code below validates
# Templates of a line, and those of one size. Other responses are decoded.
_MOST_TEMPLATES: Final = 64
_MOST_OF_A_SIZE: Final = 8
# Texts of a line's failures. Each differs from the others, and failures are counted by their text.
_MOST_MESSAGES: Final = 32
_SHOWN: Final = 80
_BEGINNING: Final = 10
# Right responses to so many requests of a line, of at most so many bytes, are known: equal ones are right, too.
MOST_KNOWN: Final = 1024
_KNOWN_BYTES: Final = 32 * 1024
# One in so many large and unknown responses in JSON is parsed, which costs a quarter of a request. The text outside of
# the numbers is compared for each.
LARGE_BYTES: Final = 4096
PARSED_EVERY: Final = 16
_OF_NUMBERS: Final = b"0123456789.-+eE"
_BOOLS: Final = ((b"u", b"true"), (b"l", b"false"))
# Fields of TensorProto that hold packed values of a fixed size, and of a variable size.
_FIXED_FIELDS: Final = frozenset({4, 5, 6, 9, 12})
_VARINT_FIELDS: Final = frozenset({7, 10, 11, 13, 16, 17})
_OUTPUTS: Final = 1  # of PredictResponse
_RAW_CONTENTS: Final = 6  # of ModelInferResponse
# Types of JSON values by the kind of the dtype. V is the kind of bfloat16 and its like.
_LEAVES: Final[Mapping[str, frozenset[type]]] = {
    "b": frozenset({bool}),
    "i": frozenset({int}),
    "u": frozenset({int}),
    "f": frozenset({int, float}),
    "V": frozenset({int, float}),
    "O": frozenset({str, dict}),
}


class WrongAnswer(Exception):
    """Error for a wrong response."""

    def __init__(self, message: str) -> None:
        super().__init__(f"wrong response: {message}")


class Form:
    """The form of a line's responses. Belongs to one thread."""

    def __init__(
        self,
        line: Line,
        is_finite: Callable[[str], bool],
        golden_shape: Callable[[int, str], tuple[int, ...] | None],
    ) -> None:
        """Set up the checks.

        `is_finite` returns whether an output must be finite. `golden_shape` returns an output's shape in the golden
        answer to a request, if that is known. The checks call both only for a response with such a difference.
        """
        self._line = line
        self._wire = WIRES[line.protocol]
        self._call = predict_call(line.protocol, line.spec, {}, line.signature.name)
        self._is_finite, self._golden_shape = is_finite, golden_shape
        self._expected: dict[int, Mapping[str, TensorSpec]] = {}
        # Body and length of the head, by number of the request.
        self._known: dict[int, tuple[bytes, str | None]] = {}
        self._templates: dict[tuple[int, int], list[_Template]] = {}
        self._built = 0
        self._outlines: set[tuple[int, bytes]] = set()
        self._outlined = 0
        # Outputs that may have other values than finite ones.
        self._infinite: set[str] = set()
        self._messages: dict[object, str] = {}

    def check(self, number: int, reply: Reply) -> bool:
        """Check the response to request `number` of the line, and return whether all of it was checked.

        Raises WrongAnswer.
        """
        whole = reply.body, reply.headers.get(HEADER_LENGTH)
        if whole == self._known.get(number):
            return True
        is_proven = self._is_proven(number, reply) or self._is_checked(number, reply)
        if is_proven and number < MOST_KNOWN and len(reply.body) <= _KNOWN_BYTES:
            self._known[number] = whole
        return is_proven

    def check_version(self, version: int | None) -> None:
        """Raise WrongAnswer if another version answered than the one that the requests name. None is unknown."""
        wanted = self._line.spec.version
        if None not in (wanted, version) and version != wanted:
            self._refuse(("version", version), f"version {version} answered instead of version {wanted}")

    def _is_checked(self, number: int, reply: Reply) -> bool:
        """Check the response, and return whether all of it was checked."""
        expected = self._expected.get(number)
        if expected is None:
            expected = self._expected[number] = self._line.expected(number)
        if "grpc" in self._line.protocol or HEADER_LENGTH in reply.headers:
            self._check_binary(number, reply, expected)
            return True
        return self._is_checked_json(number, reply, expected)

    def _is_proven(self, number: int, reply: Reply) -> bool:
        body = reply.body
        for template in self._templates.get((self._line.rows[number], len(body)), ()):
            if template.fits(reply):
                for name, start, dtype, count in template.floats:
                    # A search in bytes takes a third of the time of `all`.
                    if (
                        name not in self._infinite
                        and b"\0" in np.isfinite(np.frombuffer(body, dtype, count, start)).tobytes()
                    ):
                        self._refuse_infinite(name)
                return True
        return False

    def _check_binary(self, number: int, reply: Reply, expected: Mapping[str, TensorSpec]) -> None:
        try:
            prediction = self._wire.read_prediction(reply, self._call, None)
        except TpuserveError as error:
            self._refuse_unreadable(reply.body, expected, error.message)
        self.check_version(prediction.version)
        outputs = prediction.outputs
        is_regular = self._check_specs(number, _specs(outputs), expected)
        for name, array in outputs.items():
            if _is_float(array.dtype) and name not in self._infinite and not np.isfinite(array).all():
                self._refuse_infinite(name)
        if (
            is_regular
            and self._built < _MOST_TEMPLATES
            and not any(array.dtype == STRING for array in outputs.values())
        ):
            alike = self._templates.setdefault((self._line.rows[number], len(reply.body)), [])
            if len(alike) < _MOST_OF_A_SIZE:
                self._built += 1
                alike.append(_Template(reply, list(_values(self._line.protocol, reply, outputs))))

    def _is_checked_json(self, number: int, reply: Reply, expected: Mapping[str, TensorSpec]) -> bool:
        is_large = len(reply.body) >= LARGE_BYTES
        # Equal texts without numbers have the same lists. They contain neither NaN nor null.
        outline = (self._line.rows[number], reply.body.translate(None, _OF_NUMBERS)) if is_large else None
        if outline in self._outlines:
            self._outlined += 1
            if self._outlined % PARSED_EVERY:
                return False
        try:
            tensors = _tensors(_parsed(reply.body), expected, is_oip=self._line.protocol != "rest")
        except (TypeError, KeyError, AttributeError):
            self._refuse_unreadable(reply.body, expected, "")
        except ValueError as error:
            self._refuse_unreadable(reply.body, expected, str(error))
        is_regular = self._check_specs(number, _specs(tensors), expected)
        values = reply.body.find(b":")
        # A search for one byte takes a tenth of the time.
        has_bools = any(reply.body.find(byte, values) >= 0 and word in reply.body for byte, word in _BOOLS)
        for name, tensor in tensors.items():
            self._check_leaves(name, tensor, has_bools)
        if (
            outline
            and is_regular
            and b"NaN" not in outline[1]
            and b"Infinity" not in outline[1]
            and len(self._outlines) < _MOST_TEMPLATES
        ):
            self._outlines.add(outline)
        return True

    def _check_leaves(self, name: str, tensor: "_JsonTensor", has_bools: bool) -> None:
        dtype, leaves = tensor.dtype, tensor.leaves
        if dtype is None:
            return
        is_float, total = _is_float(dtype), math.nan
        if is_float and not has_bools:
            with suppress(TypeError):
                total = sum(leaves)  # the fastest proof of numbers
        if math.isfinite(total):
            return
        found = set(map(type, leaves))
        if found - _LEAVES[dtype.kind]:
            types = ", ".join(sorted("null" if each is type(None) else each.__name__ for each in found))
            self._refuse((name, types), f"output {name!r} has JSON values of type {types}, expected {describe(dtype)}")
        if is_float and name not in self._infinite and not np.isfinite(np.array(leaves, np.float64)).all():
            self._refuse_infinite(name)

    def _check_specs(self, number: int, received: Mapping[str, TensorSpec], expected: Mapping[str, TensorSpec]) -> bool:
        """Raise WrongAnswer for other outputs, dtypes or dimensions than expected.

        Return whether they suit every request with as many rows. Without metadata, none are expected.
        """
        problem = _mismatch(received, expected)
        if not problem:
            return True
        # An output whose free first dimension is not the number of rows, such as the boxes in an image.
        of_any_rows = {name: self._line.signature.outputs[name] for name in expected}
        if _mismatch(received, of_any_rows) or not all(
            suits(received[name].shape, want.shape) or received[name].shape == self._golden_shape(number, name)
            for name, want in expected.items()
        ):
            self._refuse(problem, problem)
        return False

    def _refuse_infinite(self, name: str) -> None:
        """Raise WrongAnswer, unless the output may have such values."""
        if self._is_finite(name):
            self._refuse(("finite", name), f"output {name!r} has NaN or infinite values; golden responses have none")
        self._infinite.add(name)

    def _refuse_unreadable(self, body: bytes, expected: Mapping[str, TensorSpec], reason: str) -> NoReturn:
        shown = body[:_SHOWN].decode(errors="backslashreplace") + ("…" if len(body) > _SHOWN else "")
        if not body:
            shown = "an empty body"
        elif body.lstrip().startswith(b"<"):
            shown = "an HTML page"
        elif reason:
            shown += f" ({reason[:_SHOWN]})"
        self._refuse(body[:_BEGINNING], f"expected {_wanted(expected)}, received {shown}")

    def _refuse(self, kind: object, words: str) -> NoReturn:
        """Raise WrongAnswer with the words of the first response of this kind."""
        if len(self._messages) < _MOST_MESSAGES:
            self._messages.setdefault(kind, words)
        raise WrongAnswer(self._messages.get(kind, "its form differs from the model's metadata"))


def check_arrays(outputs: Mapping[str, Array], expected: Mapping[str, TensorSpec]) -> None:
    """Check the names, dtypes and dimensions of decoded outputs. Raises WrongAnswer."""
    if problem := _mismatch(_specs(outputs), expected):
        raise WrongAnswer(problem)


def _specs(outputs: Mapping[str, "Array | _JsonTensor"]) -> dict[str, TensorSpec]:
    return {name: TensorSpec(name, each.dtype, each.shape) for name, each in outputs.items()}


def _mismatch(received: Mapping[str, TensorSpec], expected: Mapping[str, TensorSpec]) -> str:
    """Describe other names, dtypes and dimensions than expected. Return an empty string if there are none."""
    if not expected or (
        received.keys() == expected.keys()
        and all(
            received[name].dtype == (want.dtype or received[name].dtype) and suits(received[name].shape, want.shape)
            for name, want in expected.items()
        )
    ):
        return ""
    return f"expected {_wanted(expected)}, received {', '.join(map(str, received.values())) or 'no outputs'}"


def _wanted(expected: Mapping[str, TensorSpec]) -> str:
    return ", ".join(map(str, expected.values())) or "a prediction"


@lru_cache(maxsize=64)
def _is_float(dtype: DType) -> bool:
    if dtype.kind in "biuO":
        return False
    try:
        np.isfinite(np.zeros(1, dtype))
    except TypeError:  # integers of 4 bits
        return False
    return True


class _Value(NamedTuple):
    """The bytes of an output's values in a body, or of single-byte varints if `is_ascii`."""

    name: str
    start: int
    end: int
    dtype: DType
    is_ascii: bool = False


class _Template:
    """The bytes of a response except the values of its tensors. `floats` are name, offset, dtype and count."""

    def __init__(self, reply: Reply, values: list[_Value]) -> None:
        values.sort(key=lambda value: value.start)
        starts, ends = (0, *(value.end for value in values)), (*(value.start for value in values), len(reply.body))
        self._pieces = [(start, end, reply.body[start:end]) for start, end in zip(starts, ends, strict=True)]
        self._ascii = [(value.start, value.end) for value in values if value.is_ascii]
        self._head_length = reply.headers.get(HEADER_LENGTH)
        self.floats = [
            (value.name, value.start, value.dtype, (value.end - value.start) // value.dtype.itemsize)
            for value in values
            if _is_float(value.dtype) and not value.is_ascii
        ]

    def fits(self, reply: Reply) -> bool:
        """Return whether a response of the same size differs only in the values of its tensors."""
        body = reply.body
        for start, end, piece in self._pieces:
            if body[start:end] != piece:
                return False
        for start, end in self._ascii:
            if not body[start:end].isascii():
                return False
        return reply.headers.get(HEADER_LENGTH) == self._head_length


def _values(protocol: Protocol, reply: Reply, outputs: Mapping[str, Array]) -> Iterator[_Value]:
    """Yield the places of values that any bytes can replace without a change of the form.

    A place that is not found stays a part of the template, which then fits fewer responses.
    """
    body = reply.body
    if protocol == "grpc":
        yield from _predicted_values(body, outputs)
        return
    if protocol == "oip_grpc":
        places = [(start, end) for number, start, end in _fields(body, 0, len(body)) if number == _RAW_CONTENTS]
    else:
        sizes = [array.nbytes for array in outputs.values()]
        ends = list(accumulate(sizes, initial=int(reply.headers[HEADER_LENGTH])))
        places = list(pairwise(ends)) if ends[-1] == len(body) else []
    for (name, array), (start, end) in zip(outputs.items(), places, strict=False):
        if array.dtype.kind != "O" and end - start == array.nbytes:
            yield _Value(name, start, end, array.dtype)


def _predicted_values(body: bytes, outputs: Mapping[str, Array]) -> Iterator[_Value]:
    for number, start, end in _fields(body, 0, len(body)):
        entry = {field: place for field, *place in _fields(body, start, end)} if number == _OUTPUTS else {}
        if entry.keys() != {1, 2}:  # the key and the value of a map entry
            continue
        name = body[slice(*entry[1])].decode()
        array = outputs[name]
        for field, first, last in _fields(body, *entry[2]):
            if field in _FIXED_FIELDS and array.dtype.kind != "O" and last - first == array.nbytes:
                yield _Value(name, first, last, array.dtype)
            elif field in _VARINT_FIELDS and last - first == array.size and body[first:last].isascii():
                yield _Value(name, first, last, array.dtype, is_ascii=True)


def _fields(body: bytes, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield number, start and end of the fields with a length in a part of a valid protobuf message."""
    part = memoryview(body)[at:end]
    return ((number, at + start, at + stop) for number, _, start, stop in message_fields(part))


class _JsonTensor(NamedTuple):
    dtype: DType | None
    shape: tuple[int, ...]
    leaves: list[_Json]


def _parsed(body: bytes) -> _Json:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return parse_object(body)  # with NaN and Infinity, and the reason of an error


def _tensors(document: _Json, expected: Mapping[str, TensorSpec], *, is_oip: bool) -> dict[str, _JsonTensor]:
    """Return the outputs of a response in JSON.

    Raises ValueError, TypeError, KeyError or AttributeError for another document.
    """
    found = document["outputs"]
    if is_oip:
        return {item["name"]: _oip_tensor(item) for item in found}
    # The server omits the name of a single output. Without metadata, the names are unknown.
    named = found.items() if len(expected) > 1 else zip(expected, [found], strict=False)
    return {name: _rest_tensor(value, expected.get(name)) for name, value in named}


def _oip_tensor(item: _Json) -> _JsonTensor:
    shape, (_, leaves) = tuple(item["shape"]), _measured(item["data"])
    if len(leaves) != math.prod(shape):
        raise ValueError(f"{item['name']} has {len(leaves)} values for shape {list(shape)}")
    return _JsonTensor(dtype_of(item["datatype"]), shape, leaves)


def _rest_tensor(value: _Json, spec: TensorSpec | None) -> _JsonTensor:
    shape, leaves = _measured(value)
    if spec is not None and spec.shape is not None and 0 in shape:
        shape += tuple(size or 0 for size in spec.shape[len(shape) :])  # JSON has no dimensions after a zero
    return _JsonTensor(None if spec is None else spec.dtype, shape, leaves)


def _measured(value: _Json) -> tuple[tuple[int, ...], list[_Json]]:
    """Return the shape of nested lists, and their leaves in order. Raises ValueError for lists of other lengths."""
    shape: list[int] = []
    level = [value]
    while level and type(level[0]) is list:
        sizes = {len(each) if type(each) is list else -1 for each in level}
        if len(sizes) > 1:
            raise ValueError("it has lists of different lengths")
        shape += sizes
        level = level[0] if len(level) == 1 else list(chain.from_iterable(level))
    return tuple(shape), level
