"""Triton's messages for tensors whose data cannot be decoded. They walk the data again, to find the fault."""

import struct
from typing import TYPE_CHECKING, Final

from tpuserve_formats.oip.datatypes import BYTES, dtype_of
from tpuserve_formats.oip.raw_tensor import Buffer
from tpuserve_server.wire.oip.checks import Subject
from tpuserve_server.wire.oip.inference import InputTensor

if TYPE_CHECKING:
    from tpuserve_formats.messages.oip import InferTensorContents

_LENGTH: Final = struct.Struct("<I")
# The datatype that Triton names for a field (server, infer_handler.cc, InferGRPCToInput).
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
_SHARED_FIELDS: Final = {
    "INT8": "int_contents",
    "INT16": "int_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
}


def explain_strings(subject: Subject, name: str, count: int, data: Buffer) -> str:
    """Return the fault of a buffer that does not hold `count` strings (core, infer_request.cc)."""
    about = f"inference input '{name}' for model '{subject.model}'"
    position, found = 0, 0
    while position < len(data):
        remaining = len(data) - position
        if found == count:
            return f"{subject.prefix}unexpected number of string elements {found + 1} for {about}, expecting {count}"
        if remaining < _LENGTH.size:
            return (
                f"{subject.prefix}incomplete string length indicator for {about}, expecting {_LENGTH.size} bytes but "
                f"only {remaining} bytes available. Please make sure the string length indicator is in one buffer."
            )
        (length,) = _LENGTH.unpack_from(data, position)
        position += _LENGTH.size + length
        if position > len(data):
            return (
                f"{subject.prefix}incomplete string data for {about}, expecting string of length {length} but only "
                f"{remaining - _LENGTH.size} bytes available"
            )
        found += 1
    return f"{subject.prefix}expected {count} string elements for {about}, got {found}"


def explain_typed(subject: Subject, tensor: InputTensor, count: int, contents: "InferTensorContents") -> str:
    """Return the fault of typed contents in another field or of another number, or "" for any other fault."""
    about = f"for input tensor '{tensor.name}' for model '{subject.model}'"
    fields = contents.ListFields()
    if len(fields) > 1:
        return f"unexpected explicit tensor data {about}, binary data was already supplied."
    if not fields:
        got, field = 0, ""
    else:
        ((descriptor, values),) = fields
        got, field = len(values), descriptor.name
    own = _FIELD_DATATYPES.get(field, "") == tensor.datatype or _SHARED_FIELDS.get(tensor.datatype) == field
    if field and not own:
        return (
            f"unexpected explicit tensor data {about} of type '{_FIELD_DATATYPES[field]}', expected datatype "
            f"'{tensor.datatype}'"
        )
    if got == count or (not field and tensor.datatype in ("FP16", "BF16")):
        return ""
    if tensor.datatype == BYTES:
        return (
            f"{subject.prefix}expected {count} string elements for inference input '{tensor.name}' for model "
            f"'{subject.model}', got {got}"
        )
    item_bytes = dtype_of(tensor.datatype).itemsize
    return (
        f"{subject.prefix}input byte size mismatch for input '{tensor.name}' for model '{subject.model}'. Expected "
        f"{count * item_bytes}, got {got * item_bytes}"
    )
