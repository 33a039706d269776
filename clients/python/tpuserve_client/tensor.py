"""Conversion between TensorProto and numpy with the client's errors. `tpuserve_formats` contains the codec.

Requests carry `tensor_content`. Responses carry that or the typed fields (`float_val`, …), TensorFlow Serving's
default.
"""

from collections.abc import Mapping

from tpuserve_client import dtypes
from tpuserve_client.arrays import little_endian
from tpuserve_client.dtypes import Array
from tpuserve_client.errors import Internal
from tpuserve_formats import predict_request
from tpuserve_formats.messages.official import TensorProto
from tpuserve_formats.tensor_proto import UNLIMITED, WrongCount, decode_tensor, encode_tensor


def to_proto(array: Array) -> TensorProto:
    """Convert an array from `as_array` to a TensorProto with `tensor_content` (little-endian, row-major) or
    `string_val`.
    """
    return TensorProto.FromString(encode_tensor(little_endian(array), as_content=True))


def encode_inputs(inputs: Mapping[str, Array]) -> bytes:
    """Encode arrays from `as_array` as the field `inputs` of a serialized PredictRequest, like `to_proto`."""
    return predict_request.encode_inputs({name: little_endian(array) for name, array in inputs.items()})


def from_proto(proto: TensorProto) -> Array:
    """Return the array in a TensorProto. If there are fewer values than elements, the last value repeats, as in
    TensorFlow.

    Numbers in `tensor_content` are a read-only view of the message's bytes. Strings have dtype object with `bytes`
    elements. Raises Internal if the message contradicts itself.
    """
    try:
        return decode_tensor(proto, UNLIMITED, lenient=True)
    except ValueError as error:
        raise _refusal(proto, error) from None


def _refusal(proto: TensorProto, error: ValueError) -> Internal:
    dtype = dtypes.from_wire(proto.dtype)
    if dtype is None:
        return Internal(f"The server sent a tensor of type {proto.dtype}, which numpy does not have.")
    shape = [dim.size for dim in proto.tensor_shape.dim]
    if proto.tensor_shape.unknown_rank or any(size < 0 for size in shape):
        return Internal(f"The server sent a tensor without a full shape: {shape}.")
    reason = str(error)
    if isinstance(error, WrongCount) and error.received is not None:
        reason = f"expected {error.expected} values, got {error.received}"
    return Internal(f"The server sent a {dtypes.describe(dtype)}{shape} tensor that is invalid: {reason}")
