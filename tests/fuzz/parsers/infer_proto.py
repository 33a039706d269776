"""ModelInferRequest over gRPC: the split of raw contents against protobuf's parser, and the decoded tensors."""

from google.protobuf.message import DecodeError

from tests.fuzz.arrays import expect_all_same
from tests.fuzz.parsers.infer_signature import signature_for
from tests.fuzz.parsers.predict_request import BUDGET, has_group
from tests.fuzz.refusals import check_refusal
from tests.fuzz.target import Target, expect
from tpuserve_formats.messages.oip import ModelInferRequest
from tpuserve_server.core.terms.errors import InvalidArgument, ServingError
from tpuserve_server.core.terms.types import ServableId
from tpuserve_server.wire.oip.decoding import decode_inputs
from tpuserve_server.wire.oip.infer_proto import (
    ParsedRequest,
    encode_infer_response,
    parse_infer_request,
    split_request,
)
from tpuserve_server.wire.oip.inference import InferenceResult
from tpuserve_server.wire.proto_scan import INFER_REQUEST, check_structure, is_quick


def run(data: bytes) -> bool:
    """Parse as the server does, and compare with the message of protobuf."""
    proto = _message(data)
    is_quick(data, INFER_REQUEST)
    if proto is not None:
        _check_scan(data)
        _check_split(data, proto)
    try:
        parsed = parse_infer_request(data)
        arrays = decode_inputs("m", signature_for(parsed.request), parsed.request)
    except ServingError as error:
        check_refusal(error)
        return False
    expect(proto is not None, "protobuf refuses the request")
    encode_infer_response(InferenceResult(parsed.request.id, ServableId("m", 1), arrays, {}, True))
    if proto is not None and proto.raw_input_contents:
        _compare_typed(parsed)
    return True


def _message(data: bytes) -> ModelInferRequest | None:
    try:
        return ModelInferRequest.FromString(data)
    except DecodeError:
        return None


def _check_scan(data: bytes) -> None:
    try:
        check_structure(data, INFER_REQUEST, BUDGET)
    except InvalidArgument as error:
        expect("dimensions" in error.message or has_group(data), f"the scan refuses a message: {error.message}")


def _check_split(data: bytes, proto: ModelInferRequest) -> None:
    split = split_request(data)
    if split is None:
        return
    expect(list(map(bytes, split.raw)) == list(proto.raw_input_contents), "the raw contents differ")
    expect(split.id == proto.id, "the ids differ")
    rest = ModelInferRequest.FromString(data)
    rest.ClearField("raw_input_contents")
    rest.ClearField("id")
    head = ModelInferRequest.FromString(split.head)
    expect(head.SerializeToString(deterministic=True) == rest.SerializeToString(deterministic=True), "heads differ")


def _compare_typed(parsed: ParsedRequest) -> None:
    """Decode again from a copy of the raw contents, which are views of the message."""
    request = parsed.request
    copied = request._replace(inputs=[tensor._replace(data=bytes(tensor.data)) for tensor in request.inputs])  # type: ignore[arg-type]  # raw contents
    expect_all_same(
        decode_inputs("m", signature_for(copied), copied), decode_inputs("m", signature_for(request), request)
    )


TARGET = Target(run, words=(b"FP32", b"BYTES", b"BOOL", b"INT8", b"UINT16", b"BF16", b"\x3a", b"\x2a", b"\x1a"))
