"""The data of a REST request without JSON: the bytes of the model's only input. The server deduces the shape.

Source: Triton's binary tensor data extension, "Raw Binary Request", and core, infer_request.cc.
"""

import math
import struct

from tpuserve_formats.dtypes import STRING
from tpuserve_server.core.errors import InvalidArgument
from tpuserve_server.core.types import Signature, TensorSpec
from tpuserve_server.wire.oip.checks import Subject
from tpuserve_server.wire.oip.inference import InputTensor
from tpuserve_server.wire.oip.metadata import datatype_text

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
