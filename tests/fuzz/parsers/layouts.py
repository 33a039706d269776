"""Layouts of requests: a message that has the layout of another one is read as the parser reads it."""

from typing import NamedTuple

from tests.fuzz.arrays import expect_all_same
from tests.fuzz.target import Target, expect
from tpuserve_formats.oip.raw_tensor import decode_raw
from tpuserve_server.core.terms.types import Array, ModelSpec
from tpuserve_server.wire.layouts import Layout
from tpuserve_server.wire.oip.infer_json import parse_infer_json
from tpuserve_server.wire.oip.infer_layout import BodySubject, learn_infer_body, learn_infer_request
from tpuserve_server.wire.oip.infer_proto import parse_infer_request
from tpuserve_server.wire.predict_layout import learn_predict_request
from tpuserve_server.wire.predict_proto import decode_predict_inputs, decode_predict_spec, parse_predict_request

# The first byte has the number of edits, and the protocol. An edit is a position of two bytes, and a byte.
_EDITS, _IS_INFER, _IS_REST, _EDIT_BYTES = 7, 8, 16, 3


class _Read(NamedTuple):
    spec: ModelSpec
    output_names: tuple[str, ...]
    id: str
    inputs: dict[str, Array]


def run(data: bytes) -> bool:
    """Learn the layout of a message, change bytes of the message, and compare both readers if the layout still fits."""
    if not data:
        return False
    end = 1 + (data[0] & _EDITS) * _EDIT_BYTES
    edits, body = data[1:end], data[end:]
    subject = BodySubject(ModelSpec("m"), body.rfind(b"}") + 1) if data[0] & _IS_REST else None
    is_infer = bool(data[0] & _IS_INFER)
    if subject is not None:
        frame = learn_infer_body(body, subject)
    else:
        frame = (learn_infer_request if is_infer else learn_predict_request)(body)
    if frame is None:
        return False
    layout = Layout(frame, body, subject)
    expect(layout.fits(body), "a message has not its own layout")
    for message in (body, _edited(body, edits)):
        if layout.fits(message):
            if subject is not None:
                _compare(layout, message, _rest(message, subject))
            else:
                _compare(layout, message, _infer(message) if is_infer else _predict(message))
    return True


def _edited(body: bytes, edits: bytes) -> bytes:
    changed = bytearray(body)
    for start in range(0, len(edits), _EDIT_BYTES):
        changed[int.from_bytes(edits[start : start + 2], "big") % len(body)] = edits[start + 2]
    return bytes(changed)


def _compare(layout: Layout, message: bytes, read: _Read) -> None:
    expect(layout.spec == read.spec, "the specs differ")
    expect(layout.output_filter == read.output_names, "the requested outputs differ")
    expect(layout.read_id(message).decode() == read.id, "the ids differ")
    expect_all_same(layout.inputs(message), read.inputs)


def _predict(message: bytes) -> _Read:
    proto = parse_predict_request(message)
    return _Read(decode_predict_spec(proto), tuple(proto.output_filter), "", decode_predict_inputs(proto, 0))


def _infer(message: bytes) -> _Read:
    spec, request = parse_infer_request(message)
    inputs = {name: decode_raw(datatype, shape, bytes(data)) for name, datatype, shape, data in request.inputs}  # type: ignore[arg-type]  # raw contents
    return _Read(spec, request.output_names, request.id, inputs)


def _rest(message: bytes, subject: BodySubject) -> _Read:
    request = parse_infer_json(subject.spec.name, message, subject.json_bytes)
    spec = ModelSpec(subject.spec.name, signature_name=request.parameters.signature_name or "")
    inputs = {name: decode_raw(datatype, shape, bytes(data)) for name, datatype, shape, data in request.inputs}  # type: ignore[arg-type]  # binary data
    return _Read(spec, request.output_names, "", inputs)


TARGET = Target(run, words=(b"FP32", b"INT8", b"UINT16", b"BF16", b"\x3a", b"\x1a", b"\x22", b"\x12"))
