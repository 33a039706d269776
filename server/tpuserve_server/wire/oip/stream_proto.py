"""ModelStreamInferResponse: a response or an error of one request of a stream."""

from typing import Final

from google.protobuf.message import DecodeError

from tpuserve_formats.messages.oip import ModelInferRequest, ModelInferResponse, ModelStreamInferResponse
from tpuserve_formats.varint import varint

_FINAL: Final = "triton_final_response"


def _final_parameter() -> bytes:
    response = ModelInferResponse()
    response.parameters[_FINAL].bool_param = True
    return response.SerializeToString()


# Every response is its request's last. Serialized messages one after the other are one message with the fields of both.
_IS_FINAL: Final = _final_parameter()


def encode_stream_response(response: bytes) -> bytes:
    """Return the stream's message with a serialized ModelInferResponse, marked as the last of its request."""
    # infer_response = 2
    return b"".join((b"\x12", varint(len(response) + len(_IS_FINAL)), response, _IS_FINAL))


def encode_stream_error(request: bytes, message: str) -> bytes:
    """Return the stream's message for an error of a serialized request, with its id and model."""
    response = ModelStreamInferResponse(error_message=message)
    response.infer_response.MergeFromString(_IS_FINAL)
    try:
        proto = ModelInferRequest.FromString(request)
    except DecodeError:
        return response.SerializeToString()
    response.infer_response.id = proto.id
    response.infer_response.model_name = proto.model_name
    response.infer_response.model_version = proto.model_version
    return response.SerializeToString()
