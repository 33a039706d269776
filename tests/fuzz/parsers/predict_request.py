"""PredictRequest: the scan before protobuf's parser, and the tensors. The second opinion is the official message."""

from google.protobuf.message import DecodeError
from tensorflow_serving.apis import predict_pb2

from tests.fuzz.refusals import check_refusal
from tests.fuzz.target import Target, expect
from tpuserve_server.core.serving.budgets import DecodedBudget
from tpuserve_server.core.terms.errors import InvalidArgument, ServingError
from tpuserve_server.core.terms.types import ServableId
from tpuserve_server.wire.predict_proto import (
    decode_predict_inputs,
    decode_predict_spec,
    encode_predict_request,
    parse_predict_request,
)
from tpuserve_server.wire.proto_scan import PREDICT_REQUEST, check_structure, is_quick

_REPEATED_BYTES = 1 << 20
# Larger than any input needs.
BUDGET = DecodedBudget(1 << 30)
# protobuf.dev/programming-guides/encoding, start and end of a group.
_GROUP_TYPES = (3, 4)


def run(data: bytes) -> bool:
    """Parse as the server does. Whatever protobuf accepts, the scan must accept, except groups and too many dims."""
    is_official = _is_official(data)
    try:
        proto = parse_predict_request(data)
    except InvalidArgument as error:
        expect(not is_official, "the official message parses")
        check_refusal(error)
        return False
    expect(is_official, "the official message does not parse")
    is_quick(data, PREDICT_REQUEST)
    _check_scan(data)
    try:
        spec = decode_predict_spec(proto)
        inputs = decode_predict_inputs(proto, _REPEATED_BYTES)
    except ServingError as error:
        check_refusal(error)
        return False
    again = encode_predict_request(ServableId(spec.name, spec.version or 0), spec.signature_name, inputs)
    expect(len(predict_pb2.PredictRequest.FromString(again).inputs) == len(inputs), "an input is lost")
    return True


def has_group(data: bytes) -> bool:
    """Return whether a message may have a group, which the scan refuses. A necessary condition."""
    return any(byte & 7 in _GROUP_TYPES for byte in data)


def _is_official(data: bytes) -> bool:
    try:
        predict_pb2.PredictRequest.FromString(data)
    except DecodeError:
        return False
    return True


def _check_scan(data: bytes) -> None:
    try:
        check_structure(data, PREDICT_REQUEST, BUDGET)
    except InvalidArgument as error:
        expect("dimensions" in error.message or has_group(data), f"the scan refuses a valid message: {error.message}")


TARGET = Target(run)
