"""TensorProto to numpy and back, by the client's errors: the codec is the one of `tpuserve_formats`.

Requests carry `tensor_content`. Responses may carry that or the typed fields (`float_val`, …), which TensorFlow Serving
uses by default.
"""

from collections.abc import Mapping

from tpuserve_client import dtypes
from tpuserve_client.dtypes import Array
from tpuserve_client.errors import Internal
from tpuserve_formats import predict_request
from tpuserve_formats.messages.official import TensorProto
from tpuserve_formats.tensor_proto import UNLIMITED, WrongCount, decode_tensor, encode_tensor


def to_proto(array: Array) -> TensorProto:
    """An array from `as_array` as a TensorProto: `tensor_content` (little-endian, row by row), or `string_val`."""
    return TensorProto.FromString(encode_tensor(_little_endian(array), as_content=True))


def encode_inputs(inputs: Mapping[str, Array]) -> bytes:
    """Arrays from `as_array` as the field `inputs` of a serialized PredictRequest, as `to_proto` makes them."""
    return predict_request.encode_inputs({name: _little_endian(array) for name, array in inputs.items()})


def _little_endian(array: Array) -> Array:
    # A no-op on little-endian machines' own arrays; ml_dtypes know no byte order but the machine's.
    return array.astype(array.dtype.newbyteorder("<"), copy=False)


def from_proto(proto: TensorProto) -> Array:
    """The array in a TensorProto. Fewer values than elements repeat the last one, as everywhere in TensorFlow.

    Numbers in `tensor_content` are a read-only view of the message's bytes. Strings come as dtype object with `bytes`
    elements. Internal if the message contradicts itself.
    """
    try:
        return decode_tensor(proto, UNLIMITED, lenient=True)
    except ValueError as error:
        raise _refusal(proto, error) from None


def _refusal(proto: TensorProto, error: ValueError) -> Internal:
    dtype = dtypes.from_wire(proto.dtype)
    if dtype is None:
        return Internal(f"The server sent a tensor of type {proto.dtype}, which has no numpy form.")
    shape = [dim.size for dim in proto.tensor_shape.dim]
    if proto.tensor_shape.unknown_rank or any(size < 0 for size in shape):
        return Internal(f"The server sent a tensor without a full shape: {shape}.")
    reason = str(error)
    if isinstance(error, WrongCount) and error.came is not None:
        reason = f"{error.expected} values expected, {error.came} came"
    return Internal(f"The server sent a {dtypes.describe(dtype)}{shape} tensor that is broken: {reason}")
