"""Input tensors of a request to arrays that match a signature.

The tensors are decoded first and checked afterwards, because almost all requests are valid. No decoder allocates memory
for a size that a request only declares. After a fault `explain.py` checks the request again, in Triton's order.
"""

import math
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tpuserve_formats.dtypes import STRING
from tpuserve_formats.errors import FormatError
from tpuserve_formats.oip.datatypes import dtype_of
from tpuserve_formats.oip.raw_tensor import decode_raw
from tpuserve_formats.oip.typed_contents import decode_typed
from tpuserve_server.core.serving.decoded import DEFAULT_DECODED, STRING_BYTES, DecodedBudget
from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.core.terms.types import Array, Signature, TensorSpec
from tpuserve_server.wire.oip.checks import Subject, check_names
from tpuserve_server.wire.oip.explain import explain_mismatch
from tpuserve_server.wire.oip.inference import InputTensor
from tpuserve_server.wire.oip.metadata import datatype_text
from tpuserve_server.wire.oip.tensor_json import JsonData, decode_json

if TYPE_CHECKING:
    from tpuserve_server.wire.oip.inference import InferenceRequest, TensorData


# The data of a REST request without JSON: the bytes of the model's only input. The server deduces the shape.
#
# Source: Triton's binary tensor data extension, "Raw Binary Request", and core, infer_request.cc.

_LENGTH = struct.Struct("<I")


def raw_input_tensor(subject: Subject, signature: Signature, body: bytes) -> InputTensor:
    """Return the only input with `body` as its data, and a shape that fits its size.

    One unknown dimension follows from the size. If there are two and one is the batch dimension, the batch has one row.

    Raises:
        InvalidArgument: the model has several inputs, or the shape cannot be deduced.
    """
    if len(signature.inputs) != 1:
        raise InvalidArgument(
            f"{subject.prefix}Raw request must only have 1 input (found 1) to be deduced but got "
            f"{len(signature.inputs)} inputs in '{subject.model}' model configuration"
        )
    ((name, spec),) = signature.inputs.items()
    if spec.dtype == STRING:
        return InputTensor(name, "BYTES", _single(subject, name, spec), _LENGTH.pack(len(body)) + body)
    return InputTensor(name, datatype_text(spec), _deduced(subject, name, spec, len(body)), body)


def _single(subject: Subject, name: str, spec: TensorSpec) -> list[int]:
    if spec.shape is None or any(size not in (None, 1) for size in spec.shape):
        raise InvalidArgument(
            f"{subject.prefix}For BYTE datatype raw input '{name}', the model must have input shape [1]"
        )
    return [1] * len(spec.shape)


def _deduced(subject: Subject, name: str, spec: TensorSpec, size_bytes: int) -> list[int]:
    if spec.shape is None:
        return [size_bytes // spec.dtype.itemsize]
    shape = list(spec.shape)
    if shape.count(None) == 2 and shape[0] is None:
        shape[0] = 1
    if shape.count(None) > 1:
        raise InvalidArgument(
            f"{subject.prefix}The shape of the raw input '{name}' can not be deduced because there are more than one "
            "variable-sized dimension"
        )
    # The check of the size refuses a remainder.
    unit_bytes = math.prod(size for size in shape if size is not None) * spec.dtype.itemsize
    return [size_bytes // unit_bytes if size is None and unit_bytes else size or 0 for size in shape]


_BUFFERS = (bytes, memoryview)


def decode_inputs(
    model: str,
    signature: Signature,
    request: "InferenceRequest",
    budget: DecodedBudget = DEFAULT_DECODED,
    *,
    quickly: bool = False,
) -> dict[str, Array]:
    """Return the request's arrays by name. Raw contents become views of the request's bytes, except strings.

    Raises:
        TakesLong: with `quickly`, JSON data would take more than a millisecond.
        InvalidArgument: the request does not match the signature, its data do not match its shapes, or its strings
            would take more than `budget`.
        Unimplemented: the protocol has no datatype for a dtype of the model.
    """
    tensors, specs = request.inputs, signature.inputs
    if request.raw_input is not None:
        tensors = [raw_input_tensor(Subject(request.id, model), signature, request.raw_input)]
    arrays: dict[str, Array] = {}
    for name, datatype, shape, data in tensors:
        spec = specs.get(name)
        if spec is None:
            break
        try:
            array = _decode(name, datatype, shape, data, budget, quickly=quickly)
        except FormatError as error:
            raise explain_mismatch(Subject(request.id, model), signature, request, tensors, str(error)) from None
        if array.dtype != spec.dtype or not spec.accepts_shape(array.shape):
            raise explain_mismatch(Subject(request.id, model), signature, request, tensors, "")
        arrays[name] = array
    if len(arrays) != len(specs) or len(arrays) != len(tensors) or request.outputs:
        check_names(Subject(request.id, model), signature, request)
    return arrays


def _decode(
    name: str, datatype: str, shape: Sequence[int], data: "TensorData", budget: DecodedBudget, *, quickly: bool
) -> Array:
    if isinstance(data, _BUFFERS):
        if datatype == "BYTES":
            # Each string has a length of four bytes. A shorter buffer is refused below.
            strings = min(math.prod(shape), len(data) // 4)
            budget.check(strings * STRING_BYTES, f"{strings} strings")
        return decode_raw(datatype, shape, data)
    if not isinstance(data, JsonData):
        return decode_typed(datatype, shape, data)
    flat = decode_json(name, datatype, dtype_of(datatype), math.prod(shape), data, quickly=quickly)
    try:
        return flat.reshape(shape)
    except ValueError:
        # numpy refuses more than 64 dimensions, and a huge shape even if the array is empty.
        raise FormatError(f"shape {list(shape)} is too large") from None
