"""Learns the layout of inference requests: of a ModelInferRequest, a REST body with raw contents, and a JSON list."""

import math
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np

from tpuserve_formats.errors import FormatError
from tpuserve_formats.oip.datatypes import dtype_of
from tpuserve_formats.oip.raw_tensor import decode_raw
from tpuserve_server.core.terms.errors import ServingError
from tpuserve_server.core.terms.types import Array, Body, ModelSpec
from tpuserve_server.wire.layouts import (
    MOST_TENSORS,
    Frame,
    ListSubject,
    Span,
    Unusual,
    check_frame,
    example_list,
    with_other_contents,
)
from tpuserve_server.wire.oip.infer_json import parse_infer_json
from tpuserve_server.wire.oip.infer_json_response import ResponseForm
from tpuserve_server.wire.oip.infer_proto import parse_infer_request
from tpuserve_server.wire.oip.inference import InferenceRequest
from tpuserve_server.wire.oip.tensor_json import ARRAYS, decode_json
from tpuserve_server.wire.proto_scan import delimited_fields

# Fields of a request with that many inputs, their contents, and as many outputs.
_MOST_FIELDS: Final = 4 * MOST_TENSORS
# Fields of a ModelInferRequest: id and raw_input_contents.
_ID, _RAW_CONTENTS = 3, 7
# Their contents must be checked.
_CHECKED: Final = frozenset({"BYTES", "BOOL"})
_OTHER_ID: Final = b"t"


class _Read(NamedTuple):
    """What a front-end reads in a message."""

    spec: ModelSpec
    output_names: tuple[str, ...]
    inputs: dict[str, Array]
    id: str
    form: ResponseForm | None


class BodySubject(NamedTuple):
    """The parts of a REST request outside of its body: the model, and the length of the JSON before binary data."""

    spec: ModelSpec
    json_bytes: int


def learn_infer_body(body: Body, subject: BodySubject) -> Frame | None:
    """Return the frame of a body of JSON and binary data, or None if it needs more than its numbers.

    The id is part of the frame, because it is in the JSON. The parser proves the frame, as in `learn_infer_request`.
    """
    try:
        check_frame(body, [(subject.json_bytes, len(body))])
        read = _read_body(body, subject)
        spans, start = [], subject.json_bytes
        for name, array in read.inputs.items():
            spans.append(Span(name, array.dtype, array.shape, start, start + array.nbytes))
            start += array.nbytes
        if start != len(body) or not 0 < len(spans) <= MOST_TENSORS:
            return None
        frame = Frame(read.spec, read.output_names, tuple(spans), form=read.form)
        return frame if _is_proved(frame, body, lambda other: _read_body(other, subject)) else None
    except (ServingError, FormatError, Unusual):
        return None


def learn_infer_request(body: Body, _subject: None = None) -> Frame | None:
    """Return the frame of a serialized ModelInferRequest, or None if it needs more than its numbers.

    The positions are found by a walk over the wire format, and then proved: the parser must read another id and other
    contents in the same places as these very bytes, and everything else as before.
    """
    try:
        fields = delimited_fields(body, 0, len(body), _MOST_FIELDS)
        places = [(start, stop) for number, start, stop in fields if number == _RAW_CONTENTS]
        ids = [(start, stop) for number, start, stop in fields if number == _ID]
        check_frame(body, places + ids)
        read = _read(body)
        if len(ids) > 1 or len(places) != len(read.inputs) or not 0 < len(places) <= MOST_TENSORS:
            return None
        if any(array.nbytes != stop - start for array, (start, stop) in zip(read.inputs.values(), places, strict=True)):
            return None
        spans = tuple(
            Span(name, array.dtype, array.shape, *place)
            for (name, array), place in zip(read.inputs.items(), places, strict=True)
        )
        frame = Frame(read.spec, read.output_names, spans, ids[0] if ids else None)
        return frame if _is_proved(frame, body, _read) else None
    except (ServingError, FormatError, Unusual):
        return None


def _read(body: Body) -> _Read:
    """Parse a message as a front-end does. Raises Unusual as `_plain_inputs`."""
    spec, request = parse_infer_request(body)
    return _Read(spec, request.output_names, _plain_inputs(request), request.id, None)


def _read_body(body: Body, subject: BodySubject) -> _Read:
    """Parse a body as a front-end does. Raises Unusual as `_plain_inputs`."""
    request = parse_infer_json(subject.spec.name, body, subject.json_bytes)
    if request.raw_input is not None:
        raise Unusual
    spec = subject.spec.with_signature(request.parameters.signature_name)
    return _Read(spec, request.output_names, _plain_inputs(request), "", ResponseForm.of(request))


def _check_plain(request: InferenceRequest) -> None:
    """Raise Unusual for a request with other parameters, classes or shared memory."""
    parameters = request.parameters
    if request.windows is not None or parameters.priority is not None or parameters.timeout_s is not None:
        raise Unusual
    if any(output.classification for output in request.outputs):
        raise Unusual


def _plain_inputs(request: InferenceRequest) -> dict[str, Array]:
    """Return the inputs. Raises Unusual for other data, and as `_check_plain`."""
    _check_plain(request)
    inputs: dict[str, Array] = {}
    for name, datatype, shape, data in request.inputs:
        if name in inputs or datatype in _CHECKED or not isinstance(data, (bytes, memoryview)):
            raise Unusual
        array = inputs[name] = decode_raw(datatype, shape, data)
        if not array.size:
            raise Unusual
    return inputs


def _is_proved(frame: Frame, body: Body, parse: Callable[[Body], _Read]) -> bool:
    other = with_other_contents(body, frame.spans)
    request_id = ""
    if frame.id_span is not None:
        start, stop = frame.id_span
        request_id = _OTHER_ID.decode() * (stop - start)
        other[start:stop] = request_id.encode()
    read = parse(bytes(other))
    if (read.spec, read.output_names, read.id, read.form) != (frame.spec, frame.output_filter, request_id, frame.form):
        return False
    return list(read.inputs) == [span.name for span in frame.spans] and all(
        (array.dtype, array.shape) == (span.dtype, span.shape)
        and np.ascontiguousarray(array).tobytes() == other[span.start : span.stop]
        for span, array in zip(frame.spans, read.inputs.values(), strict=True)
    )


_KEY: Final = b'"data":'


class InferListForm(NamedTuple):
    """The facts that all requests of a layout share: the input, and the form of the response."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    response: ResponseForm


def find_data(body: Body) -> tuple[int, int]:
    """Return where the list of the first `data` starts and stops. Both are wrong if there is none."""
    key = body.find(_KEY)
    start = body.find(b"[", key) if key >= 0 else -1
    # The list ends before the next member, or the end of its tensor.
    stop = body.find(b"}", start)
    member = body.find(b'"', start, stop)
    return start, body.rfind(b"]", start, stop if member < 0 else member) + 1


def learn_infer_list(skeleton: bytes, subject: ListSubject) -> Frame | None:
    """Return the frame of the bodies with this skeleton of a list, or None if they need more than its numbers.

    The id is part of the frame. The parser proves it: the numbers of an example must be the data of the only input.
    """
    example = example_list(skeleton)
    if example is None:
        return None
    body = b"".join((subject.before, example.text, subject.after))
    try:
        request = parse_infer_json(subject.spec.name, body, None)
        _check_plain(request)
        ((name, datatype, shape, data),) = request.inputs
        if not isinstance(data, ARRAYS):
            return None
        dtype = dtype_of(datatype)
        numbers = decode_json(name, datatype, dtype, math.prod(shape), data).reshape(shape)
    except (ServingError, FormatError, Unusual, ValueError):
        return None
    if not np.array_equal(numbers.ravel(), example.numbers.ravel().astype(dtype)):
        return None
    form = InferListForm(name, dtype, numbers.shape, ResponseForm.of(request))
    spec = subject.spec.with_signature(request.parameters.signature_name)
    return Frame(spec, request.output_names, (), form=form)
