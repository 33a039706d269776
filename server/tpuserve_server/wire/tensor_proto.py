"""Decodes TensorProto with the codec of `tpuserve_formats`, and raises the server's errors."""

from tpuserve_formats.dtypes import Array
from tpuserve_formats.errors import FormatError
from tpuserve_formats.messages.official import TensorProto
from tpuserve_formats.tensor_proto import RepeatBudget
from tpuserve_formats.tensor_proto import decode_tensor as decode
from tpuserve_server.core.terms.errors import InvalidArgument


def decode_tensor(alias: str, proto: TensorProto, budget: RepeatBudget | None = None) -> Array:
    """Decode `proto` to an array. Raises InvalidArgument that names `alias`, the name of the input."""
    try:
        return decode(proto, budget)
    except FormatError as error:
        raise unreadable_tensor(alias, error) from None


def unreadable_tensor(alias: str, error: FormatError) -> InvalidArgument:
    """Return the error for an input whose dtype, shape and data do not match."""
    # Upstream's message ends after the name (tensorflow_serving/servables/tensorflow/tfrt_predict_util.cc).
    return InvalidArgument(f"tensor parsing error: {alias}: {error}")
