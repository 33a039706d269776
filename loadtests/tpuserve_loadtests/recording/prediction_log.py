"""PredictionLogs (tensorflow_serving/apis/prediction_log.proto) in binary form, with request and response.

The parser reads the message field by field, because it needs only the encoded inputs and no message class.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from google.protobuf.message import DecodeError

from tpuserve_formats.errors import FormatError
from tpuserve_formats.messages import official
from tpuserve_formats.varint import read_varint

# Field numbers: PredictionLog, LogMetadata (apis/logging.proto), PredictLog, PredictRequest.
_METADATA, _PREDICT_LOG = 1, 6
_SAMPLING, _TIME = 2, 4
_RATE: Final = 1
_REQUEST, _RESPONSE = 1, 2
_MODEL_SPEC: Final = 1
# Wire types: protobuf.dev/programming-guides/encoding.
_VARINT: Final = 0
_BYTES: Final = 2
_FIXED_BYTES: Final = {1: 8, 5: 4}
_DOUBLE: Final = struct.Struct("<d")


@dataclass(frozen=True, slots=True)
class Logged:
    """A Predict request of a log.

    `time_s` is in whole Unix seconds. `sampled` is the logged share of requests, or 0 if the log does not state it.
    `inputs` is an encoded PredictRequest without its model_spec, so it holds the inputs and the output filter. `answer`
    is an encoded PredictResponse, and empty if it is missing or not requested.
    """

    model: str
    signature_name: str
    time_s: int
    sampled: float
    inputs: bytes
    answer: bytes = b""


def read_prediction_log(record: bytes, *, with_answer: bool = False) -> Logged | None:
    """Return the request of a PredictionLog, or None for a log without a Predict request.

    Raises ValueError for other bytes.
    """
    try:
        return _logged(record, with_answer)
    except (DecodeError, FormatError, struct.error) as error:
        raise ValueError(f"a record is not a PredictionLog: {error}") from None


def _logged(record: bytes, with_answer: bool) -> Logged | None:
    time_s, sampled, request, answer = 0, 0.0, None, b""
    for number, value, _ in _fields(record):
        if number == _METADATA and isinstance(value, bytes):
            time_s, sampled = _metadata(value)
        elif number == _PREDICT_LOG and isinstance(value, bytes):
            parts = {field: part for field, part, _ in _fields(value) if isinstance(part, bytes)}
            request = parts.get(_REQUEST)
            answer = parts.get(_RESPONSE, b"") if with_answer else b""
    if request is None:
        return None
    spec = official.ModelSpec()
    inputs = []
    for number, value, raw in _fields(request):
        if number == _MODEL_SPEC and isinstance(value, bytes):
            spec.MergeFromString(value)
        else:
            inputs.append(raw)
    return Logged(spec.name, spec.signature_name, time_s, sampled, b"".join(inputs), answer)


def _metadata(message: bytes) -> tuple[int, float]:
    time_s, sampled = 0, 0.0
    for number, value, _ in _fields(message):
        if number == _TIME and isinstance(value, int):
            time_s = value
        elif number == _SAMPLING and isinstance(value, bytes):
            rates = [part for field, part, _ in _fields(value) if field == _RATE and isinstance(part, bytes)]
            sampled = _DOUBLE.unpack(rates[-1])[0] if rates else 0.0
    return time_s, sampled


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes, bytes]]:
    """Yield each field's number, value (bytes unless a varint) and encoded form, in order."""
    position = 0
    while position < len(message):
        start = position
        tag, position = read_varint(message, position)
        value: int | bytes
        if tag & 7 == _VARINT:
            value, position = read_varint(message, position)
        elif tag & 7 in (_BYTES, *_FIXED_BYTES):
            length, position = (
                read_varint(message, position) if tag & 7 == _BYTES else (_FIXED_BYTES[tag & 7], position)
            )
            value = message[position : position + length]
            position += length
        else:
            raise ValueError(f"a record is not a PredictionLog: unknown wire type {tag & 7}")
        if position > len(message):
            raise ValueError("a record is not a PredictionLog: a field is truncated")
        yield tag >> 3, value, message[start:position]
