"""PredictRequest and PredictResponse: bytes to the core's types and back."""

from functools import lru_cache

from google.protobuf.message import DecodeError

from tpuserve_formats.messages.official import PredictRequest
from tpuserve_formats.varint import varint
from tpuserve_server.core.errors import InvalidArgument
from tpuserve_server.core.types import Array, ModelSpec, PredictResult, ServableId, Tensors
from tpuserve_server.wire.model_spec import decode_model_spec, encode_model_spec
from tpuserve_server.wire.tensor_proto import RepeatBudget, decode_tensor, encode_tensor


def parse_predict_request(body: bytes) -> PredictRequest:
    """The message in `body`; raises InvalidArgument when there is none."""
    try:
        return PredictRequest.FromString(body)
    except DecodeError:
        raise InvalidArgument("Malformed PredictRequest") from None


def decode_predict_spec(proto: PredictRequest) -> ModelSpec:
    """The request's model spec; raises InvalidArgument when it is missing or names no model."""
    if not proto.HasField("model_spec"):
        raise InvalidArgument("Missing ModelSpec")
    spec = decode_model_spec(proto.model_spec)
    if not spec.name:
        raise InvalidArgument("ModelSpec has no name specified.")
    return spec


def decode_predict_inputs(proto: PredictRequest, max_repeated_bytes: int) -> dict[str, Array]:
    """The tensors as arrays, some of them views of the message; raises InvalidArgument.

    A message of any size can ask for `max_repeated_bytes` of memory, so see first that it is for a model that is here
    and has its inputs.
    """
    budget = RepeatBudget(max_repeated_bytes)
    return {name: decode_tensor(name, tensor, budget) for name, tensor in proto.inputs.items()}


def encode_predict_request(servable: ServableId, signature_name: str, inputs: Tensors) -> bytes:
    """A serialized PredictRequest for just this version and signature, its tensors as tensor_content."""
    spec = encode_model_spec(servable, signature_name)
    parts = [b"\x0a", varint(len(spec)), spec]
    for name, array in inputs.items():
        tensor = encode_tensor(array, as_content=True)
        entry = b"".join((_map_key(name), b"\x12", varint(len(tensor)), tensor))
        # inputs = 2: {key = 1, value = 2}
        parts += (b"\x12", varint(len(entry)), entry)
    return b"".join(parts)


def encode_predict_response(result: PredictResult, *, as_content: bool = False) -> bytes:
    """A serialized PredictResponse, written by hand: a third of what filling messages costs, and no lists.

    The spec in it carries the numeric version and the resolved signature, never a label.
    """
    parts: list[bytes] = []
    for name, array in result.outputs.items():
        tensor = encode_tensor(array, as_content=as_content)
        key = _map_key(name)
        tensor_length = varint(len(tensor))
        entry_length = len(key) + 1 + len(tensor_length) + len(tensor)
        # outputs = 1: {key = 1, value = 2}
        parts += (b"\x0a", varint(entry_length), key, b"\x12", tensor_length, tensor)
    parts.append(_response_spec(result.servable, result.signature_name))
    return b"".join(parts)


@lru_cache(maxsize=1024)
def _map_key(name: str) -> bytes:
    encoded = name.encode()
    return b"\x0a" + varint(len(encoded)) + encoded


@lru_cache(maxsize=1024)
def _response_spec(servable: ServableId, signature_name: str) -> bytes:
    """model_spec = 2, tag and all."""
    spec = encode_model_spec(servable, signature_name)
    return b"".join((b"\x12", varint(len(spec)), spec))
