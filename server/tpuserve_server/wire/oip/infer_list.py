"""Learns the layout of inference requests over REST whose only input is a JSON list of numbers."""

import math
from typing import Any, Final, NamedTuple

import numpy as np

from tpuserve_formats.errors import FormatError
from tpuserve_formats.oip.datatypes import dtype_of
from tpuserve_server.core.terms.errors import ServingError
from tpuserve_server.wire.json.number_list import ListSubject, example_list
from tpuserve_server.wire.layouts import Frame, Unusual
from tpuserve_server.wire.oip.infer_json import parse_infer_json
from tpuserve_server.wire.oip.infer_json_response import ResponseForm
from tpuserve_server.wire.oip.infer_layout import check_plain
from tpuserve_server.wire.oip.tensor_json import JsonData, decode_json

_KEY: Final = b'"data":'


class InferListForm(NamedTuple):
    """The facts that all requests of a layout share: the input, and the form of the response."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    response: ResponseForm


def find_data(body: bytes) -> tuple[int, int]:
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
        check_plain(request)
        ((name, datatype, shape, data),) = request.inputs
        if not isinstance(data, JsonData):
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
