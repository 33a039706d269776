"""The error for a request that does not match a signature: Triton's, for the first fault in Triton's order.

Source: core, infer_request.cc (Normalize), and server, infer_handler.cc (InferGRPCToInput).
"""

import struct
from typing import TYPE_CHECKING, Final

from tpuserve_formats.oip.datatypes import BYTES, dtype_of
from tpuserve_server.core.terms.errors import InvalidArgument, shown_names
from tpuserve_server.core.terms.types import Signature
from tpuserve_server.wire.oip.checks import Subject, check_input, check_names, check_size
from tpuserve_server.wire.oip.tensor_json import JsonData

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuserve_formats.messages.oip import InferTensorContents
    from tpuserve_server.wire.oip.inference import InferenceRequest, InputTensor

_LENGTH: Final = struct.Struct("<I")
# The datatype that Triton names for a field.
_FIELD_DATATYPES: Final = {
    "bool_contents": "BOOL",
    "int_contents": "INT32",
    "int64_contents": "INT64",
    "uint_contents": "UINT32",
    "uint64_contents": "UINT64",
    "fp32_contents": "FP32",
    "fp64_contents": "FP64",
    "bytes_contents": BYTES,
}
# Datatypes that share the field of a larger one.
_SHARED_FIELDS: Final = {
    "INT8": "int_contents",
    "INT16": "int_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
}


def explain_mismatch(
    subject: Subject, signature: Signature, request: "InferenceRequest", tensors: "Sequence[InputTensor]", fault: str
) -> InvalidArgument:
    """Return or raise the error for `tensors` that do not match. `fault` is the decoder's, for faults without another.

    Raises:
        InvalidArgument: from one of the checks.
        Unimplemented: the protocol has no datatype for a dtype of the model.
    """
    if request.raw_input is None:
        check_names(subject, signature, request)
    counts = [check_input(subject, signature.inputs[tensor.name], tensor) for tensor in tensors]
    for tensor, count in zip(tensors, counts, strict=True):
        _check_data(subject, tensor, count)
    names = shown_names([f"'{tensor.name}'" for tensor in tensors], ", ")
    return InvalidArgument(f"{subject.prefix}input {names} for model '{subject.model}': {fault}")


def _check_data(subject: Subject, tensor: "InputTensor", count: int) -> None:
    data = tensor.data
    if isinstance(data, JsonData):
        # Its decoder raises Triton's errors itself.
        return
    if not isinstance(data, bytes | memoryview):
        _check_typed(subject, tensor, count, data)
    elif tensor.datatype == BYTES:
        _check_strings(subject, tensor.name, count, data)
    else:
        check_size(subject, tensor, count, len(data))


def _check_strings(subject: Subject, name: str, count: int, data: bytes | memoryview) -> None:
    """Check that a buffer holds `count` strings. Raises InvalidArgument."""
    about = f"inference input '{name}' for model '{subject.model}'"
    position, found = 0, 0
    while position < len(data):
        remaining = len(data) - position
        if found == count:
            raise InvalidArgument(
                f"{subject.prefix}unexpected number of string elements {found + 1} for {about}, expecting {count}"
            )
        if remaining < _LENGTH.size:
            raise InvalidArgument(
                f"{subject.prefix}incomplete string length indicator for {about}, expecting {_LENGTH.size} bytes but "
                f"only {remaining} bytes available. Please make sure the string length indicator is in one buffer."
            )
        (length,) = _LENGTH.unpack_from(data, position)
        position += _LENGTH.size + length
        if position > len(data):
            raise InvalidArgument(
                f"{subject.prefix}incomplete string data for {about}, expecting string of length {length} but only "
                f"{remaining - _LENGTH.size} bytes available"
            )
        found += 1
    if found != count:
        raise InvalidArgument(f"{subject.prefix}expected {count} string elements for {about}, got {found}")


def _check_typed(subject: Subject, tensor: "InputTensor", count: int, contents: "InferTensorContents") -> None:
    """Check the field and the number of typed contents. Raises InvalidArgument."""
    about = f"for input tensor '{tensor.name}' for model '{subject.model}'"
    fields = {descriptor.name: len(values) for descriptor, values in contents.ListFields()}
    if len(fields) > 1:
        raise InvalidArgument(f"unexpected explicit tensor data {about}, binary data was already supplied.")
    for field in fields:
        if _FIELD_DATATYPES[field] != tensor.datatype and _SHARED_FIELDS.get(tensor.datatype) != field:
            raise InvalidArgument(
                f"unexpected explicit tensor data {about} of type '{_FIELD_DATATYPES[field]}', expected datatype "
                f"'{tensor.datatype}'"
            )
    got = sum(fields.values())
    if tensor.datatype != BYTES:
        check_size(subject, tensor, count, got * dtype_of(tensor.datatype).itemsize)
    elif got != count:
        raise InvalidArgument(
            f"{subject.prefix}expected {count} string elements for inference input '{tensor.name}' for model "
            f"'{subject.model}', got {got}"
        )
